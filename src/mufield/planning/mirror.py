"""Mirror ascent over randomised per-cell policies on a finite set of moves.

Every sweep multiplies each move's weight by the exponential of its value, with momentum. If the
motion does not depend on mu and the reward is concave in mu, the problem over randomised policies
is concave: the ascent finds the global optimum, and every sweep's gap bounds the distance to it.
"""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._progress import progress_bar
from .._types import Key, Scalar
from ..errors import UserError
from ..flow.charge import Charge, Margins
from ..flow.flow import Flow, Rollout
from ..flow.frozen import FrozenFlow, Kept, keep
from ..flow.moves import MoveFlow, Sweep, Weights
from ..flow.trouble import check_planned
from ..policies.base import Profile
from ..policies.tables import TablePolicy
from ..problem import Box, Motion
from .certificate import is_concave
from .outcomes import AbstractOutcomes
from .planner import AbstractPlanner, Actions, Plan

FIRST_STEP = 0.1
GROWTH, SHRINKAGE, SLOWING = 1.1, 0.5, 0.8
"""Factors on the step size after a gain, and after a loss, which is undone: of a plain step, and of
one with momentum, which may have been what went too far."""

SWEEPS_OF_ROUND, MOST_OF_ROUND = 6, 24
"""Sweeps for which kernels are kept of a motion that sees more of mu than the agent's own cell, or
mu and the step: at first, and after rounds that paid, as the plan changes less and less."""

SWEEPS_OF_PRICE = 5
"""Sweeps between two changes of the multipliers of limits."""

PRICE_WEIGHT = 0.15
"""The weight rho of limits, as a share of what a move matters at the start: of the standard
deviation of the moves' values."""

POLISH, POLISH_WEIGHT, POLISH_MARGIN = 20, 10.0, 2e-4
"""Last sweeps with limits, the factor on rho in them, and the share by which limits are tightened,
of a large break of them: with the multipliers nearly right, more weight brings the plan inside."""

POLISH_SHARE = 0.25
"""Share of a learner's sweeps that are such."""

MOST_ROUNDS = 6
"""So often limits are tightened further if a plan is still outside."""

REVIVED_WEIGHT = 1e-8
"""What prices change must be able to bring back: then no move weighs less than this, where the
logarithm of its weight could have fallen by millions."""

SWEEPS_OF_TIGHTENING = 20
"""Sweeps between two looks at what a plan may lead to."""

KEPT = 1e-3
"""A limit that is broken by less than this share of it counts as kept."""

LEAST_WEIGHT = 1e-6
"""Least rho, for rewards that do not depend on the policy."""

LOWEST_WEIGHT = 1e-12
"""Least weight at the start: a move of weight zero would never come back."""


class MirrorState(eqx.Module):
    """The state of an ascent.

    Attributes:
        logits: Logarithms of the weights, up to a constant.
        velocity: The last change of the logits; zero at the start and after a loss.
        gains: Number of gains since then.
        sweep: The flow and the derivatives at these weights.
        step_size: Size of the next step.
        upper: Least J + gap of all sweeps so far.
        sweeps: Number of sweeps done.
        charge: What breaking limits costs, if the problem has them.
    """

    logits: Weights
    velocity: Weights
    gains: Int[Array, ""]
    sweep: Sweep
    step_size: Scalar
    upper: Scalar
    sweeps: Int[Array, ""]
    charge: Charge | None

    @property
    def weights(self) -> Weights:
        """The policy's weights."""
        return jax.nn.softmax(self.logits, axis=-1)

    @property
    def value(self) -> Scalar:
        """J of the policy."""
        return self.sweep.rollout.value

    @property
    def planned(self) -> Scalar:
        """J, or NaN if a derivative is not finite: then every further step is undone."""
        finite = jnp.all(jnp.isfinite(self.sweep.action_values))
        return jnp.where(finite, self.value, jnp.nan)

    @property
    def broken(self) -> Scalar:
        """By how much the worst limit is broken, as a share of it."""
        prices = self.sweep.prices
        return jnp.zeros_like(self.value) if prices is None else prices.broken


