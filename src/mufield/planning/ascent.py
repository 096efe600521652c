"""Sweeps of mirror ascent: its moves, the state of an ascent, and one step of it.

Every sweep multiplies each move's weight by the exponential of its value, with Nesterov's momentum,
and is undone if the objective fell.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._types import Scalar
from ..actions import MoveSet
from ..constraints.lagrangian import AugmentedLagrangian
from ..flow.backward import Sweep, Weights
from ..flow.flow import Flow
from ..flow.moves import MoveFlow, coarse_moves
from ..flow.rollout import Rollout
from ..problem import Motion
from .planner import Actions
from .refine import FreeMoves, Refinement


class StepRule(eqx.Module):
    """How long the steps of an ascent are.

    Attributes:
        first: The first step size, relative to the spread of the action values at the start: plans
            do not depend on the unit of the reward.
        growth: Factor after a gain.
        shrinkage: Factor after a loss, which is undone.
        slowing: The same after a loss with momentum, which may have been what went too far.
        multipliers_every: Sweeps between two updates of the multipliers of constraints.
    """

    first: float = 1.0
    growth: float = 1.1
    shrinkage: float = 0.3
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
        free: The moves, if sweeps change them as well.
    """

    logits: Weights
    velocity: Weights
    gains: Int[Array, ""]
    sweep: Sweep
    step_size: Scalar
    upper: Scalar
    sweeps: Int[Array, ""]
    lagrangian: AugmentedLagrangian | None
    free: FreeMoves | None = None

    def flow_of(self, moves: MoveFlow) -> MoveFlow:
        """The flow over the state's moves: the listed ones, or those that it has found."""
        return moves if self.free is None else self.free.of(moves)

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


def regular_moves(
    flow: Flow, motion: Motion, actions: Actions, *, points: int | None = None, controls: int = 2
) -> MoveFlow:
    """The flow over a regular set of moves.

    If the flow's actions have more axes than ``actions``, the moves are all pairs of an action
    and a control eta in [-1, 1]^p; pairs with the same action are neighbours.

    Args:
        flow: The flow of the problem to plan in.
        motion: The law of motion.
        actions: What agents can do.
        points: Actions on each axis of a box; by default those of `coarse_moves`.
        controls: Values of eta on each axis; 2 stands for the corners of [-1, 1]^p and its centre,
            the middle of the confidence band.
    """
    own = own_moves(actions, points)
    size = flow.problem.actions.dim - actions.dim
    if size == 0:
        return MoveFlow(flow, motion, own)
    etas = jnp.asarray(flow.problem.grid.controls(controls), own.dtype)
    pairs = (*own.shape[:-1], len(etas))
    joint = [
        jnp.broadcast_to(own[..., None, :], (*pairs, own.shape[-1])),
        jnp.broadcast_to(etas, (*pairs, size)),
    ]
    moves = jnp.concatenate(joint, axis=-1).reshape(*own.shape[:-2], -1, own.shape[-1] + size)
    return MoveFlow(flow, motion, moves, group=len(etas))


def own_moves(actions: Actions, points: int | None) -> Float[Array, "*cells moves action_dim"]:
    """The moves of `regular_moves` without controls."""
    if points is None or isinstance(actions, MoveSet):
        return coarse_moves(actions)
    return actions.points(points)


def uniform_weights(moves: MoveFlow) -> Weights:
    """All moves equally likely."""
    # Else XLA would fold this large constant, which takes seconds.
    weights: Weights = jax.lax.optimization_barrier(moves.uniform())
    return weights


def rest_weights(moves: MoveFlow) -> Weights:
    """Agents at rest: the move that is nearest to it in each cell, without any control."""
    rest = jnp.asarray(moves.flow.problem.actions.rest, dtype=moves.actions.dtype)
    nearest = jnp.argmin(jnp.sum((moves.actions - rest) ** 2, axis=-1), axis=-1)
    weights = jax.nn.one_hot(nearest, moves.actions.shape[-2], dtype=moves.actions.dtype)
    return jnp.broadcast_to(weights, moves.uniform().shape)


def own_weights(moves: MoveFlow, state: MirrorState) -> Weights:
    """The weights of agents' own actions, whatever the control eta."""
    return state.weights.reshape(*state.weights.shape[:2], -1, moves.group).sum(axis=-1)


