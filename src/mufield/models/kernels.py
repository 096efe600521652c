"""Covariance functions of feature vectors, written for one pair of points."""

import math
from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from .._types import Scalar
from ..errors import UserError
from .data import buffer_size

Point = Float[Array, "features"]


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


def _positive(value: ArrayLike, name: str) -> Float[Array, "..."]:
    array = jnp.asarray(value, dtype=float)
    if not isinstance(array, jax.core.Tracer) and not bool(jnp.all(array > 0)):
        raise UserError(f"a kernel's {name} must be positive, got {value}")
    return array
