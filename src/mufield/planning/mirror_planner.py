"""Mirror ascent as a learner's planner: it plans over actions, or joint actions ``(a, eta)``."""

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import Key, Scalar
from ..flow.flow import Flow
from ..flow.motion_table import tabulated
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
    best_of,
    final_rollout,
    own_moves,
    own_weights,
    refine,
    regular_moves,
    rest_weights,
    uniform_weights,
)
from .constrained import constrained_ascent
from .planner import AbstractPlanner, Actions, LeastMargins, Plan, control_size, late_gain
from .refine import Refinement, own_table


class MirrorPlanner(AbstractPlanner):
    """Plans randomised policies by mirror ascent over actions, or joint actions ``(a, eta)``.

    Each plan starts anew, so that it is a function of the motion alone. Without constraints it
    earns no less than the uniform policy and than agents at rest, under the motion that it is
    planned with; if actions between the moves are planned with a table of that motion, under it.

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

    def first_memory(self, flow: Flow, actions: Actions, key: Key) -> None:
        """Nothing: every plan starts anew."""

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
        if problem.shocks is not None:
            from .shocks import plan_for_learner  # not needed without shocks

            build = partial(
                regular_moves, actions=actions, points=self.points, controls=self.controls
            )
            return plan_for_learner(flow, motion, actions, build, self.sweeps, key)
        moves = regular_moves(flow, motion, actions, points=self.points, controls=self.controls)
        state, rollout, gain = ascent_from_uniform(moves, self.sweeps, least)
        planned, weights = state.planned, own_weights(moves, state)
        sizes = jnp.minimum(jnp.abs(moves.actions[..., dim:]), 1.0)
        coarse = Plan(
            profile=moves.own_profile(weights, dim),
            memory=None,
            value=jnp.where(jnp.isfinite(planned), rollout.value, jnp.nan),
            mass=rollout.mass,
            control=_control(flow, rollout, state, sizes),
            late_gain=gain,
        )
        goes_on = self.refinement
        if goes_on is None:
            goes_on = Refinement() if self.points is None else Refinement(sweeps=0)
        points = coarse_points(dim) if self.points is None else self.points
        if not goes_on.pays(problem, points):
            return coarse
        table = tabulated(problem, motion, actions)
        fine, found, _ = refine(moves, table, state, StepRule(), goes_on, points)
        rolled, better = found.sweep.rollout, found.planned > rollout.value
        if problem.constraints is not None:
            now, then = (jnp.min(problem.margins(each.mass)) for each in (rolled, rollout))
            better = better & (now >= jnp.minimum(then, 0.0))
        own = fine.actions[..., :dim]
        refined = replace(
            coarse,
            profile=Profile.stacked(TablePolicy(own, found.weights, problem.grid), problem.horizon),
            value=jnp.where(better, rolled.value, jnp.nan),
            mass=rolled.mass,
            control=_control(flow, rolled, found, jnp.abs(fine.actions[..., dim:])),
        )
        if least is not None:
            return replace(coarse, refined=refined)
        listed = moves.actions[0, :: moves.group, :dim]
        both = own_table(listed, weights, own, found.weights, better)
        figures = jax.tree.map(
            partial(jnp.where, better), *((p.value, p.mass, p.control) for p in (refined, coarse))
        )
        profile = Profile.stacked(TablePolicy(*both, problem.grid), problem.horizon)
        value, mass, control = figures
        return replace(coarse, profile=profile, value=value, mass=mass, control=control)


def _control(flow: Flow, rollout: Rollout, state: MirrorState, sizes: Array) -> Scalar:
    """Mean size of the control along a state's plan, from its size in each move."""
    steps = "hkma" if sizes.ndim == 4 else "kma"
    mean = jnp.einsum(f"hkm,{steps}->hka", state.weights, sizes)
    return control_size(flow.problem, rollout.mass, mean)


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
    rest = begin_ascent(moves, rest_weights(moves), rule, False)
    state, rollout = best_of(moves, end, start, rest)
    return Ascent(state, rollout, late_gain(start.value, figures[:sweeps, 0]))
