"""The reward that a learner believes in while the true one is hidden from it.

The paper's footnote on unknown rewards: model the reward as the motion is, and be optimistic in
both.
"""

from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp

from .._types import Action, Key, Scalar, State
from ..errors import UserError
from ..models.base import AbstractModel, AbstractModelFamily
from ..models.ensemble import DeepEnsemble
from ..models.gp import GaussianProcess
from ..policies.encoders import LogHere
from ..space.measure import MeanField

REWARD_POINTS = 64
"""Inducing points of a reward: planning pays for each in every cell, with every move, at every
step, because rewards mostly depend on mu and cannot be tabulated."""


class BelievedReward(eqx.Module):
    """m(z) + scale beta sigma(z): the upper edge of the band of rewards, or with scale 0 the mean.

    Optimism about the motion takes a control of its own, eta, because which motion inside the band
    is best depends on where it leads. The reward is added to J as it is, so the best one inside
    the band is always its upper edge: no control is needed.

    Attributes:
        model: The fitted model of the reward.
        scale: Factor on the model's own beta.
    """

    model: AbstractModel
    scale: Scalar

    def __call__(self, state: State, action: Action, mu: MeanField) -> Scalar:
        """What an agent may hope to earn."""
        found = self.model.predict(state, action, mu)
        beta = (self.scale * self.model.beta).astype(state.dtype)
        return (found.mean + beta * found.epistemic)[0]


class DrawnReward(eqx.Module):
    """One reward out of those that the model holds for possible, for Thompson sampling."""

    model: AbstractModel
    key: Key

    def __call__(self, state: State, action: Action, mu: MeanField) -> Scalar:
        """What an agent earns in the drawn world."""
        return jnp.asarray(self.model.draw(self.key)(state, action, mu))[0]


def reward_family(family: AbstractModelFamily) -> AbstractModelFamily:
    """A family for the reward of the same kind and with the same settings, but for what suits it.

    Rewards depend on mu, often through its logarithm; they are nearly sums, and seldom linear. A
    kernel, features or noise that were chosen for the motion do not carry over.
    """
    if isinstance(family, GaussianProcess):
        return replace(
            family,
            kernel=None,
            prior="additive",
            mu=LogHere(),
            noise="known",
            exact_points=0,
            inducing=min(family.inducing, REWARD_POINTS) or REWARD_POINTS,
        )
    if isinstance(family, DeepEnsemble):
        return replace(family, mu=LogHere(), noise="known", curvature=1.0)
    raise UserError(
        f"no model of the hidden reward is known to go with {type(family).__name__}; pass "
        "reward_family, for example GaussianProcess(prior='additive', mu=LogHere())"
    )
