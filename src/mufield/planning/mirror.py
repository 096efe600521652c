"""Mirror ascent over randomised per-cell policies on a finite set of moves.

If the motion does not depend on mu and the reward is concave in mu, the problem over randomised
policies is concave: the ascent finds the global optimum, and every sweep's gap bounds the distance
to it.
"""

import math

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._progress import progress_bar
from .._types import Key, Scalar
from ..actions import Box
from ..checks import distribution
from ..constraints.constrained_ascent import (
    ConstraintRule,
    constrained_ascent,
    finish,
    prove_infeasible,
)
from ..constraints.lagrangian import Margins
from ..constraints.model_samples import Outcomes
from ..errors import UserError
from ..flow.diagnose import check_planned
from ..flow.flow import Flow
from ..flow.moves import MoveFlow, Weights
from ..policies.base import Profile
from ..policies.tables import TablePolicy
from ..problem import Motion
from .ascent import (
    MirrorState,
    StepRule,
    ascend,
    begin_ascent,
    final_rollout,
    own_weights,
    uniform_weights,
)
from .certificate import is_concave
from .planner import AbstractPlanner, Actions, Plan


class MirrorResult(eqx.Module):
    """What an ascent found.

    Attributes:
        moves: The flow over the moves that the policy draws from.
        weights: The policy's weights.
        value: J of the policy.
        upper: No randomised policy over the moves that satisfies the problem's constraints earns
            more. Infinite if the motion depends on mu or the reward is not concave in it.
        history: J and gap after each sweep; of a motion that sees mu J may be approximate here.
        outcome: ``"bracket"`` if the bracket became as narrow as asked for, else ``"sweeps"``;
            ``"violated"`` if the plan violates a constraint, although none was proved infeasible.
        state: The last state, to go on from.
        margins: By how much each constraint is satisfied after each move, as a share of it; None if
            the problem has none.
    """

    moves: MoveFlow
    weights: Weights
    value: Scalar
    upper: Scalar
    history: Float[Array, "sweeps 2"]
    outcome: str = eqx.field(static=True)
    state: MirrorState
    margins: Float[Array, "horizon limits"] | None = None

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


class MirrorAscent(eqx.Module):
    """The method: `init`, `step`, and the driver `solve`, which uses only those two.

    Attributes:
        sweeps: Greatest number of sweeps.
        bracket: Stop when the upper bound minus J is this small; zero to use all sweeps.
        sweeps_at_once: Sweeps of one compiled call, between two tests of the bracket.
        bound: Whether to compute the upper bound of the optimum, a third of the work.
        steps: How long steps are.
        constraints: How an ascent with constraints ends.
    """

    sweeps: int = eqx.field(static=True, default=200)
    bracket: float = eqx.field(static=True, default=0.0)
    sweeps_at_once: int = eqx.field(static=True, default=20)
    bound: bool = eqx.field(static=True, default=True)
    steps: StepRule = eqx.field(static=True, default=StepRule())
    constraints: ConstraintRule = eqx.field(static=True, default=ConstraintRule())

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

        Raises `InfeasibleError` if no policy can satisfy the problem's constraints.
        """
        if self.sweeps < 1:
            raise UserError(f"mirror ascent needs at least one sweep, got {self.sweeps}")
        problem, tolerance = moves.flow.problem, self.constraints.tolerance
        concave = self.bound and is_concave(moves.flow, moves.motion)
        state = self.init(moves, weights)
        history, done, outcome = [], 0, "sweeps"
        with progress_bar("mirror ascent", self.sweeps, shown=progress) as report:
            while done < self.sweeps:
                count = min(self.sweeps_at_once, self.sweeps - done)
                state, figures = self.step(moves, state, count)
                history.append(figures)
                done += count
                bracket = float(state.upper - state.value) if concave else math.inf
                more = {} if state.lagrangian is None else {"violation": float(state.violation)}
                report(done, J=float(state.value), bracket=bracket, **more)
                # A plan that violates constraints may earn more than the bound.
                if abs(bracket) <= self.bracket and state.violation <= tolerance:
                    outcome = "bracket"
                    break
        if problem.constraints is not None:
            state = finish(moves, state, self.steps, self.constraints, self.bound)
        rollout = final_rollout(moves, state)
        check_planned(problem, moves.motion, rollout.mass, rollout.value, state.planned)
        margins = None
        if problem.constraints is not None:
            margins = problem.constraints.worst(rollout.mass)
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
        outcomes: Outcomes | None = None,
    ) -> Plan:
        """Starts with all moves equally likely; the policy is that of a alone, without eta."""
        moves = regular_moves(flow, motion, actions, points=self.points, controls=self.controls)
        state = plain_ascent(moves, self.sweeps, outcomes)
        rollout = final_rollout(moves, state)
        mass, joint, horizon = rollout.mass, moves.actions[0], flow.problem.horizon
        own = joint[:: moves.group, : actions.dim]
        policy = TablePolicy.mixing(own, own_weights(moves, state), flow.problem.grid)
        control = jnp.zeros((), dtype=mass.dtype)
        if joint.shape[1] > actions.dim:
            size = jnp.mean(jnp.abs(joint[:, actions.dim :]), axis=-1)
            used = jnp.einsum("hk,hkm,m->h", mass[:-1], state.weights, size)
            begun = flow.problem.begun
            control = jnp.sum(jnp.where(begun, used, 0.0)) / jnp.sum(begun)
        return Plan(
            profile=Profile.stacked(policy, horizon),
            memory=None,
            value=jnp.where(jnp.isfinite(state.planned), rollout.value, jnp.nan),
            mass=mass,
            control=control,
        )


def plain_ascent(moves: MoveFlow, sweeps: int, outcomes: Outcomes | None = None) -> MirrorState:
    """An ascent from uniform weights without a bound, which can be compiled."""
    if moves.flow.problem.constraints is not None:
        return constrained_ascent(moves, sweeps, outcomes)
    rule = StepRule()
    state = begin_ascent(moves, uniform_weights(moves), rule, False)
    return ascend(moves, state, jnp.asarray(sweeps), max(sweeps, 20), rule, False)[0]


def regular_moves(
    flow: Flow, motion: Motion, actions: Actions, *, points: int, controls: int = 2
) -> MoveFlow:
    """The flow over a regular set of moves.

    If the flow's actions have more axes than ``actions``, the moves are all pairs of an action
    and a control eta in [-1, 1]^p; pairs with the same action are neighbours.

    Args:
        flow: The flow of the problem to plan in.
        motion: The law of motion.
        actions: What agents can do.
        points: Actions on each axis of a box.
        controls: Values of eta on each axis; 2 stands for the corners of [-1, 1]^p and its centre,
            the middle of the confidence band.
    """
    own = actions.points(points)
    size = flow.problem.actions.dim - actions.dim
    if size == 0:
        return MoveFlow(flow, motion, own)
    etas = Box(-1.0, 1.0, dim=size).points(controls)
    if controls == 2:
        etas = jnp.concatenate([jnp.zeros((1, size)), etas])
    joint = [jnp.repeat(own, len(etas), axis=0), jnp.tile(etas, (len(own), 1))]
    return MoveFlow(flow, motion, jnp.concatenate(joint, axis=1), group=len(etas))
