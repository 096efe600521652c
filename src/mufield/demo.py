"""The demonstration: a population learns to spread over four rooms."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Array, Bool, Float
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from . import viz
from .environments.four_rooms import four_rooms
from .flow.flow import Rollout
from .flow.moves import MoveFlow
from .learning.m3ucrl import M3UCRL
from .learning.run import LearnResult, learn
from .planning.mirror import MirrorAscent
from .planning.plan import plan
from .policies.tables import random_policy
from .space.grid import Grid
from .space.measure import entropy
from .systems import SimulatedSystem

PANELS = (0, 5, 10, 20)
"""Steps of the still pictures."""

EPISODES = 15

PAPER_LEARNED, PAPER_KNOWN = 77.86, 78.26
"""J that the paper reports: after 30 episodes, and with known motion."""


@dataclass(frozen=True, eq=False)
class Shown:
    """One policy's part of the demonstration."""

    name: str
    rollout: Rollout
    arrows: Float[Array, "steps cells 2"]

    @property
    def entropies(self) -> Float[np.ndarray, "steps_and_end"]:
        """Entropy of the population at each step, in nats."""
        return np.asarray(entropy(self.rollout.mass))

    def __len__(self) -> int:
        return len(self.rollout.mass)


@dataclass(frozen=True)
class References:
    """What can be reached when the motion is known.

    Attributes:
        table: J of the best deterministic plan found.
        lower: J of the best randomised plan found.
        upper: Certified: no randomised policy on the same moves earns more.
    """

    table: float
    lower: float
    upper: float


def run(
    output_dir: Path,
    *,
    episodes: int = EPISODES,
    learner: M3UCRL | None = None,
    console: Console | None = None,
) -> list[Path]:
    """Learns the four rooms, compares with what is possible, and draws what happened.

    Args:
        output_dir: Directory for the pictures; made if it does not exist.
        episodes: Number of episodes.
        learner: The learner; the default one if none is given.
        console: Where tables are printed; standard output by default.

    Returns:
        The files that were written.
    """
    output_dir.mkdir(parents=True, exist_ok=True)
    console = console or Console()
    system = four_rooms()
    grid = system.problem.grid
    console.print("The motion is unknown; every episode is one run of the whole population.")
    references = _references(system)
    result = learn(
        system, learner or M3UCRL(system.problem), episodes=episodes, reference=references.lower
    )
    shown = [
        _show(system, "uniform random", random_policy(system.problem)),
        _show(system, f"learned, {episodes} episodes", result.profile),
    ]
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("drawing", total=None)
        flows = [viz.NamedFlow(one.name, one.rollout.mass, one.arrows) for one in shown]
        stills = _draw_stills(output_dir, grid, flows, shown, result, references)
        film = viz.animate_flow(
            output_dir / "flow.mp4",
            grid,
            flows,
            titles=[f"h = {step} of {system.problem.horizon}" for step in range(len(shown[0]))],
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    _print_episodes(console, result)
    _print_rooms(console, grid, shown)
    _print_values(console, result, references, shown[0])
    return [film, *stills]


def _references(system: SimulatedSystem) -> References:
    """Plans with the true motion, which the learner never sees."""
    flow, motion = system.reveal()
    moves = MoveFlow(flow, motion, system.problem.actions.points(9))
    best = MirrorAscent(sweeps=400, bracket=0.05).solve(moves, progress=True)
    table = plan(flow, motion, progress=True)
    return References(float(table.value), float(best.value), float(best.upper))


def _show(system: SimulatedSystem, name: str, policy: Any) -> Shown:
    rollout = system.evaluate(policy)
    return Shown(name, rollout, system.mean_actions(policy, rollout.mass))


def _draw_stills(
    output_dir: Path,
    grid: Grid,
    flows: Sequence[viz.NamedFlow],
    shown: Sequence[Shown],
    result: LearnResult,
    references: References,
) -> tuple[Path, ...]:
    paths = tuple(output_dir / f"{name}.png" for name in ("learning", "entropy", "fields"))
    viz.curve_figure(
        {
            "realised by the population": np.array([row.value for row in result.metrics]),
            "expected by the optimistic plan": np.array(
                [math.nan if row.optimistic is None else row.optimistic for row in result.metrics]
            ),
        },
        x_label="episode",
        y_label="total reward J (nats)",
        reference={
            "optimum with known motion": references.lower,
            f"paper, after 30 episodes: {PAPER_LEARNED}": PAPER_LEARNED,
        },
        first_x=1,
    ).savefig(paths[0], dpi=120)
    viz.curve_figure(
        {one.name: one.entropies for one in shown},
        x_label="step h",
        y_label="entropy of the population (nats)",
        reference={f"maximum, log {grid.n_cells}": math.log(grid.n_cells)},
    ).savefig(paths[1], dpi=120)
    viz.field_figure(grid, flows, PANELS).savefig(paths[2], dpi=120)
    return paths


def _print_episodes(console: Console, result: LearnResult) -> None:
    table = Table(title="What was learned, episode by episode")
    for name in ("episode", "J", "expected", "spread", "W1 at the end", "coverage"):
        table.add_column(name, justify="right")
    for row in result.metrics:
        table.add_row(
            str(row.episode),
            f"{row.value:.2f}",
            *("-" if x is None else f"{x:.2f}" for x in (row.optimistic, row.spread, row.w1_end)),
            "-" if row.coverage is None else f"{row.coverage:.0%}",
        )
    console.print(table)


def _print_values(
    console: Console, result: LearnResult, references: References, random: Shown
) -> None:
    values = [row.value for row in result.metrics]
    passed = next((row.episode for row in result.metrics if row.value >= PAPER_LEARNED), None)
    table = Table("policy", title="Total reward J")
    table.add_column("J", justify="right")
    table.add_row("uniform random", f"{float(random.rollout.value):.2f}")
    table.add_row("paper, learned in 30 episodes", f"{PAPER_LEARNED:.2f}")
    table.add_row("paper, known motion", f"{PAPER_KNOWN:.2f}")
    table.add_row("known motion, one action for each cell", f"{references.table:.2f}")
    table.add_row(
        "known motion, certified optimum", f"{references.lower:.2f} to {references.upper:.2f}"
    )
    table.add_row(f"learned in {len(values)} episodes", f"{values[-1]:.2f}")
    if passed is not None:
        table.add_row("the paper's result was passed in episode", str(passed))
    console.print(table)


def _print_rooms(console: Console, grid: Grid, shown: Sequence[Shown]) -> None:
    table = Table("room", title="Share of the population at the end")
    ends = [np.asarray(one.rollout.mass[-1]) for one in shown]
    for name in (*(one.name for one in shown), "evenly spread"):
        table.add_column(name, justify="right")
    for room, inside in _rooms(grid).items():
        shares = [float(end[inside].sum()) for end in ends]
        table.add_row(room, *(f"{share:.1%}" for share in (*shares, inside.mean())))
    console.print(table)


def _rooms(grid: Grid) -> dict[str, Bool[np.ndarray, "cells"]]:
    """Which cells belong to each room: the four on the sides of the walls, and the doors."""
    side = np.sign(grid.free_cells - np.asarray(grid.shape) // 2)
    rooms = {
        f"{vertical} {horizontal}": (side == (x, y)).all(axis=1)
        for y, vertical in ((-1, "lower"), (1, "upper"))
        for x, horizontal in ((-1, "left"), (1, "right"))
    }
    return rooms | {"doors": (side == 0).any(axis=1)}
