r"""What breaking a limit costs while planning: the augmented Lagrangian.

For limits $c(\mu_h) \ge 0$ with multipliers $\lambda \ge 0$ and a weight $\rho$, planning adds

$$-\frac{1}{2 \rho} \sum_h \left( \max(0, \lambda_h - \rho\, c(\mu_h))^2 - \lambda_h^2 \right)$$

to J. It is concave where c is. Its derivative is that of the Lagrangian $J + \lambda' \cdot c$ with
the multipliers $\lambda' = \max(0, \lambda - \rho\, c)$, so the same backward sweep bounds that
Lagrangian over all policies; and for any multipliers this is no less than J of any policy that
keeps the limits.
"""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import _types
from .._types import Mass, Scalar
from ..constraints import Constraints

Margins = Float[Array, "steps margins"]

FALL, FLOOR, GROWTH = 0.65, 0.008, 1.5
"""The break that is no reason yet to raise rho falls by the first factor with every change of the
multipliers, from the whole limit down to the second; where more is left, rho grows by the third."""

USUAL_BREAK, LEAST_BREAK = 0.6, 0.03
"""Limits that are never broken by more than a small share of them count as if they were broken by
the first, and not more than if the greatest break were the second: the entropy can miss 95% of its
greatest value by a twentieth at most, where doors can be overcrowded many times."""


class Prices(eqx.Module):
    """What is charged along an episode.

    Attributes:
        augmented: The augmented Lagrangian minus J.
        plain: The Lagrangian with the multipliers lambda', minus J; limits as they are, not
            tightened.
        slopes: Derivative of both by the distributions mu_0, ..., mu_H.
        margins: c(mu_h) minus what they are tightened by, after each move; infinite where a limit
            need not hold.
        multipliers: lambda'.
    """

    augmented: Scalar
    plain: Scalar
    slopes: _types.Masses
    margins: Margins
    multipliers: Margins

    @property
    def broken(self) -> Scalar:
        """By how much the worst limit is broken, as a share of it; zero if none is."""
        return jnp.maximum(-jnp.min(self.margins), 0.0)

    def fine(self, weight: Scalar) -> Scalar:
        """A price of all breaks that is too high for breaking limits to pay."""
        breaks = jnp.maximum(-self.margins, 0.0)
        return (2 * jnp.max(self.multipliers) + weight) * jnp.sum(breaks)


class Charge(eqx.Module):
    """The multipliers of a problem's limits.

    Attributes:
        constraints: The limits.
        multipliers: lambda, for each move and margin.
        tightened: What margins must be at least, instead of zero.
        weight: rho of limits that can be broken by a large share of them.
        allowed: What the break that is no reason to raise rho has fallen by.
        greatest: The greatest break so far.
    """

    constraints: Constraints
    multipliers: Margins
    tightened: Margins
    weight: Scalar
    allowed: Scalar
    greatest: Scalar

    @classmethod
    def start(
        cls, constraints: Constraints, weight: Scalar, tightened: Margins | None = None
    ) -> "Charge":
        """No multipliers yet."""
        zero = jnp.zeros((constraints.horizon, constraints.size), dtype=weight.dtype)
        least = zero if tightened is None else tightened.astype(weight.dtype)
        return cls(constraints, zero, least, weight, jnp.ones_like(weight), jnp.zeros_like(weight))

    def with_weight(self, weight: Scalar, tighter: Scalar | float = 0.0) -> "Charge":
        """With another rho, and limits that are tighter by this share of them."""
        return replace(self, weight=weight, tightened=self.tightened + tighter)

    def towards(self, prices: Prices, share: float) -> "Charge":
        """With multipliers that go a share of the way to lambda' of an episode."""
        moved = self.multipliers + share * (prices.multipliers - self.multipliers)
        return replace(self, multipliers=moved)

    def repriced(self, prices: Prices) -> "Charge":
        """With the multipliers lambda' of an episode, and more weight if it breaks limits still."""
        greatest = jnp.maximum(prices.broken, self.greatest)
        slow = prices.broken / self.unit > jnp.maximum(self.allowed, FLOOR)
        weight = self.weight * jnp.where(slow, GROWTH, 1.0)
        return replace(
            self,
            multipliers=prices.multipliers,
            weight=weight.astype(self.weight.dtype),
            allowed=FALL * self.allowed,
            greatest=greatest,
        )

    @property
    def unit(self) -> Scalar:
        """A large break of these limits, as a share of them."""
        usual = jnp.clip(self.greatest, LEAST_BREAK, USUAL_BREAK) / USUAL_BREAK
        return jnp.where(self.greatest > 0, usual, 1.0)

    def __call__(self, mass: _types.Masses) -> Prices:
        """What is charged for an episode."""
        return self._prices(mass, augmented=True)

    def linear(self, mass: _types.Masses) -> Prices:
        """The plain Lagrangian of an episode, with the multipliers as they are."""
        return self._prices(mass, augmented=False)

    def _prices(self, mass: _types.Masses, augmented: bool) -> Prices:
        active, rho = jnp.asarray(self.constraints.active), self.weight / self.unit

        def one(after: Mass, held: Array, lam: Array, least: Array) -> tuple[Scalar, Any]:
            raw = self.constraints(after)
            if not augmented:
                new = jnp.where(held, lam, 0.0)
                return jnp.vdot(new, raw), (raw, new)
            new = jnp.where(held, jnp.maximum(lam - rho * (raw - least), 0.0), 0.0)
            paid = jnp.sum(jnp.where(held, lam**2, 0.0) - new**2) / (2 * rho)
            return paid, (raw, new)

        rows = (mass[1:], active, self.multipliers, self.tightened)
        (paid, (raw, new)), slopes = jax.vmap(jax.value_and_grad(one, has_aux=True))(*rows)
        return Prices(
            augmented=jnp.sum(paid),
            plain=jnp.sum(new * raw),
            slopes=jnp.concatenate([jnp.zeros_like(mass[:1]), slopes]),
            margins=jnp.where(active, raw - self.tightened, jnp.inf),
            multipliers=new,
        )
