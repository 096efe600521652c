"""Mirror ascent as a learner's planner: it plans over actions, or joint actions ``(a, eta)``."""

from dataclasses import replace
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._arrays import Key
from ..flow.backward import Weights
from ..flow.flow import Flow
from ..flow.motion_table import tabulated
from ..flow.moves import coarse_points
from ..policies.base import Profile
from ..policies.tables import TablePolicy
from ..problem import Motion, Problem
from .ascent import is_better, own_weights
from .mirror import MirrorAscent
from .moves import Refinement, own_moves, regular_moves
from .planner import AbstractPlanner, Actions, LeastMargins, Plan, control_size


class MirrorPlanner(AbstractPlanner):
    """Plans randomised policies by mirror ascent over actions, or joint actions ``(a, eta)``.

    Each plan starts anew, so that it is a function of the motion alone. Without constraints it
    earns no less than the uniform policy and than agents at rest, under the motion that it is
    planned with, or the table of it that actions between the moves are planned with.

    Attributes:
        points: Moves on each axis of an action box; by default 9, or 5 in three dimensions, from
            which plans go on to any other actions.
        controls: Points of eta on each axis; 2 are the corners of [-1, 1]^p and its centre.
        sweeps: Sweeps of mirror ascent over the coarse moves.
        refinement: How plans go on; by default they keep to the moves if `points` is given.
    """

    points: int | None = eqx.field(static=True, default=None)
    controls: int = eqx.field(static=True, default=2)
    sweeps: int = eqx.field(static=True, default=80)
    refinement: Refinement | None = eqx.field(static=True, default=None)

    def own_moves(self, actions: Actions) -> Float[Array, "*cells moves action_dim"]:
        """The coarse moves without controls."""
        return own_moves(actions, self.points)

    def plan(
        self,
        flow: Flow,
        motion: Motion,
        actions: Actions,
        key: Key,
        memory: None,
        least: LeastMargins | None = None,
    ) -> Plan:
        """Starts with all moves equally likely; the policy is that of a alone, without eta."""
        problem, dim = flow.problem, actions.dim
        build = partial(regular_moves, actions=actions, points=self.points, controls=self.controls)
        if problem.shocks is not None:
            from .shocks import plan_for_learner  # not needed without shocks

            return plan_for_learner(flow, motion, actions, build, self.sweeps, key, least)
        moves = build(flow, motion)
        usual = Refinement() if self.points is None else Refinement(sweeps=0)
        refinement = self.refinement or usual
        ascent = MirrorAscent(self.sweeps, bound=False, refinement=refinement)
        state, gain = ascent.ascend(moves, least)
        weights, mass = own_weights(moves, state), state.sweep.rollout.mass
        coarse = Plan(
            profile=moves.profile(weights, dim),
            memory=None,
            value=jnp.where(jnp.isfinite(state.planned), state.value, jnp.nan),
            mass=mass,
            control=control_size(problem, mass, moves.actions[..., dim:], state.weights),
            late_gain=gain,
        )
        points = coarse_points(dim) if self.points is None else self.points
        if not refinement.pays(problem, points):
            return coarse
        fine, found, _ = ascent.refine(moves, tabulated(problem, motion, actions), state)
        better, own = is_better(fine, found, state), fine.actions[..., :dim]
        there = found.sweep.rollout.mass
        refined = replace(
            coarse,
            profile=_table(problem, own, found.weights),
            value=jnp.where(better, found.value, jnp.nan),
            mass=there,
            control=control_size(problem, there, fine.actions[..., dim:], found.weights),
        )
        if least is not None:
            return replace(coarse, refined=refined)
        # One table of both plans' moves, in which those of the worse plan have no weight.
        listed = moves.actions[:, :: moves.group, :dim]
        every = jnp.broadcast_to(listed, (problem.horizon, *listed.shape))
        both = [jnp.where(better, 0.0, weights), jnp.where(better, found.weights, 0.0)]
        value, mass, control = jax.tree.map(
            partial(jnp.where, better), *((p.value, p.mass, p.control) for p in (refined, coarse))
        )
        profile = _table(problem, *(jnp.concatenate(x, axis=2) for x in ([every, own], both)))
        return replace(coarse, profile=profile, value=value, mass=mass, control=control)


def _table(problem: Problem, actions: Array, weights: Weights) -> Profile:
    return Profile.stacked(TablePolicy(actions, weights, problem.grid), problem.horizon)
