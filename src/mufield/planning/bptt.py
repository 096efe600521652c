"""Gradient ascent on J through the flow: back-propagation through time.

It solves eq. HallucinatedUCBOptimizationMeasure for any motion. With the true one it gives the
paper's reference plan (App. "Policy optimisation with known environment").
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from .._progress import progress_bar
from .._types import Scalar
from ..constraints.lagrangian import AugmentedLagrangian
from ..errors import UserError
from ..flow.diagnose import check_planned
from ..flow.flow import Flow
from ..policies.base import Profile
from ..policies.network import NetworkPolicy
from ..problem import Motion


class BPTTState(eqx.Module):
    """The state of an ascent; the first axis of all arrays is for the starts.

    Attributes:
        best: The best profiles so far.
        best_values: J of the best profiles.
        mark: Best J of all starts at its last noticeable improvement.
        stale: Number of steps since that improvement.
        lagrangians: The multipliers of each start, if the problem has constraints. Then J of the
            best profiles is J minus an exact penalty.
    """

    profiles: Profile
    optimiser: Any
    best: Profile
    best_values: Float[Array, "starts"]
    mark: Scalar
    stale: Int[Array, ""]
    lagrangians: AugmentedLagrangian | None

    @property
    def skipped(self) -> Int[Array, "starts"]:
        """Number of steps left out because the gradient was not finite."""
        return jnp.asarray(self.optimiser.total_notfinite)

    def best_of_all(self) -> tuple[int | Int[Array, ""], Profile]:
        """Index of the start with the highest J, and its best profile."""
        start = jnp.argmax(self.best_values)
        return start, jax.tree.map(lambda x: x[start] if eqx.is_array(x) else x, self.best)


class BPTTResult(eqx.Module):
    """What an ascent found.

    Attributes:
        profile: The best profile.
        value: J of the best profile.
        start: Index of the start that it came from.
        values: Best J of each start.
        history: J of each start at each step.
        skipped: Number of steps left out because the gradient was not finite, for each start.
        outcome: ``"plateau"`` or ``"steps"``, the reason to stop.
        lipschitz: For networks, a bound of the policy's Lipschitz constant in the position.
        margins: By how much each constraint is satisfied after each move, as a share of it; None if
            the problem has none.
    """

    profile: Profile
    value: Scalar
    start: int = eqx.field(static=True)
    values: Float[Array, "starts"]
    history: Float[Array, "steps starts"]
    skipped: Int[Array, "starts"]
    outcome: str = eqx.field(static=True)
    lipschitz: float | None = eqx.field(static=True)
    margins: Float[Array, "horizon limits"] | None = None


class BPTT(eqx.Module):
    """The method: `init`, `step`, and the driver `solve`, which uses only those two.

    Attributes:
        steps: Greatest number of steps.
        learning_rate: Adam's first step size; it falls to a hundredth along a cosine.
        patience: Stop after this many steps without a relative gain of `tolerance`.
        tolerance: Smallest relative gain that counts.
        clip_norm: Longer gradients are cut to this norm.
        weight_penalty: Factor on the sum of the squared weights of networks, a penalty.
        steps_at_once: Steps of one compiled call, between two tests for a plateau.
    """

    steps: int = 1000
    learning_rate: float = 1e-2
    patience: int = 300
    tolerance: float = 1e-5
    clip_norm: float = eqx.field(static=True, default=10.0)
    weight_penalty: float = eqx.field(static=True, default=0.0)
    steps_at_once: int = eqx.field(static=True, default=25)

    def __check_init__(self) -> None:
        if self.steps < 1:
            raise UserError(f"gradient ascent needs at least one step, got {self.steps}")

    def optimiser(self) -> optax.GradientTransformation:
        """Adam with clipped gradients; a step whose gradient is not finite is left out."""
        share = optax.cosine_decay_schedule(1.0, 1, alpha=0.01)
        adam = optax.chain(
            optax.clip_by_global_norm(self.clip_norm),
            optax.scale_by_adam(),
            optax.scale_by_schedule(lambda step: -self.learning_rate * share(step / self.steps)),
        )
        never = jnp.iinfo(jnp.int32).max
        return optax.apply_if_finite(adam, max_consecutive_errors=int(never))

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
        profiles = jax.tree.map(
            lambda *leaves: jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0],
            *starts,
        )
        return BPTTState(
            profiles=profiles,
            optimiser=jax.vmap(self.optimiser().init)(eqx.filter(profiles, eqx.is_inexact_array)),
            best=profiles,
            best_values=jnp.full((len(starts),), -jnp.inf),
            mark=jnp.asarray(-jnp.inf),
            stale=jnp.asarray(0, dtype=jnp.int32),
            lagrangians=jax.tree.map(lambda x: jnp.stack([x] * len(starts)), lagrangian),
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
        """Ascends from all starts until a plateau, or until the steps are used up.

        ``lagrangian`` has the first multipliers, if the problem has constraints; they change along
        the ascent.
        """
        constraints = flow.problem.constraints
        if constraints is not None and lagrangian is None:
            one = jnp.ones((), dtype=flow.problem.initial.dtype)
            lagrangian = AugmentedLagrangian.start(constraints, one)
        if lagrangian is not None:
            # Plans aim inside constraints, because they end about as far beyond their aim.
            lagrangian = lagrangian.with_weight(lagrangian.weight, more=0.006)
        state = self.init(starts, lagrangian)
        history, done, outcome = [], 0, "steps"
        with progress_bar("gradient ascent", self.steps, shown=progress) as report:
            while done < self.steps:
                count = min(self.steps_at_once, self.steps - done)
                state, values = self.step(flow, motion, state, count)
                history.append(values)
                done += count
                report(done, J=float(jnp.max(state.best_values)))
                if int(state.stale) >= self.patience:
                    outcome = "plateau"
                    break
        # One more, because a step computes J of the profiles that it starts from.
        state, _ = self.step(flow, motion, state)
        start, profile = state.best_of_all()
        if not bool(jnp.isfinite(state.best_values[start])):
            mass = eqx.filter_jit(flow.rollout)(profile, motion).mass
            check_planned(flow.problem, motion, mass, state.best_values[start])
        network = _network(profile)
        value, margins = state.best_values[start], None
        if constraints is not None:
            rollout = eqx.filter_jit(flow.rollout)(profile, motion)
            value, margins = rollout.value, constraints.worst(rollout.mass)
        return BPTTResult(
            profile=profile,
            value=value,
            start=int(start),
            values=state.best_values,
            history=jnp.concatenate(history),
            skipped=state.skipped,
            outcome=outcome,
            lipschitz=None if network is None else float(network.lipschitz()),
            margins=margins,
        )

    def climb(
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

    def _advance(
        self, flow: Flow, motion: Motion, state: BPTTState
    ) -> tuple[BPTTState, Float[Array, "starts"]]:
        arrays, rest = eqx.partition(state.profiles, eqx.is_inexact_array)
        optimiser = self.optimiser()

        def loss(
            arrays: Any, lagrangian: AugmentedLagrangian | None
        ) -> tuple[Scalar, tuple[Scalar, Any]]:
            profile: Profile = eqx.combine(arrays, rest)
            rollout = flow.rollout(profile, motion)
            value = rollout.value
            network, decay = _network(profile), jnp.zeros_like(value)
            if network is not None and self.weight_penalty:
                squares = [jnp.sum(weight**2) for weight in network.layers()]
                decay = self.weight_penalty * jnp.sum(jnp.stack(squares))
            if lagrangian is None:
                return decay - value, (value, None)
            penalty = lagrangian(rollout.mass)
            merit = value - penalty.exact(lagrangian.weight)
            # In each step multipliers go a tenth of the way to those that it asks for.
            return decay - value - penalty.augmented, (merit, lagrangian.towards(penalty, 0.1))

        def one(
            arrays: Any, memory: Any, lagrangian: AugmentedLagrangian | None
        ) -> tuple[Any, Any, Scalar, Any]:
            gradient, (value, lagrangian) = jax.grad(loss, has_aux=True)(arrays, lagrangian)
            # The gradient may be finite although J is not.
            gradient = jax.tree.map(lambda g: jnp.where(jnp.isfinite(value), g, jnp.nan), gradient)
            updates, memory = optimiser.update(gradient, memory, arrays)
            moved: Profile = eqx.combine(optax.apply_updates(arrays, updates), rest)
            return eqx.filter(moved, eqx.is_inexact_array), memory, value, lagrangian

        moved, optimiser_state, values, lagrangians = jax.vmap(one)(
            arrays, state.optimiser, state.lagrangians
        )
        better = optimiser_state.last_finite & (values > state.best_values)

        def choose(new: Array, old: Array) -> Array:
            return jnp.where(better.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

        old_best = eqx.filter(state.best, eqx.is_inexact_array)
        best_values = jnp.where(better, values, state.best_values)
        best = jnp.max(best_values)
        # Compared with the last mark, not with the last step, so that slow gains add up.
        gained = best > state.mark + self.tolerance * jnp.abs(state.mark)
        gained = gained | (jnp.isfinite(best) & ~jnp.isfinite(state.mark))
        return BPTTState(
            profiles=eqx.combine(moved, rest),
            optimiser=optimiser_state,
            best=eqx.combine(jax.tree.map(choose, arrays, old_best), rest),
            best_values=best_values,
            mark=jnp.where(gained, best, state.mark),
            stale=jnp.where(gained, 0, state.stale + 1),
            lagrangians=lagrangians,
        ), values


@eqx.filter_jit
def _steps(
    method: BPTT, flow: Flow, motion: Motion, state: BPTTState, count: Int[Array, ""], most: int
) -> tuple[BPTTState, Float[Array, "most starts"]]:
    """``count`` steps; one compiled program serves all counts up to ``most``."""
    arrays, rest = eqx.partition(state, eqx.is_array)

    def one(i: Array, carry: tuple[Any, Array]) -> tuple[Any, Array]:
        state, values = method._advance(flow, motion, eqx.combine(carry[0], rest))
        return eqx.filter(state, eqx.is_array), carry[1].at[i].set(values)

    history = jnp.zeros((most, *state.best_values.shape), dtype=state.best_values.dtype)
    arrays, history = jax.lax.fori_loop(0, count, one, (arrays, history))
    return eqx.combine(arrays, rest), history


def _network(profile: Profile) -> NetworkPolicy | None:
    policy = profile.join(profile.per_step)
    return policy if isinstance(policy, NetworkPolicy) else None
