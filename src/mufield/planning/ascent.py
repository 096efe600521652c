"""Sweeps of mirror ascent: the state of an ascent, and one step of it.

Every sweep multiplies each move's weight by the exponential of its value, with Nesterov's momentum,
and is undone if the objective fell.
"""

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._arrays import Margins, Scalar
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
        least_weight: The least weight of a move at the start: one of zero would stay there.
        multipliers_every: Sweeps between two updates of the multipliers of constraints.
        floor: With constraints, the least weight of a move beside the greatest of its cell, so that
            moves which were discarded can return when multipliers change.
    """

    first: float = 1.0
    growth: float = 1.1
    shrinkage: float = 0.3
    slowing: float = 0.8
    least_weight: float = 1e-12
    multipliers_every: int = 5
    floor: float = 1e-8


class MirrorState(eqx.Module):
    """The state of an ascent.

    Attributes:
        logits: Logarithms of the weights, up to a constant.
        velocity: The last change of the logits; zero at the start and after a loss.
        gains: Number of gains in a row, since the start or the last loss.
        sweep: The flow and the derivatives at these weights.
        step_size: Factor on the action values in the next step; zero if it is to be found.
        upper: Least J + gap of all sweeps so far.
        sweeps: Number of steps taken.
        pending: Number of evaluations due before the next step, each a sweep with the weights as
            they are: one at the start and whenever the Lagrangian changed, two at the start if the
            first must tell how large the weight rho of constraints is to be.
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
    pending: Int[Array, ""]
    lagrangian: "AugmentedLagrangian | None"
    rule: StepRule = eqx.field(static=True)
    bound: bool = eqx.field(static=True)
    free: FreeMoves | None = None

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
    def figures(self) -> Float[Array, "2"]:
        """J and gap."""
        return jnp.stack([self.value, self.sweep.gap])

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


@eqx.filter_jit
def initial_state(
    moves: MoveFlow,
    weights: Weights,
    *,
    rule: StepRule,
    bound: bool,
    lagrangian: "AugmentedLagrangian | None" = None,
    free: FreeMoves | None = None,
) -> MirrorState:
    """The state at the start, whose sweep is still to be evaluated.

    ``lagrangian`` has the multipliers of an earlier ascent, ``free`` the moves that may change.
    """
    given, zero = lagrangian, jnp.zeros((), dtype=weights.dtype)
    constraints, count = moves.flow.problem.constraints, jnp.asarray(0, dtype=jnp.int32)
    if constraints is not None and given is None:
        # So little weight that the first sweep is that of the problem without constraints.
        lagrangian = constraints.lagrangian(moves.active, zero + 1e-30)
    options: Any = {"bound": bound, "lagrangian": lagrangian}
    shapes = jax.eval_shape(lambda: flow_over(moves, free).sweep(weights, **options))
    # Without the barrier XLA folds weights that are a large constant, which takes seconds.
    logits = jnp.log(jnp.maximum(jax.lax.optimization_barrier(weights), rule.least_weight))
    return MirrorState(
        logits=logits - jnp.max(logits, axis=-1, keepdims=True),
        velocity=jnp.zeros_like(logits),
        gains=count,
        sweep=jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes),
        step_size=zero,
        upper=zero + jnp.inf,
        sweeps=count,
        pending=count + (1 if lagrangian is given else 2),
        lagrangian=lagrangian,
        rule=rule,
        bound=bound,
        free=free,
    )


def restarted(state: MirrorState, lagrangian: "AugmentedLagrangian") -> MirrorState:
    """The state with another Lagrangian, under which it is to be evaluated, and no momentum."""
    still: Any = {"velocity": jnp.zeros_like(state.velocity), "gains": 0 * state.gains}
    return replace(state, lagrangian=lagrangian, pending=jnp.ones_like(state.pending), **still)


@eqx.filter_jit
def ascend(
    moves: MoveFlow, state: MirrorState, count: Int[Array, ""], most: int
) -> tuple[MirrorState, Float[Array, "most_and_start 2"]]:
    """Does ``count`` sweeps and the evaluations that are due.

    Also returns J and gap before the first step and after each. One compiled program serves all
    counts up to ``most``.
    """
    first = state.sweeps

    def unfinished(carry: tuple[MirrorState, Array]) -> Bool[Array, ""]:
        return (carry[0].sweeps < first + count) | (carry[0].pending > 0)

    def one(carry: tuple[MirrorState, Array]) -> tuple[MirrorState, Array]:
        state = _sweep(moves, carry[0])
        return state, carry[1].at[state.sweeps - first].set(state.figures)

    figures = jnp.zeros((most + 1, 2), dtype=state.logits.dtype).at[0].set(state.figures)
    return jax.lax.while_loop(unfinished, one, (state, figures))


