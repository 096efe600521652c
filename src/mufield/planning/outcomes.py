"""What a plan may lead to: the least margins of limits under all that is held possible.

A learner plans with one motion, an optimistic one, and must keep limits under every other that its
data allow. While mirror ascent climbs, limits are tightened by what the worst outcome falls short
of the planned one.
"""

from abc import abstractmethod
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .. import _types
from .._types import Mass
from ..constraints import Constraints
from ..flow.charge import Margins
from ..flow.flow import Flow
from ..flow.kernels import land
from ..flow.moves import Weights

ATTEMPTS, CAREFUL = 3, 0.95
"""So many shares of a plan are tried in a mixture with a safe policy; so much of the way that seems
possible is gone with each."""

UNSAFE = 1.5
"""Where the safe policy is expected to break a limit itself, mixtures may by so many times as much,
after the first episode: else nothing else would be tried, and no policy found that keeps it."""


class Past(eqx.Module):
    """The last episode as it was.

    Attributes:
        mass: The population before each move.
        weights: The weights of the policy that was run, on the moves of the outcomes.
    """

    mass: Float[Array, "steps cells"]
    weights: Weights


class Mixture(NamedTuple):
    """A plan, followed by as many agents as limits allow.

    Attributes:
        weights: The weights of the mixture.
        share: Share of the agents that follow the plan.
        resumed: Whether the others do as in the last episode, instead of following the safe policy.
        margins: The least margins of the mixture.
    """

    weights: Weights
    share: Float[Array, ""]
    resumed: Bool[Array, ""]
    margins: Margins


class AbstractOutcomes(eqx.Module):
    """What policies over a fixed set of moves may lead to.

    Attributes:
        flow: The flow of the problem, with agents' own actions.
        actions: The moves.
        kernels: Landing kernels: of the expected motion, and perhaps of others.
    """

    flow: eqx.AbstractVar[Flow]
    actions: eqx.AbstractVar[Float[Array, "moves action_dim"]]
    kernels: eqx.AbstractVar[Float[Array, "worlds cells moves window"]]

    @property
    def limits(self) -> Constraints:
        """The limits of the problem."""
        limits = self.flow.problem.constraints
        assert limits is not None
        return limits

    @abstractmethod
    def least(self, weights: Weights) -> Margins:
        """The least margins after each move that are held possible."""

    def checked(self, weights: Weights) -> Margins:
        """The least margins for the last word on a plan, which was made to please `least`."""
        return self.least(weights)

    def expected(self, weights: Weights) -> _types.Masses:
        """The population under the expected motion."""
        return episode(self.flow, self.kernels[0], weights)

    def mixed(self, weights: Weights, safe: Weights, last: Weights | None = None) -> Mixture:
        """The greatest share of a plan that keeps the limits in a mixture with a safe policy.

        In a mixture a share of the agents follows the plan and the others the safe policy, as far
        as the expected motion can tell who is who. The policy of the ``last`` episode takes the
        place of the safe one if it keeps the limits, too: that it is safe was seen. If the safe
        policy is expected to break a limit, see `UNSAFE`.
        """
        whole = self.checked(weights)
        one, no = jnp.ones((), dtype=weights.dtype), jnp.asarray(False)

        def mix() -> Mixture:
            resumed, base = no, safe
            if last is None:
                least = self.checked(safe)
            else:
                least = self.checked(last)
                resumed = jnp.min(least) >= 0
                base = jnp.where(resumed, last, safe)
                least = jax.lax.cond(resumed, lambda: least, lambda: self.checked(safe))
            still = self.expected(base)
            plan, rest = self.expected(weights)[:-1, :, None], still[:-1, :, None]
            allowed = 0 * one
            if last is not None:
                known = jnp.maximum(jnp.min(self.limits.along(still)), jnp.min(least))
                allowed = UNSAFE * jnp.minimum(known, 0.0)

            def mixture(share: Array) -> Weights:
                own, others = share * plan, (1 - share) * rest
                both = own * weights + others * base
                # Where nobody is expected, the plan, as far as it is followed at all.
                unseen = share * weights + (1 - share) * base
                met = own + others
                return jnp.where(met > 1e-9, both / jnp.maximum(met, 1e-9), unseen)

            def attempt(_: Any, tried: tuple[Array, ...]) -> tuple[Array, ...]:
                low, kept, high, broken = tried
                # Limits are concave, so that less than the straight line between is on the safe
                # side; a little less than that, because worlds tell apart who is who otherwise.
                reach = jnp.where(broken < allowed, (kept - allowed) / (kept - broken), 1.0)
                share = low + (high - low) * CAREFUL * jnp.clip(jnp.min(reach), 0.0, 1.0)
                found = self.checked(mixture(share))
                better = jnp.min(found) >= allowed
                yes, no = (share, found, high, broken), (low, kept, share, found)
                return tuple(jnp.where(better, a, b) for a, b in zip(yes, no, strict=True))

            start = (0 * one, least, one, whole)
            share, margins, *_ = jax.lax.fori_loop(0, ATTEMPTS, attempt, start)
            return Mixture(mixture(share), share, resumed, margins)

        sure = jnp.min(whole) >= 0
        found: Mixture = jax.lax.cond(sure, lambda: Mixture(weights, one, no, whole), mix)
        return found


