"""Fitted Gaussian processes (eqs. GPPosteriorMean and GPPosteriorVariance)."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._types import Action, Key, Scalar, State
from ..problem import Motion
from ..space.measure import MeanField
from .base import AbstractModel, Prediction
from .data import buffer_size
from .factor import ExactFactor, InducingFactor, Rows, Whitened, solve_triangular
from .features import FeatureMap
from .kernels import AbstractKernel
from .units import Told, Units

SMALLEST_HEAD = 16
"""Points of the smallest head: planning pays for each of them in every cell at every step."""


class Frame(eqx.Module):
    """What lies between a problem's moves and the scaled outputs of a Gaussian process.

    Attributes:
        features: The map to the inputs.
        units: What outputs stand for.
        noise_std: Standard deviation of the noise, unscaled.
    """

    features: FeatureMap
    units: Units
    noise_std: Float[Array, "outputs"]

    def prediction(self, state: State, mean: Told, variance: Told) -> Prediction:
        """The prediction for an agent, of the scaled output's mean and variance."""
        return Prediction(
            mean=self.units.told(state, mean),
            epistemic=self.units.spread(safe_root(variance)),
            aleatoric=self.noise_std,
        )


class Head(eqx.Module):
    """Mean and variance of the scaled outputs, in the form that `factor` describes."""

    kernel: AbstractKernel
    points: Float[Array, "points features"]
    whiten: Float[Array, "dim rank points"]
    weights: Float[Array, "dim rank"]

    @classmethod
    def of(cls, kernel: AbstractKernel, found: Whitened, dtype: Any) -> "Head":
        """Rounds to the precision of planning, padded to sizes that rarely change."""
        count, rank = len(found.points), found.weights.shape[1]
        points = np.zeros((_head_size(count), found.points.shape[1]))
        whiten = np.zeros((len(found.weights), _head_size(rank), len(points)))
        weights = np.zeros(whiten.shape[:2])
        points[:count] = found.points
        whiten[:, :rank, :count] = found.whiten
        weights[:, :rank] = found.weights
        return cls(
            _cast(kernel, dtype), *(jnp.asarray(x, dtype) for x in (points, whiten, weights))
        )

    def __call__(self, z: Float[Array, "features"]) -> tuple[Array, Array]:
        """Mean and variance at the features of one agent."""
        k = covariance_vector(self.kernel, self.points, z)
        b = self.whiten @ k
        mean = jnp.sum(self.weights * b, axis=1)
        return mean, self.kernel(z, z) - jnp.sum(b**2, axis=1)


class ExactPosterior(AbstractModel):
    """The posterior given all transitions.

    Attributes:
        beta: Scale of the confidence band.
        frame: Scales and features.
        head: Mean and variance.
        information_gain: I(f; y) of the data, summed over the axes.
        noise: lambda of each axis.
        targets: Scaled outputs, one row for each of the head's points.
        observed: Which of them count.
    """

    beta: Scalar
    frame: Frame
    head: Head
    information_gain: Scalar
    noise: Float[Array, "dim"]
    targets: Float[Array, "points dim"]
    observed: Bool[Array, "points dim"]

    @classmethod
    def of(cls, factor: ExactFactor, frame: Frame, beta: float) -> "ExactPosterior":
        """The posterior of a factor, in the frame's precision."""
        dtype = frame.units.scale.dtype
        head = Head.of(factor.kernel, factor.whitened(), dtype)
        shape = (len(head.points), len(factor.noise))
        targets, observed = np.zeros(shape), np.zeros(shape, dtype=bool)
        targets[: len(factor.rows.targets)] = factor.rows.targets
        observed[: len(factor.rows.targets)] = factor.rows.observed
        return cls(
            beta=jnp.asarray(beta, dtype),
            frame=frame,
            head=head,
            information_gain=jnp.asarray(factor.information_gain, dtype),
            noise=jnp.asarray(factor.noise, dtype),
            targets=jnp.asarray(targets, dtype),
            observed=jnp.asarray(observed),
        )

    def predict(self, state: State, action: Action, mu: MeanField) -> Prediction:
        """Mean and standard deviations for one agent."""
        mean, variance = self.head(self.frame.features(state, action, mu))
        return self.frame.prediction(state, mean, variance)

    def draw(self, key: Key) -> Motion:
        """A draw through weights on the data's points; on the host, outside of programs."""
        return self.drawable().draw(key)

    def drawable(self) -> "InducingPosterior":
        """The same posterior with as many of the data for inducing points as it needs."""
        used = np.asarray(self.observed).any(axis=1)
        rows = Rows(
            np.asarray(self.head.points, dtype=float)[used],
            np.asarray(self.targets, dtype=float)[used],
            np.asarray(self.observed)[used],
        )
        noise = np.asarray(self.noise, dtype=float)
        factor = InducingFactor.of(self.head.kernel, noise, rows, len(rows.inputs))
        return InducingPosterior.of(factor, self.frame, float(self.beta))