def _sweep(moves: MoveFlow, state: MirrorState) -> MirrorState:
    """One step, or the evaluation that is due in place of it."""
    old, rule, steps = state.sweep, state.rule, state.pending == 0
    # Nesterov's momentum: plain ascent creeps where the entropy is nearly greatest.
    momentum = jnp.where(steps, state.gains / (state.gains + 3), 1.0).astype(state.logits.dtype)
    change = jnp.where(steps, state.step_size, 0.0) * old.action_values + momentum * state.velocity
    # An evaluation leaves the logits, and the velocity, as they are.
    logits = state.logits + steps.astype(change.dtype) * change
    # Only differences between moves matter; with the best at zero the logits do not drift.
    logits = logits - jnp.max(logits, axis=-1, keepdims=True)
    if state.lagrangian is not None:
        logits = jnp.maximum(logits, math.log(rule.floor))
    weights, free = jax.nn.softmax(logits, axis=-1), state.free
    if free is not None:
        assert old.slopes is not None
        free = choose(steps, free.step(old.slopes, moves.flow.problem.actions), free)
    new = flow_over(moves, free).sweep(weights, bound=state.bound, lagrangian=state.lagrangian)
    slack = 2 * jnp.finfo(logits.dtype).eps * jnp.abs(old.objective)  # what rounding explains
    # A comparison with NaN is false, so a step that is not finite is undone as well.
    better = ~steps | (new.objective >= old.objective - slack)
    shrinkage = jnp.where(state.gains > 0, rule.slowing, rule.shrinkage)
    factor = jnp.where(better, rule.growth, shrinkage).astype(logits.dtype)
    known = state.step_size > 0
    spread = jax.lax.cond(known, lambda: jnp.ones_like(slack), lambda: spread_of(moves, new))
    found = jnp.where(known, state.step_size, rule.first / spread)
    sweep, lagrangian = choose(better, new, old), state.lagrangian
    sweeps, updated = state.sweeps + steps, jnp.asarray(False)
    if lagrangian is not None and sweep.penalty is not None:
        weight = lagrangian.rule.first_weight * spread
        weight = jnp.where(state.pending == 2, weight, lagrangian.weight)
        lagrangian = replace(lagrangian, weight=weight)
        updated = steps & (sweeps % rule.multipliers_every == 0)
        lagrangian = choose(updated, lagrangian.updated(sweep.penalty), lagrangian)
    return replace(
        state,
        logits=choose(better, logits, state.logits),
        velocity=jnp.where(better, change, 0.0),
        gains=jnp.where(steps, jnp.where(better, state.gains + 1, 0), state.gains),
        sweep=sweep,
        step_size=jnp.where(steps, factor * state.step_size, found),
        upper=jnp.fmin(new.upper, state.upper),
        sweeps=sweeps,
        pending=jnp.maximum(state.pending - 1, 0) + updated,
        lagrangian=lagrangian,
        free=None if state.free is None else choose(better, free, state.free.undone()),
    )


def spread_of(moves: MoveFlow, sweep: Sweep) -> Scalar:
    r"""How much it matters which move agents take: $\sqrt{E\, \mathrm{Var}_a\, Q_h(s, a)}$.

    The variance is over all moves alike, the mean over the agents and the problem's steps. Steps of
    the ascent and rho are relative to it: plans do not depend on the unit of the reward.
    """
    values, steps = sweep.action_values, jnp.sum(moves.flow.problem.begun)
    unit = jnp.max(jnp.abs(values))
    unit = jnp.where((unit > 0) & jnp.isfinite(unit), unit, 1.0)
    # Divided first, because squares of very large or small rewards would overflow or vanish.
    share = jnp.sqrt(jnp.sum(sweep.rollout.mass[:-1] * jnp.var(values / unit, axis=-1)) / steps)
    rounding = 1e-6  # where no move matters more than this, what differs is rounding
    none = jnp.where(jnp.any(values != 0), rounding, 1.0)
    return unit * jnp.where(share > rounding, share, none)


def flow_over(moves: MoveFlow, free: FreeMoves | None) -> MoveFlow:
    """The flow over free moves, if there are any."""
    return moves if free is None else eqx.tree_at(lambda m: m.actions, moves, free.actions)


def choose(condition: Bool[Array, ""], yes: Any, no: Any) -> Any:
    """One of two trees of arrays."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


def is_better(moves: MoveFlow, new: MirrorState, old: MirrorState) -> Bool[Array, ""]:
    """Whether a state earns more; with constraints, first of all whether it satisfies them.

    False if its J or a derivative is not finite. Of two that violate a constraint, the one that
    violates them less is better.
    """
    more, constraints = new.value > old.value, moves.flow.problem.constraints
    if constraints is not None:
        inside, was = (jnp.min(moves.margins(each.sweep.rollout)) for each in (new, old))
        least = -constraints.rule.tolerance
        more = jnp.where(was < least, inside > was, more & (inside >= least))
    return jnp.isfinite(new.planned) & more


def interpolates(moves: MoveFlow) -> bool:
    """Whether J of a sweep is approximate, because kernels are interpolated."""
    return moves.bank is not None and moves.bank.interpolates


@eqx.filter_jit
def with_true_flow(moves: MoveFlow, state: MirrorState) -> MirrorState:
    """The state with its flow and J by the motion itself, where sweeps went by interpolation."""
    if not interpolates(moves):
        return state
    return replace(state, sweep=replace(state.sweep, rollout=moves.rollout(state.weights)))


@eqx.filter_jit
def better_of(moves: MoveFlow, best: MirrorState, other: MirrorState) -> MirrorState:
    """The other state, if it is better by the motion itself or ``best`` is not evaluated yet.

    Bound, multipliers and number of sweeps are those of the whole ascent, so of the other state.
    """
    first, free = best.pending > 0, moves.flow.problem.constraints is None
    # By how much a bank's J may be wrong. A plan that is worse by more needs no true flow.
    error = spread_of(moves, best.sweep) if interpolates(moves) else 0.0
    worse = ~first & free & (best.planned - error > other.value)
    other = jax.lax.cond(worse, lambda: other, lambda: with_true_flow(moves, other))
    better = first | is_better(moves, other, best)
    whole: Any = {"lagrangian": other.lagrangian, "sweeps": other.sweeps}
    return replace(choose(better, other, best), upper=jnp.fmin(other.upper, best.upper), **whole)