class DrawnOutcomes(AbstractOutcomes):
    """Outcomes in worlds that were drawn from what a model believes, and in the expected one.

    Limits hold for sure if they hold in every world; and also if they hold once what each world
    was wrong by in the last episode is taken off, so that worlds need tell only what changes. The
    true world was not wrong then: if it is like the others, one bound is as good as the other.

    Attributes:
        kernels: Landing kernels: of the expected motion, of drawn ones that plans are made for, and
            of as many that plans are only checked in: of many plans the best looks better than it
            is in the worlds that it was chosen by.
        errors: By how much too large each world expected the margins of the last episode; zero
            if there was none.
    """

    flow: Flow
    actions: Float[Array, "moves action_dim"]
    kernels: Float[Array, "worlds cells moves window"]
    errors: Float[Array, "worlds steps margins"]

    @classmethod
    def of(cls, flow: Flow, actions: Array, kernels: Array, past: Past | None) -> "DrawnOutcomes":
        """The outcomes by the worlds' kernels, after the last episode if there was one."""
        limits, steps = flow.problem.constraints, flow.problem.steps
        assert limits is not None

        def error(kernel: Array) -> Margins:
            if past is None:
                return jnp.zeros(limits.active.shape, dtype=kernel.dtype)
            expected = limits.along(episode(flow, kernel, past.weights, past.mass[0]))
            # How the episode ended is not kept; each world knows how its last move would end.
            end = _after(flow, kernel, past.mass[-1], past.weights[-1], steps[-1])
            was = limits.along(jnp.concatenate([past.mass, end[None]]))
            return jnp.where(jnp.asarray(limits.active), expected - was, 0.0)

        errors = jax.lax.map(error, kernels)
        return cls(flow=flow, actions=actions, kernels=kernels, errors=errors)

    def least(self, weights: Weights) -> Margins:
        """The least margins of the worlds that plans are made for."""
        return self._worst(weights, 1 + len(self.kernels) // 2)

    def checked(self, weights: Weights) -> Margins:
        """The least margins of all worlds."""
        return self._worst(weights, len(self.kernels))

    def _worst(self, weights: Weights, count: int) -> Margins:
        def one(kernel: Array) -> Margins:
            return self.limits.along(episode(self.flow, kernel, weights))

        found = jax.lax.map(one, self.kernels[:count])
        since = found - self.errors[:count]
        return jnp.maximum(jnp.min(found, axis=0), jnp.min(since, axis=0))


class DoubtfulOutcomes(AbstractOutcomes):
    """Outcomes as far from the expected one as all doubt so far allows, times a constant.

    As in Safe-M3-UCRL: a margin may be less by L times the accumulated E|sigma|.

    Attributes:
        doubt: beta sigma of each cell and move, as a share of the farthest move.
        lipschitz: L, of margins as shares of their limits.
    """

    flow: Flow
    actions: Float[Array, "moves action_dim"]
    kernels: Float[Array, "worlds cells moves window"]
    doubt: Float[Array, "cells moves"]
    lipschitz: float = eqx.field(static=True)

    def least(self, weights: Weights) -> Margins:
        """The expected margins minus the doubt so far."""
        mass = self.expected(weights)
        doubts = jnp.einsum("hk,hkm,km->h", mass[:-1], weights, self.doubt)
        return self.limits.along(mass) - self.lipschitz * jnp.cumsum(doubts)[:, None]


def episode(
    flow: Flow,
    kernel: Float[Array, "cells moves window"],
    weights: Weights,
    start: Mass | None = None,
) -> _types.Masses:
    """The population's distributions by a landing kernel, from the problem's start or another."""

    def step(mass: Mass, inputs: tuple[Array, Array]) -> tuple[Mass, Mass]:
        return _after(flow, kernel, mass, *inputs), mass

    problem = flow.problem
    start = problem.initial if start is None else start
    end, before = jax.lax.scan(step, start, (weights, problem.steps))
    return jnp.concatenate([before, end[None]])


def _after(
    flow: Flow, kernel: Array, mass: Mass, weights: Float[Array, "cells moves"], step: Array
) -> Mass:
    """The next distribution by a landing kernel."""
    return flow.ride(mass[:, None] * weights, mass, step, lambda joint: land(flow, joint, kernel))
