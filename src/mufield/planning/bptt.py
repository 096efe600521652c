"""Gradient ascent on J through the flow: back-propagation through time.

Solves eq. HallucinatedUCBOptimizationMeasure for any motion: the true one gives the paper's
reference plan (App. "Policy optimisation with known environment").
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
from ..errors import UserError
from ..flow.flow import Flow
from ..policies.base import Profile
from ..policies.network import NetworkPolicy
from ..problem import Motion


class BPTTState(eqx.Module):
    """Where an ascent is; arrays have one leading entry for each start.

    Attributes:
        profiles: The present profiles.
        optimiser: The optimiser's state.
        best: The best profiles so far.
        best_values: Their J.
        skipped: Steps left out because the gradient was not finite.
        mark: Best J of all starts when it last improved noticeably.
        stale: Steps since then.
        steps: Number of steps done.
    """

    profiles: Profile
    optimiser: Any
    best: Profile
    best_values: Float[Array, "starts"]
    skipped: Int[Array, "starts"]
    mark: Scalar
    stale: Int[Array, ""]
    steps: Int[Array, ""]


class BPTTResult(eqx.Module):
    """What an ascent found.

    Attributes:
        profile: The best profile.
        value: Its J.
        start: The start it came from.
        values: Best J of each start.
        history: J of each start at each step.
        skipped: Steps left out for each start because the gradient was not finite.
        outcome: ``"plateau"`` or ``"steps"``.
        lipschitz: Bound of the policy's Lipschitz constant in the position, for networks.
    """

    profile: Profile
    value: Scalar
    start: int = eqx.field(static=True)
    values: Float[Array, "starts"]
    history: Float[Array, "steps starts"]
    skipped: Int[Array, "starts"]
    outcome: str = eqx.field(static=True)
    lipschitz: float | None = eqx.field(static=True)


class BPTT(eqx.Module):
    """The planner: `init`, `step` and the driver `solve`, which uses only those two.

    Attributes:
        steps: Most steps.
        learning_rate: Adam's first step size; it falls to a hundredth along a cosine.
        clip_norm: Longest gradient that is used as it is.
        patience: Stop after this many steps without a gain of `tolerance`.
        tolerance: Smallest relative gain that counts.
        weight_bound: Largest spectral norm of a network's layers (assumption
            LipschitzPolicyAndReward); none by default.
        weight_penalty: Price of the squared weights of networks; zero by default.
        steps_at_once: Steps between two looks at the result.
    """

    steps: int = eqx.field(static=True, default=1000)
    learning_rate: float = eqx.field(static=True, default=1e-2)
    clip_norm: float = eqx.field(static=True, default=10.0)
    patience: int = eqx.field(static=True, default=300)
    tolerance: float = eqx.field(static=True, default=1e-5)
    weight_bound: float | None = eqx.field(static=True, default=None)
    weight_penalty: float = eqx.field(static=True, default=0.0)
    steps_at_once: int = eqx.field(static=True, default=25)

    def _settings(self) -> "_Settings":
        return _Settings(
            steps=jnp.asarray(self.steps, dtype=jnp.int32),
            learning_rate=jnp.asarray(self.learning_rate),
            clip_norm=jnp.asarray(self.clip_norm),
            tolerance=jnp.asarray(self.tolerance),
            weight_bound=jnp.asarray(jnp.inf if self.weight_bound is None else self.weight_bound),
            weight_penalty=jnp.asarray(self.weight_penalty),
        )

    def init(self, starts: Sequence[Profile]) -> BPTTState:
        """The state before the first step, from profiles of the same structure."""
        if not starts:
            raise UserError("gradient ascent needs at least one profile to start from")
        kinds = {
            (jax.tree.structure(start), *(jnp.shape(leaf) for leaf in jax.tree.leaves(start)))
            for start in starts
        }
        if len(kinds) > 1:
            raise UserError("all starts must have the same kind of policy and the same sizes")
        if self.weight_bound is not None:
            starts = [_with_bound(start, self.weight_bound) for start in starts]
        profiles = jax.tree.map(
            lambda *leaves: jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0], *starts
        )
        arrays = eqx.filter(profiles, eqx.is_inexact_array)
        count = len(starts)
        return BPTTState(
            profiles=profiles,
            optimiser=jax.vmap(optax.scale_by_adam().init)(arrays),
            best=profiles,
            best_values=jnp.full((count,), -jnp.inf),
            skipped=jnp.zeros((count,), dtype=jnp.int32),
            mark=jnp.asarray(-jnp.inf),
            stale=jnp.asarray(0, dtype=jnp.int32),
            steps=jnp.asarray(0, dtype=jnp.int32),
        )

    def step(
        self, flow: Flow, motion: Motion, state: BPTTState
    ) -> tuple[BPTTState, Float[Array, "starts"]]:
        """One step of all starts; returns the new state and J before the step."""
        state, values = _steps(
            self._settings(), flow, motion, state, jnp.asarray(1), self.steps_at_once
        )
        return state, values[0]

    def climb(
        self, flow: Flow, motion: Motion, starts: Sequence[Profile]
    ) -> tuple[Profile, Scalar]:
        """All steps without a look at the result: the best profile and its J.

        A pure function, which may be compiled and lifted over many motions.
        """
        state = self.init(starts)
        count = jnp.asarray(self.steps)
        state, _ = _steps(self._settings(), flow, motion, state, count, self.steps)
        best = jnp.argmax(state.best_values)
        profile = jax.tree.map(lambda x: x[best] if eqx.is_array(x) else x, state.best)
        return profile, state.best_values[best]

    def solve(
        self, flow: Flow, motion: Motion, starts: Sequence[Profile], *, progress: bool = False
    ) -> BPTTResult:
        """Ascends until nothing is gained any more or the steps are used up.

        Args:
            flow: The problem's flow.
            motion: The law of motion to plan with.
            starts: Profiles to start from, side by side; the best end is kept.
            progress: Whether to show a bar.
        """
        if self.steps < 1:
            raise UserError(f"gradient ascent needs at least one step, got {self.steps}")
        state = self.init(starts)
        settings = self._settings()
        history, done, outcome = [], 0, "steps"
        with progress_bar("gradient ascent", self.steps, shown=progress) as report:
            while done < self.steps:
                count = min(self.steps_at_once, self.steps - done)
                state, values = _steps(
                    settings, flow, motion, state, jnp.asarray(count), self.steps_at_once
                )
                history.append(values[:count])
                done += count
                report(done, J=float(jnp.max(state.best_values)))
                if int(state.stale) >= self.patience:
                    outcome = "plateau"
                    break
        # The last step's outcome has not been valued yet.
        state, _ = self.step(flow, motion, state)
        start = int(jnp.argmax(state.best_values))
        profile = jax.tree.map(lambda x: x[start] if eqx.is_array(x) else x, state.best)
        bound = _network(profile)
        return BPTTResult(
            profile=profile,
            value=state.best_values[start],
            start=start,
            values=state.best_values,
            history=jnp.concatenate(history),
            skipped=state.skipped,
            outcome=outcome,
            lipschitz=None if bound is None else float(bound.lipschitz()),
        )


class _Settings(eqx.Module):
    """The planner's numbers as arrays, so that one compiled program serves all of them."""

    steps: Int[Array, ""]
    learning_rate: Scalar
    clip_norm: Scalar
    tolerance: Scalar
    weight_bound: Scalar
    weight_penalty: Scalar

    def rate(self, step: Int[Array, ""]) -> Scalar:
        """From the first rate to a hundredth of it along a cosine."""
        share = jnp.minimum(step / self.steps, 1.0)
        return self.learning_rate * (0.01 + 0.99 * 0.5 * (1.0 + jnp.cos(jnp.pi * share)))


