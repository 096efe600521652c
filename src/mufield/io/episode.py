"""Observed episodes from files, for systems that only the real world can run.

One row for each agent and step, as CSV or Parquet:

- ``agent``: any name or number.
- ``step``: 0, 1, ..., horizon - 1.
- ``state_0``, ``state_1``, ...: where the agent was, in the units of the problem's grid.
- ``action_0``, ...: what it did.
- ``next_0``, ...: where it was one step later. For a problem on a `CityMap` ``longitude``,
  ``latitude``, ``next_longitude`` and ``next_latitude`` may stand for the positions.
- ``stopped_0``, ... (optional): 1 on axes where a wall or border stopped the agent, else 0. If
  they are missing, an axis counts as stopped if the agent ended in contact with a wall or border;
  for agents that move from cell to cell, if they stayed beside one on that axis.
- ``carried``: 1 where a trip carried the agent off, 0 where it moved by itself; only if the problem
  has trips.
- ``reward``: what the agent was paid at the step. Optional, unless the problem hides its reward,
  which is then learned from this column.
- ``end_reward``: what the agent was paid for its final position, repeated in each of its rows;
  only needed if the problem hides its reward and pays the end.
- ``run``, ``episode``, ``policy`` (optional): the run, the number of the episode and the policy's
  id, as ``mufield ask`` prints them. They are compared, so that no episode gets into the wrong run.

Other columns are ignored. Agents may join, leave or miss rows; with less than a tenth of the rows,
or without any for some step, an episode is refused. The population's distribution is that of the
agents in the file whose place is known, unless a second file gives it: ``step`` (0, ..., horizon),
``cell_0``, ``cell_1``, ... (coordinates of a cell, from 0) and ``mass`` (share of the population
there); cells without a row are empty.

Without a column ``reward``, rewards are computed from the problem's known reward: with a file of
masses as the integrated reward of the policy that was asked for, else as the mean over the agents.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from .._types import Mass
from ..checks import MASS_TOLERANCE
from ..episode import Episode
from ..errors import UserError
from ..models.rows import check_actions, check_moves, checked_positions, stopped_axes
from ..problem import Problem
from ..space.grid import Grid
from ..space.measure import histogram
from .checks import Asked, check_answer, check_continuity, check_present, places_by_agent
from .coordinates import read_plane
from .plausibility import notes_on_mass, notes_on_rewards, notes_on_start, notes_on_stops
from .rewards import integrated_rewards, mean_rewards
from .tables import Rows, Table, label, read_table


def read_episode(
    path: Path,
    asked: Asked,
    *,
    mass_path: Path | None = None,
    agents: Sequence[str] = (),
    notes: list[str] | None = None,
) -> Episode:
    """Reads an observed episode; raises and names row, column and remedy if it cannot be right.

    Args:
        path: The file of agents.
        asked: The plan that the episode must belong to.
        mass_path: A file of the population's distributions, if these were observed by other means.
        agents: The agents to learn from; by default all.
        notes: A list to which sentences are added on what can hardly be.
    """
    problem, notes = asked.problem, [] if notes is None else notes
    grid, dtype = problem.grid, problem.initial.dtype
    table, _ = read_plane(path, problem)  # rows that are left out count as not seen
    names = {
        "state": [f"state_{i}" for i in range(grid.dim)],
        "action": [f"action_{i}" for i in range(problem.actions.dim)],
        "next": [f"next_{i}" for i in range(grid.dim)],
    }
    table.require(["agent", "step", *(column for each in names.values() for column in each)])
    check_rewards(table, problem, end=problem.pay_end)
    check_answer(table, asked)
    place, who = places_by_agent(table, problem.horizon)
    tracked = chosen_agents(path, who, agents)
    points = {
        name: np.stack([table.numbers(column) for column in each], axis=-1).astype(dtype)
        for name, each in names.items()
    }
    start = checked_positions(table.where, grid, points["state"], names["state"])
    end = checked_positions(table.where, grid, points["next"], names["next"])
    check_actions(table.where, problem, points["action"])
    carried = given_trips(table, problem)
    own = np.flatnonzero(~carried)

    def where(row: int, column: str) -> str:
        return table.where(int(own[row]), column)

    check_moves(where, problem, start[own], end[own])

    def by_agent(values: np.ndarray, filler: Any) -> np.ndarray:
        shape = (len(who), problem.horizon, *values.shape[1:])
        filled = np.broadcast_to(np.asarray(filler, dtype=values.dtype), shape).copy()
        filled.reshape(-1, *values.shape[1:])[place] = values
        return filled

    rows = by_agent(np.arange(len(place)), -1)
    present = rows >= 0
    paid = by_agent(table.numbers("reward"), 0.0) if "reward" in table.columns else None
    integrated = paid is None and mass_path is not None
    check_present(table, present, every_step=not integrated)
    # Where rows are missing stands a legal position, so that rewards are finite; none counts.
    corner = np.asarray(grid.centres[0])
    states, ends = by_agent(start, corner), by_agent(end, corner)
    actions = by_agent(points["action"], np.asarray(problem.actions.rest))
    check_continuity(table, grid, states, ends, rows)
    # An agent that lacks a row is where its last step ended.
    places = np.concatenate([states, ends[:, -1:]], axis=1)
    places[:, 1:-1] = np.where(present[:, 1:, None], places[:, 1:-1], ends[:, :-1])
    known = np.pad(present, ((0, 0), (0, 1))) | np.pad(present, ((0, 0), (1, 0)))
    by_step = zip(places.swapaxes(0, 1), known.T, strict=True)
    # Nobody may have been seen at some step, if a file says where the population was.
    empty = jnp.zeros(grid.n_cells)
    moments = [histogram(grid, at[seen]) if seen.any() else empty for at, seen in by_step]
    mass = jnp.stack(moments).astype(dtype)
    if mass_path is not None:
        found = read_mass(mass_path, problem)
        notes += notes_on_mass(np.asarray(mass), found)
        mass = jnp.asarray(found, dtype=dtype)
    count = int(known[:, 0].sum()) if mass_path is None else None
    notes += notes_on_start(asked.start, np.asarray(mass[0], dtype=float), count)
    if problem.hides_reward and paid is not None:
        rewards = jnp.asarray(_mean(paid, present), dtype=dtype)
        if problem.pay_end:
            at_end = by_agent(table.numbers("end_reward"), 0.0)[:, -1:]
            rewards = jnp.append(rewards, jnp.asarray(_mean(at_end, present[:, -1:]), dtype=dtype))
    elif integrated:
        rewards = integrated_rewards(problem, asked.profile, mass)
    else:
        counted = jnp.asarray(np.concatenate([present, present[:, -1:]], axis=1))
        inputs = (jnp.asarray(places), jnp.asarray(actions), counted)
        rewards = mean_rewards(problem, *inputs, mass)
        if paid is not None:
            was_paid = _mean(paid, present)
            notes += notes_on_rewards(np.asarray(rewards[: problem.horizon]), was_paid)
            rewards = rewards.at[: problem.horizon].set(was_paid)
    stopped = given_stops(table, grid)
    if stopped is None:
        stopped = stopped_axes(problem, start, end)
    notes += notes_on_stops(problem, start[own], end[own], stopped[own])
    seen = present[tracked]
    earned = None if paid is None or not problem.hides_reward else paid[tracked].astype(dtype)
    return Episode(
        states=jnp.asarray(states[tracked]),
        actions=jnp.asarray(actions[tracked]),
        next_states=jnp.asarray(ends[tracked]),
        stopped=jnp.asarray(by_agent(stopped, False)[tracked]),
        mass=mass,
        rewards=rewards,
        earned=None if earned is None else jnp.asarray(earned),
        present=None if seen.all() else jnp.asarray(seen),
        carried=None if problem.trips is None else jnp.asarray(by_agent(carried, False)[tracked]),
    )


def given_trips(table: Table, problem: Problem) -> Bool[np.ndarray, "rows"]:
    """Which rows are trips that carried agents off; raises unless a problem with trips says so."""
    if (problem.trips is not None) != ("carried" in table.columns):
        raise UserError(
            f"{table.path}: expected a column carried, with 1 where a trip carried the agent off "
            "and 0 where it moved by itself, because the problem has trips; got none"
            if problem.trips is not None
            else f"{table.path}: a column carried, but the problem has no trips; leave it out"
        )
    if problem.trips is None:
        return np.zeros(len(table), dtype=bool)
    return table.flags("carried")


def read_positions(path: Path, problem: Problem) -> tuple[Mass, tuple[str, ...]]:
    """The distribution of agents whose positions a file has, one row for each, and notes."""
    (table, notes), grid = read_plane(path, problem), problem.grid
    columns = [f"state_{i}" for i in range(grid.dim)]
    table.require(columns)
    points = np.stack([table.numbers(column) for column in columns], axis=-1)
    places = checked_positions(table.where, grid, points, columns)
    return histogram(grid, places).astype(problem.initial.dtype), notes


def _mean(
    values: Float[np.ndarray, "agents steps"], counted: Bool[np.ndarray, "agents steps"]
) -> Float[np.ndarray, "steps"]:
    """The mean over the agents that count at each step, at least one."""
    return np.asarray(np.where(counted, values, 0.0).sum(axis=0) / counted.sum(axis=0))


def read_mass(path: Path, problem: Problem) -> Float[np.ndarray, "moments cells"]:
    """Reads the distributions mu_0, ..., mu_H from a file of masses."""
    last = problem.horizon
    table = read_table(path)
    table.require(["step", *cell_columns(problem.grid), "mass"])
    steps = table.integers("step")
    if steps.min() != 0 or steps.max() != last:
        raise UserError(
            f"{path}: expected the steps 0 to {last}, as the horizon is {last}, got {steps.min()} "
            f"to {steps.max()}; the distribution after the last move belongs to it"
        )
    return distributions(table, problem.grid, steps, [f"step {step}" for step in range(last + 1)])


def cell_columns(grid: Grid) -> list[str]:
    """The columns of a file of masses that say which cell a row is of."""
    return [f"cell_{axis}" for axis in range(grid.dim)]


def distributions(
    table: Table, grid: Grid, moment: Int[np.ndarray, "rows"], names: Sequence[str]
) -> Float[np.ndarray, "moments cells"]:
    """The distributions of a file of masses; ``names`` are those of all moments, for errors."""
    columns = cell_columns(grid)
    cells = np.stack([table.integers(column) for column in columns], axis=-1)
    mass = table.numbers("mass")
    outside = (cells < 0) | (cells >= np.asarray(grid.shape))
    if outside.any():
        row, axis = (int(i) for i in np.argwhere(outside)[0])
        raise UserError(
            f"{table.where(row, columns[axis])}: expected a cell from 0 to {grid.shape[axis] - 1}, "
            f"got {cells[row, axis]}; count cells from 0"
        )
    index = grid.index_table[tuple(cells.T)]
    odd = (mass < 0) | ((index < 0) & (mass != 0))
    if odd.any():
        row = int(np.argmax(odd))
        raise UserError(
            f"{table.where(row, 'mass')}: expected 0 or more, and none in walls, got {mass[row]} "
            f"in the {'wall' if index[row] < 0 else 'cell'} {tuple(cells[row].tolist())}; repair it"
        )
    free = np.flatnonzero(index >= 0)
    place = moment[free] * grid.n_cells + index[free]
    twice = np.bincount(place) > 1
    if twice.any():
        row = int(free[np.flatnonzero(place == np.argmax(twice))[1]])
        raise UserError(
            f"{table.where(row, 'mass')}: the cell {tuple(cells[row].tolist())} has "
            f"{names[moment[row]]} more than once; leave one out"
        )
    flow = np.zeros((len(names), grid.n_cells))
    flow.flat[place] = mass[free]
    total = flow.sum(axis=1)
    off = np.abs(total - 1) > MASS_TOLERANCE
    if off.any():
        first = int(np.argmax(off))
        raise UserError(
            f"{table.path}: expected masses that sum to 1 at every time, got {total[first]:.6g} at "
            f"{names[first]}; divide them by their sum"
        )
    return np.asarray(flow / total[:, None])


def check_rewards(table: Table, problem: Problem, *, end: bool) -> None:
    """Raises if the problem hides its reward and the file does not give it."""
    needed = ["reward", *(["end_reward"] if end else [])]
    missing = [column for column in needed if column not in table.columns]
    if problem.hides_reward and missing:
        raise UserError(
            f"{table.path}: the column {missing[0]} is missing; the problem hides its reward, so "
            "the file must say what agents were paid"
        )


def given_stops(table: Table, grid: Grid, rows: Rows | None = None) -> np.ndarray | None:
    """Axes on which the file says that agents were stopped; None if it does not say it."""
    columns = [f"stopped_{i}" for i in range(grid.dim)]
    if not any(column in table.columns for column in columns):
        return None
    table.require(columns)
    return np.stack([table.flags(column, rows) for column in columns], axis=-1)


def chosen_agents(path: Path, who: list[str], agents: Sequence[str]) -> np.ndarray:
    """Numbers of the agents to learn from; by default all."""
    wanted = [label(agent) for agent in agents] or who
    unknown = [agent for agent in wanted if agent not in who]
    if unknown:
        raise UserError(
            f"{path}: there is no agent {', '.join(unknown)}; there are {', '.join(who[:10])}"
            + (f" and {len(who) - 10} others" if len(who) > 10 else "")
        )
    return np.array([who.index(agent) for agent in wanted])
