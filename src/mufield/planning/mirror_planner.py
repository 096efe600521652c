"""Mirror ascent as a learner's planner: it plans over actions, or joint actions ``(a, eta)``."""

from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import Key, Scalar
from ..flow.flow import Flow
from ..flow.motions import tabulated
from ..flow.moves import MoveFlow, coarse_points
from ..flow.rollout import Rollout
from ..policies.base import Profile
from ..policies.tables import TablePolicy
from ..problem import Motion
from .ascent import (
    MirrorState,
    StepRule,
    ascend,
    begin_ascent,
    final_rollout,
    no_worse,
    own_weights,
    regular_moves,
    uniform_weights,
)
from .constrained import constrained_ascent
from .planner import AbstractPlanner, Actions, LeastMargins, Plan, control_size, late_gain
from .refine import Refinement, own_table


class MirrorPlanner(AbstractPlanner):
    """Plans randomised policies by mirror ascent over actions, or joint actions ``(a, eta)``.

    Each plan starts anew, so that it is a function of the motion alone.

    Attributes:
        points: Moves on each axis of an action box; by default 9, or 5 in three dimensions, from
            which plans go on to any other actions.
        controls: Points of eta on each axis; 2 are the corners of [-1, 1]^p and its centre.
        sweeps: Sweeps of mirror ascent over the coarse moves.
        refinement: How plans go on; by default they keep to the moves if `points` is given, and
            always with constraints, because sampled models judge them on those moves.
    """

    points: int | None = eqx.field(static=True, default=None)
    controls: int = eqx.field(static=True, default=2)
    sweeps: int = eqx.field(static=True, default=80)
    refinement: Refinement | None = eqx.field(static=True, default=None)

    def first_memory(self, flow: Flow, actions: Actions, key: Key) -> None:
        """Nothing: every plan starts anew."""

    def own_moves(self, actions: Actions) -> Float[Array, "moves action_dim"]:
        """The coarse moves without controls."""
        return actions.points(self._points(actions))

    def _points(self, actions: Actions) -> int:
        return coarse_points(actions.dim) if self.points is None else self.points

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
        problem, points, dim = flow.problem, self._points(actions), actions.dim
        moves = regular_moves(flow, motion, actions, points=points, controls=self.controls)
        state, rollout, gain = ascent_from_uniform(moves, self.sweeps, least)
        joint, planned, weights = moves.actions[0], state.planned, own_weights(moves, state)
        controls = state.weights @ jnp.minimum(jnp.abs(joint[:, dim:]), 1.0)
        profile = moves.own_profile(weights, dim)
        goes_on = self.refinement
        if goes_on is None:
            goes_on = Refinement() if self.points is None else Refinement(sweeps=0)
        if problem.constraints is None and goes_on.pays(problem, points):
            table = tabulated(problem, motion, actions)
            fine, found, _ = goes_on.refine(moves, table, state, StepRule(), points)
            better = found.planned > rollout.value
            sizes = jnp.einsum("hkm,hkma->hka", found.weights, jnp.abs(fine.actions[..., dim:]))
            rollout, controls = jax.tree.map(
                partial(jnp.where, better), (found.sweep.rollout, sizes), (rollout, controls)
            )
            own = joint[:: moves.group, :dim]
            both = own_table(own, weights, fine.actions[..., :dim], found.weights, better)
            profile = Profile.stacked(TablePolicy(*both, problem.grid), problem.horizon)
        return Plan(
            profile=profile,
            memory=None,
            value=jnp.where(jnp.isfinite(planned), rollout.value, jnp.nan),
            mass=rollout.mass,
            control=control_size(problem, rollout.mass, controls),
            late_gain=gain,
        )


class Ascent(NamedTuple):
    """The last state of an ascent, its flow by the motion itself, and `late_gain`.

    The gain is None with constraints, for which J may fall.
    """

    state: MirrorState
    rollout: Rollout
    late_gain: Scalar | None


def ascent_from_uniform(moves: MoveFlow, sweeps: int, least: LeastMargins | None = None) -> Ascent:
    """An ascent from uniform weights without a bound, which can be compiled."""
    rule, constraints = StepRule(), moves.flow.problem.constraints
    start = begin_ascent(moves, uniform_weights(moves), rule, False)
    if constraints is not None:
        state = constrained_ascent(moves, start, sweeps, rule, least)
        return Ascent(state, final_rollout(moves, state), None)
    most = max(sweeps, 20)
    end, figures = ascend(moves, start, jnp.asarray(sweeps), most, rule, False)
    state, rollout = no_worse(moves, start, end)
    return Ascent(state, rollout, late_gain(start.value, figures[:sweeps, 0]))
