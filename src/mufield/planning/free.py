"""Moves that are free in the action box, and how an ascent changes them.

Moves go by resilient propagation: each axis of each move has a reach of its own, and only the sign
of the derivative of J counts. So neither the unit of the reward nor the mass of a cell matters.
"""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..actions import Box, MoveSet
from ..flow.moves import MoveFlow
from ..flow.sweep import Weights

FreeActions = Float[Array, "steps cells moves action_dim"]


class FreeMoves(eqx.Module):
    """Moves that an ascent changes, each on its own.

    Attributes:
        actions: The moves.
        reach: How far each axis of each move goes in the next sweep.
        signs: The signs of the last derivatives; zero after a sweep that was undone.
    """

    actions: FreeActions
    reach: FreeActions
    signs: FreeActions

    @classmethod
    def heaviest(
        cls,
        actions: Float[Array, "cells moves action_dim"],
        weights: Weights,
        kept: int,
        reach: Float[Array, "action_dim"],
    ) -> tuple["FreeMoves", Weights]:
        """The heaviest of listed moves in each cell and step, and their weights."""
        weights, which = jax.lax.top_k(weights, min(kept, weights.shape[-1]))
        chosen = actions[jnp.arange(len(actions))[:, None], which]
        weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
        reaches = jnp.broadcast_to(reach.astype(chosen.dtype), chosen.shape)
        return cls(chosen, reaches, jnp.zeros_like(chosen)), weights

    def step(self, slopes: FreeActions, box: Box | MoveSet) -> "FreeMoves":
        """Moves uphill within the box; a reach grows while its sign stays, and else is halved."""
        signs = jnp.sign(slopes)
        agree = signs * self.signs
        factor = jnp.where(agree > 0, 1.2, jnp.where(agree < 0, 0.5, 1.0)).astype(slopes.dtype)
        reach = self.reach * factor
        lower, upper = (jnp.asarray(end, dtype=reach.dtype) for end in (box.lower, box.upper))
        return FreeMoves(jnp.clip(self.actions + reach * signs, lower, upper), reach, signs)

    def back(self) -> "FreeMoves":
        """The same moves after a sweep that was undone: they may have gone too far."""
        return replace(self, reach=0.5 * self.reach, signs=jnp.zeros_like(self.signs))


def moves_of(moves: MoveFlow, free: FreeMoves | None) -> MoveFlow:
    """The flow over an ascent's moves: the listed ones, or those that it has found."""
    return moves if free is None else moves.with_actions(free.actions)
