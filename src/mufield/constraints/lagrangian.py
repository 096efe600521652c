r"""The augmented Lagrangian of a problem's constraints.

For constraints $c(\mu_h) \ge 0$ with multipliers $\lambda \ge 0$ and a weight $\rho$, planning adds

$$-\frac{1}{2 \rho} \sum_h \left( \max(0, \lambda_h - \rho\, c(\mu_h))^2 - \lambda_h^2 \right)$$

to J. It is concave where c is. Its derivative is that of the Lagrangian $J + \lambda' \cdot c$ with
the multipliers $\lambda' = \max(0, \lambda - \rho\, c)$, so the same backward sweep bounds that
Lagrangian over all policies; and for any multipliers this is no less than J of any policy that
satisfies the constraints.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from .._arrays import Margins, Mass, Masses, Scalar
from ..errors import UserError


class InfeasibleError(UserError):
    """No policy, over the listed moves, can satisfy the constraints of a problem."""


class ConstraintRule(eqx.Module):
    """How mirror ascent satisfies constraints; violations are shares of the limits.

    The weight rho grows with the multipliers' updates, and the last sweeps *polish* a plan: with a
    larger rho and larger safety margins they make it feasible.

    Attributes:
        first_weight: rho at the start, relative to the spread of the action values.
        growth: Factor on rho at an update where the relative violation is above a threshold.
        threshold_decay: Factor on that threshold at every update; it begins at 1.
        threshold_floor: Its least value.
        reference: Violation that rho is meant for. Where the greatest violation so far, s, is
            smaller, rho is multiplied by `reference` / s, so that constraints that can only be
            missed slightly, such as the entropy, are held as firmly as others.
        reference_floor: Least s in this formula.
        polish_sweeps: Number of polishing sweeps.
        polish_share: Share of a learner's sweeps that polish.
        polish_weight: Factor on rho in them.
        polish_margin: Share by which constraints are tightened in them, of a large violation.
        polish_rounds: Maximal number of further rounds while the plan is infeasible.
        tolerance: A violation by less than this share counts as none.
        sample_every: Sweeps between two evaluations of a plan in sampled models.
    """

    first_weight: float = 0.15
    growth: float = 1.5
    threshold_decay: float = 0.65
    threshold_floor: float = 0.008
    reference: float = 0.6
    reference_floor: float = 0.03
    polish_sweeps: int = 20
    polish_share: float = 0.25
    polish_weight: float = 10.0
    polish_margin: float = 2e-4
    polish_rounds: int = 6
    tolerance: float = 1e-3
    sample_every: int = 20


class Penalty(eqx.Module):
    """What constraints add to J along an episode.

    Attributes:
        augmented: The augmented Lagrangian minus J.
        plain: The Lagrangian with the multipliers lambda', minus J; without safety margins.
        slopes: Derivative of both by the distributions mu_0, ..., mu_H.
        slack: c(mu_h) minus the safety margins, after each move; infinite where it is not active.
        multipliers: lambda'.
    """

    augmented: Scalar
    plain: Scalar
    slopes: Masses
    slack: Margins
    multipliers: Margins

    @property
    def violation(self) -> Scalar:
        """By how much the worst constraint is violated, as a share of it; zero if none is."""
        return jnp.maximum(-jnp.min(self.slack), 0.0)


class AugmentedLagrangian(eqx.Module):
    """The constraints of a problem and their multipliers.

    Attributes:
        constraints: The function c of one distribution.
        active: Which of them are active after each move, see `Constraints`.
        multipliers: lambda, for each move and margin.
        margin: Safety margin: what c(mu) must be at least, instead of zero.
        weight: rho of constraints that can be violated by a large share of them.
        threshold: Relative violation above which rho grows at the next update.
        greatest: The greatest violation so far.
        rule: When rho grows.
    """

    constraints: Callable[[Mass], Array]
    active: Bool[Array, "*paths steps margins"]
    multipliers: Margins
    margin: Margins
    weight: Scalar
    threshold: Scalar
    greatest: Scalar
    rule: ConstraintRule = eqx.field(static=True)

    def updated(self, penalty: Penalty, share: float = 1.0) -> "AugmentedLagrangian":
        """With multipliers that go a share of the way to lambda' of an episode.

        If they go all the way, rho grows where the violation is above its threshold.
        """
        if share < 1:
            moved = self.multipliers + share * (penalty.multipliers - self.multipliers)
            return replace(self, multipliers=moved)
        threshold = jnp.maximum(self.threshold, self.rule.threshold_floor)
        slow = penalty.violation / self.violation_scale > threshold
        weight = self.weight * jnp.where(slow, self.rule.growth, 1.0)
        return replace(
            self,
            multipliers=penalty.multipliers,
            weight=weight.astype(self.weight.dtype),
            threshold=self.rule.threshold_decay * self.threshold,
            greatest=jnp.maximum(penalty.violation, self.greatest),
        )

    @property
    def violation_scale(self) -> Scalar:
        """The greatest violation so far over `ConstraintRule.reference`; 1 before any violation."""
        rule = self.rule
        found = jnp.clip(self.greatest, rule.reference_floor, rule.reference) / rule.reference
        return jnp.where(self.greatest > 0, found, 1.0)

    def merit(self, value: Scalar, penalty: Penalty) -> Scalar:
        """J minus an exact penalty, so large that no violation pays."""
        violations = jnp.maximum(-penalty.slack, 0.0)
        return value - (2 * jnp.max(penalty.multipliers) + self.weight) * jnp.sum(violations)

    def __call__(self, mass: Masses, *, augmented: bool = True) -> Penalty:
        """What it adds to J of an episode; or the plain Lagrangian, with the multipliers as are."""
        rho = self.weight / self.violation_scale

        def one(after: Mass, active: Array, lam: Array, margin: Array) -> tuple[Scalar, Any]:
            raw = self.constraints(after)
            if not augmented:
                new = jnp.where(active, lam, 0.0)
                return jnp.vdot(new, raw), (raw, new)
            new = jnp.where(active, jnp.maximum(lam - rho * (raw - margin), 0.0), 0.0)
            paid = jnp.sum(jnp.where(active, lam**2, 0.0) - new**2) / (2 * rho)
            return paid, (raw, new)

        rows = (mass[1:], self.active, self.multipliers, self.margin)
        (paid, (raw, new)), slopes = jax.vmap(jax.value_and_grad(one, has_aux=True))(*rows)
        return Penalty(
            augmented=jnp.sum(paid),
            plain=jnp.sum(new * raw),
            slopes=jnp.concatenate([jnp.zeros_like(mass[:1]), slopes]),
            slack=jnp.where(self.active, raw - self.margin, jnp.inf),
            multipliers=new,
        )
