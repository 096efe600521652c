"""Covariance functions of feature vectors, written for one pair of points.

A prior is a recipe that makes a kernel for the features of a problem.
"""

import math
from abc import abstractmethod
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from .._types import Scalar
from ..errors import UserError
from .base import FeatureMap
from .data import buffer_size

Point = Float[Array, "features"]
Scale = float | tuple[float, ...]

MOST_UNROLLED = 16
"""Up to so many features, distances are written out term by term."""

LENGTH_SCALE = 2.0
"""Default length scale: the range of most features, which run from -1 to 1."""


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

    length_scale: Float[Array, "*features"]
    variance: Scalar

    @abstractmethod
    def correlation(self, squared: Scalar) -> Scalar:
        """Correlation of the values at two points, by their squared distance."""

    def __call__(self, x: Point, y: Point) -> Scalar:
        """Covariance of the values at two points."""
        return self.variance * self.correlation(_squared_distance(x, y, self.length_scale))


class SquaredExponential(AbstractStationary):
    """Smooth functions: variance * exp(-d^2 / 2)."""

    def __init__(self, length_scale: ArrayLike, variance: ArrayLike = 1.0):
        self.length_scale = _positive(length_scale, "length_scale")
        self.variance = _positive(variance, "variance")

    def correlation(self, squared: Scalar) -> Scalar:
        """exp(-d^2 / 2)."""
        return jnp.exp(-0.5 * squared)


class Matern32(AbstractStationary):
    """Functions with one derivative: variance * (1 + q) exp(-q), q = sqrt(3) d."""

    def __init__(self, length_scale: ArrayLike, variance: ArrayLike = 1.0):
        self.length_scale = _positive(length_scale, "length_scale")
        self.variance = _positive(variance, "variance")

    def correlation(self, squared: Scalar) -> Scalar:
        """(1 + q) exp(-q)."""
        q = math.sqrt(3.0) * _root(squared)
        return (1 + q) * jnp.exp(-q)


class Matern52(AbstractStationary):
    """Functions with two derivatives: variance * (1 + q + q^2 / 3) exp(-q), q = sqrt(5) d."""

    def __init__(self, length_scale: ArrayLike, variance: ArrayLike = 1.0):
        self.length_scale = _positive(length_scale, "length_scale")
        self.variance = _positive(variance, "variance")

    def correlation(self, squared: Scalar) -> Scalar:
        """(1 + q + q^2 / 3) exp(-q)."""
        q = math.sqrt(5.0) * _root(squared)
        return (1 + q + q**2 / 3) * jnp.exp(-q)


class Linear(AbstractKernel):
    """Affine functions: variance * x'y + bias.

    Attributes:
        variance: Variance of the slopes.
        bias: Variance of the value at the origin.
    """

    variance: Scalar
    bias: Scalar

    def __init__(self, variance: ArrayLike = 1.0, bias: ArrayLike = 1.0):
        self.variance = _positive(variance, "variance")
        self.bias = _positive(bias, "bias")

    def __call__(self, x: Point, y: Point) -> Scalar:
        """Covariance of the values at two points."""
        return self.variance * jnp.sum(x * y) + self.bias


class Sum(AbstractKernel):
    """Covariance of a sum of independent functions."""

    left: AbstractKernel
    right: AbstractKernel

    def __call__(self, x: Point, y: Point) -> Scalar:
        """Covariance of the values at two points."""
        return self.left(x, y) + self.right(x, y)


class Product(AbstractKernel):
    """Covariance of a product of independent functions.

    A fit leaves the variance of ``second`` as it is, because only the product of both matters.
    """

    first: AbstractKernel
    second: AbstractKernel

    def __call__(self, x: Point, y: Point) -> Scalar:
        """Covariance of the values at two points."""
        return self.first(x, y) * self.second(x, y)


class Select(AbstractKernel):
    """A kernel that sees only the features with the indices ``axes``, in this order."""

    kernel: AbstractKernel
    axes: tuple[int, ...] = eqx.field(static=True)

    def __call__(self, x: Point, y: Point) -> Scalar:
        """Covariance of the values at two points."""
        return self.kernel(self._seen(x), self._seen(y))

    def _seen(self, x: Point) -> Float[Array, "seen"]:
        first, count = self.axes[0], len(self.axes)
        if self.axes == tuple(range(first, first + count)):
            return x[first : first + count]  # Slices have cheaper gradients than look-ups.
        return x[jnp.asarray(self.axes)]


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


