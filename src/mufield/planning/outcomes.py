"""What a plan may lead to: the least margins of limits under all that is held possible.

A learner plans with one motion, an optimistic one, and must keep limits under every other that its
data allow. While mirror ascent climbs, limits are tightened by what the worst outcome falls short
of the planned one.
"""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import _types
from .._types import Mass
from ..constraints import Constraints
from ..flow.charge import Margins
from ..flow.flow import Flow
from ..flow.kernels import land
from ..flow.moves import Weights

SHARES = (
    1.0,
    0.99,
    0.98,
    0.96,
    0.93,
    0.88,
    0.8,
    0.7,
    0.6,
    0.45,
    0.35,
    0.25,
    0.18,
    0.12,
    0.08,
    0.05,
    0.03,
    0.02,
    0.01,
)
"""Shares of a plan that are tried in a mixture with a safe policy."""


class AbstractOutcomes(eqx.Module):
    """What policies over a fixed set of moves may lead to.

    Attributes:
        flow: The flow of the problem, with agents' own actions.
        actions: The moves.
        mean: The landing kernel of the expected motion.
    """

    flow: eqx.AbstractVar[Flow]
    actions: eqx.AbstractVar[Float[Array, "moves action_dim"]]
    mean: eqx.AbstractVar[Float[Array, "cells moves window"]]

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
        return episode(self.flow, self.mean, weights)

    def mixed(self, weights: Weights, safe: Weights) -> tuple[Float[Array, ""], Weights, Margins]:
        """The greatest share of a plan that keeps the limits in a mixture with a safe policy.

        In a mixture a share of the agents follows the plan and the others the safe policy, as far
        as the expected motion can tell who is who.

        Returns:
            The share, zero if none of `SHARES` will do; the mixture; its least margins.
        """
        plan, rest = self.expected(weights)[:-1, :, None], self.expected(safe)[:-1, :, None]

        def mixture(share: Array) -> Weights:
            own, others = share * plan, (1 - share) * rest
            both = own * weights + others * safe
            # Where nobody is expected, the plan, as far as it is followed at all.
            unseen = share * weights + (1 - share) * safe
            met = own + others
            return jnp.where(met > 1e-9, both / jnp.maximum(met, 1e-9), unseen)

        shares = jnp.asarray(SHARES, dtype=weights.dtype)

        def attempt(carry: tuple[Array, ...]) -> tuple[Array, Array, Margins]:
            number = carry[0]
            margins = self.checked(mixture(shares[number]))
            return number + 1, jnp.min(margins) >= 0, margins

        def unkept(carry: tuple[Array, ...]) -> Array:
            number, kept = carry[:2]
            return ~kept & (number < len(SHARES))

        # One after the other from the greatest share on, because the first mostly keeps them.
        number, kept, margins = jax.lax.while_loop(unkept, attempt, attempt((jnp.asarray(0),)))
        share = jnp.where(kept, shares[number - 1], 0.0)
        margins = jax.lax.cond(kept, lambda: margins, lambda: self.checked(safe))
        return share, mixture(share), margins


class DrawnOutcomes(AbstractOutcomes):
    """Outcomes in worlds that were drawn from what a model believes, and in the expected one.

    Attributes:
        worlds: Landing kernels of the drawn motions.
        others: Those of motions that plans are not made for, only checked in: of many plans the
            best looks better than it is in the worlds that it was chosen by.
    """

    flow: Flow
    actions: Float[Array, "moves action_dim"]
    mean: Float[Array, "cells moves window"]
    worlds: Float[Array, "worlds cells moves window"]
    others: Float[Array, "worlds cells moves window"]

    def least(self, weights: Weights) -> Margins:
        """The least margins of any world."""
        return jnp.minimum(self._worst(self.worlds, weights), self._worst(self.mean[None], weights))

    def checked(self, weights: Weights) -> Margins:
        """The same, with the other worlds, too."""
        return jnp.minimum(self.least(weights), self._worst(self.others, weights))

    def _worst(self, kernels: Array, weights: Weights) -> Margins:
        def one(kernel: Array) -> Margins:
            return self.limits.along(episode(self.flow, kernel, weights))

        return jnp.min(jax.lax.map(one, kernels), axis=0)


class DoubtfulOutcomes(AbstractOutcomes):
    """Outcomes as far from the expected one as all doubt so far allows, times a constant.

    As in Safe-M3-UCRL: a margin may be less by L times the accumulated E|sigma|.

    Attributes:
        doubt: beta sigma of each cell and move, as a share of the farthest move.
        lipschitz: L, of margins as shares of their limits.
    """

    flow: Flow
    actions: Float[Array, "moves action_dim"]
    mean: Float[Array, "cells moves window"]
    doubt: Float[Array, "cells moves"]
    lipschitz: float = eqx.field(static=True)

    def least(self, weights: Weights) -> Margins:
        """The expected margins minus the doubt so far."""
        mass = self.expected(weights)
        doubts = jnp.einsum("hk,hkm,km->h", mass[:-1], weights, self.doubt)
        return self.limits.along(mass) - self.lipschitz * jnp.cumsum(doubts)[:, None]


def episode(
    flow: Flow, kernel: Float[Array, "cells moves window"], weights: Weights
) -> _types.Masses:
    """The population's distributions by a landing kernel."""

    def step(mass: Mass, inputs: tuple[Array, Array]) -> tuple[Mass, Mass]:
        now, number = inputs
        after = flow.ride(
            mass[:, None] * now, mass, number, lambda joint: land(flow, joint, kernel)
        )
        return after, mass

    end, before = jax.lax.scan(step, flow.problem.initial, (weights, flow.problem.steps))
    return jnp.concatenate([before, end[None]])
