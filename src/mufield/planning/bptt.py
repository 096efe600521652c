"""Gradient ascent on J through the flow: back-propagation through time.

It solves eq. HallucinatedUCBOptimizationMeasure for any motion. With the true one it gives the
paper's reference plan (App. "Policy optimisation with known environment").
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from .._arrays import Scalar, entry, stacked
from .._progress import progress_bar
from ..constraints.lagrangian import AugmentedLagrangian
from ..errors import UserError, whole_number
from ..flow.checks import check_planned
from ..flow.flow import Flow
from ..policies.base import Profile
from ..problem import Motion
from .mirror import MirrorAscent
from .moves import regular_moves
from .planner import late_gain, note_of, outcome_of


class BPTTState(eqx.Module):
    """The state of an ascent; the first axis of all arrays is for the starts, if not of one alone.

    Attributes:
        best: The best profiles so far.
        best_values: J of the best profiles; with constraints, J minus an exact penalty.
        lagrangians: The multipliers of each start, if the problem has constraints.
    """

    profiles: Profile
    optimiser: Any
    best: Profile
    best_values: Float[Array, "*starts"]
    lagrangians: AugmentedLagrangian | None

    def best_of_all(self) -> tuple[Int[Array, ""], Profile]:
        """Index of the start with the highest J, and its best profile."""
        start = jnp.argmax(self.best_values)
        return start, entry(self.best, start)


class BPTTResult(eqx.Module):
    """What an ascent found.

    Attributes:
        profile: The best profile.
        value: J of the best profile.
        start: Index of the start that it came from.
        values: Best J of each start.
        history: J of each start before each step.
        skipped: Number of steps left out because the gradient was not finite, for each start.
        outcome: ``"plateau"``, or ``"gaining"`` if J still rose when the steps were used up.
        margins: How far each constraint holds after each move, as a share; None if there are none.
    """

    profile: Profile
    value: Scalar
    start: int = eqx.field(static=True)
    values: Float[Array, "starts"]
    history: Float[Array, "steps starts"]
    skipped: Int[Array, "starts"]
    outcome: str = eqx.field(static=True)
    margins: Float[Array, "horizon limits"] | None = None

    @property
    def note(self) -> str:
        """What is unusual, in words; empty if nothing is."""
        return note_of(self.outcome, f"steps, BPTT(steps={2 * len(self.history)})")

    def __repr__(self) -> str:
        return (
            f"BPTTResult(J={float(self.value):.6g}, steps={len(self.history)}, "
            f"starts={len(self.values)}, outcome={self.outcome!r})"
        )


class BPTT(eqx.Module):
    """The method: `init`, `step`, and the drivers `solve` and `ascend`, which can be compiled.

    Attributes:
        steps: Number of steps.
        learning_rate: Adam's first step size; it falls to a hundredth along a cosine.
        steps_at_once: Steps of one compiled call, between two reports of progress.
    """

    steps: int = 1000
    learning_rate: float = 1e-2
    steps_at_once: int = eqx.field(static=True, default=25)

    def __check_init__(self) -> None:
        whole_number(self.steps, "the number of steps")

    def optimiser(self) -> optax.GradientTransformation:
        """Adam on gradients of norm 1; a step whose gradient is not finite is left out.

        Because of the norm, plans do not depend on the unit of the reward.
        """
        share = optax.cosine_decay_schedule(1.0, 1, alpha=0.01)
        adam = optax.chain(
            optax.normalize_by_update_norm(eps=1e-30),
            optax.scale_by_adam(),
            optax.scale_by_schedule(lambda step: -self.learning_rate * share(step / self.steps)),
        )
        return optax.apply_if_finite(adam, max_consecutive_errors=int(jnp.iinfo(jnp.int32).max))

    def init(
        self, starts: Sequence[Profile], lagrangian: AugmentedLagrangian | None = None
    ) -> BPTTState:
        """The state before the first step, from profiles of the same structure.

        ``lagrangian`` has the first multipliers, if the problem has constraints.
        """
        if not starts:
            raise UserError("gradient ascent needs at least one profile to start from")
        kinds = {
            (jax.tree.structure(start), *(jnp.shape(leaf) for leaf in jax.tree.leaves(start)))
            for start in starts
        }
        if len(kinds) > 1:
            raise UserError("all starts must have the same kind of policy and the same sizes")
        profiles = stacked(*starts)
        if lagrangian is not None:
            # Plans aim inside constraints, because they end about as far beyond their aim.
            lagrangian = replace(lagrangian, margin=lagrangian.margin + 0.006)
        return BPTTState(
            profiles=profiles,
            optimiser=jax.vmap(self.optimiser().init)(eqx.filter(profiles, eqx.is_inexact_array)),
            best=profiles,
            best_values=jnp.full((len(starts),), -jnp.inf),
            lagrangians=stacked(*[lagrangian] * len(starts)),
        )

    def step(
        self, flow: Flow, motion: Motion, state: BPTTState, count: int = 1
    ) -> tuple[BPTTState, Float[Array, "count starts"]]:
        """Does ``count`` steps of all starts; also returns J before each of them."""
        most = max(count, self.steps_at_once)
        # As arrays, so that one compiled program serves all rates and numbers of steps.
        method = jax.tree.map(jnp.asarray, self)
        state, values = _steps(method, flow, motion, state, jnp.asarray(count), most)
        return state, values[:count]

    def solve(
        self,
        flow: Flow,
        motion: Motion,
        starts: Sequence[Profile],
        *,
        lagrangian: AugmentedLagrangian | None = None,
        progress: bool = False,
    ) -> BPTTResult:
        """Ascends from all starts and keeps the best profile on the way.

        ``lagrangian`` has the first multipliers of constraints; they change along the ascent.
        """
        constraints = flow.problem.constraints
        if constraints is not None and lagrangian is None:
            moves = regular_moves(flow, motion, flow.problem.actions)
            lagrangian = MirrorAscent(bound=False).init(moves).lagrangian
        state = self.init(starts, lagrangian)
        history = np.zeros((0, len(starts)))
        with progress_bar("gradient ascent", self.steps, shown=progress) as report:
            while len(history) < self.steps:
                count = min(self.steps_at_once, self.steps - len(history))
                state, values = self.step(flow, motion, state, count)
                history = np.concatenate([history, values])
                report(len(history), J=float(jnp.max(state.best_values)))
        finite = np.where(np.isfinite(history), history, -np.inf)
        best = jnp.asarray(np.maximum.accumulate(finite.max(axis=1)))
        # One more, because a step computes J of the profiles that it starts from.
        state, _ = self.step(flow, motion, state)
        start, profile = state.best_of_all()
        value, margins = state.best_values[start], None
        if constraints is not None or not bool(jnp.isfinite(value)):
            rollout = eqx.filter_jit(flow.rollout)(profile, motion)
            check_planned(flow.problem, motion, rollout.mass, value)
            value = rollout.value
            if constraints is not None:
                margins = constraints.worst(flow.problem.margins(rollout.mass))
        return BPTTResult(
            profile=profile,
            value=value,
            start=int(start),
            values=state.best_values,
            history=jnp.asarray(history, dtype=state.best_values.dtype),
            skipped=state.optimiser.total_notfinite,
            outcome=outcome_of(late_gain(best)),
            margins=margins,
        )

    def ascend(
        self,
        flow: Flow,
        motion: Motion,
        starts: Sequence[Profile],
        lagrangian: AugmentedLagrangian | None = None,
    ) -> tuple[Profile, Scalar]:
        """The best profile and its J after all steps; unlike `solve` it can be compiled."""
        state, _ = self.step(flow, motion, self.init(starts, lagrangian), self.steps)
        start, profile = state.best_of_all()
        return profile, state.best_values[start]

    def _advance(self, flow: Flow, motion: Motion, state: BPTTState) -> tuple[BPTTState, Scalar]:
        """One step of one start; also returns J before it."""
        arrays, rest = eqx.partition(state.profiles, eqx.is_inexact_array)
        lagrangian = state.lagrangians

        def loss(arrays: Any) -> tuple[Scalar, tuple[Scalar, Any]]:
            rollout = flow.rollout(eqx.combine(arrays, rest), motion)
            value = rollout.value
            if lagrangian is None:
                return -value, (value, None)
            penalty = lagrangian(rollout.mass)
            # In each step multipliers go a tenth of the way to lambda'.
            updated = lagrangian.updated(penalty, 0.1)
            return -value - penalty.augmented, (lagrangian.merit(value, penalty), updated)

        gradient, (value, lagrangian_after) = jax.grad(loss, has_aux=True)(arrays)
        # The gradient may be finite although J is not.
        gradient = jax.tree.map(lambda g: jnp.where(jnp.isfinite(value), g, jnp.nan), gradient)
        updates, memory = self.optimiser().update(gradient, state.optimiser, arrays)
        better = memory.last_finite & (value > state.best_values)
        best = eqx.filter(state.best, eqx.is_inexact_array)
        return BPTTState(
            profiles=eqx.combine(eqx.apply_updates(arrays, updates), rest),
            optimiser=memory,
            best=eqx.combine(jax.tree.map(partial(jnp.where, better), arrays, best), rest),
            best_values=jnp.where(better, value, state.best_values),
            lagrangians=lagrangian_after,
        ), value


@eqx.filter_jit
def _steps(
    method: BPTT, flow: Flow, motion: Motion, state: BPTTState, count: Int[Array, ""], most: int
) -> tuple[BPTTState, Float[Array, "most starts"]]:
    """``count`` steps; one compiled program serves all counts up to ``most``."""
    arrays, rest = eqx.partition(state, eqx.is_array)
    advance = eqx.filter_vmap(partial(method._advance, flow, motion))

    def one(i: Array, carry: tuple[Any, Array]) -> tuple[Any, Array]:
        state, values = advance(eqx.combine(carry[0], rest))
        return eqx.filter(state, eqx.is_array), carry[1].at[i].set(values)

    history = jnp.zeros((most, *state.best_values.shape), dtype=state.best_values.dtype)
    arrays, history = jax.lax.fori_loop(0, count, one, (arrays, history))
    return eqx.combine(arrays, rest), history
