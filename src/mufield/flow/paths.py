"""J over the paths of shocks: exactly where they are few, else by drawn paths."""

import math
from dataclasses import replace
from importlib import import_module
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._arrays import Action, Key, Scalar, State, Target, as_key
from ..errors import UserError
from ..policies.base import Profile, checked_profile
from ..policies.shocks import profile_on_path
from ..problem import Motion, Problem
from ..shocks import Path, Paths, Shocks, UnderShock, seen_under
from ..space.measure import MeanField, entropy
from .checks import check_rollout
from .flow import Flow
from .motions import AbstractJointMotion, affects
from .rollout import Rollout


class Bands(eqx.Module):
    """What episodes earn, and how spread out agents are, over the paths of the shocks.

    The three rows are the 5% quantile, the mean and the 95% quantile over the paths.

    Attributes:
        value: J.
        entropy: The entropy of mu_0, ..., mu_H in nats.
        standard_error: Of the mean of J, because paths were drawn; zero if these are all paths.
    """

    value: Float[Array, "3"]
    rewards: Float[Array, "3 paid_steps"]
    entropy: Float[Array, "3 steps_and_end"]
    standard_error: Scalar


class PathRollouts(eqx.Module):
    """Episodes on several paths of the shocks.

    Attributes:
        rollouts: The episodes; arrays have an axis of paths at the front.
    """

    rollouts: Rollout
    paths: Paths

    @property
    def value(self) -> Scalar:
        """J: the expectation over the paths."""
        return jnp.vdot(self.paths.chances.astype(self.rollouts.value.dtype), self.rollouts.value)

    @property
    def standard_error(self) -> Scalar:
        """Of `value`, because paths were drawn; zero if these are all paths."""
        values = self.rollouts.value
        drawn = jnp.std(values, ddof=1) / math.sqrt(len(values))
        return jnp.where(self.paths.exact, 0.0, drawn)

    @property
    def margins(self) -> Float[Array, "paths steps margins"] | None:
        """Those of the constraints on each path; infinite on paths that cannot occur."""
        found, possible = self.rollouts.margins, self.paths.chances > 0
        return None if found is None else jnp.where(possible[:, None, None], found, jnp.inf)

    @property
    def margin(self) -> Float[Array, "paths"]:
        """The least margin of any constraint on each path; infinite if there are none."""
        if self.margins is None:
            return jnp.full_like(self.rollouts.value, jnp.inf)
        return jnp.min(self.margins, axis=(1, 2))

    @property
    def bands(self) -> Bands:
        """The spread over the paths; may be compiled."""
        value, rewards = self._band(self.rollouts.value), self._band(self.rollouts.rewards)
        return Bands(value, rewards, self._band(entropy(self.rollouts.mass)), self.standard_error)

    def _band(self, values: Float[Array, "paths *steps"]) -> Float[Array, "3 *steps"]:
        ordered, order = jnp.sort(values, axis=0), jnp.argsort(values, axis=0)
        upto = jnp.cumsum(self.paths.chances.astype(values.dtype)[order], axis=0)
        at = [jnp.argmax(upto >= q - 1e-6, axis=0, keepdims=True) for q in (0.05, 0.95)]
        low, high = (jnp.take_along_axis(ordered, each, axis=0)[0] for each in at)
        return jnp.stack([low, averaged(values, self.paths.chances), high])

    def plot(self) -> Any:
        """A figure of the bands by step; needs the extra ``viz``."""
        runs = import_module("mufield.viz.runs")  # pictures are a layer above, and an extra
        return runs.paths_figure(self.bands)

    def mean(self) -> Rollout:
        """The expectation of the distributions and rewards; margins are those of each path."""
        return replace(averaged(self.rollouts, self.paths.chances), margins=self.margins)

    def __repr__(self) -> str:
        error, count = float(self.standard_error), len(self.paths.chances)
        chances, worst = self.paths.chances, float(jnp.min(self.margin))
        likely = float(jnp.sum(jnp.where(self.margin < 0, chances, 0.0)))
        outside = f", violated by up to {-worst:.2%} on {likely:.1%} of them" if worst < 0 else ""
        return f"PathRollouts(J={float(self.value):.6g} +- {error:.2g}, paths={count}{outside})"


