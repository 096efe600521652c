"""Optimism on nodes: which probabilities of successors a credible set allows."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import Action, State
from ..flow.motions import AbstractJointMotion
from ..models.base import AbstractModel, Prediction
from ..space.measure import MeanField


class SuccessorMotion(AbstractJointMotion):
    """On nodes, eta chooses a successor, and the credible set gives it what it can.

    The probability of successor eta - 1 becomes ``mean + share beta sigma``, at most one, and the
    others shrink in proportion; eta = 0 leaves the mean. It is the inner maximisation of UCRL: the
    plan chooses the successor that is worth most.

    Attributes:
        model: The model.
        scale: Share of the credible set that is used. None: twice the share of the epistemic
            variance that one more observation removes, about 2 / (2 + observations): all of it
            where nothing was observed, and the mean where much was.
        action_dim: Number of action axes; what follows them in a joint action is eta.
    """

    model: AbstractModel
    scale: float | None = eqx.field(static=True)
    action_dim: int = eqx.field(static=True)

    def predict(self, state: State, action: Action, mu: MeanField) -> Prediction:
        """The model's prediction."""
        return self.model.predict(state, action, mu)

    def hallucinate(
        self, state: State, prediction: Prediction, eta: Float[Array, "1"]
    ) -> Float[Array, "slots"]:
        """The probabilities of successors."""
        mean, slot = prediction.mean, jnp.round(eta[0]).astype(jnp.int32) - 1
        sigma, noise = prediction.epistemic, prediction.aleatoric
        share: Any = self.scale
        if share is None:
            share = jnp.minimum(2.0 * sigma**2 / (sigma**2 + noise**2), 1.0)
        half = share * self.model.beta_as(mean.dtype) * sigma
        chosen = jnp.arange(len(mean)) == slot
        # Where a node has no such successor, its mean is zero and stays so.
        chosen = chosen & (mean > 0)
        raised = jnp.sum(jnp.where(chosen, jnp.minimum(mean + half, 1.0), 0.0))
        others = jnp.sum(jnp.where(chosen, 0.0, mean))
        shrunk = mean * (1.0 - raised) / jnp.maximum(others, 1e-12)
        return jnp.where(jnp.any(chosen), jnp.where(chosen, raised, shrunk), mean)
