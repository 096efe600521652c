"""Sweeps of mirror ascent: the state of an ascent, and one step of it.

Every sweep multiplies each move's weight by the exponential of its value, with Nesterov's momentum,
and is undone if the objective fell.
"""

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._arrays import Margins, Scalar, stacked
from ..flow.backward import Sweep, Weights
from ..flow.moves import MoveFlow
from .moves import FreeMoves

if TYPE_CHECKING:
    from ..constraints.lagrangian import AugmentedLagrangian


class StepRule(eqx.Module):
    """How long the steps of an ascent are.

    Attributes:
        first: The first step size, relative to the spread of the action values at the start: plans
            do not depend on the unit of the reward.
        growth: Factor after a gain.
        shrinkage: Factor after a loss, which is undone.
        slowing: The same after a loss with momentum, which may have been what went too far.
        multipliers_every: Sweeps between two updates of the multipliers of constraints.
        floor: With constraints, the least weight of a move beside the greatest of its cell, so that
            moves which were discarded can return when multipliers change.
    """

    first: float = 1.0
    growth: float = 1.1
    shrinkage: float = 0.3
    slowing: float = 0.8
    multipliers_every: int = 5
    floor: float = 1e-8


class MirrorState(eqx.Module):
    """The state of an ascent.

    Attributes:
        logits: Logarithms of the weights, up to a constant.
        velocity: The last change of the logits; zero at the start and after a loss.
        gains: Number of gains in a row, since the start or the last loss.
        sweep: The flow and the derivatives at these weights.
        step_size: Factor on the action values in the next step.
        upper: Least J + gap of all sweeps so far.
        sweeps: Number of steps taken. Negative before the first: -1 if the sweep must still be
            evaluated, -2 if the weight rho of constraints must be found first.
        lagrangian: The multipliers of the problem's constraints, if it has any.
        bound: Whether sweeps compute the gap, a third of the work.
        free: The moves, if sweeps change them, too.
    """

    logits: Weights
    velocity: Weights
    gains: Int[Array, ""]
    sweep: Sweep
    step_size: Scalar
    upper: Scalar
    sweeps: Int[Array, ""]
    lagrangian: "AugmentedLagrangian | None"
    rule: StepRule = eqx.field(static=True)
    bound: bool = eqx.field(static=True)
    free: FreeMoves | None = None

    def flow_of(self, moves: MoveFlow) -> MoveFlow:
        """The flow over the state's moves: the listed ones, or those that it has found."""
        return _flow_over(moves, self.free)

    @property
    def multipliers(self) -> Margins | None:
        """The multipliers of the problem's constraints, if it has any."""
        return None if self.lagrangian is None else self.lagrangian.multipliers

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
    def violation(self) -> Scalar:
        """By how much the worst constraint is violated, as a share of it."""
        penalty = self.sweep.penalty
        return jnp.zeros_like(self.value) if penalty is None else penalty.violation


def own_weights(moves: MoveFlow, state: MirrorState) -> Weights:
    """The weights of agents' own actions, whatever the control eta."""
    return state.weights.reshape(*state.weights.shape[:2], -1, moves.group).sum(axis=-1)


def begin_ascent(
    moves: MoveFlow, weights: Weights, *, most: int = 20, **settings: Any
) -> MirrorState:
    """The state before the first step; ``settings`` are those of `initial_state`.

    ``most`` is as of the calls of `ascend` that come next, whose compiled program this shares.
    """
    return ascend(moves, initial_state(moves, weights, **settings), jnp.asarray(0), most)[0]


@eqx.filter_jit
def initial_state(
    moves: MoveFlow,
    weights: Weights,
    *,
    rule: StepRule,
    bound: bool = False,
    lagrangian: "AugmentedLagrangian | None" = None,
    free: FreeMoves | None = None,
) -> MirrorState:
    """A state whose sweep is a placeholder, which the next call of `ascend` evaluates.

    ``lagrangian`` has the multipliers of an earlier ascent; ``free`` the moves that may change.
    """
    # Without the barrier XLA folds weights that are a large constant, which takes seconds. A move
    # of weight zero would never come back.
    logits = jnp.log(jnp.maximum(jax.lax.optimization_barrier(weights), 1e-12))
    logits = logits - jnp.max(logits, axis=-1, keepdims=True)
    zero, problem, sweeps = jnp.zeros((), dtype=logits.dtype), moves.flow.problem, -1
    if problem.constraints is not None and lagrangian is None:
        # So little weight that the first sweep is that of the problem without constraints.
        lagrangian, sweeps = problem.constraints.lagrangian(moves.active, zero + 1e-30), -2
    options: Any = {"bound": bound, "lagrangian": lagrangian}
    shapes = jax.eval_shape(lambda: _flow_over(moves, free).sweep(weights, **options))
    sweep = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    sweep = eqx.tree_at(lambda sweep: sweep.rollout.value, sweep, zero - jnp.inf)
    return MirrorState(
        logits=logits,
        velocity=jnp.zeros_like(logits),
        gains=jnp.asarray(0, dtype=jnp.int32),
        sweep=sweep,
        step_size=zero,
        upper=zero + jnp.inf,
        sweeps=jnp.asarray(sweeps, dtype=jnp.int32),
        lagrangian=lagrangian,
        rule=rule,
        bound=bound,
        free=free,
    )


