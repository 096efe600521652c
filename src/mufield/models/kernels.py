"""Covariance functions of feature vectors, and priors: recipes that make them for a problem.

A kernel k(x, y) is written for one pair of points.
"""

import math
from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from .._arrays import Scalar, device_array
from ..errors import UserError
from ..policies.encoders import AbstractEncoder
from .features import FeatureMap

Point = Float[Array, "features"]


def _positive(value: ArrayLike) -> Array:
    """A kernel's parameter as an array; raises unless it is positive."""
    if isinstance(value, jax.core.Tracer):
        return jnp.asarray(value, dtype=float)
    if not np.all(np.asarray(value) > 0):
        raise UserError(f"length scales and variances of a kernel must be positive, got {value}")
    return device_array(value)


class AbstractKernel(eqx.Module):
    """k(x, y). All arrays of a kernel are positive parameters that a fit may change."""

    @abstractmethod
    def __call__(self, x: Point, y: Point) -> Scalar:
        """Covariance of the values at two points."""

    def matrix(
        self, xs: Float[Array, "rows features"], ys: Float[Array, "columns features"]
    ) -> Float[Array, "rows columns"]:
        """Covariances of all pairs of rows."""
        return jax.vmap(lambda x: jax.vmap(lambda y: self(x, y))(ys))(xs)

    def __add__(self, other: "AbstractKernel") -> "AbstractKernel":
        return Sum(self, other)

    def __mul__(self, other: "AbstractKernel") -> "AbstractKernel":
        return Product(self, other)


class AbstractStationary(AbstractKernel):
    """Kernels that depend on the distance d alone, measured in length scales.

    Attributes:
        length_scale: One for all features, or one for each.
        variance: Variance of the values.
    """

    length_scale: Float[Any, "*features"] = eqx.field(converter=_positive)
    variance: Float[Any, ""] = eqx.field(converter=_positive, default=1.0)

    @abstractmethod
    def correlation(self, squared: Scalar) -> Scalar:
        """Correlation of the values at two points, by their squared distance."""

    def __call__(self, x: Point, y: Point) -> Scalar:
        """The variance times the correlation."""
        found = self.correlation(_squared_distance(x, y, self.length_scale))
        return found * jnp.asarray(self.variance)


class SquaredExponential(AbstractStationary):
    """Smooth functions: variance * exp(-d^2 / 2)."""

    def correlation(self, squared: Scalar) -> Scalar:
        """exp(-d^2 / 2)."""
        return jnp.exp(-0.5 * squared)


class Matern32(AbstractStationary):
    """Functions with one derivative: variance * (1 + q) exp(-q), q = sqrt(3) d."""

    def correlation(self, squared: Scalar) -> Scalar:
        """(1 + q) exp(-q)."""
        q = math.sqrt(3.0) * _root(squared)
        return (1 + q) * jnp.exp(-q)


class Linear(AbstractKernel):
    """Affine functions: variance * x'y + bias.

    Attributes:
        variance: Variance of the slopes.
        bias: Variance of the value at the origin.
    """

    variance: Float[Any, ""] = eqx.field(converter=_positive, default=1.0)
    bias: Float[Any, ""] = eqx.field(converter=_positive, default=1.0)

    def __call__(self, x: Point, y: Point) -> Scalar:
        """The formula of the class."""
        return jnp.asarray(self.variance) * jnp.sum(x * y) + jnp.asarray(self.bias)


class Sum(AbstractKernel):
    """Covariance of a sum of independent functions."""

    terms: tuple[AbstractKernel, ...]

    def __init__(self, *terms: AbstractKernel):
        self.terms = terms

    def __call__(self, x: Point, y: Point) -> Scalar:
        """The sum of the terms' covariances."""
        return sum((term(x, y) for term in self.terms[1:]), start=self.terms[0](x, y))


class Product(AbstractKernel):
    """Covariance of a product of independent functions.

    A fit leaves the variance of ``second`` as it is, because only the product of both matters.
    """

    first: AbstractKernel
    second: AbstractKernel

    def __call__(self, x: Point, y: Point) -> Scalar:
        """first(x, y) * second(x, y)."""
        return self.first(x, y) * self.second(x, y)


class Select(AbstractKernel):
    """A kernel that sees only the features with the indices ``axes``, in this order."""

    kernel: AbstractKernel
    axes: tuple[int, ...] = eqx.field(static=True)

    def __call__(self, x: Point, y: Point) -> Scalar:
        """kernel(x[axes], y[axes])."""
        return self.kernel(self._seen(x), self._seen(y))

    def _seen(self, x: Point) -> Float[Array, "seen"]:
        first, count = self.axes[0], len(self.axes)
        if self.axes == tuple(range(first, first + count)):
            return x[first : first + count]  # Slices have cheaper gradients than look-ups.
        return x[jnp.asarray(self.axes)]


class AbstractPrior(eqx.Module):
    """What is known of a motion or a reward before the first data."""

    @abstractmethod
    def __call__(self, features: FeatureMap) -> AbstractKernel:
        """The kernel on the features (s, a, mu) of a problem."""

    def parts(self, features: FeatureMap) -> tuple[AbstractKernel, ...] | None:
        """Terms of the kernel: one of state and action, then one for each input of mu.

        None if it is no such sum; then data cannot tell which inputs they need.
        """
        return None


