"""The known reward along observed distributions."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import _types
from .._types import Action, Scalar, State
from ..flow.phi import end_reward, integrated_reward
from ..policies.base import Profile
from ..problem import Problem
from ..space.measure import mean_field_at


@eqx.filter_jit
def integrated_rewards(
    problem: Problem, profile: Profile, mass: _types.Masses
) -> Float[Array, "paid_steps"]:
    """r-hat(mu_h, pi_h) (eq. integratedReward) of observed distributions under a known policy."""
    grid, laws = problem.grid, profile.laws(problem.grid, mass[:-1])

    def one(now: tuple[Any, ...]) -> Scalar:
        before, law, number = now
        return integrated_reward(grid, before, law, problem.reward, number)

    rewards = jax.lax.map(one, (mass[:-1], laws, problem.steps))
    return jnp.append(rewards, end_reward(problem, mass[-1])) if problem.pay_end else rewards


@eqx.filter_jit
def mean_rewards(
    problem: Problem, places: Array, actions: Array, counted: Array, mass: _types.Masses
) -> Float[Array, "paid_steps"]:
    """The mean over observed agents of what the known reward pays them; at the end they rest.

    Axes of ``places`` and ``counted``, which include the end: (agents, steps + 1, ...); of
    ``actions``: (agents, steps, action_dim).
    """
    rest = jnp.asarray(problem.actions.rest, dtype=mass.dtype)
    resting = jnp.broadcast_to(rest, (len(actions), 1, len(rest)))
    inputs = (places, jnp.concatenate([actions, resting], axis=1), counted)

    def step(_: None, now: Any) -> tuple[None, Scalar]:
        number, mass, states, done, counts = now

        def one(state: State, action: Action) -> Scalar:
            return problem.reward(state, action, mean_field_at(problem.grid, mass, state, number))

        return None, jnp.mean(jax.vmap(one)(states, done), where=counts)

    numbers = jnp.arange(problem.horizon + 1, dtype=jnp.int32)
    by_step = (numbers, mass, *(jnp.swapaxes(values, 0, 1) for values in inputs))
    return jax.lax.scan(step, None, by_step)[1][: problem.paid_steps]
