"""An episode of a randomised policy over listed moves, with the derivatives of its value."""

import equinox as eqx
from jaxtyping import Array, Float

from .._types import Scalar
from ..constraints.lagrangian import Penalty
from .rollout import Rollout

Weights = Float[Array, "steps cells moves"]


class Sweep(eqx.Module):
    """An episode's flow and the derivatives of its value.

    Attributes:
        rollout: The flow, its rewards and J; up to the bank's error if it interpolates.
        action_values: Derivative of J by the joint mass of each step, cell and move.
        gap: How much J would gain, to first order, from the best response to this flow. If the
            reward is concave in mu, no randomised policy over the moves earns more than J + gap.
            Infinite if the motion depends on mu: then there is no such bound. With constraints:
            gain of the Lagrangian instead of J.
        penalty: What constraints add to the figures, if the problem has them.
        slopes: Derivative of J by the moves themselves, if each step has its own.
    """

    rollout: Rollout
    action_values: Weights
    gap: Scalar
    penalty: Penalty | None = None
    slopes: Float[Array, "steps cells moves action_dim"] | None = None

    @property
    def objective(self) -> Scalar:
        """What an ascent climbs: J, or with constraints the augmented Lagrangian."""
        value = self.rollout.value
        return value if self.penalty is None else value + self.penalty.augmented

    @property
    def upper(self) -> Scalar:
        """The bound of the optimum: J + gap, or with constraints the Lagrangian + gap."""
        bound = self.rollout.value + self.gap
        return bound if self.penalty is None else bound + self.penalty.plain