class Smooth(AbstractPrior):
    """Smooth functions: one squared exponential for state and action, times one for mu if seen.

    Attributes:
        length_scale: One for all features of state and action, or one for each.
        variance: Variance of the values, in units of the squared farthest move.
        mu_length_scale: Length scale of all features of mu.
    """

    length_scale: Scale = eqx.field(static=True, default=LENGTH_SCALE)
    variance: float = eqx.field(static=True, default=0.5)
    mu_length_scale: float = eqx.field(static=True, default=LENGTH_SCALE)

    def __call__(self, features: FeatureMap) -> AbstractKernel:
        """The kernel for the features of a problem."""
        of_state, of_action, of_mu = features.parts
        own = _smooth(of_state + of_action, self.length_scale, self.variance)
        if not of_mu:
            return own.kernel
        return Product(own, Select(SquaredExponential(self.mu_length_scale), of_mu))


class Steered(AbstractPrior):
    """Moves are nearly proportional to the action.

    The factor of proportionality, the gain, varies little and slowly with state and mu, and an
    agent at rest hardly drifts. If the noise is much larger than the moves, as in the swarm, this
    prior needs far fewer data than `Smooth`.

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
    length_scale: Scale = eqx.field(static=True, default=1.0)

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
    length_scale: float = eqx.field(static=True, default=LENGTH_SCALE)

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


def covariances(
    kernel: AbstractKernel,
    xs: Float[np.ndarray, "rows features"],
    ys: Float[np.ndarray, "columns features"],
) -> Float[np.ndarray, "rows columns"]:
    """Covariances of all pairs, in double precision."""
    with jax.enable_x64(True):
        padded = _all_pairs(kernel, _padded(xs), _padded(ys))
    return _checked(kernel, np.asarray(padded)[: len(xs), : len(ys)])


def variances(
    kernel: AbstractKernel, xs: Float[np.ndarray, "rows features"]
) -> Float[np.ndarray, "rows"]:
    """Prior variances, in double precision."""
    with jax.enable_x64(True):
        padded = _variances(kernel, _padded(xs))
    return _checked(kernel, np.asarray(padded)[: len(xs)])


@eqx.filter_jit
def _all_pairs(kernel: AbstractKernel, xs: Array, ys: Array) -> Array:
    return kernel.matrix(xs, ys)


@eqx.filter_jit
def _variances(kernel: AbstractKernel, xs: Array) -> Array:
    return jax.vmap(lambda x: kernel(x, x))(xs)


def _checked(kernel: AbstractKernel, found: np.ndarray) -> np.ndarray:
    if not np.isfinite(found).all():
        raise UserError(
            f"the kernel {kernel} returned NaN or infinity for the data; keep its parameters "
            "positive and its values bounded"
        )
    return found


def _padded(xs: Float[np.ndarray, "rows features"]) -> Array:
    """Adds rows of zeros up to a size that rarely changes; a single row stays single."""
    rows = len(xs) if len(xs) == 1 else buffer_size(len(xs))
    return jnp.asarray(np.concatenate([xs, np.zeros((rows - len(xs), xs.shape[1]))]))


def _smooth(axes: tuple[int, ...], length_scale: Scale, variance: float = 1.0) -> Select:
    scales = jnp.broadcast_to(jnp.asarray(length_scale, dtype=float), (len(axes),))
    return Select(SquaredExponential(scales, variance), axes)


def _squared_distance(x: Point, y: Point, length_scale: Float[Array, "*features"]) -> Scalar:
    if x.shape[0] > MOST_UNROLLED:
        return jnp.sum(((x - y) / length_scale) ** 2)
    # Under vmap this adds a few long vectors, which is faster than many short sums.
    scale = jnp.broadcast_to(length_scale, x.shape)
    terms = [((x[i] - y[i]) / scale[i]) ** 2 for i in range(x.shape[0])]
    return sum(terms, start=jnp.zeros((), dtype=x.dtype))


def _root(squared: Scalar) -> Scalar:
    """The root, with derivative zero, not infinity, at zero: there kernels multiply it by zero."""
    apart = squared > 0
    return jnp.where(apart, jnp.sqrt(jnp.where(apart, squared, 1.0)), 0.0)


def _positive(value: ArrayLike, name: str) -> Float[Array, "..."]:
    array = jnp.asarray(value, dtype=float)
    if not isinstance(array, jax.core.Tracer) and not bool(jnp.all(array > 0)):
        raise UserError(f"a kernel's {name} must be positive, got {value}")
    return array
