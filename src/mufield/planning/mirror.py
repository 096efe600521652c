"""Mirror ascent over randomised per-cell policies on a finite set of moves.

If the motion does not depend on mu and the reward is concave in mu, the problem over randomised
policies is concave: the ascent finds the global optimum, and every sweep's gap bounds the distance
to it.
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._progress import progress_bar
from .._types import Key, Margins, Scalar
from ..checks import distribution
from ..constraints.reachability import without_unreachable
from ..errors import UserError
from ..flow.flow import Flow
from ..flow.moves import MoveFlow, Weights
from ..flow.rollout import Rollout, check_planned
from ..policies.base import Profile
from ..problem import Motion
from .ascent import (
    MirrorState,
    StepRule,
    ascend,
    begin_ascent,
    final_rollout,
    interpolates,
    no_worse,
    own_weights,
    regular_moves,
    uniform_weights,
)
from .certificate import is_concave
from .constrained import constrained_ascent, make_feasible, prove_infeasible
from .planner import (
    AbstractPlanner,
    Actions,
    LeastMargins,
    Plan,
    control_size,
    late_gain,
    note_of,
    outcome_of,
)


class MirrorResult(eqx.Module):
    """What an ascent found.

    Attributes:
        moves: The flow over the moves that the policy draws from.
        weights: The policy's weights.
        value: J of the policy.
        upper: No randomised policy over the moves that satisfies the problem's constraints earns
            more. Infinite if the motion depends on mu or the reward is not concave in it.
        history: J and gap after each sweep. Where sweeps interpolate between kernels, after each
            `MirrorAscent.sweeps_at_once` sweeps, by the motion itself.
        outcome: ``"bracket"`` if the bracket became as narrow as asked for. When all sweeps are
            used up, ``"plateau"``, or ``"gaining"`` if J still rose. ``"violated"`` if the plan
            violates a constraint, although none was proved infeasible.
        state: The last state, to go on from.
        margins: By how much each constraint is satisfied after each move, as a share of it; None if
            the problem has none.
        unreachable: After which moves no policy can satisfy a constraint, in words; there the plan
            is free.
    """

    moves: MoveFlow
    weights: Weights
    value: Scalar
    upper: Scalar
    history: Float[Array, "sweeps 2"]
    outcome: str = eqx.field(static=True)
    state: MirrorState
    margins: Float[Array, "horizon limits"] | None = None
    unreachable: str = eqx.field(static=True, default="")

    @property
    def multipliers(self) -> Margins | None:
        """The multipliers of the constraints that `upper` was found with."""
        return None if self.state.lagrangian is None else self.state.lagrangian.multipliers

    @property
    def bracket(self) -> Scalar:
        """Width of the interval that holds the optimum, for concave problems."""
        return self.upper - self.value

    @property
    def profile(self) -> Profile:
        """The randomised policy profile."""
        return self.moves.profile(self.weights)

    @property
    def note(self) -> str:
        """What is unusual, in words; empty if nothing is."""
        found = [self.unreachable, note_of(self.outcome, "sweeps")]
        if self.outcome == "violated" and self.margins is not None:
            worst = -float(jnp.min(self.margins))
            found.append(f"the plan violates a constraint by {worst:.1%} of it; see margins")
        return "; ".join(filter(None, found))

    def __repr__(self) -> str:
        return (
            f"MirrorResult(J={float(self.value):.6g}, gap={float(self.bracket):.3g}, "
            f"sweeps={int(self.state.sweeps)}, outcome={self.outcome!r})"
        )


class MirrorAscent(eqx.Module):
    """The method: `init`, `step`, and the driver `solve`, which uses only those two.

    Attributes:
        sweeps: Greatest number of sweeps.
        bracket: Stop when the upper bound minus J is this small; zero to use all sweeps.
        sweeps_at_once: Sweeps of one compiled call, between two tests of the bracket.
        bound: Whether to compute the upper bound of the optimum, a third of the work.
        steps: How long steps are.
    """

    sweeps: int = eqx.field(static=True, default=200)
    bracket: float = eqx.field(static=True, default=0.0)
    sweeps_at_once: int = eqx.field(static=True, default=20)
    bound: bool = eqx.field(static=True, default=True)
    steps: StepRule = eqx.field(static=True, default=StepRule())

    def init(self, moves: MoveFlow, weights: Weights | None = None) -> MirrorState:
        """The state before the first step.

        Args:
            moves: The flow over the moves.
            weights: The first policy's; by default all moves are equally likely.
        """
        if weights is None:
            weights = uniform_weights(moves)
        else:
            wanted = moves.uniform().shape
            if weights.shape != wanted:
                raise UserError(f"weights must have the shape {wanted}, got {weights.shape}")
            distribution(weights, "weights of each step and cell", "divide them by their sum")
        return begin_ascent(moves, weights, self.steps, self.bound)

    def step(
        self, moves: MoveFlow, state: MirrorState, count: int = 1
    ) -> tuple[MirrorState, Float[Array, "count 2"]]:
        """Does ``count`` sweeps; also returns J and gap after each.

        A sweep takes a step, keeps it if J did not fall, and adapts the step size.
        """
        most = max(count, self.sweeps_at_once)
        settings = (jnp.asarray(count), most, self.steps, self.bound)
        state, figures = ascend(moves, state, *settings)
        return state, figures[:count]

    def solve(
        self, moves: MoveFlow, weights: Weights | None = None, *, progress: bool = False
    ) -> MirrorResult:
        """Ascends until the bracket is narrow enough or the sweeps are used up.

        The plan earns no less than the first policy, unless it is to satisfy constraints. Those on
        the mass of a region are left out after moves for which no policy can satisfy them, with a
        note. Raises `InfeasibleError` if no policy can satisfy one at all.
        """
        if self.sweeps < 1:
            raise UserError(f"mirror ascent needs at least one sweep, got {self.sweeps}")
        moves, unreachable = without_unreachable(moves)
        problem, constraints = moves.flow.problem, moves.flow.problem.constraints
        tolerance = 0.0 if constraints is None else constraints.tolerance
        concave = self.bound and is_concave(moves.flow, moves.motion)
        start = state = self.init(moves, weights)
        history, climbed, done, outcome = [], [], 0, ""
        with progress_bar("mirror ascent", self.sweeps, shown=progress) as report:
            while done < self.sweeps:
                count = min(self.sweeps_at_once, self.sweeps - done)
                state, figures = self.step(moves, state, count)
                climbed.append(figures[:, 0])
                if interpolates(moves):
                    true = final_rollout(moves, state).value
                    figures = jnp.stack([true, state.sweep.gap])[None]
                history.append(figures)
                done += count
                bracket = float(state.upper - state.value) if concave else math.inf
                more = {} if state.lagrangian is None else {"violation": float(state.violation)}
                report(done, J=float(state.value), bracket=bracket, **more)
                # A plan that violates constraints may earn more than the bound.
                if abs(bracket) <= self.bracket and state.violation <= tolerance:
                    outcome = "bracket"
                    break
        if constraints is not None:
            state = make_feasible(moves, state, self.steps, self.bound)
        outcome = outcome or outcome_of(late_gain(start.value, jnp.concatenate(climbed)))
        state, rollout = no_worse(moves, start, state)
        check_planned(problem, moves.motion, rollout.mass, rollout.value, state.planned)
        margins = None
        if constraints is not None:
            margins = constraints.worst(problem.margins(rollout.mass))
            if float(jnp.min(margins)) < -tolerance:
                outcome = "violated"
                if concave:
                    prove_infeasible(moves, self.sweeps, self.steps)
        return MirrorResult(
            moves=moves,
            weights=state.weights,
            value=rollout.value,
            upper=state.upper if concave else jnp.full_like(state.upper, jnp.inf),
            history=jnp.concatenate(history),
            outcome=outcome,
            state=state,
            margins=margins,
            unreachable=unreachable,
        )


class MirrorPlanner(AbstractPlanner):
    """Plans randomised policies by mirror ascent over actions, or joint actions ``(a, eta)``.

    Each plan starts anew, so that it is a function of the motion alone.

    Attributes:
        points: Moves on each axis of an action box.
        controls: Points of eta on each axis; 2 are the corners of [-1, 1]^p and its centre.
        sweeps: Sweeps of mirror ascent.
    """

    points: int = eqx.field(static=True, default=9)
    controls: int = eqx.field(static=True, default=2)
    sweeps: int = eqx.field(static=True, default=80)

    def first_memory(self, flow: Flow, actions: Actions, key: Key) -> None:
        """Nothing: every plan starts anew."""

    def own_moves(self, actions: Actions) -> Float[Array, "moves action_dim"]:
        """The moves without controls."""
        return actions.points(self.points)

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
        moves = regular_moves(flow, motion, actions, points=self.points, controls=self.controls)
        state, rollout, gain = ascent_from_uniform(moves, self.sweeps, least)
        etas = jnp.minimum(jnp.abs(moves.actions[0][:, actions.dim :]), 1.0)
        return Plan(
            profile=moves.own_profile(own_weights(moves, state), actions.dim),
            memory=None,
            value=jnp.where(jnp.isfinite(state.planned), rollout.value, jnp.nan),
            mass=rollout.mass,
            control=control_size(flow.problem, rollout.mass, state.weights @ etas),
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