def _spread(sweep: Sweep, steps: Int[Array, ""]) -> Scalar:
    r"""How much it matters which move agents take: $\sqrt{E\, \mathrm{Var}_a\, Q_h(s, a)}$.

    The variance is over all moves alike, the mean over the agents and the ``steps`` that belong to
    the problem. Steps of the ascent and the weight rho are relative to it, so that plans do not
    depend on the unit of the reward.
    """
    values = sweep.action_values
    unit = jnp.max(jnp.abs(values))
    unit = jnp.where((unit > 0) & jnp.isfinite(unit), unit, 1.0)
    # Divided first, because squares of very large or small rewards would overflow or vanish.
    share = jnp.sqrt(jnp.sum(sweep.rollout.mass[:-1] * jnp.var(values / unit, axis=-1)) / steps)
    # Where no move matters, what differs is rounding.
    return unit * jnp.where(share > 1e-6, share, jnp.where(jnp.any(values != 0), 1e-6, 1.0))


@eqx.filter_jit
def ascend(
    moves: MoveFlow,
    state: MirrorState,
    count: Int[Array, ""],
    most: int,
    update_multipliers: bool = True,
) -> tuple[MirrorState, Float[Array, "most 2"]]:
    """Does ``count`` sweeps; also returns J and gap after each, in the first ``count`` rows.

    One compiled program serves all counts up to ``most``.
    """
    # See `initial_state`. Behind a barrier, or XLA would write a loop of one sweep out, and round
    # it otherwise than the same sweep in a longer loop.
    first = jax.lax.optimization_barrier(jnp.minimum(state.sweeps, 0))

    def one(i: Array, carry: tuple[MirrorState, Array]) -> tuple[MirrorState, Array]:
        state = _sweep(moves, carry[0])
        if state.lagrangian is not None and update_multipliers:
            due = (state.sweeps > 0) & (state.sweeps % state.rule.multipliers_every == 0)
            updated = partial(_with_multipliers, moves)
            state = jax.lax.cond(due, updated, lambda same: same, state)
        return state, carry[1].at[i].set(jnp.stack([state.value, state.sweep.gap]))

    figures = jnp.zeros((most, 2), dtype=state.logits.dtype)
    return jax.lax.fori_loop(first, count.astype(jnp.int32), one, (state, figures))


def _sweep(moves: MoveFlow, state: MirrorState) -> MirrorState:
    old, rule, begun = state.sweep, state.rule, state.sweeps >= 0
    # Nesterov's momentum: plain ascent creeps where the entropy is nearly greatest.
    momentum = (state.gains / (state.gains + 3)).astype(state.logits.dtype)
    change = state.step_size * old.action_values + momentum * state.velocity
    logits = state.logits + change
    # Only differences between moves matter; with the best at zero the logits do not drift.
    logits = logits - jnp.max(logits, axis=-1, keepdims=True)
    if state.lagrangian is not None:
        logits = jnp.maximum(logits, math.log(rule.floor))
    weights, free = jax.nn.softmax(logits, axis=-1), state.free
    if free is not None:
        assert old.slopes is not None
        free = free.step(old.slopes, moves.flow.problem.actions)
    new = _flow_over(moves, free).sweep(weights, bound=state.bound, lagrangian=state.lagrangian)
    slack = 2 * jnp.finfo(logits.dtype).eps * jnp.abs(old.objective)  # what rounding explains
    # A comparison with NaN is false, so a step that is not finite is undone as well.
    better = ~begun | (new.objective >= old.objective - slack)

    def choose(yes: Any, no: Any) -> Any:
        return jax.tree.map(lambda a, b: jnp.where(better, a, b), yes, no)

    shrinkage = jnp.where(state.gains > 0, rule.slowing, rule.shrinkage)
    factor = jnp.where(better, rule.growth, shrinkage).astype(logits.dtype)
    steps, lagrangian = jnp.sum(moves.flow.problem.begun), state.lagrangian
    spread = jax.lax.cond(begun, lambda: jnp.ones_like(slack), lambda: _spread(new, steps))
    if lagrangian is not None:
        weight = jnp.where(state.sweeps == -2, 0.15 * spread, lagrangian.weight)
        lagrangian = replace(lagrangian, weight=weight)
    known = state.step_size > 0
    return replace(
        state,
        logits=choose(logits, state.logits),
        velocity=choose(change, jnp.zeros_like(change)),
        gains=jnp.where(better & begun, state.gains + 1, 0),
        sweep=choose(new, old),
        step_size=jnp.where(begun, factor, 1.0)
        * jnp.where(known, state.step_size, rule.first / spread),
        upper=_least(new.upper, state.upper),
        sweeps=state.sweeps + 1,
        lagrangian=lagrangian,
        free=None if state.free is None else choose(free, state.free.undone()),
    )