class MirrorResult(eqx.Module):
    """What an ascent found.

    Attributes:
        moves: The flow over the moves that the policy draws from.
        weights: The policy's weights.
        value: J of the policy.
        upper: No randomised policy over the moves that keeps the problem's limits earns more.
            Infinite if the motion depends on mu or the reward is not concave in it.
        history: J and gap after each sweep; of a motion that sees mu J may be approximate here.
        outcome: ``"bracket"`` if the bracket became as narrow as asked for, else ``"sweeps"``;
            ``"broken"`` if the plan breaks a limit, although none was proved impossible.
        state: The last state, to go on from.
        margins: By how much each limit is kept after each move, as a share of it; None if the
            problem has no limits.
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
        """The multipliers of the limits that `upper` was found with."""
        return None if self.state.charge is None else self.state.charge.multipliers

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
    """

    sweeps: int = eqx.field(static=True, default=200)
    bracket: float = eqx.field(static=True, default=0.0)
    sweeps_at_once: int = eqx.field(static=True, default=20)
    bound: bool = eqx.field(static=True, default=True)

    def init(
        self,
        moves: MoveFlow,
        weights: Weights | None = None,
        tightened: Margins | None = None,
    ) -> MirrorState:
        """The state before the first step.

        Args:
            moves: The flow over the moves.
            weights: The first policy's; by default all moves are equally likely.
            tightened: What margins of the problem's limits must be at least, as shares of the
                limits; zero by default.
        """
        if weights is None:
            # Else XLA would fold this large constant, which takes seconds.
            weights = jax.lax.optimization_barrier(moves.uniform())
        elif weights.shape != moves.uniform().shape or not bool(
            jnp.all(weights >= 0) & jnp.all(jnp.abs(jnp.sum(weights, axis=-1) - 1) < 1e-3)
        ):
            raise UserError(
                f"weights must have the shape {moves.uniform().shape}, be non-negative and sum to "
                f"1 in every cell; got the shape {weights.shape}"
            )
        return _init(moves, weights, self.bound, tightened)

    def step(
        self, moves: MoveFlow, state: MirrorState, count: int = 1
    ) -> tuple[MirrorState, Float[Array, "count 2"]]:
        """Does ``count`` sweeps; also returns J and gap after each.

        A sweep takes a step, keeps it if J did not fall, and adapts the step size.
        """
        most = max(count, self._at_once(moves))
        state, figures = _sweeps(moves, state, jnp.asarray(count), most, self.bound)
        return state, figures[:count]

    def _at_once(self, moves: MoveFlow) -> int:
        """Sweeps of one compiled call: some rounds of them where kernels are kept for a round."""
        return max(self.sweeps_at_once, 2 * MOST_OF_ROUND if moves.freezes else 0)

    def solve(
        self, moves: MoveFlow, weights: Weights | None = None, *, progress: bool = False
    ) -> MirrorResult:
        """Ascends until the bracket is narrow enough or the sweeps are used up.

        Raises `InfeasibleError` if no policy can keep the problem's limits.
        """
        if self.sweeps < 1:
            raise UserError(f"mirror ascent needs at least one sweep, got {self.sweeps}")
        limits = moves.flow.problem.constraints
        concave = self.bound and is_concave(moves.flow, moves.motion)
        state = self.init(moves, weights)
        history, done, outcome = [], 0, "sweeps"
        at_once = self._at_once(moves)
        with progress_bar("mirror ascent", self.sweeps, shown=progress) as report:
            while done < self.sweeps:
                count = min(at_once, self.sweeps - done)
                state, figures = self.step(moves, state, count)
                history.append(figures)
                done += count
                bracket = float(state.upper - state.value) if concave else math.inf
                shown = {} if limits is None else {"broken": float(state.broken)}
                report(done, J=float(state.value), bracket=bracket, **shown)
                # A plan that breaks limits may earn more than the bound.
                if abs(bracket) <= self.bracket and state.broken <= KEPT:
                    outcome = "bracket"
                    break
        pace = state.step_size / POLISH_WEIGHT
        state = polish(self, moves, state)
        rollout = final_rollout(moves, state)
        check_planned(moves.flow.problem, moves.motion, rollout.value, state.planned)
        margins = None if limits is None else limits.worst(rollout.mass)
        for _ in range(MOST_ROUNDS):
            if limits is None or margins is None or jnp.min(margins) >= 0:
                break
            # Where nothing was left to gain, steps have shrunk to nothing.
            again = replace(state, step_size=pace)
            state = polish(self, moves, again, weight=1.0, outside=-jnp.min(margins))
            rollout = final_rollout(moves, state)
            margins = limits.worst(rollout.mass)
        if margins is not None and float(jnp.min(margins)) < -KEPT:
            outcome = "broken"
            if concave:
                prove_infeasible(self, moves)
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


class InfeasibleError(UserError):
    """No policy can keep the limits of a problem."""


