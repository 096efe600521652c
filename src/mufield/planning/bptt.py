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
from ..flow.objective import Flow
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
        stale: Steps since the best of all starts last improved noticeably.
        steps: Number of steps done.
    """

    profiles: Profile
    optimiser: Any
    best: Profile
    best_values: Float[Array, "starts"]
    skipped: Int[Array, "starts"]
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

    def init(self, starts: Sequence[Profile]) -> BPTTState:
        """The state before the first step, from profiles of the same structure."""
        if not starts:
            raise ValueError("gradient ascent needs at least one profile to start from")
        kinds = {jax.tree.structure(start) for start in starts}
        if len(kinds) > 1:
            raise ValueError("all starts must have the same kind of policy and the same sizes")
        profiles = jax.tree.map(
            lambda *leaves: jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0], *starts
        )
        arrays = eqx.filter(profiles, eqx.is_inexact_array)
        count = len(starts)
        return BPTTState(
            profiles=profiles,
            optimiser=jax.vmap(self._optimiser().init)(arrays),
            best=profiles,
            best_values=jnp.full((count,), -jnp.inf),
            skipped=jnp.zeros((count,), dtype=jnp.int32),
            stale=jnp.asarray(0, dtype=jnp.int32),
            steps=jnp.asarray(0, dtype=jnp.int32),
        )

    def step(
        self, flow: Flow, motion: Motion, state: BPTTState
    ) -> tuple[BPTTState, Float[Array, "starts"]]:
        """One step of all starts; returns the new state and J before the step."""
        return _step(self, flow, motion, state)

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
        state = self.init(starts)
        history, done, outcome = [], 0, "steps"
        with progress_bar("gradient ascent", self.steps, shown=progress) as report:
            while done < self.steps:
                count = min(self.steps_at_once, self.steps - done)
                state, values = _steps(self, flow, motion, state, count)
                history.append(values)
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

    def _optimiser(self) -> optax.GradientTransformation:
        schedule = optax.cosine_decay_schedule(self.learning_rate, self.steps, alpha=0.01)
        return optax.chain(optax.clip_by_global_norm(self.clip_norm), optax.adam(schedule))


def _advance(
    planner: BPTT, flow: Flow, motion: Motion, state: BPTTState
) -> tuple[BPTTState, Float[Array, "starts"]]:
    arrays, rest = eqx.partition(state.profiles, eqx.is_inexact_array)
    optimiser = planner._optimiser()

    def loss(arrays: Any) -> tuple[Scalar, Scalar]:
        profile: Profile = eqx.combine(arrays, rest)
        value = flow.value(profile, motion)
        network = _network(profile)
        penalty = jnp.zeros_like(value)
        if network is not None and planner.weight_penalty > 0:
            penalty = sum((jnp.sum(w**2) for w in network.layers()), start=penalty)
        return planner.weight_penalty * penalty - value, value

    def one(arrays: Any, memory: Any) -> tuple[Any, Any, Scalar, Array]:
        gradient, value = jax.grad(loss, has_aux=True)(arrays)
        updates, new_memory = optimiser.update(gradient, memory, arrays)
        moved = optax.apply_updates(arrays, updates)
        leaves = [value, *jax.tree.leaves(gradient), *jax.tree.leaves(moved)]
        finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))
        moved = _bounded(planner, eqx.combine(moved, rest), rest)
        keep = lambda new, old: jnp.where(finite, new, old)  # noqa: E731
        return (
            jax.tree.map(keep, moved, arrays),
            jax.tree.map(keep, new_memory, memory),
            value,
            finite,
        )

    moved, optimiser_state, values, finite = jax.vmap(one)(arrays, state.optimiser)
    better = finite & (values > state.best_values)

    def choose(new: Any, old: Any) -> Any:
        shape = lambda x: better.reshape(-1, *(1,) * (x.ndim - 1))  # noqa: E731
        return jax.tree.map(lambda a, b: jnp.where(shape(a), a, b), new, old)

    old_best, _ = eqx.partition(state.best, eqx.is_inexact_array)
    best_values = jnp.where(better, values, state.best_values)
    before, after = jnp.max(state.best_values), jnp.max(best_values)
    gained = after > before + planner.tolerance * jnp.abs(before)
    gained = gained | ~jnp.isfinite(before)
    return BPTTState(
        profiles=eqx.combine(moved, rest),
        optimiser=optimiser_state,
        best=eqx.combine(choose(arrays, old_best), rest),
        best_values=best_values,
        skipped=state.skipped + (~finite).astype(jnp.int32),
        stale=jnp.where(gained, 0, state.stale + 1),
        steps=state.steps + 1,
    ), values


_step = eqx.filter_jit(_advance)


@eqx.filter_jit
def _steps(
    planner: BPTT, flow: Flow, motion: Motion, state: BPTTState, count: int
) -> tuple[BPTTState, Float[Array, "steps starts"]]:
    arrays, rest = eqx.partition(state, eqx.is_array)

    def one(arrays: Any, _: None) -> tuple[Any, Array]:
        state, values = _advance(planner, flow, motion, eqx.combine(arrays, rest))
        return eqx.filter(state, eqx.is_array), values

    arrays, values = jax.lax.scan(one, arrays, None, length=count)
    return eqx.combine(arrays, rest), values


def _network(profile: Profile) -> NetworkPolicy | None:
    policy = profile.join(profile.per_step)
    return policy if isinstance(policy, NetworkPolicy) else None


def _bounded(planner: BPTT, profile: Profile, rest: Any) -> Any:
    """The arrays of a profile, with its network's layers scaled into their bound."""
    network = _network(profile)
    if planner.weight_bound is not None and network is not None:
        arrays = eqx.filter(network.bounded(planner.weight_bound), eqx.is_inexact_array)
        profile = eqx.tree_at(lambda p: p.per_step, profile, arrays)
    return eqx.filter(profile, eqx.is_inexact_array)
