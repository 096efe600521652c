"""Mirror ascent with constraints: its last sweeps, margins for uncertain models, infeasibility."""

import math
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._arrays import Scalar
from ..constraints.lagrangian import AugmentedLagrangian, InfeasibleError
from ..flow.moves import MoveFlow
from .ascent import MirrorState, StepRule, ascend, begin_ascent, own_weights, with_true_flow
from .planner import LeastMargins


def constrained_ascent(
    moves: MoveFlow, state: MirrorState, sweeps: int, least: LeastMargins | None
) -> MirrorState:
    """An ascent of so many sweeps that ends inside the constraints; may be compiled.

    If ``least`` says what sampled models make of a plan, safety margins are raised on the way.
    """
    rule = _lagrangian(state).rule
    last = round(rule.polish_share * sweeps)
    first = sweeps - last
    every = first if least is None else rule.sample_every

    def one(number: Array, state: MirrorState) -> MirrorState:
        state = ascend(moves, state, jnp.minimum(every, first - number * every), every)[0]
        return state if least is None else _with_margins(moves, state, least)

    state = jax.lax.fori_loop(0, -(-first // max(every, 1)), one, state)
    return _polish(moves, state, sweeps=last, weight=rule.polish_weight)


def make_feasible(moves: MoveFlow, state: MirrorState) -> MirrorState:
    """Polishes a plan until it satisfies the constraints, or all rounds are used up."""
    rule = _lagrangian(state).rule
    pace, sweeps = state.step_size / rule.polish_weight, rule.polish_sweeps
    state = _polish(moves, state, sweeps=sweeps, weight=rule.polish_weight)
    for _ in range(rule.polish_rounds):
        least = jnp.min(moves.margins(with_true_flow(moves, state).sweep.rollout))
        if not least < 0:
            break
        # Where nothing was left to gain, steps have shrunk to nothing.
        state = _polish(moves, replace(state, step_size=pace), sweeps=sweeps, outside=-least)
    return state


def prove_infeasible(moves: MoveFlow, sweeps: int, rule: StepRule) -> None:
    """Raises `InfeasibleError` if it can be proved that no policy satisfies the constraints.

    Without the reward the augmented Lagrangian is minus the squared violations. Where it is
    greatest, the violations themselves are multipliers; if the Lagrangian's bound is below zero
    with them, every policy over the moves violates some constraint.
    """
    assert moves.flow.problem.constraints is not None
    name_of = moves.flow.problem.constraints.name_of
    problem = moves.flow.problem.replace(reward=_nothing)
    unpaid: MoveFlow = eqx.tree_at(lambda m: m.flow.problem, moves, problem)
    state = begin_ascent(unpaid, unpaid.uniform(), rule=rule, bound=True)
    lagrangian = replace(_lagrangian(state), weight=jnp.ones_like(state.step_size))
    state, at_once = _restart(unpaid, state, lagrangian), 20
    for _ in range(0, sweeps, at_once):
        # With no update of the multipliers, which would be another objective.
        state = ascend(unpaid, state, jnp.asarray(at_once), at_once, update_multipliers=False)[0]
        penalty = state.sweep.penalty
        assert penalty is not None
        if penalty.violation == 0:
            return
        least = float(-state.sweep.upper / jnp.sum(penalty.multipliers))
        if least > 0:
            worst = int(jnp.argmax(penalty.multipliers))
            step, margin = divmod(worst, penalty.multipliers.shape[1])
            raise InfeasibleError(
                "no policy over these moves satisfies the constraints: each violates one of them "
                f"by at least {least:.2%} of it, by the bound of the Lagrangian. Hardest is "
                f"{name_of(margin)!r} after move {step + 1}; loosen it, or name fewer steps"
            )


def _nothing(state: Array, action: Array, mu: Any) -> Scalar:
    return jnp.zeros((), dtype=state.dtype)


def _polish(
    moves: MoveFlow,
    state: MirrorState,
    *,
    sweeps: int,
    weight: float = 1.0,
    outside: Scalar | float = 0.0,
) -> MirrorState:
    """Ends an ascent with constraints: some sweeps with more weight on larger margins.

    If the plan was polished before and is ``outside`` still, with margins larger by so much more.
    """
    old = _lagrangian(state)
    more = old.rule.polish_margin * old.violation_scale + outside
    heavier = replace(old, margin=old.margin + more, weight=weight * old.weight)
    # The step that went with less weight would go too far.
    begun = replace(_restart(moves, state, heavier), step_size=state.step_size / weight)
    return ascend(moves, begun, jnp.asarray(sweeps), max(sweeps, 20))[0]


def _with_margins(moves: MoveFlow, state: MirrorState, least: LeastMargins) -> MirrorState:
    """The state with margins of what the worst sampled model falls short of the planned one.

    And of a little more, because the plan goes on to change.
    """
    lagrangian = _lagrangian(state)
    planned = moves.margins(state.sweep.rollout)
    short = jnp.maximum(planned - least(own_weights(moves, state)), 0.0)
    short = short + lagrangian.rule.tolerance * lagrangian.violation_scale
    margin = jnp.where(jnp.isfinite(planned), short, 0.0).astype(lagrangian.margin.dtype)
    return _restart(moves, state, replace(lagrangian, margin=margin))


@eqx.filter_jit
def _restart(moves: MoveFlow, state: MirrorState, lagrangian: AugmentedLagrangian) -> MirrorState:
    """The state with another Lagrangian, and without momentum; moves weigh at least the floor."""
    highest = jnp.max(state.logits, axis=-1, keepdims=True)
    logits = jnp.maximum(state.logits - highest, math.log(state.rule.floor))
    now, weights = state.flow_of(moves), jax.nn.softmax(logits, axis=-1)
    sweep = now.sweep(weights, bound=state.bound, lagrangian=lagrangian)
    still: Any = {"velocity": jnp.zeros_like(logits), "gains": jnp.zeros_like(state.gains)}
    return replace(state, logits=logits, lagrangian=lagrangian, sweep=sweep, **still)


def _lagrangian(state: MirrorState) -> AugmentedLagrangian:
    assert state.lagrangian is not None
    return state.lagrangian
