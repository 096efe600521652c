"""Observed episodes from files, for systems that only the real world can run.

`mufield tell --help` lists the columns, docs/fleet.md says what is taken where some are missing. An
axis counts as stopped if the agent ended in contact with a wall or border; for agents that move
from cell to cell, if they stayed beside one on that axis. Without a column ``reward``, the known
reward pays: with a file of masses the policy that was asked for, else the agents, on average.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._arrays import Masses
from ..episode import Episode
from ..errors import UserError, number
from ..flow.phi import integrated_reward
from ..flow.rollout import end_reward
from ..models.data import with_population
from ..policies.base import Profile
from ..policies.shocks import profile_on_path
from ..problem import Problem
from ..space.measure import histogram
from ..systems import reward_at
from . import checks
from .checks import Asked, Seen
from .observed import ObservedMoves, read_mass
from .rows import check_actions, check_moves, stopped_axes


def read_episode(
    path: Path,
    asked: Asked,
    *,
    mass_path: Path | None = None,
    population: float | None = None,
    agents: Sequence[str] = (),
    notes: list[str] | None = None,
) -> Episode:
    """Reads an observed episode; raises and names row, column and remedy if it cannot be right.

    ``mass_path`` is a file of the population's distributions, if these were observed by other
    means, ``population`` is the number of agents in them, if all followed the policy: on nodes the
    model then learns from them, too; ``agents`` are those to learn from, by default all; to
    ``notes`` sentences are added on what can hardly be.
    """
    problem, notes = asked.problem, [] if notes is None else notes
    grid, dtype, profile = problem.grid, problem.initial.dtype, asked.profile
    moves = ObservedMoves(path, problem, episode=True)
    notes += moves.notes  # rows that were left out count as not seen
    table, who = moves.table, moves.who
    checks.check_answer(table, asked)
    place, shocks = checks.places_of(moves), checks.shocks_of(moves)
    if shocks is not None:
        profile = profile_on_path(profile, problem.shocks, jnp.asarray(shocks))
        problem = problem.under_shock(jnp.append(shocks, shocks[-1]))
    tracked = moves.chosen(agents)
    start, end, done = moves.positions("state"), moves.positions("next"), moves.actions()
    check_actions(table.where, problem, done)
    own = np.flatnonzero(~moves.carried)

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
    checks.check_present(table, present, every_step=not integrated)
    # Where rows are missing stands a legal position, so that rewards are finite; none counts.
    corner = np.asarray(grid.centres[0])
    states, ends = by_agent(start, corner), by_agent(end, corner)
    actions = by_agent(done, np.asarray(problem.actions.rest))
    checks.check_continuity(table, grid, states, ends, rows)
    # An agent that lacks a row is where its last step ended.
    places = np.concatenate([states, ends[:, -1:]], axis=1)
    places[:, 1:-1] = np.where(present[:, 1:, None], places[:, 1:-1], ends[:, :-1])
    known = np.pad(present, ((0, 0), (0, 1))) | np.pad(present, ((0, 0), (1, 0)))
    # Agents under way are no part of mu, whose sum is the share of those that are free.
    riding = _under_way(problem, present, by_agent(moves.carried, False))
    known &= ~riding
    free = known.sum(axis=0) / np.maximum((known | riding).sum(axis=0), 1)
    if mass_path is None:
        by_step = zip(places.swapaxes(0, 1), known.T, strict=True)
        moments = jnp.stack([histogram(grid, at[seen]) for at, seen in by_step])
        mass = (moments * free[:, None]).astype(dtype)
        notes += checks.notes_on_sample(np.asarray(mass, dtype=float), known.sum(axis=0))
    else:
        mass = jnp.asarray(read_mass(mass_path, problem, notes), dtype=dtype)
    count = int(known[:, 0].sum()) if mass_path is None else None
    notes += checks.notes_on_start(asked.start, np.asarray(mass[0], dtype=float), count)
    if problem.hides_reward and paid is not None:
        rewards = jnp.asarray(_mean(paid, present), dtype=dtype)
        if problem.pay_end:
            at_end = by_agent(table.numbers("end_reward"), 0.0)[:, -1:]
            rewards = jnp.append(rewards, jnp.asarray(_mean(at_end, present[:, -1:]), dtype=dtype))
    elif integrated:
        rewards = integrated_rewards(problem, profile, mass)
    else:
        counted = jnp.asarray(np.concatenate([present, present[:, -1:]], axis=1))
        inputs = (jnp.asarray(places), jnp.asarray(actions), counted)
        rewards = mean_rewards(problem, *inputs, mass)
        if paid is not None:
            was_paid = _mean(paid, present)
            notes += checks.notes_on_rewards(np.asarray(rewards[: problem.horizon]), was_paid)
            rewards = rewards.at[: problem.horizon].set(was_paid)
    if not integrated:  # those are paid nothing until they arrive
        rewards = rewards * jnp.asarray(free[: len(rewards)], dtype=dtype)
    observed = {"states": states, "actions": actions, "next_states": ends}
    observed["stopped"] = by_agent(stopped_axes(problem, start, end), False)
    if paid is not None and problem.hides_reward:
        observed["earned"] = paid.astype(dtype)
    if not present[tracked].all():
        observed["present"] = present
    if problem.trips is not None:
        observed["carried"] = by_agent(moves.carried, False)
    of_tracked = {name: jnp.asarray(array[tracked]) for name, array in observed.items()}
    if shocks is not None:
        of_tracked["shocks"] = jnp.asarray(shocks, jnp.int32)
    episode = Episode(mass=mass, rewards=rewards, **of_tracked)
    if population is None:
        return episode
    if mass_path is None:
        raise UserError("--counted is the number of agents in the file of --mass; give that file")
    agents_counted = number(population, "the number of agents counted", 1.0)
    return with_population(episode, problem, profile, agents_counted)


def _under_way(
    problem: Problem, present: Seen, carried: Seen
) -> Bool[np.ndarray, "agents steps_and_end"]:
    """Which agents lack rows because a trip that began before has not ended."""
    stages = 0 if problem.trips is None else problem.trips.stages
    steps = np.arange(present.shape[1])
    last = np.maximum.accumulate(np.where(present, steps, -1), axis=1)  # row at or before a step
    begun = (last >= 0) & np.take_along_axis(carried, np.maximum(last, 0), axis=1)
    return np.pad(begun & ~present & (steps - last <= stages), ((0, 0), (0, 1)))


def _mean(values: Float[np.ndarray, "agents steps"], counted: Seen) -> Float[np.ndarray, "steps"]:
    return np.asarray(np.where(counted, values, 0.0).sum(axis=0) / counted.sum(axis=0))


@eqx.filter_jit
def integrated_rewards(
    problem: Problem, profile: Profile, mass: Masses
) -> Float[Array, "paid_steps"]:
    """r-hat(mu_h, pi_h) (eq. integratedReward) of observed distributions under a known policy."""
    grid, laws = problem.grid, profile.laws(problem.grid, mass[:-1])
    rewards = jax.lax.map(
        lambda now: integrated_reward(grid, now[0], now[1], problem.reward, now[2]),
        (mass[:-1], laws, problem.steps),
    )
    return jnp.append(rewards, end_reward(problem, mass[-1])) if problem.pay_end else rewards


@eqx.filter_jit
def mean_rewards(
    problem: Problem, places: Array, actions: Array, counted: Array, mass: Masses
) -> Float[Array, "paid_steps"]:
    """The mean over observed agents of what the known reward pays them; at the end they rest.

    Axes of ``places`` and ``counted``, which include the end: (agents, steps + 1, ...); of
    ``actions``: (agents, steps, action_dim).
    """
    rest = jnp.asarray(problem.actions.rest, dtype=mass.dtype)
    resting = jnp.broadcast_to(rest, (len(actions), 1, len(rest)))
    done = jnp.concatenate([actions, resting], axis=1)

    numbers = jnp.arange(problem.horizon + 1, dtype=jnp.int32)
    of_agents = jax.vmap(jax.vmap(partial(reward_at, problem)), in_axes=(0, 0, None, None))
    paid = of_agents(places, done, mass, numbers)
    return jnp.mean(paid, axis=0, where=counted)[: problem.paid_steps]
