"""The demonstration: how two policies spread a population over four rooms."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from . import viz
from ._types import Action, Scalar, State
from .environments.four_rooms import four_rooms
from .flow.objective import Rollout
from .policies.randomised import UniformRandom, spread_actions
from .problem import Box
from .space.grid import Grid
from .space.measure import MeanField, entropy
from .systems import SimulatedSystem

PANELS = (0, 5, 10, 20)
"""Steps of the still pictures."""

STRIDE = 0.7
"""Longest move of the hand-made policy. Longer ones make neighbours swap places for ever."""


def leave_the_crowd(state: State, mu: MeanField, step: object = None) -> Action:
    """A hand-made policy, neither learned nor optimal: go where there are fewer others.

    On each axis an agent compares the two neighbouring cells with its own and walks towards the
    emptier one, the farther the emptier it is. Walls look as full as the agent's own cell. Moves
    of less than a cell split the population of a cell, because the noise decides who arrives.
    """

    def crowd(point: State) -> Scalar:
        return jnp.where(mu.grid.index_of(point) < 0, mu.here, mu.at(point))

    def along(axis: Float[Array, "dim"]) -> Scalar:
        behind, ahead = crowd(state - axis), crowd(state + axis)
        # An empty cell has no crowd to leave; its agents do not count either.
        emptiness = 1.0 - jnp.minimum(behind, ahead) / jnp.maximum(mu.here, 1e-12)
        return jnp.where(ahead <= behind, STRIDE, -STRIDE) * jnp.maximum(emptiness, 0.0)

    return jax.vmap(along)(jnp.diag(jnp.asarray(mu.grid.cell_size, dtype=state.dtype)))


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


def run(output_dir: Path) -> int:
    """Shows the flows of a random and of a hand-made policy; nothing is learned yet.

    Args:
        output_dir: Directory for the pictures; made if it does not exist.

    Returns:
        The exit code, 0.
    """
    output_dir.mkdir(parents=True, exist_ok=True)
    console = Console()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("computing the flows", total=None)
        system = four_rooms()
        grid = system.problem.grid
        box = system.problem.actions
        assert isinstance(box, Box)
        shown = [
            _show(system, "uniform random", UniformRandom(spread_actions(box.lower, box.upper, 9))),
            _show(system, "hand-made", leave_the_crowd),
        ]
        bar.update(task, description="drawing")
        flows = [viz.NamedFlow(one.name, one.rollout.mass, one.arrows) for one in shown]
        stills = _draw_stills(output_dir, grid, flows, shown)
        film = viz.animate_flow(
            output_dir / "flow.mp4",
            grid,
            flows,
            titles=[f"h = {step} of {system.problem.horizon}" for step in range(len(shown[0]))],
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    _print_entropies(console, grid, shown)
    _print_rooms(console, grid, shown)
    for path in (film, *stills):
        console.print(f"wrote {path}", soft_wrap=True, highlight=False, markup=False)
    return 0


def _show(system: SimulatedSystem, name: str, policy: Any) -> Shown:
    rollout = system.evaluate(policy)
    return Shown(name, rollout, system.mean_actions(policy, rollout.mass))


def _draw_stills(
    output_dir: Path, grid: Grid, flows: Sequence[viz.NamedFlow], shown: Sequence[Shown]
) -> tuple[Path, Path]:
    curves, fields = output_dir / "entropy.png", output_dir / "fields.png"
    viz.curve_figure(
        {one.name: one.entropies for one in shown},
        x_label="step h",
        y_label="entropy of the population (nats)",
        reference={f"maximum, log {grid.n_cells}": math.log(grid.n_cells)},
    ).savefig(curves, dpi=120)
    viz.field_figure(grid, flows, PANELS).savefig(fields, dpi=120)
    return curves, fields


def _print_entropies(console: Console, grid: Grid, shown: Sequence[Shown]) -> None:
    most = math.log(grid.n_cells)
    table = Table(title="Entropy of the population (nats)", show_footer=True)
    table.add_column("step h", footer="total J", justify="right")
    for one in shown:
        table.add_column(one.name, footer=f"{float(one.rollout.value):.2f}", justify="right")
    table.add_column(f"maximum, log {grid.n_cells}", footer="", justify="right")
    for step, values in enumerate(zip(*(one.entropies for one in shown), strict=True)):
        table.add_row(str(step), *(f"{value:z.3f}" for value in values), f"{most:.3f}")
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
