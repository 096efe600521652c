"""The moves of a whole population, which say more of probabilities than those of a few agents."""

import math
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._arrays import Mass, Masses
from ..actions import MoveSet
from ..episode import Episode
from ..policies.base import Profile, checked_profile
from ..problem import Problem


def with_population(
    episode: Episode, problem: Problem, policy: Any, agents: float = math.inf
) -> Episode:
    """An episode on nodes whose mass is that of agents who all followed a policy.

    Learners then take the mass as observations: ``mu' = sum P(. | s, a, mu) pi(a | s) mu(s)``. It
    must have been counted, not computed from the policy, and not among tracked agents alone, whose
    moves say more. Episodes on grids and with trips, which move agents too, stay as they are.

    Args:
        episode: What was observed.
        problem: The problem; with shocks, under those of the episode.
        policy: What the population followed, not its scouts.
        agents: How many agents were counted; infinity for the mass of the limit.
    """
    if (
        not isinstance(problem.actions, MoveSet)
        or not problem.on_nodes
        or problem.trips is not None
    ):
        return episode
    moves = jnp.asarray(problem.actions.moves)
    joint = _joint(problem, checked_profile(policy, problem), episode.mass, moves)
    return replace(episode, joint=joint, population=jnp.asarray(agents, joint.dtype))


@eqx.filter_jit
def _joint(
    problem: Problem, profile: Profile, mass: Masses, moves: Float[Array, "moves action_dim"]
) -> Float[Array, "steps cells moves"]:
    def one(inputs: tuple[Any, Mass, Array]) -> Array:
        part, now, step = inputs
        law = profile.join(part).at_cells(problem.grid, now, step)
        apart = jnp.sum((law.actions[:, :, None] - moves) ** 2, axis=-1)
        nearest = jax.nn.one_hot(jnp.argmin(apart, axis=-1), len(moves), dtype=now.dtype)
        return now[:, None] * jnp.einsum("km,kmn->kn", law.weights, nearest)

    return jax.lax.map(one, (profile.per_step, mass[:-1], problem.steps))
