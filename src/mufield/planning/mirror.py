"""Mirror ascent over randomised per-cell policies on a finite set of moves.

If the motion does not depend on mu and the reward is concave in mu, the problem over randomised
policies is concave: the ascent finds the global optimum, and every sweep's gap bounds the distance
to it.
"""

import math
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._arrays import Margins, Scalar, entry, stacked
from .._progress import progress_bar
from ..errors import UserError, distribution, is_a, whole_number
from ..flow.backward import Weights
from ..flow.checks import check_planned
from ..flow.moves import MoveFlow, coarse_points
from ..policies.base import Profile
from ..problem import Motion
from . import ascent
from .ascent import MirrorState, StepRule, better_of
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
    """The method: `init` and `step`; `solve`, and `ascend`, which can be compiled.

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
        weights = moves.uniform() if weights is None else _checked(moves, weights)
        return self.step(moves, self._start(moves, weights), 0)[0]

    def step(
        self, moves: MoveFlow, state: MirrorState, count: int = 1
    ) -> tuple[MirrorState, Float[Array, "count 2"]]:
        """Does ``count`` sweeps; also returns J and gap after each.

        A sweep takes a step, keeps it if J did not fall, and adapts the step size.
        """
        most = max(count, self.sweeps_at_once)
        state, figures = ascent.ascend(moves, state, jnp.asarray(count), most)
        return state, figures[1 : count + 1]

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
        unreachable, unbounded = "", "not asked for"
        constraints = moves.flow.problem.constraints
        if constraints is not None:
            from ..constraints.reachability import without_unreachable  # else not needed

            moves, unreachable = without_unreachable(moves)
        if self.bound:
            from .concavity import why_unbounded  # not needed without a bound

            unbounded = why_unbounded(moves.flow, moves.motion)
        listed, weights = moves, moves.uniform() if weights is None else _checked(moves, weights)
        state, history, outcome = self._climbed(listed, weights, not unbounded, progress)
        if listed.free:
            moves, state, figures = self._refined(listed, state)
            if figures is not None:
                history, outcome = [*history, figures[1:]], outcome_of(late_gain(figures[:, 0]))
        problem, mass = moves.flow.problem, state.sweep.rollout.mass
        check_planned(problem, moves.motion, mass, state.value, state.planned)
        margins, upper, proof = None, jnp.where(unbounded == "", state.upper, jnp.inf), "moves"
        if constraints is not None:
            margins = constraints.worst(problem.margins(mass))
            if float(jnp.min(margins)) < -constraints.rule.tolerance:
                outcome = "violated"
                if not unbounded:
                    from .constrained import prove_infeasible  # not needed if there is a plan

                    prove_infeasible(listed, self.sweeps, self.steps)
        if listed.free and not unbounded:
            from .certificate import certificate  # not needed without a bound

            given = moves.flow, moves.motion, moves.profile(state.weights), None, state.multipliers
            over_box = certificate(*given)
            upper, proof = jnp.full_like(upper, over_box.upper), over_box.proof
        if history[-1][-1, 0] != state.value:  # polished, or another start is better
            history.append(state.figures[None])
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
        self,
        moves: MoveFlow,
        least: LeastMargins | None = None,
        starts: list[Weights] | None = None,
    ) -> tuple[MirrorState, Scalar | None]:
        """The ascent of `solve` in one call, which can be compiled; without refinement.

        Also returns `late_gain`. With constraints, for which J may fall, it is from the first start
        alone, its last state counts, and there is no gain.
        """
        starts = [moves.uniform(), best_constant(moves)] if starts is None else starts
        first = [self._start(moves, weights) for weights in starts]
        if moves.flow.problem.constraints is not None:
            from .constrained import constrained_ascent  # not needed without constraints

            return constrained_ascent(moves, first[0], self.sweeps, least), None
        # In a scan, which compiles a sweep once: all starts as they are, then ascents from the
        # first and, while a later one is still the best, from that.
        stacks, count = stacked(*first), len(first)

        def stage(best: MirrorState, row: tuple[Array, Array]) -> tuple[MirrorState, Any]:
            start, sweeps = entry(stacks, row[0]), row[1]
            needed = (sweeps == 0) | (row[0] == 0) | jnp.all(best.logits == start.logits)

            def climbed() -> tuple[MirrorState, Array]:
                end, figures = ascent.ascend(moves, start, sweeps, self.sweeps)
                return better_of(moves, best, end), figures[:, 0]

            nothing = jnp.zeros(self.sweeps + 1, dtype=best.value.dtype)
            best, values = jax.lax.cond(needed, climbed, lambda: (best, nothing))
            return best, (needed, values)

        rows = jnp.tile(jnp.arange(count), 2), jnp.repeat(jnp.array([0, self.sweeps]), count)
        best, (taken, values) = jax.lax.scan(stage, first[0], rows)
        return best, late_gain(values[jnp.max(jnp.where(taken, jnp.arange(2 * count), 0))])

    def refine(
        self, moves: MoveFlow, motion: Motion, state: MirrorState
    ) -> tuple[MoveFlow, MirrorState, Float[Array, "sweeps_and_start 2"]]:
        """The flow over the found moves, the last state there, J and gap before and after sweeps.

        ``moves`` and ``state`` are of the coarse moves; ``motion`` may be a table of the law.
        """
        free, kept = self.refinement.start(moves, state.weights)
        fine = MoveFlow(moves.flow, motion, free.actions, bank_bytes=0)
        more: Any = {"lagrangian": state.lagrangian, "free": free}
        start = ascent.initial_state(fine, kept, rule=self.steps, bound=False, **more)
        sweeps = self.refinement.sweeps
        end, figures = ascent.ascend(fine, start, jnp.asarray(sweeps), sweeps)
        end = replace(end, sweeps=state.sweeps + end.sweeps)
        return ascent.flow_over(fine, end.free), end, figures

    def _start(self, moves: MoveFlow, weights: Weights) -> MirrorState:
        return ascent.initial_state(moves, weights, rule=self.steps, bound=self.bound)

    def _climbed(
        self, moves: MoveFlow, weights: Weights, concave: bool, progress: bool
    ) -> tuple[MirrorState, list[Array], str]:
        """The best plan over the listed moves, the history and the outcome."""
        constrained = moves.flow.problem.constraints is not None
        starts = [self.init(moves, weights), self.init(moves, best_constant(moves))]
        best = starts[0]
        for number, start in enumerate(starts):
            if number > 0 and (concave or constrained or jnp.any(best.logits != start.logits)):
                break
            end, history, outcome = self._in_parts(moves, start, concave, progress)
            if constrained:
                from .constrained import make_feasible  # not needed without constraints

                end = make_feasible(moves, end)
            best = ascent.with_true_flow(moves, end)
            for each in starts:
                other = replace(each, lagrangian=end.lagrangian, sweeps=end.sweeps)
                best = better_of(moves, best, other)
        return best, history, outcome

    def _in_parts(
        self, moves: MoveFlow, state: MirrorState, concave: bool, progress: bool
    ) -> tuple[MirrorState, list[Array], str]:
        """The ascent from one start, the history of its parts, and the outcome."""
        values, constraints = [state.value[None]], moves.flow.problem.constraints
        tolerance = 0.0 if constraints is None else constraints.rule.tolerance
        history: list[Array] = []
        with progress_bar("mirror ascent", self.sweeps, shown=progress) as report:
            for done in range(0, self.sweeps, self.sweeps_at_once):
                count = min(self.sweeps_at_once, self.sweeps - done)
                state, figures = self.step(moves, state, count)
                values.append(figures[:, 0])
                if ascent.interpolates(moves):
                    figures = ascent.with_true_flow(moves, state).figures[None]
                history.append(figures)
                gap = float(state.upper - state.value) if concave else math.inf
                more = {} if state.lagrangian is None else {"violation": float(state.violation)}
                report(done + count, J=float(state.value), gap=gap, **more)
                # A plan that violates constraints may earn more than the bound.
                if abs(gap) <= self.gap and state.violation <= tolerance:
                    return state, history, "gap"
        return state, history, outcome_of(late_gain(jnp.concatenate(values)))

    def _refined(
        self, moves: MoveFlow, state: MirrorState
    ) -> tuple[MoveFlow, MirrorState, Array | None]:
        """The plan with any actions of the box, if it earns more, and its figures."""
        problem = moves.flow.problem
        if not self.refinement.pays(problem, coarse_points(problem.actions.dim)):
            return moves, state, None
        fine, end, figures = self.refine(moves, moves.motion, state)
        if problem.constraints is not None:
            from .constrained import make_feasible  # not needed without constraints

            end = make_feasible(fine, end)
        if not ascent.is_better(fine, end, state):
            return moves, state, None
        return ascent.flow_over(fine, end.free), end, figures


def _checked(moves: MoveFlow, weights: Weights) -> Weights:
    wanted = moves.uniform().shape
    if weights.shape != wanted:
        raise UserError(f"weights must have the shape {wanted}, got {weights.shape}")
    distribution(weights, "weights of each step and cell", "divide them by their sum")
    return weights
