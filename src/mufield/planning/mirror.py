"""Mirror ascent over randomised per-cell policies on a finite set of moves.

If the motion does not depend on mu and the reward is concave in mu, the problem over randomised
policies is concave: the ascent finds the global optimum, and every sweep's gap bounds the distance
to it.
"""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._arrays import Margins, Scalar, entry, stacked
from .._progress import progress_bar
from ..errors import UserError, distribution, is_a, whole_number
from ..flow.backward import Weights
from ..flow.checks import check_planned
from ..flow.moves import MoveFlow, coarse_points
from ..policies.base import Profile
from ..problem import Motion
from . import ascent
from .ascent import MirrorState, StepRule
from .moves import Refinement, best_constant
from .planner import LeastMargins, late_gain, note_of, outcome_of


class MirrorResult(eqx.Module):
    """What an ascent found.

    Attributes:
        moves: The flow over the moves that the policy draws from.
        value: J of the policy.
        upper: No randomised policy that satisfies the problem's constraints earns more; see
            `proof`. Infinite if the motion depends on mu or the reward is not concave in it.
        history: J and gap after each sweep. Where sweeps interpolate between kernels, after each
            `MirrorAscent.sweeps_at_once` sweeps, by the motion itself.
        outcome: ``"gap"`` if the gap became as small as asked for. When all sweeps are
            used up, ``"plateau"``, or ``"gaining"`` if J still rose. ``"violated"`` if the plan
            violates a constraint, although none was proved infeasible.
        state: The last state, to go on from.
        margins: How far each constraint holds after each move, as a share; None if there are none.
        unreachable: After which moves no policy can satisfy a constraint, in words; there the plan
            is free.
        proof: Which policies `upper` covers, as of `Certificate.proof`: those over the listed
            moves, or if none were listed, those with any actions of the box.
        unbounded: Why `upper` is infinite, in words; empty if it is not.
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
    proof: str = eqx.field(static=True, default="moves")
    unbounded: str = eqx.field(static=True, default="")

    @property
    def multipliers(self) -> Margins | None:
        """The multipliers of the constraints that `upper` was found with."""
        return self.state.multipliers

    @property
    def gap(self) -> Scalar:
        """How much more a policy can earn at most, for concave problems."""
        return self.upper - self.value

    @property
    def profile(self) -> Profile:
        """The randomised policy profile."""
        return self.moves.profile(self.weights)

    @property
    def note(self) -> str:
        """What is unusual, in words; empty if nothing is."""
        found = [self.unreachable, note_of(self.outcome, "sweeps, MirrorAscent(sweeps=...)")]
        if self.outcome == "violated" and self.margins is not None:
            worst = -float(jnp.min(self.margins))
            found.append(f"the plan violates a constraint by {worst:.1%} of it; see margins")
        return "; ".join(filter(None, found))

    def __repr__(self) -> str:
        bound = f"gap={float(self.gap):.3g}, proof={self.proof!r}"
        bound = f"unbounded={self.unbounded!r}" if self.unbounded else bound
        return (
            f"MirrorResult(J={float(self.value):.6g}, {bound}, sweeps={int(self.state.sweeps)}, "
            f"outcome={self.outcome!r})"
        )


class MirrorAscent(eqx.Module):
    """The method: `init`, `step`, and the drivers `solve` and `ascend`, which can be compiled.

    Attributes:
        sweeps: Greatest number of sweeps.
        gap: Stop when the upper bound minus J is this small; zero to use all sweeps.
        sweeps_at_once: Sweeps of one compiled call, between two tests of the gap.
        bound: Whether to compute the upper bound of the optimum, a third of the work.
        steps: How long steps are.
        refinement: How plans go on from coarse moves to any actions of a box, if the `MoveFlow`
            was made without a list of moves.
    """

    sweeps: int = eqx.field(static=True, default=200)
    gap: float = eqx.field(static=True, default=0.0)
    sweeps_at_once: int = eqx.field(static=True, default=20)
    bound: bool = eqx.field(static=True, default=True)
    steps: StepRule = eqx.field(static=True, default=StepRule())
    refinement: Refinement = eqx.field(static=True, default=Refinement())

    def init(self, moves: MoveFlow, weights: Weights | None = None) -> MirrorState:
        """The state before the first step; by default all moves are equally likely."""
        if weights is not None:
            wanted = moves.uniform().shape
            if weights.shape != wanted:
                raise UserError(f"weights must have the shape {wanted}, got {weights.shape}")
            distribution(weights, "weights of each step and cell", "divide them by their sum")
        weights = moves.uniform() if weights is None else weights
        return self._begin(moves, weights)

    def _begin(self, moves: MoveFlow, weights: Weights, lagrangian: Any = None) -> MirrorState:
        settings: Any = {"rule": self.steps, "bound": self.bound, "most": self.sweeps_at_once}
        return ascent.begin_ascent(moves, weights, lagrangian=lagrangian, **settings)

    def step(
        self, moves: MoveFlow, state: MirrorState, count: int = 1
    ) -> tuple[MirrorState, Float[Array, "count 2"]]:
        """Does ``count`` sweeps; also returns J and gap after each.

        A sweep takes a step, keeps it if J did not fall, and adapts the step size.
        """
        most = max(count, self.sweeps_at_once)
        state, figures = ascent.ascend(moves, state, jnp.asarray(count), most)
        return state, figures[:count]

    def solve(
        self, moves: MoveFlow, weights: Weights | None = None, *, progress: bool = False
    ) -> MirrorResult:
        """Ascends until the gap is small enough or the sweeps are used up.

        The plan earns no less than the first policy, than agents at rest, and without constraints
        than agents who all make the same move; of those that satisfy the constraints, if the moves
        have rest. Where one of these earned more than the ascent, it goes on from there.
        Constraints on the mass of a region are left out after moves for which no policy can satisfy
        them, with a note. Raises `InfeasibleError` if no policy can satisfy one at all.
        """
        whole_number(self.sweeps, "the number of sweeps")
        is_a(moves, MoveFlow, "the flow", "write solve(mufield.MoveFlow(*system.reveal()))")
        unreachable = ""
        if moves.flow.problem.constraints is not None:  # else these are not needed
            from ..constraints.reachability import with_fine_moves, without_unreachable
            from .constrained import make_feasible, prove_infeasible

            moves, unreachable = without_unreachable(moves)
        problem, constraints = moves.flow.problem, moves.flow.problem.constraints
        tolerance = 0.0 if constraints is None else constraints.rule.tolerance
        unbounded = "not asked for"
        if self.bound:
            from .concavity import why_unbounded  # not needed without a bound

            unbounded = why_unbounded(moves.flow, moves.motion)
        concave = not unbounded
        start = state = self.init(moves, weights)
        constant = self._begin(moves, best_constant(moves), start.lagrangian)
        history, climbed, done, outcome = [], [], 0, ""
        with progress_bar("mirror ascent", self.sweeps, shown=progress) as report:
            while done < self.sweeps:
                count = min(self.sweeps_at_once, self.sweeps - done)
                state, figures = self.step(moves, state, count)
                climbed.append(figures[:, 0])
                if ascent.interpolates(moves):
                    true = ascent.with_true_flow(moves, state).value
                    figures = jnp.stack([true, state.sweep.gap])[None]
                history.append(figures)
                done += count
                gap = float(state.upper - state.value) if concave else math.inf
                more = {} if state.lagrangian is None else {"violation": float(state.violation)}
                report(done, J=float(state.value), gap=gap, **more)
                # A plan that violates constraints may earn more than the bound.
                if abs(gap) <= self.gap and state.violation <= tolerance:
                    outcome = "gap"
                    break
        if constraints is not None:
            state = make_feasible(moves, state)
        outcome = outcome or outcome_of(late_gain(start.value, jnp.concatenate(climbed)))
        state = ascent.best_of(moves, state, start, constant)
        another = _same(state, constant) and not _same(constant, start)
        if another and not concave and constraints is None:
            return self.solve(moves, constant.weights, progress=progress)
        box, listed = moves.free, moves
        if box and self.refinement.pays(problem, coarse_points(problem.actions.dim)):
            fine, found, figures = self.refine(moves, moves.motion, state)
            if found.lagrangian is not None:
                found = make_feasible(fine, found)
                fine = found.flow_of(fine)
            if ascent.is_better(fine, found, state):
                moves, state = fine, found
                history.append(figures)
                outcome = outcome_of(late_gain(figures[0, 0], figures[1:, 0]))
        if history[-1][-1, 0] != state.value:  # polished, or another start was better
            history.append(jnp.stack([state.value, state.sweep.gap])[None])
        mass = state.sweep.rollout.mass
        check_planned(problem, moves.motion, mass, state.value, state.planned)
        margins = None
        if constraints is not None:
            margins = constraints.worst(problem.margins(mass))
            if float(jnp.min(margins)) < -tolerance:
                outcome = "violated"
                if concave:
                    listed = with_fine_moves(listed) if box else listed
                    prove_infeasible(listed, self.sweeps, self.steps)
        upper, proof = jnp.where(concave, state.upper, jnp.inf), "moves"
        if concave and box:
            from .certificate import certificate  # not needed without a bound

            profile = moves.profile(state.weights)
            over_box = certificate(moves.flow, moves.motion, profile, None, state.multipliers)
            upper, proof = jnp.full_like(upper, over_box.upper), over_box.proof
        return MirrorResult(
            moves=moves,
            weights=state.weights,
            value=state.value,
            upper=upper,
            history=jnp.concatenate(history),
            outcome=outcome,
            state=state,
            margins=margins,
            unreachable=unreachable,
            proof=proof,
            unbounded=unbounded,
        )

    def ascend(
        self, moves: MoveFlow, least: LeastMargins | None = None
    ) -> tuple[MirrorState, Scalar | None]:
        """All sweeps from the uniform policy, or `solve`'s; unlike that it can be compiled.

        Returns the best state, with its flow by the motion itself, and `late_gain`. With
        constraints, for which J may fall, the last state, and None.
        """
        if moves.flow.problem.constraints is not None:
            from .constrained import constrained_ascent  # not needed without constraints

            state = constrained_ascent(moves, self.init(moves), self.sweeps, least)
            return ascent.with_true_flow(moves, state), None
        # One after the other in a scan, which compiles a sweep once: the uniform policy and the
        # constant one as they are, then ascents from the first and, if none was better, the second.
        first = partial(ascent.initial_state, moves, rule=self.steps, bound=self.bound)
        starts = stacked(*2 * [first(moves.uniform()), first(best_constant(moves))])
        most = max(self.sweeps, self.sweeps_at_once)

        def climb(best: MirrorState, each: Any) -> tuple[MirrorState, Any]:
            start, number = each
            needed = (number < 3) | _same(best, start)
            count = jnp.where(number < 2, 0, jnp.where(needed, self.sweeps, -1))  # -1: nothing
            end, figures = ascent.ascend(moves, start, count, most)
            best = ascent.better_of(moves, best, end, number == 0)
            return best, (needed, end.value, figures[: self.sweeps, 0])

        numbers = jnp.arange(4, dtype=jnp.int32)
        best, (needed, values, history) = jax.lax.scan(climb, entry(starts, 0), (starts, numbers))
        gains = jax.vmap(late_gain)(values[:2], history[2:])
        return best, jnp.where(needed[3], gains[1], gains[0])

    def refine(
        self, moves: MoveFlow, motion: Motion, state: MirrorState
    ) -> tuple[MoveFlow, MirrorState, Float[Array, "sweeps 2"]]:
        """The flow over the found moves, the last state there, J and gap after each sweep.

        ``moves`` and ``state`` are of the coarse moves; ``motion`` may be a table of the law.
        """
        free, kept = self.refinement.start(moves, state.weights)
        fine = MoveFlow(moves.flow, motion, free.actions, bank_bytes=0)
        start = ascent.initial_state(
            fine, kept, rule=self.steps, lagrangian=state.lagrangian, free=free
        )
        sweeps = self.refinement.sweeps
        end, figures = ascent.ascend(fine, start, jnp.asarray(sweeps), sweeps)
        return end.flow_of(fine), replace(end, sweeps=state.sweeps + end.sweeps), figures


def _same(one: MirrorState, other: MirrorState) -> Bool[Array, ""]:
    return jnp.all(one.logits == other.logits)