def _with_multipliers(moves: MoveFlow, state: MirrorState) -> MirrorState:
    """The state with the multipliers lambda' of its plan."""
    assert state.lagrangian is not None
    assert state.sweep.penalty is not None
    lagrangian = state.lagrangian.updated(state.sweep.penalty)
    options: Any = {"bound": state.bound, "rollout": state.sweep.rollout}
    new = state.flow_of(moves).sweep(state.weights, lagrangian=lagrangian, **options)
    return replace(state, lagrangian=lagrangian, sweep=new, upper=_least(new.upper, state.upper))


def _flow_over(moves: MoveFlow, free: FreeMoves | None) -> MoveFlow:
    return moves if free is None else eqx.tree_at(lambda m: m.actions, moves, free.actions)


def _least(new: Scalar, old: Scalar) -> Scalar:
    return jnp.where(jnp.isfinite(new), jnp.minimum(new, old), old)


def interpolates(moves: MoveFlow) -> bool:
    """Whether J of a sweep is approximate, because kernels are interpolated."""
    return moves.bank is not None and moves.bank.interpolates


@eqx.filter_jit
def with_true_flow(moves: MoveFlow, state: MirrorState) -> MirrorState:
    """The state with its flow and J by the motion itself, where sweeps went by interpolation."""
    if not interpolates(moves):
        return state
    return replace(state, sweep=replace(state.sweep, rollout=moves.rollout(state.weights)))


def is_better(moves: MoveFlow, new: MirrorState, old: MirrorState) -> Bool[Array, ""]:
    """Whether a state earns more; one that satisfies the constraints is better than one that not.

    False if its J or a derivative is not finite, or if it violates a constraint.
    """

    def feasible(state: MirrorState) -> Bool[Array, ""]:
        constraints = moves.flow.problem.constraints
        if constraints is None:
            return jnp.asarray(True)
        return jnp.min(moves.margins(state.sweep.rollout)) >= -constraints.rule.tolerance

    more = jnp.isfinite(new.planned) & (new.value > old.value)
    return feasible(new) & (more | ~feasible(old))


@eqx.filter_jit
def best_of(moves: MoveFlow, end: MirrorState, *others: MirrorState) -> MirrorState:
    """The end of an ascent, or another state that is better by the motion itself.

    A sweep is undone where J falls, but J of a sweep may be approximate. The scan compiles it once.
    """
    same: Any = {"lagrangian": end.lagrangian, "sweeps": end.sweeps}
    states = [replace(each, upper=_least(each.upper, end.upper), **same) for each in others]

    def choose(best: MirrorState, each: tuple[MirrorState, Array]) -> tuple[MirrorState, None]:
        return better_of(moves, best, *each), None

    return jax.lax.scan(choose, end, (stacked(end, *states), jnp.arange(1 + len(states)) == 0))[0]


def better_of(
    moves: MoveFlow, best: MirrorState, other: MirrorState, always: Bool[Array, ""]
) -> MirrorState:
    """The other state if it is better by the motion itself, or ``always``; else ``best``."""
    worse = ~always & is_surely_better(moves, best, other)
    other = jax.lax.cond(worse, lambda same: same, partial(with_true_flow, moves), other)
    better = always | is_better(moves, other, best)
    return jax.tree.map(partial(jnp.where, better), other, best)


def is_surely_better(moves: MoveFlow, best: MirrorState, other: MirrorState) -> Bool[Array, ""]:
    """Whether J exceeds another's by more than a bank's error; never so with constraints."""
    error = _spread(best.sweep, jnp.sum(moves.flow.problem.begun)) if interpolates(moves) else 0.0
    return (best.planned - error > other.value) & (moves.flow.problem.constraints is None)
