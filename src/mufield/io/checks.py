"""Whether an observed episode can be right.

Errors name the row, the column and the remedy. What can hardly be is noted in words, as only its
owner can judge it.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from ..errors import UserError
from ..learning.metrics import share_beyond_chance
from ..policies.base import Profile
from ..problem import Problem
from ..space.grid import Grid
from .observed import ObservedMoves
from .rows import CONTACT
from .tables import Table

Seen = Bool[np.ndarray, "agents steps"]


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
    """Raises if the file is of another run, episode or policy."""
    rows, policies = len(table), [asked.policy_at(step) for step in table.integers("step").tolist()]
    wanted = {"run": [asked.run] * rows, "episode": [str(asked.episode)] * rows, "policy": policies}
    remedy = "it belongs to another run or episode; tell that of the policy that was asked last"
    for column in wanted.keys() & table.columns.keys():
        other = np.not_equal(wanted[column], table.labels(column))
        table.refuse(other, column, wanted[column][int(np.argmax(other))], remedy)


def places_of(moves: ObservedMoves) -> Int[np.ndarray, "rows"]:
    """For each row ``agent * horizon + step``; agents may lack steps, but have none twice."""
    table, horizon = moves.table, moves.problem.horizon
    steps = table.integers("step")
    table.refuse(steps < 0, "step", f"0 to {horizon - 1}", "count steps from 0")
    distinct = np.unique(steps)
    shorter = len(distinct) < horizon and np.array_equal(distinct, np.arange(len(distinct)))
    if distinct[-1] >= horizon or shorter:
        raise UserError(
            f"{table.path}: expected the steps 0 to {horizon - 1}, as the horizon is {horizon}, "
            f"got {distinct[0]} to {distinct[-1]}; tell other episodes as data with --log"
        )
    place = moves.agent * horizon + steps
    who, agent = moves.who, moves.agent
    table.once(place, "step", lambda row: f"agent {who[agent[row]]} has step {steps[row]}")
    return np.asarray(place)


def shocks_of(moves: ObservedMoves) -> Int[np.ndarray, "steps"] | None:
    """The number of the shock at each step, if the problem has shocks; raises unless it is told."""
    table, shocks = moves.table, moves.problem.shocks
    if shocks is None:
        return None
    table.require(["shock"])
    step, given = table.integers("step"), table.integers("shock")
    outside = (given < 0) | (given >= shocks.count)
    table.refuse(outside, "shock", f"0 to {shocks.count - 1}", "count the shock's values from 0")
    found = np.full(moves.problem.horizon, -1)
    found[step] = given
    remedy = "everybody sees the same shock"
    table.refuse(given != found[step], "shock", "one number in all rows of a step", remedy)
    if found.min() < 0:
        raise UserError(f"{table.path}: no row says the shock of step {found.argmin()}; add one")
    return found


def check_present(table: Table, present: Seen, *, every_step: bool) -> None:
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


def check_continuity(
    table: Table,
    grid: Grid,
    states: np.ndarray,
    ends: np.ndarray,
    rows: Int[np.ndarray, "agents steps"],
) -> None:
    """Raises unless every step of an agent starts where the one before it ended.

    Axes of ``states`` and ``ends``: (agents, steps, dim); ``rows`` are the table's, -1 for none.
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


def notes_on_start(
    planned: Float[np.ndarray, "cells"] | None, seen: Float[np.ndarray, "cells"], agents: int | None
) -> list[str]:
    """Notes on a population that starts elsewhere than planned; ``agents`` is None if all count."""
    if planned is None or not np.isfinite(planned).all():  # nothing was planned
        return []
    remedy = "plan from where agents are with `mufield ask --start`"
    nowhere = float(seen[planned <= 0].sum())
    if nowhere > 0:
        return [f"{nowhere:.1%} of the population started where the plan expected nobody; {remedy}"]
    apart = share_beyond_chance(planned, seen, agents)
    if apart is None:
        return []
    return [f"{apart:.0%} of the population started elsewhere than the plan expected; {remedy}"]


def notes_on_sample(
    histograms: Float[np.ndarray, "moments cells"], agents: Int[np.ndarray, "moments"]
) -> list[str]:
    """Notes on a population that is only known by the histogram of few agents.

    The share p of a cell has the standard error sqrt(p (1 - p) / agents) if they are a sample.
    """
    errors = np.sqrt(histograms * (1 - histograms) / agents[:, None]).max(axis=1)
    step = int(np.argmax(errors))
    if errors[step] <= 0.02:  # of the population
        return []
    return [
        f"the {int(agents[step]):,} agents of the file stand for the whole population; if they are "
        f"a sample, shares of cells have standard errors of up to {errors[step]:.1%} (at step "
        f"{step}): give the population's distributions, or all positions, with --mass"
    ]


def notes_on_rewards(
    known: Float[np.ndarray, "steps"], paid: Float[np.ndarray, "steps"]
) -> list[str]:
    """Notes on rewards of the file that are not those of the problem's known reward."""
    off = np.abs(paid - known)
    # Differences of a tenth of the largest known reward are noted.
    if not (off > 0.1 * np.abs(known).max() + 1e-6).any():
        return []
    step = int(np.argmax(off))
    return [
        f"the file's rewards are not what the problem's reward pays: at step {step} the mean is "
        f"{paid[step]:.6g}, expected {known[step]:.6g}; plans still use the problem's, so correct "
        "it, or hide it with reward=None, if the file is right, or leave the column out"
    ]