def prove_infeasible(ascent: MirrorAscent, moves: MoveFlow) -> None:
    """Raises `InfeasibleError` if it can be proved that no policy over the moves keeps the limits.

    Without the reward the augmented Lagrangian is minus the squared breaks. Where it is greatest,
    the breaks themselves are multipliers; if the Lagrangian's bound is below zero with them, every
    policy breaks some limit.
    """
    problem = moves.flow.problem.with_reward(_nothing)
    unpaid: MoveFlow = eqx.tree_at(lambda m: m.flow.problem, moves, problem)
    state, limits = replace(ascent, bound=True).init(unpaid), problem.constraints
    assert limits is not None
    assert state.charge is not None
    charge = state.charge.with_weight(jnp.ones_like(state.charge.weight))
    state = _begin(unpaid, state, charge, True)
    for _ in range(0, ascent.sweeps, ascent.sweeps_at_once):
        # With no change of the multipliers, which would be another objective.
        state = _sweeps_at_one_price(unpaid, state, jnp.asarray(ascent.sweeps_at_once))
        prices = state.sweep.prices
        assert prices is not None
        if prices.broken == 0:
            return
        least = float(-state.sweep.upper / jnp.sum(prices.multipliers))
        if least > 0:
            step, margin = divmod(int(jnp.argmax(prices.multipliers)), limits.size)
            raise InfeasibleError(
                "no policy over these moves keeps the limits: each breaks one of them by at least "
                f"{least:.2%} of it, by the bound of the Lagrangian. Hardest is "
                f"{limits.name_of(margin)!r} after move {step + 1}; loosen it, or name fewer steps"
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
        outcomes: AbstractOutcomes | None = None,
    ) -> Plan:
        """Starts with all moves equally likely; the policy is that of a alone, without eta."""
        moves = regular_moves(flow, motion, actions, points=self.points, controls=self.controls)
        state = careful_ascent(moves, self.sweeps, outcomes)
        rollout = final_rollout(moves, state)
        mass, joint, horizon = rollout.mass, moves.actions[0], flow.problem.horizon
        own = joint[:: moves.group, : actions.dim]
        policy = TablePolicy.mixing(own, own_weights(moves, state), flow.problem.grid)
        control = jnp.zeros((), dtype=mass.dtype)
        if joint.shape[1] > actions.dim:
            size = jnp.mean(jnp.abs(joint[:, actions.dim :]), axis=-1)
            control = jnp.einsum("hk,hkm,m->", mass[:-1], state.weights, size) / horizon
        return Plan(
            profile=Profile.stacked(policy, horizon),
            memory=None,
            value=jnp.where(jnp.isfinite(state.planned), rollout.value, jnp.nan),
            mass=mass,
            control=control,
        )


