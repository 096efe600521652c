"""From a plan over coarse moves to one whose few moves lie anywhere in the action box.

The coarse plan is cut to its heaviest moves in each cell and step. Then one ascent changes weights
and moves together, by the exact derivatives of J through the flow. Moves go by resilient
propagation: each axis of each move has a reach of its own, and only the sign of the derivative of J
counts. So neither the unit of the reward nor the mass of a cell matters.
"""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..actions import Box, MoveSet
from ..flow.backward import Weights
from ..flow.motions import degree_in_action
from ..flow.moves import MoveFlow
from ..problem import Problem

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

    def of(self, moves: MoveFlow) -> MoveFlow:
        """The flow over these moves."""
        return moves.with_actions(self.actions)


class Refinement(eqx.Module):
    """How a plan over coarse moves goes on to any actions of the box.

    Attributes:
        kept: Number of moves that are kept of each cell and step, the heaviest.
        sweeps: Sweeps that change weights and moves; zero to keep to the coarse moves.
        reach: The first reach of moves, as a share of the distance between coarse ones.
    """

    kept: int = 8
    sweeps: int = 24
    reach: float = 0.25

    def pays(self, problem: Problem, points: int) -> bool:
        """Whether actions between the coarse ones may earn more, as far as can be told beforehand.

        They may where actions are paid for, and where neighbouring moves lead farther apart than
        a standard deviation of the noise, which blurs what is nearer.
        """
        if self.sweeps == 0 or not isinstance(problem.actions, Box) or problem.stationary:
            return False
        apart = [2 * far / max(1, points - 1) for far in problem.max_move]
        aims = any(far > 1.001 * std for far, std in zip(apart, problem.noise_std, strict=True))
        return aims or degree_in_action(problem, problem.reward) > 0

    def start(
        self, moves: MoveFlow, weights: Weights, points: int
    ) -> tuple[FreeMoves, Float[Array, "steps cells kept"]]:
        """The heaviest of listed moves in each cell and step, and their weights.

        Of coarse actions there are ``points`` on each axis; controls have three values.
        """
        problem, dim = moves.flow.problem, moves.actions.shape[-1]
        own = dim if moves.group == 1 else dim - problem.grid.dim
        sizes = jnp.asarray(problem.actions.upper) - jnp.asarray(problem.actions.lower)
        count = jnp.where(jnp.arange(dim) < own, max(1, points - 1), 2)
        weights, which = jax.lax.top_k(weights, min(self.kept, weights.shape[-1]))
        chosen = moves.actions[jnp.arange(len(moves.actions))[:, None], which]
        reach = (self.reach * sizes / count).astype(chosen.dtype)
        free = FreeMoves(chosen, jnp.broadcast_to(reach, chosen.shape), jnp.zeros_like(chosen))
        return free, weights / jnp.sum(weights, axis=-1, keepdims=True)


def own_table(
    coarse: Float[Array, "moves action_dim"],
    coarse_weights: Float[Array, "steps cells moves"],
    found: Float[Array, "steps cells kept action_dim"],
    found_weights: Float[Array, "steps cells kept"],
    better: Bool[Array, ""],
) -> tuple[Float[Array, "steps cells most action_dim"], Float[Array, "steps cells most"]]:
    """The moves and weights of what was found, if that is better, and else the coarse ones.

    Both get as many moves, of which the last of the shorter list have no weight.
    """
    count = max(len(coarse), found.shape[-2])

    def padded(values: Array, axis: int) -> Array:
        widths = [(0, 0)] * values.ndim
        widths[axis] = (0, count - values.shape[axis])
        return jnp.pad(values, widths)

    listed = jnp.broadcast_to(coarse, (*coarse_weights.shape[:2], *coarse.shape))
    actions = jnp.where(better, padded(found, -2), padded(listed, -2))
    return actions, jnp.where(better, padded(found_weights, -1), padded(coarse_weights, -1))
