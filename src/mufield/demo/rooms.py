"""The demonstration: a population learns to spread over four rooms."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from .. import viz
from ..jobs.compute import Outcome, episode_policy, play, simulated
from ..jobs.job import JobStore
from ..jobs.pool import AbstractPool, SameProcess, compute_missing
from ..paper import workload
from ..paper.budget import Budget
from ..paper.catalogue import PAPER
from ..policies.tables import random_policy
from ..runs.surroundings import set_precision
from ..space.grid import Grid
from ..space.measure import entropy

Figures = dict[str, Any]


def run(
    out: Path,
    *,
    budget: Budget | None = None,
    pool: AbstractPool | None = None,
    console: Console | None = None,
) -> list[Path]:
    """Learns the four rooms, compares with what is possible, and draws what happened.

    Computed results are kept, so a second call only draws the pictures again.

    Args:
        out: Directory for the pictures and jobs; made if it does not exist.
        budget: How much to compute, by default one seed of 15 episodes; only its entries about the
            four rooms matter.
        pool: The workers; by default this process.
        console: Where tables are printed; standard output by default.

    Returns:
        The files that were written.
    """
    budget = budget or Budget(rooms_seeds=1, rooms_episodes=15)
    set_precision(budget.precision)
    console, store = console or Console(), JobStore(out)
    # The others show what is possible: they are computed with the motion, which is hidden from it.
    jobs = {
        "learned": workload.rooms_runs(budget, "mirror")[0],
        "optimum": workload.rooms_bracket(budget),
        "table": workload.known_rooms(budget, "table"),
        "random": workload.random_rooms(budget),
    }
    console.print("The motion is unknown; every episode is one run of the whole population.")
    with store.writing():
        for finished in compute_missing(list(jobs.values()), store, pool or SameProcess()):
            if finished.problem:
                raise RuntimeError(finished.problem)
    found = {name: store.figures(job) for name, job in jobs.items()}
    learned, rows = jobs["learned"], found["learned"]["rows"]
    problem = simulated(learned.settings).problem
    last = episode_policy(store.path(learned), len(rows))
    outcomes = {
        "uniform random": play(learned.settings, random_policy(problem)),
        f"learned, {len(rows)} episodes": play(learned.settings, last),
    }
    files = _draw(out, console, outcomes, found)
    _print_episodes(console, rows)
    _print_rooms(console, problem.grid, outcomes)
    _print_values(console, [row["value"] for row in rows], found)
    return files


def _draw(
    out: Path, console: Console, outcomes: dict[str, Outcome], found: dict[str, Figures]
) -> list[Path]:
    grid = next(iter(outcomes.values())).grid
    flows = [viz.NamedFlow(name, one.mass, one.mean_actions) for name, one in outcomes.items()]
    rows = found["learned"]["rows"]
    expected = [math.nan if row["optimistic"] is None else row["optimistic"] for row in rows]
    figures = {
        "learning": viz.curve_figure(
            {
                "realised by the population": np.array([row["value"] for row in rows]),
                "expected by the optimistic plan": np.array(expected),
            },
            x_label="episode",
            y_label="total reward J (nats)",
            reference={"optimum with known motion": found["optimum"]["value"]},
            first_x=1,
        ),
        "entropy": viz.curve_figure(
            {name: np.asarray(entropy(one.mass)) for name, one in outcomes.items()},
            x_label="step h",
            y_label="entropy of the population (nats)",
            reference={f"maximum, log {grid.n_cells}": math.log(grid.n_cells)},
        ),
        "fields": viz.field_figure(grid, flows, (0, 5, 10, 20)),
    }
    stills = [out / f"{name}.png" for name in figures]
    for path, figure in zip(stills, figures.values(), strict=True):
        figure.savefig(path, dpi=120)
    steps = len(next(iter(outcomes.values())).mass)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("drawing", total=None)
        film = viz.animate_flow(
            out / "flow.mp4",
            grid,
            flows,
            titles=[f"h = {step} of {steps - 1}" for step in range(steps)],
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    return [film, *stills]


def _print_episodes(console: Console, rows: list[Figures]) -> None:
    table = Table(title="What was learned, episode by episode")
    for name in ("episode", "J", "expected", "spread", "W1 at the end", "coverage"):
        table.add_column(name, justify="right")
    for row in rows:
        told = [row[name] for name in ("value", "optimistic", "spread", "w1_end")]
        table.add_row(
            str(row["episode"]),
            *("-" if number is None else f"{number:.2f}" for number in told),
            "-" if row["coverage"] is None else f"{row['coverage']:.0%}",
        )
    console.print(table)


def _print_values(console: Console, values: list[float], found: dict[str, Figures]) -> None:
    best = found["optimum"]
    known = float(best["value"])
    rows = {
        f"learned in {len(values)} episodes": f"{values[-1]:.2f}",
        "known motion, the same class: certified optimum": f"{known:.2f} to {best['upper']:.2f}",
        "known motion, one action for each cell": f"{found['table']['value']:.2f}",
        "uniform random": f"{found['random']['value']:.2f}",
    }
    table = Table("policy", title="Total reward J")
    table.add_column("J", justify="right")
    for name, text in rows.items():
        table.add_row(name, text)
    console.print(table)
    shares = {
        f"learned in {len(values)} episodes": values[-1] / known,
        **{f"  in {count}": values[count - 1] / known for count in (5, 10) if count < len(values)},
        "the paper's networks, learned in 30 episodes": PAPER.learned / PAPER.known,
    }
    table = Table("policy", title="Percent of the plan with known motion in the same class")
    table.add_column("percent", justify="right")
    for name, share in shares.items():
        table.add_row(name, f"{share:.2%}")
    console.print(table)


def _print_rooms(console: Console, grid: Grid, outcomes: dict[str, Outcome]) -> None:
    table = Table("room", title="Share of the population at the end")
    ends = [np.asarray(one.mass[-1]) for one in outcomes.values()]
    for name in (*outcomes, "evenly spread"):
        table.add_column(name, justify="right")
    for room, inside in _rooms(grid).items():
        shares = [float(end[inside].sum()) for end in ends]
        table.add_row(room, *(f"{share:.1%}" for share in (*shares, inside.mean())))
    console.print(table)


def _rooms(grid: Grid) -> dict[str, Bool[np.ndarray, "cells"]]:
    """Which cells belong to each of the four rooms, and which are doors."""
    side = np.sign(grid.free_cells - np.asarray(grid.shape) // 2)
    rooms = {
        f"{vertical} {horizontal}": (side == (x, y)).all(axis=1)
        for y, vertical in ((-1, "lower"), (1, "upper"))
        for x, horizontal in ((-1, "left"), (1, "right"))
    }
    return rooms | {"doors": (side == 0).any(axis=1)}
