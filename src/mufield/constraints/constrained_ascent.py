"""Mirror ascent with constraints: its last sweeps, margins for uncertain models, infeasibility."""

import math
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._types import Scalar
from ..errors import UserError
from ..flow.moves import MoveFlow
from ..planning.ascent import (
    MirrorState,
    StepRule,
    ascend,
    begin_ascent,
    final_rollout,
    own_weights,
    uniform_weights,
)
from .lagrangian import AugmentedLagrangian, Margins
from .model_samples import Outcomes


class InfeasibleError(UserError):
    """No policy can satisfy the constraints of a problem."""


class ConstraintRule(eqx.Module):
    """How an ascent with constraints ends.

    Attributes:
        polish: Number of final sweeps with a larger rho and larger margins, which make the plan
            feasible.
        polish_share: Share of a learner's sweeps that are such.
        weight: Factor on rho in them.
        margin: Share by which constraints are tightened in them, of a large violation.
        rounds: Maximal number of further rounds while the plan is infeasible.
        tolerance: A violation by less than this share counts as none.
        sample_every: Sweeps between two evaluations of a plan in sampled models.
    """

    polish: int = 20
    polish_share: float = 0.25
    weight: float = 10.0
    margin: float = 2e-4
    rounds: int = 6
    tolerance: float = 1e-3
    sample_every: int = 20


def polish(
    moves: MoveFlow,
    state: MirrorState,
    step_rule: StepRule,
    rule: ConstraintRule,
    *,
    sweeps: int,
    weight: float,
    outside: Scalar | float = 0.0,
    bound: bool = False,
) -> MirrorState:
    """Ends an ascent with constraints: some sweeps with more weight on larger margins.

    If the plan was polished before and is ``outside`` still, with margins larger by so much more.
    """
    assert state.lagrangian is not None
    margin = rule.margin * state.lagrangian.unit + outside
    lagrangian = state.lagrangian.with_weight(weight * state.lagrangian.weight, margin)
    begun = restart(moves, state, lagrangian, bound)
    # The step that went with less weight would go too far.
    begun = replace(begun, step_size=state.step_size / weight)
    return ascend(moves, begun, jnp.asarray(sweeps), max(sweeps, 20), step_rule, bound)[0]


def finish(
    moves: MoveFlow, state: MirrorState, step_rule: StepRule, rule: ConstraintRule, bound: bool
) -> MirrorState:
    """Polishes a plan until it satisfies the constraints, or all rounds are used up."""
    constraints = moves.flow.problem.constraints
    assert constraints is not None
    settings: dict[str, Any] = {"sweeps": rule.polish, "bound": bound}
    pace = state.step_size / rule.weight
    state = polish(moves, state, step_rule, rule, weight=rule.weight, **settings)
    for _ in range(rule.rounds):
        least = jnp.min(constraints.worst(final_rollout(moves, state).mass))
        if not least < 0:
            break
        # Where nothing was left to gain, steps have shrunk to nothing.
        again = replace(state, step_size=pace)
        state = polish(moves, again, step_rule, rule, weight=1.0, outside=-least, **settings)
    return state


