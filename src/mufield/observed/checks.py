"""Whether an observed episode can be right. Errors name the row, the column and the remedy."""

from dataclasses import dataclass

import numpy as np

from ..errors import UserError
from ..policies.base import Profile
from ..problem import Problem
from ..space.contact import CONTACT
from ..space.grid import Grid
from .tables import Table


@dataclass(frozen=True)
class Asked:
    """The plan that an observed episode must belong to; `run` and `policy` are their ids."""

    problem: Problem
    profile: Profile
    run: str
    episode: int
    policy: str


def check_answer(table: Table, asked: Asked) -> None:
    """Raises if the file is of another problem, run, episode or policy."""
    grid, actions = asked.problem.grid, asked.problem.actions
    for name, size in {"state": grid.dim, "next": grid.dim, "action": actions.dim}.items():
        if f"{name}_{size}" in table.columns:
            raise UserError(
                f"{table.path}: expected {size} columns {name}_0, ..., got {name}_{size} as well; "
                "tell episodes of this problem only"
            )
    wanted = {"run": asked.run, "episode": str(asked.episode), "policy": asked.policy}
    for column in wanted.keys() & table.columns.keys():
        for row, found in enumerate(table.labels(column)):
            if found != wanted[column]:
                raise UserError(
                    f"{table.where(row, column)}: expected {wanted[column]}, got {found}: the rows "
                    "belong to another run or episode; tell the episode of the policy that was "
                    "asked last"
                )


def rows_by_agent(table: Table, horizon: int) -> tuple[np.ndarray, list[str]]:
    """The rows' order by agent and step, and the agents' names.

    Raises unless each agent has every step once.
    """
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
    place = np.array([index[name] for name in names]) * horizon + steps
    counts = np.bincount(place, minlength=len(who) * horizon)
    if (counts > 1).any():
        row = int(np.flatnonzero(place == np.argmax(counts > 1))[1])
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
    return np.argsort(place), who


def _by_number(name: str) -> tuple[bool, int, str]:
    number = name.isdecimal() and len(name) < 20  # Python refuses to read very long ones
    return (not number, int(name) if number else 0, name)


def check_continuity(
    table: Table, grid: Grid, states: np.ndarray, ends: np.ndarray, order: np.ndarray
) -> None:
    """Raises unless every step of an agent starts where the one before it ended.

    Axes of ``states`` and ``ends``: (agents, steps, dim); ``order`` is that of `rows_by_agent`.
    """
    gap = grid.displacement(ends[:, :-1], states[:, 1:])
    broken = np.abs(gap) > 3 * CONTACT * np.asarray(grid.cell_size)
    if broken.any():
        agent, step, axis = (int(i) for i in np.argwhere(broken)[0])
        row = int(order[agent * states.shape[1] + step + 1])
        raise UserError(
            f"{table.where(row, f'state_{axis}')}: expected {ends[agent, step, axis]:.6g}, where "
            f"the agent's step {step} ended, got {states[agent, step + 1, axis]:.6g}; check the "
            "order of the steps"
        )
