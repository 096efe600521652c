r"""The augmented Lagrangian of a problem's constraints.

For constraints $c(\mu_h) \ge 0$ with multipliers $\lambda \ge 0$ and a weight $\rho$, planning adds

$$-\frac{1}{2 \rho} \sum_h \left( \max(0, \lambda_h - \rho\, c(\mu_h))^2 - \lambda_h^2 \right)$$

to J. It is concave where c is. Its derivative is that of the Lagrangian $J + \lambda' \cdot c$ with
the multipliers $\lambda' = \max(0, \lambda - \rho\, c)$, so the same backward sweep bounds that
Lagrangian over all policies; and for any multipliers this is no less than J of any policy that
satisfies the constraints.
"""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import _types
from .._types import Mass, Scalar
from .constraint import Constraints

Margins = Float[Array, "steps margins"]


class Penalty(eqx.Module):
    """What constraints add to J along an episode.

    Attributes:
        augmented: The augmented Lagrangian minus J.
        plain: The Lagrangian with the multipliers lambda', minus J; without safety margins.
        slopes: Derivative of both by the distributions mu_0, ..., mu_H.
        slack: c(mu_h) minus the safety margins, after each move; infinite where a constraint need
            not hold.
        multipliers: lambda'.
    """

    augmented: Scalar
    plain: Scalar
    slopes: _types.Masses
    slack: Margins
    multipliers: Margins

    @property
    def violation(self) -> Scalar:
        """By how much the worst constraint is violated, as a share of it; zero if none is."""
        return jnp.maximum(-jnp.min(self.slack), 0.0)

    def exact(self, weight: Scalar) -> Scalar:
        """An exact penalty: so large that no violation pays."""
        violations = jnp.maximum(-self.slack, 0.0)
        return (2 * jnp.max(self.multipliers) + weight) * jnp.sum(violations)


class WeightRule(eqx.Module):
    """When the weight rho grows.

    Attributes:
        growth: Factor on rho at an update of the multipliers where the relative violation is above
            a threshold.
        fall: Factor on that threshold at every update, from 1 down to `floor`.
        floor: Its least value.
        reference: rho is divided by the greatest violation so far, clipped to [least, reference],
            relative to this: constraints that can be violated only slightly get a larger rho. The
            entropy can miss 95% of its greatest value by a twentieth at most, where doors can be
            overcrowded many times.
        least: See `reference`.
    """

    growth: float = 1.5
    fall: float = 0.65
    floor: float = 0.008
    reference: float = 0.6
    least: float = 0.03


class AugmentedLagrangian(eqx.Module):
    """The constraints of a problem and their multipliers.

    Attributes:
        constraints: The constraints.
        multipliers: lambda, for each move and margin.
        margin: Safety margin: what c(mu) must be at least, instead of zero.
        weight: rho of constraints that can be violated by a large share of them.
        allowed: Current threshold of the relative violation above which rho grows.
        greatest: The greatest violation so far.
        rule: When rho grows.
    """

    constraints: Constraints
    multipliers: Margins
    margin: Margins
    weight: Scalar
    allowed: Scalar
    greatest: Scalar
    rule: WeightRule = eqx.field(static=True, default=WeightRule())

    @classmethod
    def start(cls, constraints: Constraints, weight: Scalar) -> "AugmentedLagrangian":
        """No multipliers and no margins yet."""
        zero = jnp.zeros((constraints.horizon, constraints.size), dtype=weight.dtype)
        return cls(constraints, zero, zero, weight, jnp.ones_like(weight), jnp.zeros_like(weight))

    def with_weight(self, weight: Scalar, more: Scalar | float = 0.0) -> "AugmentedLagrangian":
        """With another rho, and safety margins that are larger by this share."""
        return replace(self, weight=weight, margin=self.margin + more)

    def towards(self, penalty: Penalty, share: float) -> "AugmentedLagrangian":
        """With multipliers that go a share of the way to lambda' of an episode."""
        moved = self.multipliers + share * (penalty.multipliers - self.multipliers)
        return replace(self, multipliers=moved)

    def updated(self, penalty: Penalty) -> "AugmentedLagrangian":
        """With the multipliers lambda' of an episode, and more weight if it violates too much."""
        slow = penalty.violation / self.unit > jnp.maximum(self.allowed, self.rule.floor)
        weight = self.weight * jnp.where(slow, self.rule.growth, 1.0)
        return replace(
            self,
            multipliers=penalty.multipliers,
            weight=weight.astype(self.weight.dtype),
            allowed=self.rule.fall * self.allowed,
            greatest=jnp.maximum(penalty.violation, self.greatest),
        )

    @property
    def unit(self) -> Scalar:
        """A large violation of these constraints, as a share of them."""
        rule = self.rule
        found = jnp.clip(self.greatest, rule.least, rule.reference) / rule.reference
        return jnp.where(self.greatest > 0, found, 1.0)

    def __call__(self, mass: _types.Masses) -> Penalty:
        """What the augmented Lagrangian adds to J of an episode."""
        return self._penalty(mass, augmented=True)

    def linear(self, mass: _types.Masses) -> Penalty:
        """What the plain Lagrangian adds, with the multipliers as they are."""
        return self._penalty(mass, augmented=False)

    def _penalty(self, mass: _types.Masses, augmented: bool) -> Penalty:
        active, rho = self.constraints.active, self.weight / self.unit

        def one(after: Mass, held: Array, lam: Array, least: Array) -> tuple[Scalar, Any]:
            raw = self.constraints(after)
            if not augmented:
                new = jnp.where(held, lam, 0.0)
                return jnp.vdot(new, raw), (raw, new)
            new = jnp.where(held, jnp.maximum(lam - rho * (raw - least), 0.0), 0.0)
            paid = jnp.sum(jnp.where(held, lam**2, 0.0) - new**2) / (2 * rho)
            return paid, (raw, new)

        rows = (mass[1:], active, self.multipliers, self.margin)
        (paid, (raw, new)), slopes = jax.vmap(jax.value_and_grad(one, has_aux=True))(*rows)
        return Penalty(
            augmented=jnp.sum(paid),
            plain=jnp.sum(new * raw),
            slopes=jnp.concatenate([jnp.zeros_like(mass[:1]), slopes]),
            slack=jnp.where(active, raw - self.margin, jnp.inf),
            multipliers=new,
        )