class InducingPosterior(AbstractModel):
    """The posterior through a few inducing points: its cost does not grow with the data.

    Attributes:
        beta: Scale of the confidence band.
        frame: Scales and features.
        head: Mean and variance.
        information_gain: I(f; y) of the data, summed over the axes.
        basis: What turns covariances with the points into phi.
        centre: Mean of the weights theta on phi, of each axis.
        root: Root of their covariance, of each axis.
    """

    beta: Scalar
    frame: Frame
    head: Head
    information_gain: Scalar
    basis: Float[Array, "points points"]
    centre: Float[Array, "dim points"]
    root: Float[Array, "dim points points"]

    @classmethod
    def of(cls, factor: InducingFactor, frame: Frame, beta: float) -> "InducingPosterior":
        """The posterior of a factor, in the frame's precision."""
        dtype = frame.units.scale.dtype
        head = Head.of(factor.kernel, factor.whitened(), dtype)
        count, size, dim = len(factor.points), len(head.points), len(factor.noise)
        identity = np.eye(count)
        basis, centre, root = (
            np.zeros((size, size)),
            np.zeros((dim, size)),
            np.zeros((dim, size, size)),
        )
        basis[:count, :count] = solve_triangular(factor.lower, identity, lower=True)
        for axis, precision in enumerate(factor.precision):
            lower = np.linalg.cholesky(precision)
            inverse = solve_triangular(lower, identity, lower=True)
            root[axis, :count, :count] = inverse.T
            centre[axis, :count] = inverse.T @ (inverse @ factor.pulled[axis])
        return cls(
            jnp.asarray(beta, dtype),
            frame,
            head,
            *(jnp.asarray(x, dtype) for x in (factor.information_gain, basis, centre, root)),
        )

    def predict(self, state: State, action: Action, mu: MeanField) -> Prediction:
        """Mean and standard deviations for one agent."""
        mean, variance = self.head(self.frame.features(state, action, mu))
        return self.frame.prediction(state, mean, variance)

    def draw(self, key: Key) -> Motion:
        """Weights on phi drawn from their posterior, and a multiple of the rest's deviation."""
        weight_key, rest_key = jax.random.split(key)
        normal = jax.random.normal(weight_key, self.centre.shape, self.centre.dtype)
        return DrawnMotion(
            frame=self.frame,
            kernel=self.head.kernel,
            points=self.head.points,
            basis=self.basis,
            theta=self.centre + jnp.einsum("apq,aq->ap", self.root, normal),
            rest=jax.random.normal(rest_key, self.centre.shape[:1], self.centre.dtype),
        )


class DrawnMotion(eqx.Module):
    """A motion drawn from a posterior.

    Attributes:
        frame: Scales and features.
        kernel: The kernel.
        points: The inducing points.
        basis: What turns covariances with the points into phi.
        theta: Weights on phi, of each axis.
        rest: Multiple of the standard deviation that phi leaves unexplained, of each axis.
    """

    frame: Frame
    kernel: AbstractKernel
    points: Float[Array, "points features"]
    basis: Float[Array, "points points"]
    theta: Float[Array, "dim points"]
    rest: Float[Array, "dim"]

    def __call__(self, state: State, action: Action, mu: MeanField) -> Told:
        """Where one agent aims, or what it earns."""
        z = self.frame.features(state, action, mu)
        phi = self.basis @ covariance_vector(self.kernel, self.points, z)
        left = safe_root(self.kernel(z, z) - jnp.sum(phi**2))
        return self.frame.units.told(state, self.theta @ phi + self.rest * left)


def covariance_vector(
    kernel: AbstractKernel, points: Float[Array, "points features"], z: Float[Array, "features"]
) -> Float[Array, "points"]:
    """Covariances of one point with many."""
    return jax.vmap(lambda point: kernel(point, z))(points)


def safe_root(variance: Float[Array, "..."]) -> Float[Array, "..."]:
    """Root of a variance that rounding may have made negative; its derivative stays finite."""
    floor = jnp.finfo(variance.dtype).eps
    return jnp.sqrt(jnp.maximum(variance, floor))


def _head_size(count: int) -> int:
    """A power of two or one and a half times it, so that one point more costs at most half."""
    size = buffer_size(count, SMALLEST_HEAD)
    smaller = 3 * size // 4
    return smaller if size > SMALLEST_HEAD and count <= smaller else size


def _cast(kernel: AbstractKernel, dtype: Any) -> AbstractKernel:
    result: AbstractKernel = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), kernel)
    return result