@eqx.filter_jit
def begin_ascent(
    moves: MoveFlow,
    weights: Weights,
    rule: StepRule,
    bound: bool,
    lagrangian: AugmentedLagrangian | None = None,
    free: FreeMoves | None = None,
) -> MirrorState:
    """The state before the first step, from the first policy's weights.

    ``lagrangian`` has the multipliers of an earlier ascent; ``free`` the moves that may change.
    """
    # A move of weight zero would never come back.
    logits = jnp.log(jnp.maximum(weights, 1e-12))
    weights, constraints = jax.nn.softmax(logits, axis=-1), moves.flow.problem.constraints
    moves, begun = moves if free is None else free.of(moves), moves.flow.problem.begun
    sweep = moves.sweep(weights, bound=bound, lagrangian=lagrangian)
    spread = _spread(sweep, jnp.sum(begun))
    if constraints is not None and lagrangian is None:
        lagrangian = constraints.lagrangian(begun, 0.15 * spread)
        sweep = moves.sweep(weights, bound=bound, lagrangian=lagrangian)
    return MirrorState(
        logits=logits,
        velocity=jnp.zeros_like(logits),
        gains=jnp.asarray(0, dtype=jnp.int32),
        sweep=sweep,
        step_size=rule.first / spread,
        upper=sweep.upper,
        sweeps=jnp.asarray(0, dtype=jnp.int32),
        lagrangian=lagrangian,
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
    variance = jnp.var(values / unit, axis=-1)
    share = jnp.sqrt(jnp.sum(sweep.rollout.mass[:-1] * variance) / steps)
    # Where no move matters, what differs is rounding.
    return unit * jnp.where(share > 1e-6, share, jnp.where(jnp.any(values != 0), 1e-6, 1.0))


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
            state = jax.lax.cond(
                due, partial(_update_multipliers, moves, bound), lambda same: same, state
            )
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
    weights, free = jax.nn.softmax(logits, axis=-1), state.free
    if free is not None:
        assert old.slopes is not None
        free = free.step(old.slopes, moves.flow.problem.actions)
    now = moves if free is None else free.of(moves)
    new = now.sweep(weights, bound=bound, lagrangian=state.lagrangian)
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
        free=None if state.free is None else choose(free, state.free.back()),
    )


def _update_multipliers(moves: MoveFlow, bound: bool, state: MirrorState) -> MirrorState:
    """The state with the multipliers lambda' of its plan."""
    assert state.lagrangian is not None
    assert state.sweep.penalty is not None
    lagrangian = state.lagrangian.updated(state.sweep.penalty)
    known = state.sweep.rollout
    sweep = state.flow_of(moves).sweep(
        state.weights, bound=bound, lagrangian=lagrangian, rollout=known
    )
    upper = _least(sweep.upper, state.upper)
    return replace(state, lagrangian=lagrangian, sweep=sweep, upper=upper)


def _least(new: Scalar, old: Scalar) -> Scalar:
    return jnp.where(jnp.isfinite(new), jnp.minimum(new, old), old)


def interpolates(moves: MoveFlow) -> bool:
    """Whether J of a sweep is approximate, because kernels are interpolated."""
    return moves.bank is not None and moves.bank.interpolates


@eqx.filter_jit
def final_rollout(moves: MoveFlow, state: MirrorState) -> Rollout:
    """The flow of a state's policy by the motion itself, where sweeps went by interpolation."""
    return moves.rollout(state.weights) if interpolates(moves) else state.sweep.rollout


@eqx.filter_jit
def best_of(moves: MoveFlow, end: MirrorState, *others: MirrorState) -> tuple[MirrorState, Rollout]:
    """The end of an ascent and its flow, or another state that earns more by the motion itself.

    A sweep is undone where J falls, but J of a sweep may be approximate. With constraints, states
    that satisfy them come first.
    """
    problem = moves.flow.problem

    def feasible(rollout: Rollout) -> Bool[Array, ""]:
        if problem.constraints is None:
            return jnp.asarray(True)
        return jnp.min(problem.margins(rollout.mass)) >= -problem.constraints.tolerance

    best = end, final_rollout(moves, end)
    for other in others:
        upper = _least(other.upper, end.upper)
        state = replace(other, lagrangian=end.lagrangian, upper=upper, sweeps=end.sweeps)
        rollout = final_rollout(moves, state)
        now, then = feasible(rollout), feasible(best[1])
        more = jnp.isfinite(state.planned) & (rollout.value > best[1].value)
        better = now & (more | ~then)
        best = jax.tree.map(partial(jnp.where, better), (state, rollout), best)
    return best


def refine(
    moves: MoveFlow,
    motion: Motion,
    state: MirrorState,
    rule: StepRule,
    refinement: Refinement,
    points: int,
) -> tuple[MoveFlow, MirrorState, Float[Array, "sweeps 2"]]:
    """The flow over the found moves, the last state there, J and gap after each sweep.

    Args:
        moves: The flow over the coarse moves.
        motion: The law of motion, or a table of it.
        state: The last state of the ascent over the coarse moves.
        rule: How long steps are.
        refinement: How many moves are kept, and how many sweeps are made.
        points: Number of coarse actions on each axis; controls have three values.
    """
    free, weights = refinement.start(moves, state.weights, points)
    fine = MoveFlow(moves.flow, motion, free.actions, bank_bytes=0)
    start = begin_ascent(fine, weights, rule, False, state.lagrangian, free)
    sweeps = refinement.sweeps
    end, figures = ascend(fine, start, jnp.asarray(sweeps), sweeps, rule, False)
    return end.flow_of(fine), replace(end, sweeps=state.sweeps + end.sweeps), figures