def constrained_ascent(
    moves: MoveFlow,
    sweeps: int,
    outcomes: Outcomes | None = None,
    step_rule: StepRule | None = None,
    rule: ConstraintRule | None = None,
) -> MirrorState:
    """An ascent from uniform weights that satisfies the constraints; may be compiled.

    With ``outcomes`` margins are raised on the way by what sampled models make of the plan.
    """
    step_rule = StepRule() if step_rule is None else step_rule
    rule = ConstraintRule() if rule is None else rule
    state = begin_ascent(moves, uniform_weights(moves), step_rule, False)
    last = round(rule.polish_share * sweeps)
    first = sweeps - last
    if outcomes is None:
        state = ascend(moves, state, jnp.asarray(first), first, step_rule, False)[0]
    else:
        every, sampled = rule.sample_every, outcomes

        def one(number: Array, state: MirrorState) -> MirrorState:
            count = jnp.minimum(every, first - number * every)
            climbed = ascend(moves, state, count, every, step_rule, False)[0]
            return with_margins(moves, climbed, sampled, rule)

        state = jax.lax.fori_loop(0, -(-first // every), one, state)
    return polish(moves, state, step_rule, rule, sweeps=last, weight=rule.weight)


def with_margins(
    moves: MoveFlow, state: MirrorState, outcomes: Outcomes, rule: ConstraintRule
) -> MirrorState:
    """The state with margins of what the worst outcome falls short of the planned one.

    And of a little more, because the plan goes on to change.
    """
    lagrangian = state.lagrangian
    assert lagrangian is not None
    planned = outcomes.constraints.along(state.sweep.rollout.mass)
    least: Margins = outcomes.least(own_weights(moves, state))
    short = jnp.maximum(planned - least, 0.0) + rule.tolerance * lagrangian.unit
    margin = jnp.where(jnp.isfinite(planned), short, 0.0).astype(lagrangian.margin.dtype)
    return restart(moves, state, replace(lagrangian, margin=margin), bound=False)


@eqx.filter_jit
def restart(
    moves: MoveFlow, state: MirrorState, lagrangian: AugmentedLagrangian, bound: bool
) -> MirrorState:
    """The state with another Lagrangian, at rest.

    There is a floor on weights, so that discarded moves can return when multipliers change.
    """
    highest = jnp.max(state.logits, axis=-1, keepdims=True)
    logits = jnp.maximum(state.logits - highest, math.log(1e-8))
    sweep = moves.sweep(jax.nn.softmax(logits, axis=-1), bound=bound, lagrangian=lagrangian)
    return replace(
        state,
        logits=logits,
        lagrangian=lagrangian,
        sweep=sweep,
        velocity=jnp.zeros_like(state.velocity),
        gains=jnp.zeros_like(state.gains),
    )


def prove_infeasible(moves: MoveFlow, sweeps: int, step_rule: StepRule) -> None:
    """Raises `InfeasibleError` if it can be proved that no policy satisfies the constraints.

    Without the reward the augmented Lagrangian is minus the squared violations. Where it is
    greatest, the violations themselves are multipliers; if the Lagrangian's bound is below zero
    with them, every policy over the moves violates some constraint.
    """

    def nothing(state: Array, action: Array, mu: Any) -> Scalar:
        return jnp.zeros((), dtype=state.dtype)

    problem = moves.flow.problem.with_reward(nothing)
    unpaid: MoveFlow = eqx.tree_at(lambda m: m.flow.problem, moves, problem)
    state, constraints = (
        begin_ascent(unpaid, unpaid.uniform(), step_rule, True),
        problem.constraints,
    )
    assert constraints is not None
    assert state.lagrangian is not None
    lagrangian = state.lagrangian.with_weight(jnp.ones_like(state.lagrangian.weight))
    state, at_once = restart(unpaid, state, lagrangian, True), 20
    for _ in range(0, sweeps, at_once):
        # With no update of the multipliers, which would be another objective.
        state = ascend(
            unpaid, state, jnp.asarray(at_once), at_once, step_rule, True, update_multipliers=False
        )[0]
        penalty = state.sweep.penalty
        assert penalty is not None
        if penalty.violation == 0:
            return
        least = float(-state.sweep.upper / jnp.sum(penalty.multipliers))
        if least > 0:
            step, margin = divmod(int(jnp.argmax(penalty.multipliers)), constraints.size)
            raise InfeasibleError(
                "no policy over these moves satisfies the constraints: each violates one of them "
                f"by at least {least:.2%} of it, by the bound of the Lagrangian. Hardest is "
                f"{constraints.name_of(margin)!r} after move {step + 1}; loosen it, or name fewer "
                "steps"
            )
