"""Randomised policies over a finite set of moves."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._types import Mass, State
from ..problem import MoveSet, Problem
from ..space.grid import Grid
from ..space.measure import MeanField
from .base import AbstractPolicy, ActionLaw


class RandomisedPolicy(AbstractPolicy):
    """Each agent draws one of finitely many actions, with weights that depend on its cell.

    Attributes:
        actions: The possible actions, the same in every cell.
        weights: Probabilities of the actions in each cell.
    """

    actions: Float[Array, "*steps moves action_dim"]
    weights: Float[Array, "*steps cells moves"]

    def law(self, state: State, mu: MeanField) -> ActionLaw:
        """The weights of the agent's cell."""
        return ActionLaw(actions=self.actions, weights=self.weights[mu.grid.index_of(state)])

    def at_cells(self, grid: Grid, mass: Mass) -> ActionLaw:
        """All cells' weights, without a look-up."""
        shape = (grid.n_cells, *self.actions.shape)
        return ActionLaw(actions=jnp.broadcast_to(self.actions, shape), weights=self.weights)


def option_policy(actions: MoveSet, choice: Int[Array, "*steps cells"]) -> RandomisedPolicy:
    """The policy that takes one of a move set's options in each cell.

    Args:
        actions: The moves and the mixtures of them.
        choice: Number of the option, for each cell or for each step and cell. Stack the latter
            with `Profile.stacked`.
    """
    steps = choice.shape[:-1]
    moves = jnp.broadcast_to(actions.moves, (*steps, *actions.moves.shape))
    return RandomisedPolicy(actions=moves, weights=actions.options[choice])


class UniformRandom(AbstractPolicy):
    """Every agent draws from the same actions with equal probability, wherever it is.

    Attributes:
        actions: The possible actions.
    """

    actions: Float[Array, "moves action_dim"]

    def law(self, state: State, mu: MeanField) -> ActionLaw:
        """Equal weights."""
        count = self.actions.shape[0]
        return ActionLaw(
            actions=self.actions, weights=jnp.full((count,), 1.0 / count, dtype=state.dtype)
        )


def random_policy(problem: Problem, points: int = 9) -> UniformRandom:
    """The uniform random policy: all moves of a set alike, or ``points`` on each axis of a box."""
    return UniformRandom(problem.actions.points(points, border=False))
