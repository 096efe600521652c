"""Mirror ascent with constraints: how plans come inside, safety margins, infeasibility."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._arrays import Scalar
from ..constraints.lagrangian import AugmentedLagrangian, InfeasibleError
from ..constraints.reachability import with_fine_moves
from ..flow.moves import MoveFlow
from .ascent import (
    MirrorState,
    StepRule,
    ascend,
    initial_state,
    own_weights,
    restarted,
    with_true_flow,
)
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
    every = max(1, first if least is None else rule.sample_every)

    def one(number: Array, state: MirrorState) -> MirrorState:
        state, _ = ascend(moves, state, jnp.minimum(every, first - number * every), every)
        return state if least is None else with_margins(moves, state, least)

    state = jax.lax.fori_loop(0, -(-first // every), one, state)
    state, _ = ascend(moves, _tightened(state, rule.polish_weight), jnp.asarray(last), last)
    return with_true_flow(moves, state)


def make_feasible(moves: MoveFlow, state: MirrorState) -> MirrorState:
    """Polishes a plan until it satisfies the constraints, or all rounds are used up."""
    rule = _lagrangian(state).rule
    pace, sweeps = state.step_size / rule.polish_weight, rule.polish_sweeps
    tightened = _tightened(state, rule.polish_weight)
    for _ in range(1 + rule.polish_rounds):
        state, _ = ascend(moves, tightened, jnp.asarray(sweeps), max(sweeps, 20))
        least = jnp.min(moves.margins(with_true_flow(moves, state).sweep.rollout))
        if not least < 0:
            break
        # Where nothing was left to gain, steps have shrunk to nothing.
        tightened = _tightened(replace(state, step_size=pace), outside=-least)
    return state


def _tightened(
    state: MirrorState, weight: float = 1.0, outside: Scalar | float = 0.0
) -> MirrorState:
    """The state with more weight on constraints, and with slightly larger safety margins.

    If the plan is ``outside`` still, with margins larger by so much more.
    """
    old = _lagrangian(state)
    more = old.rule.polish_margin * old.violation_scale + outside
    heavier = replace(old, margin=old.margin + more, weight=weight * old.weight)
    # The step that went with less weight would go too far.
    return replace(restarted(state, heavier), step_size=state.step_size / weight)


def with_margins(moves: MoveFlow, state: MirrorState, least: LeastMargins) -> MirrorState:
    """The state with margins of what the worst sampled model falls short of the planned one.

    And of a little more, because the plan goes on to change.
    """
    lagrangian = _lagrangian(state)
    planned = moves.margins(state.sweep.rollout)
    short = jnp.maximum(planned - least(own_weights(moves, state)), 0.0)
    short = short + lagrangian.rule.tolerance * lagrangian.violation_scale
    margin = jnp.where(jnp.isfinite(planned), short, 0.0).astype(lagrangian.margin.dtype)
    return restarted(state, replace(lagrangian, margin=margin))


def prove_infeasible(moves: MoveFlow, sweeps: int, rule: StepRule) -> None:
    """Raises `InfeasibleError` if it can be proved that no policy satisfies the constraints.

    Without the reward the augmented Lagrangian is minus the squared violations. Where it is
    greatest, the violations themselves are multipliers; if the Lagrangian's bound is below zero
    with them, every policy over the moves violates some constraint.
    """
    constraints = moves.flow.problem.constraints
    assert constraints is not None
    moves = with_fine_moves(moves) if moves.free else moves
    problem = moves.flow.problem.replace(reward=_nothing)
    unpaid: MoveFlow = eqx.tree_at(lambda m: m.flow.problem, moves, problem)
    start = unpaid.uniform()
    # The multipliers stay zero to the end: others would be another objective.
    lagrangian = constraints.lagrangian(unpaid.active, jnp.ones((), start.dtype))
    fixed = replace(rule, multipliers_every=sweeps + 20)
    state = initial_state(unpaid, start, rule=fixed, bound=True, lagrangian=lagrangian)
    for _ in range(0, sweeps, 20):
        state, _ = ascend(unpaid, state, jnp.asarray(20), 20)
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
                f"{constraints.name_of(margin)!r} after move {step + 1}; loosen it, or name fewer "
                "steps"
            )


def _nothing(state: Array, action: Array, mu: Any) -> Scalar:
    return jnp.zeros((), dtype=state.dtype)


def _lagrangian(state: MirrorState) -> AugmentedLagrangian:
    assert state.lagrangian is not None
    return state.lagrangian
