"""What is known of a motion or a reward before the first data: recipes that make kernels."""

from abc import abstractmethod
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp

from .features import FeatureMap
from .kernels import AbstractKernel, Linear, Matern32, Product, Select, SquaredExponential, Sum


class AbstractPrior(eqx.Module):
    """What is known of a motion or a reward before the first data: a kernel on (s, a, mu).

    Attributes:
        finds_mu: Whether its kernels are sums whose right part is all that depends on mu, so that
            a fit can tell whether the data need it.
    """

    finds_mu: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, features: FeatureMap) -> AbstractKernel:
        """The kernel for the features of a problem."""


class Steered(AbstractPrior):
    """Moves are nearly proportional to the action.

    The factor of proportionality, the gain, varies little and slowly with state and mu, and an
    agent at rest hardly drifts. If the noise is much larger than the moves, as in the swarm, this
    prior needs far fewer data than a squared exponential.

    Actions are measured from the middle of their box. Variances are in units of the squared
    farthest move, for actions at the border of the box.

    Attributes:
        gain: Variance of the gain's mean over the space.
        variation: Variance of the gain's changes with state and mu.
        drift: Variance of the motion without an action, both of its mean and of its changes.
        length_scale: Length scale of the changes: one for all features, or one for each.
    """

    gain: float = eqx.field(static=True, default=1.0)
    variation: float = eqx.field(static=True, default=0.01)
    drift: float = eqx.field(static=True, default=1e-4)
    length_scale: float | tuple[float, ...] = eqx.field(static=True, default=1.0)

    def __call__(self, features: FeatureMap) -> AbstractKernel:
        """The kernel for the features of a problem."""
        of_state, of_action, of_mu = features.parts
        common = Select(Linear(self.gain, self.drift), of_action)
        local = Select(Linear(self.variation, self.drift), of_action)
        return Sum(common, Product(local, _smooth(of_state + of_mu, self.length_scale)))


class Structured(AbstractPrior):
    """Any motion: a sum of parts, of which the data show how large each is.

    A common response to the action, linear and bent; a drift, a gain and a bent response that
    change smoothly with the place; a drift and a gain that change sharply with it; and, if mu is
    seen, a drift and a gain that change with the crowd, everywhere alike or by place. A part that
    the data do not need shrinks in the fit, so that simple motions need few data.

    Variances are in units of the squared farthest move, for actions at the border of their box.

    Attributes:
        gain: Variance of the common gain: how far an action carries.
        drift: Variance of the common drift, the motion without an action.
        bend: Variance of what is not linear in the action.
        local_gain: Variance of the gain's smooth changes with the place.
        local_drift: Variance of the drift's.
        local_bend: Variance of the bent response's.
        sharp: Variance of sharp changes of the gain, and of the drift.
        crowd: Variance of the gain's changes with mu; a third of it is that of the drift's.
        local_crowd: Variance of those changes' own changes with the place.
        place_scale: Length scale of smooth changes with the place.
        sharp_scale: Length scale of sharp ones.
        action_scale: Length scale of bent responses.
        crowd_scale: Length scale in the features of mu.
    """

    gain: float = eqx.field(static=True, default=0.5)
    drift: float = eqx.field(static=True, default=0.03)
    bend: float = eqx.field(static=True, default=0.03)
    local_gain: float = eqx.field(static=True, default=0.1)
    local_drift: float = eqx.field(static=True, default=0.05)
    local_bend: float = eqx.field(static=True, default=0.02)
    sharp: float = eqx.field(static=True, default=0.02)
    crowd: float = eqx.field(static=True, default=0.05)
    local_crowd: float = eqx.field(static=True, default=0.02)
    place_scale: float = eqx.field(static=True, default=0.7)
    sharp_scale: float = eqx.field(static=True, default=0.5)
    action_scale: float = eqx.field(static=True, default=1.0)
    crowd_scale: float = eqx.field(static=True, default=2.0)

    finds_mu: ClassVar[bool] = True

    def __call__(self, features: FeatureMap) -> AbstractKernel:
        """The kernel for the features of a problem; the part of mu is the right one of its sum."""
        of_state, of_action, of_mu = features.parts

        def linear(gain: float, drift: float) -> Select:
            return Select(Linear(gain, drift), of_action)

        def bent(variance: float) -> Select:
            return _smooth(of_action, self.action_scale, variance)

        common = Sum(linear(self.gain, self.drift), bent(self.bend))
        local = Sum(linear(self.local_gain, self.local_drift), bent(self.local_bend))
        smooth = Product(local, _smooth(of_state, self.place_scale))
        scales = jnp.full(len(of_state), self.sharp_scale)
        sharp = Product(linear(self.sharp, self.sharp), Select(Matern32(scales), of_state))
        own = Sum(Sum(common, smooth), sharp)
        if not of_mu:
            return own
        seen = _smooth(of_mu, self.crowd_scale)
        everywhere = Product(linear(self.crowd, self.crowd / 3), seen)
        here = linear(self.local_crowd, self.local_crowd / 3)
        by_place = Product(Product(here, _smooth(of_state, self.place_scale)), seen)
        return Sum(own, Sum(everywhere, by_place))


class Additive(AbstractPrior):
    """Rewards are nearly sums of a function of the state, one of the action and one of mu.

    Each is smooth; that of mu also has a linear part. As the parts are learned separately, few
    data tell what agents earn with states, actions and crowds that were never seen together.

    Variances are in units of the variance of the rewards.

    Attributes:
        variance: Variance of each part.
        slope: Variance of the slopes in the features of mu.
        joint: Variance of what is not a sum of such parts.
        length_scale: Length scale of all features.
    """

    variance: float = eqx.field(static=True, default=1.0)
    slope: float = eqx.field(static=True, default=1.0)
    joint: float = eqx.field(static=True, default=0.01)
    length_scale: float = eqx.field(static=True, default=2.0)

    def __call__(self, features: FeatureMap) -> AbstractKernel:
        """The kernel for the features of a problem."""
        everything = tuple(range(features.size))
        kernel: AbstractKernel = _smooth(everything, self.length_scale, self.joint)
        for axes in features.parts:
            if axes:
                kernel = Sum(kernel, _smooth(axes, self.length_scale, self.variance))
        of_mu = features.parts[-1]
        if of_mu:
            kernel = Sum(kernel, Select(Linear(self.slope, self.variance), of_mu))
        return kernel


def _smooth(
    axes: tuple[int, ...], length_scale: float | tuple[float, ...], variance: float = 1.0
) -> Select:
    scales = jnp.broadcast_to(jnp.asarray(length_scale, dtype=float), (len(axes),))
    return Select(SquaredExponential(scales, variance), axes)
