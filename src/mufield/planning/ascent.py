"""Sweeps of mirror ascent: the state of an ascent, and one step of it.

Every sweep multiplies each move's weight by the exponential of its value, with Nesterov's momentum,
and is undone if the objective fell.
"""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._types import Scalar
from ..constraints.lagrangian import AugmentedLagrangian
from ..flow.moves import MoveFlow, Sweep, Weights
from ..flow.rollout import Rollout


class StepRule(eqx.Module):
    """How long the steps of an ascent are.

    Attributes:
        first: The first step size.
        growth: Factor after a gain.
        shrinkage: Factor after a loss, which is undone.
        slowing: The same after a loss with momentum, which may have been what went too far.
        multipliers_every: Sweeps between two updates of the multipliers of constraints.
    """

    first: float = 0.1
    growth: float = 1.1
    shrinkage: float = 0.5
    slowing: float = 0.8
    multipliers_every: int = 5


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
        lagrangian: The multipliers of the problem's constraints, if it has any.
    """

    logits: Weights
    velocity: Weights
    gains: Int[Array, ""]
    sweep: Sweep
    step_size: Scalar
    upper: Scalar
    sweeps: Int[Array, ""]
    lagrangian: AugmentedLagrangian | None

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


def uniform_weights(moves: MoveFlow) -> Weights:
    """All moves equally likely."""
    # Else XLA would fold this large constant, which takes seconds.
    weights: Weights = jax.lax.optimization_barrier(moves.uniform())
    return weights


def own_weights(moves: MoveFlow, state: MirrorState) -> Weights:
    """The weights of agents' own actions, whatever the control eta."""
    return state.weights.reshape(*state.weights.shape[:2], -1, moves.group).sum(axis=-1)


@eqx.filter_jit
def begin_ascent(
    moves: MoveFlow,
    weights: Weights,
    rule: StepRule,
    bound: bool,
) -> MirrorState:
    """The state before the first step, from the first policy's weights."""
    # A move of weight zero would never come back.
    logits = jnp.log(jnp.maximum(weights, 1e-12))
    weights, constraints = jax.nn.softmax(logits, axis=-1), moves.flow.problem.constraints
    sweep = moves.sweep(weights, bound=bound)
    lagrangian = None
    if constraints is not None:
        # rho as a share of what a move matters; at least a little, for rewards that do not depend
        # on the policy.
        steps = jnp.sum(moves.flow.problem.begun)
        rho = jnp.maximum(0.15 * _importance(sweep, weights, steps), 1e-6)
        lagrangian = AugmentedLagrangian.start(constraints, rho)
        sweep = moves.sweep(weights, bound=bound, lagrangian=lagrangian)
    return MirrorState(
        logits=logits,
        velocity=jnp.zeros_like(logits),
        gains=jnp.asarray(0, dtype=jnp.int32),
        sweep=sweep,
        step_size=jnp.asarray(rule.first, dtype=weights.dtype),
        upper=sweep.upper,
        sweeps=jnp.asarray(0, dtype=jnp.int32),
        lagrangian=lagrangian,
    )


def _importance(sweep: Sweep, weights: Weights, steps: Int[Array, ""]) -> Scalar:
    """How much it matters which move an agent takes: the standard deviation of its value.

    ``steps`` is the number of steps that belong to the problem.
    """
    values = sweep.action_values
    apart = values - jnp.sum(weights * values, axis=-1, keepdims=True)
    agents = sweep.rollout.mass[:-1, :, None] * weights
    return jnp.sqrt(jnp.sum(agents * apart**2) / steps)


@eqx.filter_jit
def ascend(
    moves: MoveFlow,
    state: MirrorState,
    count: Int[Array, ""],
    most: int,
    rule: StepRule,
    bound: bool,
    update_multipliers: bool = True,
) -> tuple[MirrorState, Float[Array, "most 2"]]:
    """Does ``count`` sweeps; also returns J and gap after each.

    One compiled program serves all counts up to ``most``.
    """

    def one(i: Array, carry: tuple[MirrorState, Array]) -> tuple[MirrorState, Array]:
        state = _sweep(moves, carry[0], rule, bound)
        if state.lagrangian is not None and update_multipliers:
            due = state.sweeps % rule.multipliers_every == 0
            state = jax.lax.cond(due, partial(_update, moves, bound), lambda same: same, state)
        return state, carry[1].at[i].set(jnp.stack([state.value, state.sweep.gap]))

    figures = jnp.zeros((most, 2), dtype=state.logits.dtype)
    climbed: tuple[MirrorState, Array] = jax.lax.fori_loop(0, count, one, (state, figures))
    return climbed


def _sweep(moves: MoveFlow, state: MirrorState, rule: StepRule, bound: bool) -> MirrorState:
    old = state.sweep
    # Nesterov's momentum: plain ascent creeps where the entropy is nearly greatest.
    momentum = (state.gains / (state.gains + 3)).astype(state.logits.dtype)
    change = state.step_size * old.action_values + momentum * state.velocity
    logits = state.logits + change
    # Only differences between moves matter; with the best at zero the logits do not drift.
    logits = logits - jnp.max(logits, axis=-1, keepdims=True)
    weights = jax.nn.softmax(logits, axis=-1)
    new = moves.sweep(weights, bound=bound, lagrangian=state.lagrangian)
    slack = 2 * jnp.finfo(logits.dtype).eps * jnp.abs(old.objective)  # what rounding explains
    # A comparison with NaN is false, so a step that is not finite is undone as well.
    better = new.objective >= old.objective - slack

    def choose(yes: Any, no: Any) -> Any:
        return jax.tree.map(lambda a, b: jnp.where(better, a, b), yes, no)

    shrinkage = jnp.where(state.gains > 0, rule.slowing, rule.shrinkage)
    factor = jnp.where(better, rule.growth, shrinkage).astype(logits.dtype)
    return MirrorState(
        logits=choose(logits, state.logits),
        velocity=choose(change, jnp.zeros_like(change)),
        gains=jnp.where(better, state.gains + 1, 0),
        sweep=choose(new, old),
        step_size=state.step_size * factor,
        upper=_least(new.upper, state.upper),
        sweeps=state.sweeps + 1,
        lagrangian=state.lagrangian,
    )


def _update(moves: MoveFlow, bound: bool, state: MirrorState) -> MirrorState:
    """The state with the multipliers that its plan asks for."""
    assert state.lagrangian is not None
    assert state.sweep.penalty is not None
    lagrangian = state.lagrangian.updated(state.sweep.penalty)
    known = state.sweep.rollout
    sweep = moves.sweep(state.weights, bound=bound, lagrangian=lagrangian, rollout=known)
    changed: MirrorState = eqx.tree_at(
        lambda s: (s.lagrangian, s.sweep, s.upper),
        state,
        (lagrangian, sweep, _least(sweep.upper, state.upper)),
    )
    return changed


def _least(new: Scalar, old: Scalar) -> Scalar:
    return jnp.where(jnp.isfinite(new), jnp.minimum(new, old), old)


@eqx.filter_jit
def final_rollout(moves: MoveFlow, state: MirrorState) -> Rollout:
    """The flow of a state's policy by the motion itself, where sweeps went by interpolation."""
    if moves.bank is not None and moves.bank.interpolates:
        return moves.rollout(state.weights)
    return state.sweep.rollout
