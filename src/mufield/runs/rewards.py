"""What an observed population earned, by the problem's known reward."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import _types
from .._types import Action, Mass, Scalar, State
from ..episode import Episode
from ..policies.base import ActionLaw, Profile
from ..problem import Problem
from ..space.measure import MeanField, mean_field_at


def integrated_rewards(
    problem: Problem, profile: Profile, mass: _types.Masses
) -> Float[Array, "paid_steps"]:
    """r-hat(mu_h, pi_h) (eq. integratedReward) of observed distributions under a known policy."""
    rest = jnp.asarray(problem.actions.rest, dtype=mass.dtype)
    cells = problem.grid.n_cells
    at_rest = ActionLaw(
        actions=jnp.broadcast_to(rest, (cells, 1, rest.shape[0])),
        weights=jnp.ones((cells, 1), dtype=mass.dtype),
    )
    rewards = _integrated(problem, profile, mass[:-1])
    if problem.pay_end:
        rewards = jnp.append(rewards, _earned(problem, mass[-1], at_rest))
    return rewards


def mean_rewards(
    problem: Problem,
    episode: Episode,
    paid: Float[np.ndarray, "agents steps"] | None,
    at_end: Float[np.ndarray, "agents"] | None = None,
) -> Float[Array, "paid_steps"]:
    """The mean over the episode's agents at each paid step.

    Args:
        problem: The problem.
        episode: All agents that were observed.
        paid: What each was paid, if that was observed too.
        at_end: What each was paid for the end, if the problem hides its reward; else that is
            computed.
    """
    grid, mass = problem.grid, episode.mass
    if paid is None:
        states = jnp.swapaxes(episode.states, 0, 1)
        actions = jnp.swapaxes(episode.actions, 0, 1)
        rewards = _mean(problem, states, actions, mass[:-1])
    else:
        rewards = jnp.asarray(paid.mean(axis=0), dtype=mass.dtype)
    if problem.pay_end and at_end is not None:
        rewards = jnp.append(rewards, jnp.asarray(at_end.mean(), dtype=mass.dtype))
    elif problem.pay_end:
        rest = jnp.asarray(problem.actions.rest, dtype=mass.dtype)
        ends = episode.next_states[:, -1]
        last = jax.vmap(lambda s: problem.reward(s, rest, mean_field_at(grid, mass[-1], s)))(ends)
        rewards = jnp.append(rewards, jnp.mean(last))
    return rewards


@eqx.filter_jit
def _integrated(problem: Problem, profile: Profile, mass: _types.Masses) -> Array:
    def step(_: None, inputs: Any) -> tuple[None, Scalar]:
        part, now = inputs
        return None, _earned(problem, now, profile.join(part).at_cells(problem.grid, now))

    return jax.lax.scan(step, None, (profile.per_step, mass), length=problem.horizon)[1]


@eqx.filter_jit
def _earned(problem: Problem, mass: Mass, law: ActionLaw) -> Scalar:
    grid = problem.grid
    centres = jnp.asarray(grid.centres, dtype=mass.dtype)

    def one(state: State, here: Scalar, actions: Array) -> Array:
        mu = MeanField(mass=mass, here=here, grid=grid)
        return jax.vmap(lambda action: problem.reward(state, action, mu))(actions)

    return jnp.sum(mass[:, None] * law.weights * jax.vmap(one)(centres, mass, law.actions))


@eqx.filter_jit
def _mean(problem: Problem, states: Array, actions: Array, mass: _types.Masses) -> Array:
    def step(_: None, inputs: Any) -> tuple[None, Scalar]:
        here, done, now = inputs

        def one(state: State, action: Action) -> Scalar:
            return problem.reward(state, action, mean_field_at(problem.grid, now, state))

        return None, jnp.mean(jax.vmap(one)(here, done))

    return jax.lax.scan(step, None, (states, actions, mass))[1]