def _advance(
    settings: _Settings, flow: Flow, motion: Motion, state: BPTTState
) -> tuple[BPTTState, Float[Array, "starts"]]:
    arrays, rest = eqx.partition(state.profiles, eqx.is_inexact_array)
    optimiser = optax.scale_by_adam()

    def loss(arrays: Any) -> tuple[Scalar, Scalar]:
        profile: Profile = eqx.combine(arrays, rest)
        value = flow.value(profile, motion)
        network = _network(profile)
        penalty = jnp.zeros_like(value)
        if network is not None:
            penalty = sum((jnp.sum(w**2) for w in network.layers()), start=penalty)
        return settings.weight_penalty.astype(value.dtype) * penalty - value, value

    def one(arrays: Any, memory: Any) -> tuple[Any, Any, Scalar, Array]:
        gradient, value = jax.grad(loss, has_aux=True)(arrays)
        length = jnp.sqrt(sum(jnp.vdot(g, g) for g in jax.tree.leaves(gradient)))
        shrink = jnp.minimum(1.0, settings.clip_norm / jnp.maximum(length, 1e-12))
        clipped = jax.tree.map(lambda g: g * shrink.astype(g.dtype), gradient)
        updates, new_memory = optimiser.update(clipped, memory, arrays)
        rate = settings.rate(state.steps)
        moved = jax.tree.map(lambda x, u: x - rate.astype(x.dtype) * u, arrays, updates)
        leaves = [value, *jax.tree.leaves(gradient), *jax.tree.leaves(moved)]
        finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))
        moved = _bounded(settings, eqx.combine(moved, rest))

        def keep(new: Array, old: Array) -> Array:
            return jnp.where(finite, new, old)

        arrays, memory = jax.tree.map(keep, (moved, new_memory), (arrays, memory))
        return arrays, memory, value, finite

    moved, optimiser_state, values, finite = jax.vmap(one)(arrays, state.optimiser)
    better = finite & (values > state.best_values)

    def choose(new: Array, old: Array) -> Array:
        return jnp.where(better.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

    old_best, _ = eqx.partition(state.best, eqx.is_inexact_array)
    best_values = jnp.where(better, values, state.best_values)
    best = jnp.max(best_values)
    # Against the last mark, not the last step: slow gains add up.
    gained = best > state.mark + settings.tolerance * jnp.abs(state.mark)
    gained = gained | (jnp.isfinite(best) & ~jnp.isfinite(state.mark))
    return BPTTState(
        profiles=eqx.combine(moved, rest),
        optimiser=optimiser_state,
        best=eqx.combine(jax.tree.map(choose, arrays, old_best), rest),
        best_values=best_values,
        skipped=state.skipped + (~finite).astype(jnp.int32),
        mark=jnp.where(gained, best, state.mark),
        stale=jnp.where(gained, 0, state.stale + 1),
        steps=state.steps + 1,
    ), values


@eqx.filter_jit
def _steps(
    settings: _Settings,
    flow: Flow,
    motion: Motion,
    state: BPTTState,
    count: Int[Array, ""],
    most: int,
) -> tuple[BPTTState, Float[Array, "most starts"]]:
    """``count`` steps; one compiled program serves all counts up to ``most``."""
    arrays, rest = eqx.partition(state, eqx.is_array)

    def one(i: Array, carry: tuple[Any, Array]) -> tuple[Any, Array]:
        state, values = _advance(settings, flow, motion, eqx.combine(carry[0], rest))
        return eqx.filter(state, eqx.is_array), carry[1].at[i].set(values)

    history = jnp.zeros((most, *state.best_values.shape), dtype=state.best_values.dtype)
    arrays, history = jax.lax.fori_loop(0, count, one, (arrays, history))
    return eqx.combine(arrays, rest), history


def _network(profile: Profile) -> NetworkPolicy | None:
    policy = profile.join(profile.per_step)
    return policy if isinstance(policy, NetworkPolicy) else None


def _with_bound(profile: Profile, limit: float | Scalar) -> Profile:
    """The profile with its network's layers scaled into their bound; others as they are."""
    network = _network(profile)
    if network is None:
        return profile
    bounded = network.bounded(limit)
    if profile.per_step is None:
        return Profile.stationary(bounded, profile.horizon)
    return Profile(*eqx.partition(bounded, eqx.is_array), horizon=profile.horizon)


def _bounded(settings: _Settings, profile: Profile) -> Any:
    """The arrays of a profile, with its network's layers scaled into their bound."""
    arrays, rest = eqx.partition(profile, eqx.is_inexact_array)

    def shrink(arrays: Any) -> Any:
        whole: Profile = eqx.combine(arrays, rest)
        return eqx.filter(_with_bound(whole, settings.weight_bound), eqx.is_inexact_array)

    return jax.lax.cond(jnp.isfinite(settings.weight_bound), shrink, lambda x: x, arrays)
