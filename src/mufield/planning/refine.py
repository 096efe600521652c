"""From a plan over coarse moves to one whose few moves lie anywhere in the action box.

The coarse plan is cut to its heaviest moves in each cell and step. Then one ascent changes weights
and moves together, by the exact derivatives of J through the flow.
"""

from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..actions import Box
from ..flow.degree import degree_in_action
from ..flow.moves import MoveFlow
from ..problem import Motion, Problem
from .ascent import MirrorState, StepRule, ascend, begin_ascent
from .free import FreeMoves


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

    def refine(
        self, moves: MoveFlow, motion: Motion, state: MirrorState, rule: StepRule, points: int
    ) -> tuple[MoveFlow, MirrorState, Float[Array, "sweeps 2"]]:
        """The flow over the found moves, the last state there, J and gap after each sweep.

        Args:
            moves: The flow over the coarse moves.
            motion: The law of motion, or a table of it.
            state: The last state of the ascent over the coarse moves.
            rule: How long steps are.
            points: Number of coarse actions on each axis; controls have three values.
        """
        problem = moves.flow.problem
        box, dim = problem.actions, moves.actions.shape[-1]
        own = dim if moves.group == 1 else dim - problem.grid.dim
        sizes = jnp.asarray(box.upper) - jnp.asarray(box.lower)
        count = jnp.where(jnp.arange(dim) < own, max(1, points - 1), 2)
        free, weights = FreeMoves.heaviest(
            moves.actions, state.weights, self.kept, self.reach * sizes / count
        )
        fine = MoveFlow(moves.flow, motion, free.actions, bank_bytes=0)
        start = begin_ascent(fine, weights, rule, False, state.lagrangian, free)
        end, figures = ascend(fine, start, jnp.asarray(self.sweeps), self.sweeps, rule, False)
        assert end.free is not None
        found = fine.with_actions(end.free.actions)
        return found, replace(end, sweeps=state.sweeps + end.sweeps), figures


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
