"""Whether an observed episode can be right: errors name the row, the column and the remedy."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from ..errors import UserError
from ..policies.base import Profile
from ..problem import Problem
from ..space.noise import GaussianNoise
from .contact import CONTACT, settle
from .table_file import Table

FARTHEST_NOISE = 8.0
"""Standard deviations of noise that a single step may show."""


@dataclass(frozen=True)
class Asked:
    """What the episode must answer.

    Attributes:
        problem: The problem.
        profile: The policy that was asked for.
        run: Name of the run.
        episode: Number of the episode.
        policy: The policy's id.
    """

    problem: Problem
    profile: Profile
    run: str
    episode: int
    policy: str


def check_size(table: Table, problem: Problem) -> None:
    """Raises if there are columns for more axes than the problem has."""
    sizes = {"state": problem.grid.dim, "next": problem.grid.dim, "action": problem.actions.dim}
    for name, size in sizes.items():
        if f"{name}_{size}" in table.columns:
            raise UserError(
                f"{table.path}: expected {size} columns {name}_0, ..., got {name}_{size} as well; "
                "tell episodes of this problem only"
            )


def check_answer(table: Table, asked: Asked) -> None:
    """Raises if the rows say that they belong to another run, episode or policy."""
    for column, wanted in (
        ("run", asked.run),
        ("episode", str(asked.episode)),
        ("policy", asked.policy),
    ):
        if column not in table.columns:
            continue
        for row, found in enumerate(table.labels(column)):
            if found != wanted:
                raise UserError(
                    f"{table.where(row, column)}: expected {wanted}, got {found}: the rows belong "
                    "to another run or episode; tell the episode of the policy that was asked last"
                )


def rows_by_agent(table: Table, horizon: int) -> tuple[np.ndarray, list[str]]:
    """Rows by agent and step, and the agents; raises unless each has every step once."""
    steps = table.integers("step")
    distinct = np.unique(steps)
    if distinct[0] < 0:
        row = int(np.argmin(steps))
        raise UserError(
            f"{table.where(row, 'step')}: expected 0 to {horizon - 1}, got {steps[row]}; count "
            "steps from 0"
        )
    shorter = len(distinct) < horizon and np.array_equal(distinct, np.arange(len(distinct)))
    if distinct[-1] >= horizon or shorter:
        raise UserError(
            f"{table.path}: expected the steps 0 to {horizon - 1}, as the horizon is {horizon}, "
            f"got {distinct[0]} to {distinct[-1]}; tell episodes of this problem only"
        )
    names = table.labels("agent")
    who = sorted(set(names), key=_by_number)
    index = {name: i for i, name in enumerate(who)}
    cell = np.array([index[name] for name in names]) * horizon + steps
    counts = np.bincount(cell, minlength=len(who) * horizon)
    if (counts > 1).any():
        first = int(np.argmax(counts > 1))
        row = int(np.flatnonzero(cell == first)[1])
        raise UserError(
            f"{table.where(row, 'step')}: agent {names[row]} has step {steps[row]} more than "
            "once; leave one out"
        )
    if (counts == 0).any():
        agent, step = divmod(int(np.argmax(counts == 0)), horizon)
        raise UserError(
            f"{table.path}: agent {who[agent]} has no row for step {step}; add it, or leave the "
            "agent out of the file"
        )
    return np.argsort(cell), who


def _by_number(name: str) -> tuple[bool, int, str]:
    number = name.isdecimal() and len(name) < 20  # Python refuses to read very long ones
    return (not number, int(name) if number else 0, name)


def checked_positions(
    table: Table, problem: Problem, points: np.ndarray, columns: list[str]
) -> np.ndarray:
    """The positions, away from walls by a rounding error; raises if they are farther inside."""
    grid = problem.grid
    settled, lost = settle(grid, points)
    if not lost.any():
        return settled
    row = int(np.argmax(lost))
    low, high, point = np.asarray(grid.lower), np.asarray(grid.upper), points[row]
    outside = (point < low) | (point > high)
    if outside.any():
        axis = int(np.argmax(outside))
        raise UserError(
            f"{table.where(row, columns[axis])}: expected a position between {low[axis]} and "
            f"{high[axis]}, got {point[axis]}; check the units and the origin"
            + (", and wrap positions on this periodic axis" if grid.periodic[axis] else "")
        )
    raise UserError(
        f"{table.where(row, columns[0])}: the position {tuple(map(float, point))} is inside a "
        "wall; check the units, the origin and the order of the axes"
    )


def check_actions(table: Table, problem: Problem, actions: np.ndarray, columns: list[str]) -> None:
    """Raises if an action is none of the problem's."""
    inside = np.asarray(problem.actions.contains(jnp.asarray(actions)))
    if not inside.all():
        row = int(np.argmin(inside))
        raise UserError(
            f"{table.where(row, columns[0])}: the action {tuple(map(float, actions[row]))} is "
            f"outside {problem.actions.describe()}; check the units"
        )


def check_moves(table: Table, problem: Problem, start: np.ndarray, end: np.ndarray) -> None:
    """Raises if an agent jumped: a sign of wrong units or of steps that are missing."""
    grid = problem.grid
    reach = np.asarray(problem.max_move) + CONTACT * np.asarray(grid.cell_size)
    if isinstance(problem.noise, GaussianNoise):
        reach = reach + FARTHEST_NOISE * np.asarray(problem.noise.std)
    else:
        reach = reach + np.asarray(grid.cell_size)
    moved = np.abs(np.asarray(grid.displacement(jnp.asarray(start), jnp.asarray(end))))
    far = moved > reach
    if far.any():
        row, axis = (int(i) for i in np.argwhere(far)[0])
        raise UserError(
            f"{table.where(row, f'next_{axis}')}: the agent moved by {moved[row, axis]:.6g} in one "
            f"step, but max_move and noise reach {reach[axis]:.6g}; check the units and the steps"
        )


def check_way(
    table: Table, problem: Problem, states: np.ndarray, ends: np.ndarray, order: np.ndarray
) -> None:
    """Raises unless every step starts where the one before it ended."""
    grid = problem.grid
    gap = np.abs(
        np.asarray(grid.displacement(jnp.asarray(ends[:, :-1]), jnp.asarray(states[:, 1:])))
    )
    broken = gap > 3 * CONTACT * np.asarray(grid.cell_size)
    if broken.any():
        agent, step, axis = (int(i) for i in np.argwhere(broken)[0])
        row = int(order[agent * problem.horizon + step + 1])
        raise UserError(
            f"{table.where(row, f'state_{axis}')}: expected {ends[agent, step, axis]:.6g}, where "
            f"the agent's step {step} ended, got {states[agent, step + 1, axis]:.6g}; check the "
            "order of the steps"
        )