def careful_ascent(
    moves: MoveFlow, sweeps: int, outcomes: AbstractOutcomes | None = None
) -> MirrorState:
    """An ascent from where all moves are equally likely, inside the limits if there are any.

    With ``outcomes`` limits are tightened on the way by what the plan may lead to.
    """
    ascent = MirrorAscent(sweeps, bound=False)
    state = ascent.init(moves)
    if state.charge is None:
        return ascent.step(moves, state, sweeps)[0]
    last = round(POLISH_SHARE * sweeps)
    first = sweeps - last
    if outcomes is None:
        return polish(ascent, moves, ascent.step(moves, state, first)[0], last)

    def one(number: Array, state: MirrorState) -> MirrorState:
        count = jnp.minimum(SWEEPS_OF_TIGHTENING, first - number * SWEEPS_OF_TIGHTENING)
        climbed = _sweeps(moves, state, count, SWEEPS_OF_TIGHTENING, False)[0]
        return _tightened(moves, climbed, outcomes)

    rounds = -(-first // SWEEPS_OF_TIGHTENING)
    return polish(ascent, moves, jax.lax.fori_loop(0, rounds, one, state), last)


def own_weights(moves: MoveFlow, state: MirrorState) -> Weights:
    """The weights of agents' own actions, whatever the control eta."""
    return state.weights.reshape(*state.weights.shape[:2], -1, moves.group).sum(axis=-1)


def _tightened(moves: MoveFlow, state: MirrorState, outcomes: AbstractOutcomes) -> MirrorState:
    """The state with limits tightened by what the worst outcome falls short of the planned one.

    And by a little more, because the plan goes on to change.
    """
    assert state.charge is not None
    planned = outcomes.limits.along(state.sweep.rollout.mass)
    short = (
        jnp.maximum(planned - outcomes.least(own_weights(moves, state)), 0.0)
        + KEPT * state.charge.unit
    )
    least = jnp.where(jnp.isfinite(planned), short, 0.0).astype(state.charge.tightened.dtype)
    return _begin(moves, state, replace(state.charge, tightened=least), bound=False)


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


@eqx.filter_jit
def final_rollout(moves: MoveFlow, state: MirrorState) -> Rollout:
    """The flow of a state's policy by the motion itself, where sweeps went by a table."""
    return state.sweep.rollout if moves.table is None else moves.rollout(state.weights)


@eqx.filter_jit
def _init(moves: MoveFlow, weights: Weights, bound: bool, tightened: Margins | None) -> MirrorState:
    logits = jnp.log(jnp.maximum(weights, LOWEST_WEIGHT))
    weights, limits = jax.nn.softmax(logits, axis=-1), moves.flow.problem.constraints
    sweep = moves.sweep(weights, bound=bound)
    charge = None
    if limits is not None:
        rho = PRICE_WEIGHT * _importance(sweep, weights)
        charge = Charge.start(limits, jnp.maximum(rho, LEAST_WEIGHT), tightened)
        sweep = moves.sweep(weights, bound=bound, charge=charge)
    return MirrorState(
        logits=logits,
        velocity=jnp.zeros_like(logits),
        gains=jnp.asarray(0, dtype=jnp.int32),
        sweep=sweep,
        step_size=jnp.asarray(FIRST_STEP, dtype=weights.dtype),
        upper=sweep.upper,
        sweeps=jnp.asarray(0, dtype=jnp.int32),
        charge=charge,
    )


def _importance(sweep: Sweep, weights: Weights) -> Scalar:
    """How much it matters which move an agent takes: the standard deviation of its value."""
    values = sweep.action_values
    apart = values - jnp.sum(weights * values, axis=-1, keepdims=True)
    agents = sweep.rollout.mass[:-1, :, None] * weights
    return jnp.sqrt(jnp.sum(agents * apart**2) / len(values))


def polish(
    ascent: MirrorAscent,
    moves: MoveFlow,
    state: MirrorState,
    sweeps: int = POLISH,
    weight: float = POLISH_WEIGHT,
    outside: Scalar | float = 0.0,
) -> MirrorState:
    """Ends an ascent with limits: some sweeps with more weight on tighter limits.

    If the plan was polished before and is ``outside`` still, by so much more tighter.
    """
    if state.charge is None:
        return state
    margin = POLISH_MARGIN * state.charge.unit + outside
    charge = state.charge.with_weight(weight * state.charge.weight, margin)
    # The step that went with less weight would go too far.
    begin = _begin(moves, state, charge, ascent.bound)
    return ascent.step(moves, replace(begin, step_size=state.step_size / weight), sweeps)[0]


@eqx.filter_jit
def _begin(moves: MoveFlow, state: MirrorState, charge: Charge, bound: bool) -> MirrorState:
    """The state with another charge, at rest, and with all moves in reach."""
    highest = jnp.max(state.logits, axis=-1, keepdims=True)
    logits = jnp.maximum(state.logits - highest, math.log(REVIVED_WEIGHT))
    sweep = moves.sweep(jax.nn.softmax(logits, axis=-1), bound=bound, charge=charge)
    still = jnp.zeros_like(state.velocity)
    return replace(
        state,
        logits=logits,
        charge=charge,
        sweep=sweep,
        velocity=still,
        gains=jnp.zeros_like(state.gains),
    )


@eqx.filter_jit
def _sweeps_at_one_price(moves: MoveFlow, state: MirrorState, count: Int[Array, ""]) -> MirrorState:
    climbed: MirrorState = jax.lax.fori_loop(
        0, count, lambda i, state: _sweep(moves, state, True), state
    )
    return climbed


def _nothing(state: Array, action: Array, mu: Any) -> Scalar:
    return jnp.zeros((), dtype=state.dtype)


@eqx.filter_jit
def _sweeps(
    moves: MoveFlow, state: MirrorState, count: Int[Array, ""], most: int, bound: bool
) -> tuple[MirrorState, Float[Array, "most 2"]]:
    """``count`` sweeps; one compiled program serves all counts up to ``most``."""
    figures = jnp.zeros((most, 2), dtype=state.logits.dtype)
    if moves.freezes:
        return _frozen_sweeps(moves, state, count, figures)
    return _climb(moves, state, bound, jnp.asarray(0), count, figures)


def _climb(
    moves: MoveFlow | FrozenFlow,
    state: MirrorState,
    bound: bool,
    first: Int[Array, ""],
    last: Int[Array, ""],
    figures: Float[Array, "most 2"],
) -> tuple[MirrorState, Float[Array, "most 2"]]:
    """Sweeps from number ``first`` to before ``last``; their J and gap are put into the figures."""

    def one(i: Array, carry: tuple[MirrorState, Array]) -> tuple[MirrorState, Array]:
        state = _sweep(moves, carry[0], bound)
        if state.charge is not None:
            due = state.sweeps % SWEEPS_OF_PRICE == 0
            state = jax.lax.cond(due, partial(_reprice, moves, bound), lambda same: same, state)
        return state, carry[1].at[i].set(jnp.stack([state.value, state.sweep.gap]))

    climbed: tuple[MirrorState, Array] = jax.lax.fori_loop(first, last, one, (state, figures))
    return climbed


def _frozen_sweeps(
    moves: MoveFlow, state: MirrorState, count: Int[Array, ""], figures: Float[Array, "most 2"]
) -> tuple[MirrorState, Float[Array, "most 2"]]:
    """Rounds of sweeps, each with the kernels of the episode that the last one ended with.

    After a round the motion itself is asked; a round after which J is lower is undone.
    """

    def one(carry: tuple[Array, Array, MirrorState, Kept, Array]) -> tuple[Any, ...]:
        done, length, state, kept, figures = carry
        then = jnp.minimum(done + length, count)
        near, figures = _climb(FrozenFlow(moves, kept), state, False, done, then, figures)
        new, sweep = keep(moves, near.weights, near.charge)
        better = sweep.objective >= state.sweep.objective - _slack(state)
        near = eqx.tree_at(lambda s: s.sweep, near, sweep)
        slower = SHRINKAGE * state.step_size
        worse = replace(
            state, step_size=slower, gains=jnp.zeros_like(state.gains), sweeps=near.sweeps
        )
        state, kept = jax.tree.map(lambda a, b: jnp.where(better, a, b), (near, new), (worse, kept))
        length = jnp.where(better, jnp.minimum(2 * length, MOST_OF_ROUND), SWEEPS_OF_ROUND)
        return then, length, state, kept, figures

    kept, sweep = keep(moves, state.weights, state.charge)
    state = eqx.tree_at(lambda s: s.sweep, state, sweep)
    length = jnp.clip(state.sweeps, SWEEPS_OF_ROUND, MOST_OF_ROUND).astype(count.dtype)
    start = (jnp.zeros_like(count), length, state, kept, figures)
    *_, state, _, figures = jax.lax.while_loop(lambda carry: carry[0] < count, one, start)
    return state, figures


def _reprice(moves: MoveFlow | FrozenFlow, bound: bool, state: MirrorState) -> MirrorState:
    """The state with the multipliers that its plan asks for."""
    assert state.charge is not None
    assert state.sweep.prices is not None
    charge = state.charge.repriced(state.sweep.prices)
    known = state.sweep.rollout
    sweep = moves.sweep(state.weights, bound=bound, charge=charge, rollout=known)
    upper = jnp.where(jnp.isfinite(sweep.upper), jnp.minimum(sweep.upper, state.upper), state.upper)
    return replace(state, charge=charge, sweep=sweep, upper=upper)


def _slack(state: MirrorState) -> Scalar:
    """A fall of J that rounding explains."""
    return 2 * jnp.finfo(state.logits.dtype).eps * jnp.abs(state.value)


def _sweep(moves: MoveFlow | FrozenFlow, state: MirrorState, bound: bool) -> MirrorState:
    old = state.sweep
    # Nesterov's momentum: plain ascent creeps where the entropy is nearly greatest.
    momentum = (state.gains / (state.gains + 3)).astype(state.logits.dtype)
    change = state.step_size * old.action_values + momentum * state.velocity
    logits = state.logits + change
    # Only differences between moves matter; with the best at zero the logits do not drift.
    logits = logits - jnp.max(logits, axis=-1, keepdims=True)
    new = moves.sweep(jax.nn.softmax(logits, axis=-1), bound=bound, charge=state.charge)
    # A comparison with NaN is false, so a step that is not finite is undone as well.
    better = new.objective >= old.objective - _slack(state)
    upper = new.upper

    def choose(yes: Any, no: Any) -> Any:
        return jax.tree.map(lambda a, b: jnp.where(better, a, b), yes, no)

    shrinkage = jnp.where(state.gains > 0, SLOWING, SHRINKAGE)
    return MirrorState(
        logits=choose(logits, state.logits),
        velocity=choose(change, jnp.zeros_like(change)),
        gains=jnp.where(better, state.gains + 1, 0),
        sweep=choose(new, old),
        step_size=state.step_size * jnp.where(better, GROWTH, shrinkage).astype(logits.dtype),
        upper=jnp.where(jnp.isfinite(upper), jnp.minimum(upper, state.upper), state.upper),
        sweeps=state.sweeps + 1,
        charge=state.charge,
    )
