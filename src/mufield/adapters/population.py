"""Finitely many agents that do as they are told, all at once."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._types import Action, Key, Mass, Scalar, State, States
from ..policies.base import AbstractPolicy, ActionLaw
from ..problem import Motion, Problem
from ..space.measure import MeanField, mean_field_at
from ..systems import agent_step


class Told(AbstractPolicy):
    """Does as it is told: one agent's action or, of a set of moves, its chosen distribution.

    Attributes:
        actions: The possible actions, in an environment with one more axis for the agents.
        weights: Their probabilities.
    """

    actions: Float[Array, "*agents moves action_dim"]
    weights: Float[Array, "*agents moves"]

    def law(self, state: State, mu: MeanField) -> ActionLaw:
        """The same law wherever the agent is."""
        return ActionLaw(actions=self.actions, weights=self.weights)


def start(problem: Problem, key: Key, agents: int) -> States:
    """Agents drawn from the initial distribution, as a `SimulatedSystem` draws its own."""
    return problem.draw_starts(key, agents)


def move_all(
    problem: Problem,
    motion: Motion,
    states: States,
    mass: Mass,
    told: Told,
    key: Key,
    step: Int[Array, ""],
) -> tuple[States, Float[Array, "agents"]]:
    """Where all agents come to rest, and what they earn for the step."""
    keys = jax.random.split(jax.random.fold_in(key, step), states.shape[0])

    def one(told: Told, state: State, key: Key) -> tuple[State, Scalar]:
        action, moved = agent_step(problem, motion, told, state, mass, key)
        return moved.position, _reward(problem, state, action, mass)

    return jax.vmap(one)(told, states, keys)


def end_rewards(problem: Problem, states: States, mass: Mass) -> Float[Array, "agents"]:
    """What agents at rest earn for the last distribution."""
    rest = jnp.asarray(problem.actions.rest, dtype=states.dtype)
    return jax.vmap(lambda state: _reward(problem, state, rest, mass))(states)


def _reward(problem: Problem, state: State, action: Action, mass: Mass) -> Scalar:
    return jnp.asarray(problem.reward(state, action, mean_field_at(problem.grid, mass, state)))
