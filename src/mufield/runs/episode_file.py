"""Observed episodes from files, for systems that only the real world can run.

One row for each agent and step, as CSV or Parquet:

- ``agent``: any name or number.
- ``step``: 0, 1, ..., horizon - 1.
- ``state_0``, ``state_1``, ...: where the agent was, in the units of the problem's grid.
- ``action_0``, ...: what it did.
- ``next_0``, ...: where it was one step later.
- ``stopped_0``, ... (optional): 1 on axes where a wall or border stopped the agent, else 0. If
  they are missing, an axis counts as stopped where the agent ended in contact with a wall or
  border; agents that stand in cells count as stopped on axes on which they stayed beside one.
- ``reward``: what the agent was paid at the step. Optional, unless the problem hides its reward:
  then it is what the reward is learned from.
- ``end_reward``: what the agent was paid for where it was at the end, in each of its rows; only
  needed where the problem hides its reward and pays the end.
- ``run``, ``episode``, ``policy`` (optional): the run, the number of the episode and the policy's
  id, as ``mufield ask`` prints them. They are compared, so that no episode gets into the wrong run.

Other columns are ignored. The population's distribution is that of the agents in the file, unless
a second file gives it: ``step`` (0, ..., horizon), ``cell_0``, ``cell_1``, ... (coordinates of a
cell, from 0) and ``mass`` (share of the population there); cells without a row are empty.

Rewards that are not given follow from the problem's reward, if it is known: with a file of masses
they are the integrated reward of the policy that was asked for, else the mean over the agents of
the file.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._files import file_digest
from ..episode import Episode
from ..errors import UserError
from ..learning.metrics import EpisodeMetrics
from ..policies.files import read_info
from ..problem import Problem
from ..space.measure import histogram
from ..space.noise import NeighbourNoise
from .contact import touching, unmoved_at_walls
from .driver import Session
from .episode_checks import (
    Asked,
    check_actions,
    check_answer,
    check_moves,
    check_size,
    check_way,
    checked_positions,
    rows_by_agent,
)
from .mass_file import read_mass
from .rewards import integrated_rewards, mean_rewards
from .table_file import Table, label, read_table


def tell_file(
    session: Session,
    path: Path,
    *,
    mass_path: Path | None = None,
    agents: Sequence[str] = (),
    policy_path: Path | None = None,
    repeated: bool = False,
) -> EpisodeMetrics:
    """Tells a run an episode from a file; raises, and changes nothing, if it cannot be right.

    Args:
        session: The run.
        path: The file of agents.
        mass_path: The file of distributions, if there is one.
        agents: The agents to learn from; by default all.
        policy_path: The policy file that was run, to be compared.
        repeated: Whether the episode may equal an earlier one.
    """
    asked = session.asked()
    if policy_path is not None:
        info = read_info(policy_path)
        if info.get("id") != asked.policy:
            raise UserError(
                f"{policy_path} is not the policy that was asked for last: expected the id "
                f"{asked.policy} of episode {asked.episode} of the run {asked.run}, got "
                f"{info.get('id')} of episode {info.get('episode')} of the run {info.get('run')}; "
                "tell the episode of that policy"
            )
    episode = read_episode(path, asked, mass_path=mass_path, agents=agents)
    source = {"file": path.name, "sha256": file_digest(path)}
    return session.tell(episode, source=source, repeated=repeated)


def read_episode(
    path: Path, asked: Asked, *, mass_path: Path | None = None, agents: Sequence[str] = ()
) -> Episode:
    """Reads what was observed; raises and names row, column and remedy if it cannot be right.

    Args:
        path: The file of agents.
        asked: What the episode must answer.
        mass_path: A file of the population's distributions, if it was observed by other means.
        agents: The agents to learn from; by default all.
    """
    problem = asked.problem
    dim = problem.grid.dim
    table = read_table(path)
    names = {
        "states": [f"state_{i}" for i in range(dim)],
        "actions": [f"action_{i}" for i in range(problem.actions.dim)],
        "next_states": [f"next_{i}" for i in range(dim)],
    }
    table.require(["agent", "step", *(column for each in names.values() for column in each)])
    _check_rewards(table, problem)
    check_size(table, problem)
    check_answer(table, asked)
    order, who = rows_by_agent(table, problem.horizon)
    shape = (len(who), problem.horizon)
    columns = {
        name: np.stack([table.numbers(column) for column in each], axis=-1)
        for name, each in names.items()
    }
    dtype = problem.initial.dtype
    states = checked_positions(table, problem, columns["states"].astype(dtype), names["states"])
    ends = checked_positions(
        table, problem, columns["next_states"].astype(dtype), names["next_states"]
    )
    actions = columns["actions"].astype(dtype)
    check_actions(table, problem, actions, names["actions"])
    check_moves(table, problem, states, ends)
    stopped = _stopped(table, problem, states, ends)

    def by_agent(values: np.ndarray) -> np.ndarray:
        return np.asarray(values[order].reshape(*shape, *values.shape[1:]))

    check_way(table, problem, by_agent(states), by_agent(ends), order)
    tracked = _tracked(path, who, agents)
    everyone = Episode(
        states=jnp.asarray(by_agent(states)),
        actions=jnp.asarray(by_agent(actions)),
        next_states=jnp.asarray(by_agent(ends)),
        stopped=jnp.asarray(by_agent(stopped)),
        mass=_mass(problem, by_agent(states), by_agent(ends), mass_path),
        rewards=jnp.zeros(problem.paid_steps, dtype=dtype),
    )
    paid = by_agent(table.numbers("reward")) if "reward" in table.columns else None
    if paid is None and mass_path is not None:
        rewards = integrated_rewards(problem, asked.profile, everyone.mass)
    else:
        at_end = None
        if problem.hides_reward and problem.pay_end:
            at_end = by_agent(table.numbers("end_reward"))[:, -1]
        rewards = mean_rewards(problem, everyone, paid, at_end)
    earned = None
    if problem.hides_reward and paid is not None:
        earned = jnp.asarray(paid[tracked], dtype=dtype)
    return Episode(
        states=everyone.states[tracked],
        actions=everyone.actions[tracked],
        next_states=everyone.next_states[tracked],
        stopped=everyone.stopped[tracked],
        mass=everyone.mass,
        rewards=rewards,
        earned=earned,
    )


def _check_rewards(table: Table, problem: Problem) -> None:
    """Raises if the file does not say what only the agents know."""
    needed = ["reward", *(["end_reward"] if problem.pay_end else [])]
    missing = [column for column in needed if column not in table.columns]
    if problem.hides_reward and missing:
        raise UserError(
            f"{table.path}: the column {missing[0]} is missing; the problem hides its reward, so "
            "the file must say what agents were paid"
        )


def _stopped(table: Table, problem: Problem, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    columns = [f"stopped_{i}" for i in range(problem.grid.dim)]
    if not any(column in table.columns for column in columns):
        if isinstance(problem.noise, NeighbourNoise):
            return unmoved_at_walls(problem.grid, start, end)
        return touching(problem.grid, start, end)
    table.require(columns)
    values = np.stack([_flags(table, column) for column in columns], axis=-1)
    return np.asarray(values)


def _flags(table: Table, column: str) -> np.ndarray:
    words = {"true": 1.0, "false": 0.0, "1": 1.0, "0": 0.0, "1.0": 1.0, "0.0": 0.0}
    names = [name.lower() for name in table.labels(column)]
    for row, name in enumerate(names):
        if name not in words:
            raise UserError(
                f"{table.where(row, column)}: expected 0 or 1, got {table.columns[column][row]!r}; "
                "repair it"
            )
    return np.array([words[name] == 1.0 for name in names])


def _tracked(path: Path, who: list[str], agents: Sequence[str]) -> np.ndarray:
    wanted = [label(agent) for agent in agents] or who
    unknown = [agent for agent in wanted if agent not in who]
    if unknown:
        raise UserError(
            f"{path}: there is no agent {', '.join(unknown)}; there are {', '.join(who[:10])}"
            + (f" and {len(who) - 10} others" if len(who) > 10 else "")
        )
    return np.array([who.index(agent) for agent in wanted])


def _mass(problem: Problem, states: np.ndarray, ends: np.ndarray, mass_path: Path | None) -> Any:
    if mass_path is not None:
        return jnp.asarray(read_mass(mass_path, problem), dtype=problem.initial.dtype)
    places = np.concatenate([states, ends[:, -1:]], axis=1)
    return jnp.stack(
        [histogram(problem.grid, places[:, step]) for step in range(places.shape[1])]
    ).astype(problem.initial.dtype)
