"""Whether an observed episode can be right. Errors name the row, the column and the remedy."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from ..errors import UserError
from ..policies.base import Profile
from ..problem import Problem
from ..space.contact import CONTACT
from ..space.grid import Grid
from .tables import Table


@dataclass(frozen=True)
class Asked:
    """The plan that an observed episode must belong to; `run` and `policy` are their ids.

    Attributes:
        changes: Steps at which the policy was changed within the day, and the ids from then on.
        start: Where the plan expects the population at first, if that is known.
    """

    problem: Problem
    profile: Profile
    run: str
    episode: int
    policy: str
    changes: tuple[tuple[int, str], ...] = ()
    start: np.ndarray | None = None

    def policy_at(self, step: float) -> str:
        """The id of the policy that was run at a step."""
        return [self.policy, *(name for first, name in self.changes if first <= step)][-1]


def check_answer(table: Table, asked: Asked) -> None:
    """Raises if the file is of another problem, run, episode or policy."""
    check_sizes(table, asked.problem)
    rows = len(table)
    wanted = {
        "run": [asked.run] * rows,
        "episode": [str(asked.episode)] * rows,
        "policy": [asked.policy_at(step) for step in table.integers("step").tolist()],
    }
    for column in wanted.keys() & table.columns.keys():
        pairs = zip(wanted[column], table.labels(column), strict=True)
        for row, (expected, found) in enumerate(pairs):
            if found != expected:
                raise UserError(
                    f"{table.where(row, column)}: expected {expected}, got {found}: the rows "
                    "belong to another run or episode; tell the episode of the policy that was "
                    "asked last"
                )


def check_sizes(table: Table, problem: Problem) -> None:
    """Raises if the file has positions or actions of more axes than the problem."""
    dim = problem.grid.dim
    for name, size in {"state": dim, "next": dim, "action": problem.actions.dim}.items():
        if f"{name}_{size}" in table.columns:
            raise UserError(
                f"{table.path}: expected {size} columns {name}_0, ..., got {name}_{size} as well; "
                "tell data of this problem only"
            )


def places_by_agent(table: Table, horizon: int) -> tuple[Int[np.ndarray, "rows"], list[str]]:
    """For each row the number ``agent * horizon + step``, and the agents' names.

    Agents may lack steps, but none may have one twice.
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
            f"got {distinct[0]} to {distinct[-1]}; tell episodes of this problem only, and others "
            "as data with --log"
        )
    names = table.labels("agent")
    who = sorted(set(names), key=by_number)
    index = {name: i for i, name in enumerate(who)}
    place = np.array([index[name] for name in names]) * horizon + steps
    counts = np.bincount(place, minlength=len(who) * horizon)
    if (counts > 1).any():
        row = int(np.flatnonzero(place == np.argmax(counts > 1))[1])
        raise UserError(
            f"{table.where(row, 'step')}: agent {names[row]} has step {steps[row]} more than "
            "once; leave one out"
        )
    return place, who


def check_present(
    table: Table, present: Bool[np.ndarray, "agents steps"], *, every_step: bool
) -> None:
    """Raises if hardly any moves were seen, or with ``every_step`` if nobody was at some step."""
    remedy = "tell the rows as data, which are no episode, with --log"
    # With a smaller share of an episode's rows nobody can say what it was worth.
    least_present = 0.1
    if present.mean() < least_present:
        raise UserError(
            f"{table.path}: expected a row for each of the {len(present):,} agents and "
            f"{present.shape[1]} steps, or at least {least_present:.0%} of them, got "
            f"{int(present.sum()):,} of {present.size:,}; {remedy}"
        )
    empty = ~present.any(axis=0)
    if every_step and empty.any():
        raise UserError(
            f"{table.path}: no agent has a row for step {int(np.argmax(empty))}, so nobody knows "
            f"where the population was and what it was paid; add a row, or {remedy}"
        )


def by_number(name: str) -> tuple[bool, int, str]:
    """Orders names: numbers by their size, then the others."""
    number = name.isdecimal() and len(name) < 20  # Python refuses to read very long ones
    return (not number, int(name) if number else 0, name)


def check_continuity(
    table: Table,
    grid: Grid,
    states: np.ndarray,
    ends: np.ndarray,
    rows: Int[np.ndarray, "agents steps"],
) -> None:
    """Raises unless every step of an agent starts where the one before it ended.

    Axes of ``states`` and ``ends``: (agents, steps, dim); ``rows`` are the table's, -1 where there
    is none.
    """
    gap = grid.displacement(ends[:, :-1], states[:, 1:])
    both = (rows[:, :-1] >= 0) & (rows[:, 1:] >= 0)
    broken = both[..., None] & (np.abs(gap) > 3 * CONTACT * np.asarray(grid.cell_size))
    if broken.any():
        agent, step, axis = (int(i) for i in np.argwhere(broken)[0])
        raise UserError(
            f"{table.where(int(rows[agent, step + 1]), f'state_{axis}')}: expected "
            f"{ends[agent, step, axis]:.6g}, where the agent's step {step} ended, got "
            f"{states[agent, step + 1, axis]:.6g}; check the order of the steps"
        )
