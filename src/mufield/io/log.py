"""Logs from files: transitions that were seen before or besides the episodes of a run.

One row for each agent and time, in any order; `mufield tell --help` lists the columns. With
``episode`` or ``run``, times are compared only among rows that have the same. If ``next_0``, ...
are missing, the agent's next row says where it went; a step is then 1, or for ``time`` the most
common distance of an agent's rows. Where the next row is nearer or farther, rows are missing, and
the move is left out. A second file of distributions has the log's columns of time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from ..errors import UserError
from ..models.data import Transitions
from ..problem import Problem
from .observed import ObservedMoves, by_number, cell_columns, distributions
from .rows import as_transitions, check_actions, check_moves, histograms
from .table_files import read_table
from .tables import Rows, Table


@dataclass(frozen=True)
class Log:
    """Transitions of a log, in an order that does not depend on that of the rows, and notes."""

    data: Transitions
    notes: tuple[str, ...]


class _Times(NamedTuple):
    """When rows were seen.

    Attributes:
        columns: The columns that say it, the time itself last.
        group: For each row the names in the other columns, such as that of its episode.
        rank: Number of the group, sorted.
        moment: Number of the row's group and time, sorted.
        first: A row of each moment.
    """

    columns: list[str]
    group: list[tuple[str, ...]]
    rank: Rows
    time: Float[np.ndarray, "rows"]
    moment: Rows
    first: Rows


def read_log(
    path: str | Path,
    problem: Problem,
    *,
    mass_path: str | Path | None = None,
    agents: Sequence[str] = (),
) -> Log:
    """Reads a log; raises and names row, column and remedy if it cannot be right.

    ``mass_path`` is a file of the population's distributions, if these are known; ``agents`` are
    those to learn from, by default all.
    """
    moves = ObservedMoves(Path(path), problem, episode=False)
    table, agent, notes = moves.table, moves.agent, list(moves.notes)
    clocks = [name for name in ("time", "step") if name in table.columns]
    if not clocks:
        got = ", ".join(table.columns)
        raise UserError(f"{table.path}: expected a column time or step, got {got}; add one")
    groups = [name for name in ("run", "episode") if name in table.columns]
    times = _times(table, [*groups, clocks[0]])
    # By time, then by agent, so that the order of the rows does not matter.
    order = np.lexsort((agent, times.moment))
    who, seen, last = moves.who, times.moment * len(moves.who) + agent, times.columns[-1]
    table.once(seen, last, lambda row: f"agent {who[agent[row]]} has {_words(table, times, row)}")
    places = moves.positions("state")
    tracked = np.isin(agent, moves.chosen(agents))
    if moves.gives_next:
        start = order[tracked[order]]
        ends = moves.positions("next")[start]
    else:
        start, after = _pairs(table, times, agent, tracked, notes)
        ends = places[after]
    own = ~moves.carried[start]
    start, ends = start[own], ends[own]  # trips teach nothing about the motion

    def where(row: int, column: str) -> str:
        shown = column if moves.gives_next else column.replace("next_", "state_")
        return table.where(int(start[row]), shown)

    actions = moves.actions(start)
    check_actions(where, problem, actions)
    check_moves(where, problem, places[start], ends)
    if mass_path is None:
        mass, moment = _from_agents(problem, places, times, start, notes)
    else:
        mass, moment = _from_file(Path(mass_path), problem, table, times, start)
    steps = times.time[start]
    # Only if the log counts them as episodes of the problem do.
    counted = times.columns[-1] == "step" and bool(((steps >= 0) & (steps < problem.horizon)).all())
    earned = table.numbers("reward", start) if problem.hides_reward else None
    known = {"mass": mass, "moment": moment, "step": steps if counted else None, "earned": earned}
    return Log(as_transitions(problem, places[start], actions, ends, **known), tuple(notes))


def _times(table: Table, columns: list[str]) -> _Times:
    table.require(columns)
    *groups, last = columns
    time = table.times(last) if last == "time" else table.integers(last).astype(float)
    labels = [table.labels(name) for name in groups]
    group = [tuple(each[row] for each in labels) for row in range(len(table))]
    ranked = sorted(set(group), key=lambda names: [by_number(name) for name in names])
    number = {names: i for i, names in enumerate(ranked)}
    rank = np.array([number[names] for names in group])
    pairs = np.stack([rank, time], axis=-1)
    _, first, moment = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
    return _Times(columns, group, rank, time, moment.reshape(-1), first)


def _pairs(
    table: Table, times: _Times, agent: Rows, tracked: Bool[np.ndarray, "rows"], notes: list[str]
) -> tuple[Rows, Rows]:
    """Rows at which moves begin and those at which they end, by time and then by agent."""
    order = np.lexsort((times.moment, agent))
    first, second = order[:-1], order[1:]
    same = (agent[first] == agent[second]) & (times.rank[first] == times.rank[second])
    first, second = first[same & tracked[first]], second[same & tracked[first]]
    apart = times.time[second] - times.time[first]
    step = 1.0
    if times.columns[-1] == "time" and len(apart):
        # Rounded, because times such as 0.1, 0.2, 0.3 are not evenly apart to the last digit.
        sizes, counts = np.unique(np.array([f"{each:.6g}" for each in apart]), return_counts=True)
        step = float(sizes[np.argmax(counts)])
        notes.append(f"a step is {step:g} of the column time, the most common distance of rows")
    near = np.abs(apart - step) <= 0.01 * step  # what is off by one per cent is still a step
    if not near.any():
        raise UserError(
            f"{table.path}: no agent has two rows one step apart, so there is no move to learn "
            "from; give more rows, or the columns next_0, ..."
        )
    if not near.all():
        notes.append(
            f"{int((~near).sum()):,} of {len(near):,} moves were left out, because the agent's "
            f"next row is not {step:g} later"
        )
    chosen = np.lexsort((agent[first[near]], times.moment[first[near]]))
    return first[near][chosen], second[near][chosen]


def _from_agents(
    problem: Problem, places: np.ndarray, times: _Times, start: Rows, notes: list[str]
) -> tuple[Float[np.ndarray, "moments cells"], Rows]:
    """Distributions of the agents of each time, even ones where there are few, and each move's."""
    grid = problem.grid
    counts = np.bincount(times.moment)
    used = np.unique(times.moment[start])
    # With fewer agents at a time, their histogram says little about the population.
    enough_agents = 10
    enough = used[counts[used] >= enough_agents]
    number = np.full(len(counts), len(enough))
    number[enough] = np.arange(len(enough))
    rows = np.flatnonzero(number[times.moment] < len(enough))
    mass = histograms(grid, places[rows], number[times.moment[rows]], len(enough))
    few = len(used) - len(enough)
    if few:
        mass = np.concatenate([mass, np.full((1, grid.n_cells), 1.0 / grid.n_cells)])
        notes.append(
            f"at {few:,} of {len(used):,} times fewer than {enough_agents} agents have a row, so "
            "the population is taken to be spread evenly then; give its distributions with --mass "
            "if the motion depends on mu"
        )
    return mass, number[times.moment[start]]


def _from_file(
    path: Path, problem: Problem, log: Table, times: _Times, start: Rows
) -> tuple[Float[np.ndarray, "moments cells"], Rows]:
    """Distributions from a file of masses, and each move's."""
    table = read_table(path)
    table.require([*times.columns, *cell_columns(problem.grid), "mass"])
    own = _times(table, times.columns)
    names = [_words(table, own, int(row)) for row in own.first]
    mass = distributions(table, problem, own.moment, names)
    number = {(own.group[row], own.time[row]): i for i, row in enumerate(own.first.tolist())}
    found = [number.get((times.group[row], times.time[row]), -1) for row in start.tolist()]
    moment = np.array(found)
    if (moment < 0).any():
        row = int(start[np.argmin(moment)])
        raise UserError(
            f"{path}: expected the distribution at {_words(log, times, row)}, as of "
            f"{log.where(row, times.columns[-1])}, got none; add it"
        )
    return mass, moment


def _words(table: Table, times: _Times, row: int) -> str:
    """The row's time in words, such as "step 3, episode 2"."""
    columns = reversed(times.columns)
    return ", ".join(f"{name} {str(table.columns[name][row]).strip()}" for name in columns)
