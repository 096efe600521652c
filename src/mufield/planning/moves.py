"""The moves that plans draw from: regular ones, and then few that lie anywhere in the action box.

A plan over regular moves is cut to its heaviest moves in each cell and step. Then one ascent
changes weights and moves together, by the exact derivatives of J through the flow. Moves go by
resilient propagation: each axis of each move has a step of its own, and only the sign of the
derivative of J counts. So neither the unit of the reward nor the mass of a cell matters.
"""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._arrays import Scalar, map_in_parts
from ..actions import Box, MoveSet
from ..flow.backward import Weights
from ..flow.flow import Flow
from ..flow.motions import degree_in_action
from ..flow.moves import MoveFlow, coarse_moves
from ..problem import Motion, Problem
from .planner import Actions

FreeActions = Float[Array, "steps cells moves action_dim"]


def regular_moves(
    flow: Flow, motion: Motion, actions: Actions, *, points: int | None = None, controls: int = 2
) -> MoveFlow:
    """The flow over a regular set of moves.

    If the flow's actions have more axes than ``actions``, the moves are all pairs of an action
    and a control eta in [-1, 1]^p; pairs with the same action are neighbours.

    Args:
        flow: The flow of the problem to plan in.
        motion: The law of motion.
        actions: What agents can do.
        points: Actions on each axis of a box; by default those of `coarse_moves`.
        controls: Values of eta on each axis; 2 stands for the corners of [-1, 1]^p and its centre,
            the middle of the confidence band.
    """
    own = own_moves(actions, points)
    size = flow.problem.actions.dim - actions.dim
    if size == 0:
        return MoveFlow(flow, motion, own)
    etas = jnp.asarray(flow.problem.grid.controls(controls), own.dtype)
    pairs = (*own.shape[:-1], len(etas))
    joint = [
        jnp.broadcast_to(own[..., None, :], (*pairs, own.shape[-1])),
        jnp.broadcast_to(etas, (*pairs, size)),
    ]
    moves = jnp.concatenate(joint, axis=-1).reshape(*own.shape[:-2], -1, own.shape[-1] + size)
    return MoveFlow(flow, motion, moves, group=len(etas))


def own_moves(actions: Actions, points: int | None) -> Float[Array, "*cells moves action_dim"]:
    """The moves of `regular_moves` without controls."""
    if points is None or isinstance(actions, MoveSet):
        return coarse_moves(actions)
    return actions.points(points)


@eqx.filter_jit
def best_constant(moves: MoveFlow) -> Weights:
    """All agents make the same move in all cells and steps: that which earns most, or rest.

    Controls stay near zero. From the uniform policy an ascent finds nothing where moves to all
    sides gain alike, as with rewards for being far from the others. It is rest where cells have
    moves of their own, and with constraints, which other moves may violate.
    """
    still = jnp.asarray(moves.flow.problem.actions.rest, dtype=moves.actions.dtype)
    apart = jnp.sum((moves.actions - still) ** 2, axis=-1)
    rest = jax.nn.one_hot(jnp.argmin(apart, axis=-1), apart.shape[-1], dtype=still.dtype)
    rest = jnp.broadcast_to(rest, moves.uniform().shape)
    if not moves.shared or moves.flow.problem.constraints is not None:
        return rest

    def value(move: Array) -> Scalar:
        one = moves.only(move)
        return one.rollout(one.uniform()).value

    count, cells = rest.shape[-1], moves.flow.problem.grid.n_cells
    of_group = jnp.argmin(apart[0].reshape(-1, moves.group), axis=1)
    tried = moves.group * jnp.arange(len(of_group)) + of_group
    values = map_in_parts(value, tried, max(1, (1 << 18) // cells))
    values = jnp.where(jnp.isfinite(values), values, -jnp.inf)
    at_rest = jnp.sum(jnp.where(tried == jnp.argmax(rest[0, 0]), values, 0.0))
    best = jax.nn.one_hot(tried[jnp.argmax(values)], count, dtype=rest.dtype)
    return jnp.where(jnp.max(values) > at_rest, best, rest)


class FreeMoves(eqx.Module):
    """Moves that an ascent changes, each on its own.

    Attributes:
        step_size: How far each axis of each move goes in the next sweep.
        signs: The signs of the last derivatives; zero after a sweep that was undone.
        rule: How steps grow and shrink.
    """

    actions: FreeActions
    step_size: FreeActions
    signs: FreeActions
    rule: "Refinement" = eqx.field(static=True)

    def step(self, slopes: FreeActions, box: Box | MoveSet) -> "FreeMoves":
        """Moves uphill within the box; a step grows while its sign stays, and else shrinks."""
        signs, rule = jnp.sign(slopes), self.rule
        agree = signs * self.signs
        factor = jnp.where(agree > 0, rule.growth, jnp.where(agree < 0, rule.shrinkage, 1.0))
        step = self.step_size * factor.astype(slopes.dtype)
        lower, upper = (jnp.asarray(end, dtype=step.dtype) for end in (box.lower, box.upper))
        moved = jnp.clip(self.actions + step * signs, lower, upper)
        return replace(self, actions=moved, step_size=step, signs=signs)

    def undone(self) -> "FreeMoves":
        """The same moves after a sweep that was undone: they may have gone too far."""
        shorter = self.rule.shrinkage * self.step_size
        return replace(self, step_size=shorter, signs=jnp.zeros_like(self.signs))


class Refinement(eqx.Module):
    """How a plan over coarse moves goes on to any actions of the box.

    Attributes:
        kept: Number of moves that are kept of each cell and step, the heaviest.
        sweeps: Sweeps that change weights and moves; zero to keep to the coarse moves.
        first_step: The first step of moves, as a share of the box.
        growth: Factor on a step while its derivative keeps its sign.
        shrinkage: Factor on a step whose derivative changed its sign, or that was undone.
    """

    kept: int = 8
    sweeps: int = 48
    first_step: float = 1 / 32
    growth: float = 1.2
    shrinkage: float = 0.5

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
        self, moves: MoveFlow, weights: Weights
    ) -> tuple[FreeMoves, Float[Array, "steps cells kept"]]:
        """The heaviest of listed moves in each cell and step, and their weights."""
        box = moves.flow.problem.actions
        weights, which = jax.lax.top_k(weights, min(self.kept, weights.shape[-1]))
        chosen = moves.actions[jnp.arange(len(moves.actions))[:, None], which]
        sizes = jnp.asarray(box.upper, chosen.dtype) - jnp.asarray(box.lower, chosen.dtype)
        step_size = jnp.broadcast_to(self.first_step * sizes, chosen.shape)
        free = FreeMoves(chosen, step_size, jnp.zeros_like(chosen), self)
        return free, weights / jnp.sum(weights, axis=-1, keepdims=True)