def averaged(tree: Any, chances: Float[Array, "paths"]) -> Any:
    """The expectation of arrays whose first axis are paths."""
    return jax.tree.map(lambda leaf: jnp.tensordot(chances.astype(leaf.dtype), leaf, 1), tree)


def shocks_of(problem: Problem) -> Shocks:
    """The shocks of a problem; raises if it has none."""
    if problem.shocks is None:
        raise UserError("the problem has no shocks; give Problem(shocks=...), or use flow.rollout")
    return problem.shocks


def flow_under(flow: Flow, number: Array) -> Flow:
    """The flow of the problem on a path, or under one shock that stays."""
    return flow.of_problem(flow.problem.under_shock(number))


def motion_under(problem: Problem, motion: Motion, number: Array) -> Motion:
    """The motion on a path, or under one shock that stays."""
    shocks = shocks_of(problem)
    if isinstance(motion, AbstractJointMotion):
        dim = motion.action_dim
        return _JointUnderShock(motion=motion, values=shocks.values, number=number, action_dim=dim)
    return UnderShock(problem.lifted(motion), shocks.values, number)


def sees_shock(problem: Problem, motion: Motion) -> bool:
    """Whether the result of a motion may depend on the shock, by its jaxpr."""

    def under(number: Array) -> Any:
        mu = MeanField(mass=problem.initial, here=problem.initial[0], grid=problem.grid)
        state = jnp.asarray(problem.grid.centres[0], dtype=problem.initial.dtype)
        action = jnp.asarray(problem.actions.rest, dtype=problem.initial.dtype)
        return jnp.asarray(motion_under(problem, motion, number)(state, action, mu))

    program = jax.make_jaxpr(under)(jnp.zeros((), jnp.int32)).jaxpr
    return affects(program, program.invars[0])


class _JointUnderShock(AbstractJointMotion):
    """A motion of joint actions under a shock; planners share its costly part as without one."""

    motion: AbstractJointMotion
    values: Array
    number: Array
    action_dim: int = eqx.field(static=True)

    def predict(self, state: State, action: Action, mu: MeanField) -> Any:
        return self.motion.predict(state, action, seen_under(mu, self.values, self.number))

    def hallucinate(self, state: State, prediction: Any, eta: Array) -> Target:
        return self.motion.hallucinate(state, prediction, eta)


def over_paths(
    flow: Flow, policy: Any, motion: Motion, *, key: Key | int | None = None, samples: int = 1024
) -> PathRollouts:
    """The episodes of a policy on the paths of the shocks, and so J.

    Args:
        flow: The flow of a problem with shocks.
        policy: A profile, a policy, or a function ``(state, mu, step) -> action`` that may read
            ``mu.shock``.
        motion: The law of motion; it may read ``mu.shock``.
        key: Randomness of drawn paths; the same key draws the same paths for all policies.
        samples: All paths are computed if there are at most so many; else so many are drawn.
    """
    problem, key = flow.problem, None if key is None else as_key(key)
    paths = shocks_of(problem).paths(problem.paid_steps, key=key, samples=samples)
    profile = checked_profile(policy, problem)
    found, misused = _rollouts(flow, profile, motion, paths.numbers)
    if not isinstance(misused, jax.core.Tracer):
        odd = jnp.any(misused, axis=1) | ~jnp.isfinite(found.value)
        for i in np.flatnonzero(odd)[:1].tolist():
            own = _on(problem, profile, motion, paths.numbers[i])
            check_rollout(*own, *jax.tree.map(lambda leaf, i=i: leaf[i], (found, misused)))
    return PathRollouts(found, paths)


def _on(
    problem: Problem, profile: Any, motion: Motion, path: Path
) -> tuple[Problem, Motion, Profile]:
    """What a problem, a motion and a policy are on a path."""
    policy = profile_on_path(profile, problem.shocks, path)
    return problem.under_shock(path), motion_under(problem, motion, path), policy


@eqx.filter_jit
def _rollouts(
    flow: Flow, profile: Any, motion: Motion, numbers: Array
) -> tuple[Rollout, Bool[Array, "paths steps"]]:
    def one(path: Path) -> tuple[Rollout, Bool[Array, "steps"]]:
        problem, own, policy = _on(flow.problem, profile, motion, path)
        found, misused = flow.of_problem(problem).inspect(policy, own)
        if problem.constraints is not None:
            found = replace(found, margins=problem.margins(found.mass))
        return found, misused

    return jax.lax.map(one, numbers, batch_size=32)