class ControlAffine(AbstractPrior):
    """Moves are nearly proportional to the action: ``drift + gain * a``.

    The gain varies little and slowly with state and mu, and an agent at rest hardly drifts. If the
    noise is much larger than the moves, as in the swarm, this prior needs far fewer data than a
    squared exponential.

    Actions are measured from the middle of their box. Variances are in units of the squared
    farthest move, for actions at the border of the box.

    Attributes:
        gain: Variance of the gain's mean over the space.
        variation: Variance of the gain's changes with state and mu.
        drift: Variance of the motion without an action, both of its mean and of its changes.
        length_scale: Of the changes.
    """

    gain: float = eqx.field(static=True, default=1.0)
    variation: float = eqx.field(static=True, default=0.01)
    drift: float = eqx.field(static=True, default=1e-4)
    length_scale: float = eqx.field(static=True, default=1.0)

    def __call__(self, features: FeatureMap) -> AbstractKernel:
        """A common gain and drift, plus gains and drifts that vary with state and mu."""
        of_state, of_action, of_mu = features.parts
        common = Select(Linear(self.gain, self.drift), of_action)
        local = Select(Linear(self.variation, self.drift), of_action)
        return Sum(common, Product(local, _smooth(of_state + of_mu, self.length_scale)))


class Structured(AbstractPrior):
    """Any motion: a sum of parts, of which the fit finds out how large each is.

    A common response to the action, linear and bent; a drift, a gain and a bent response that
    change smoothly with the place; a drift and a gain that change sharply with it; and for each
    input of mu a drift and a gain that change with it, everywhere alike or by place. A part that
    the data do not need shrinks in the fit, so that simple motions need few data.
    """

    def __call__(self, features: FeatureMap) -> AbstractKernel:
        """The sum of `parts`."""
        return Sum(*self.parts(features))

    def parts(self, features: FeatureMap) -> tuple[AbstractKernel, ...]:
        """Terms of the kernel: one of state and action, then one for each input of mu."""
        of_state, of_action, _ = features.parts

        def linear(gain: float, drift: float) -> Select:
            return Select(Linear(gain, drift), of_action)

        def bent(variance: float) -> Select:
            return _smooth(of_action, 1.0, variance)

        # Variances and length scales are where a fit starts, and the centre of its prior. The unit
        # of variances is the squared farthest move, for actions at the border of their box.
        common = Sum(linear(gain=0.5, drift=0.03), bent(0.03))
        local = Sum(linear(gain=0.1, drift=0.05), bent(0.02))
        smooth = Product(local, _smooth(of_state, 0.7))
        edges = Select(Matern32(np.full(len(of_state), 0.5)), of_state)
        own = Sum(common, smooth, Product(linear(gain=0.02, drift=0.02), edges))

        def of_input(encoder: AbstractEncoder, axes: tuple[int, ...]) -> Sum:
            seen = _smooth(axes, encoder.length_scale)
            everywhere = Product(linear(gain=0.05, drift=0.05 / 3), seen)
            by_place = Product(linear(gain=0.02, drift=0.02 / 3), _smooth(of_state, 0.7))
            return Sum(everywhere, Product(by_place, seen))

        each = zip(features.mu.inputs, features.inputs, strict=True)
        return own, *(of_input(encoder, axes) for encoder, axes in each)


class Additive(AbstractPrior):
    """Rewards are nearly sums of a function of the state, one of the action and one of mu.

    Each is smooth; that of mu also has a linear part. As the parts are learned separately, few
    data tell what agents earn with states, actions and crowds that were never seen together.
    """

    def __call__(self, features: FeatureMap) -> AbstractKernel:
        """The sum of all parts; variances are in units of the variance of the rewards."""
        parts, of_mu = [axes for axes in features.parts if axes], features.parts[-1]
        together = _smooth(tuple(range(features.size)), 2.0, 0.01)  # what is no sum
        linear = [Select(Linear(1.0, 1.0), of_mu)] if of_mu else []
        return Sum(together, *(_smooth(axes, 2.0) for axes in parts), *linear)


def _squared_distance(x: Point, y: Point, length_scale: Float[Array, "*features"]) -> Scalar:
    most_unrolled = 16
    if x.shape[0] > most_unrolled:
        return jnp.sum(((x - y) / length_scale) ** 2)
    # Under vmap this adds a few long vectors, which is faster than many short sums.
    scale = jnp.broadcast_to(length_scale, x.shape)
    terms = [((x[i] - y[i]) / scale[i]) ** 2 for i in range(x.shape[0])]
    return sum(terms, start=jnp.zeros((), dtype=x.dtype))


def _root(squared: Scalar) -> Scalar:
    """The root, with derivative zero, not infinity, at zero: there kernels multiply it by zero."""
    apart = squared > 0
    return jnp.where(apart, jnp.sqrt(jnp.where(apart, squared, 1.0)), 0.0)


def _smooth(axes: tuple[int, ...], length_scale: float, variance: float = 1.0) -> Select:
    return Select(SquaredExponential(np.full(len(axes), length_scale), variance), axes)
