r"""Gaussian processes given data (eqs. GPPosteriorMean and GPPosteriorVariance).

The posterior uses inducing points $u$, chosen among the data. With
$\phi(z) = L_{uu}^{-1} k_u(z)$, the prior is the sum of $\phi(z)^\top \theta$, with independent
standard normal $\theta$, and a rest of variance $k(z, z) - |\phi(z)|^2$, about which data are
assumed to say nothing. The posterior of $\theta$ on an axis has the precision
$A = I + \Phi^\top \Phi / \lambda$ and the mean $A^{-1} \Phi^\top y / \lambda$, where $\Phi$ has the
rows observed on the axis. With as many points as there are distinct rows it is exact.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from jaxtyping import Key as KeyArray

from .._arrays import Action, Key, Scalar, State, device_array
from ..errors import UserError
from ..policies.encoders import Centre, Clock, Here
from ..problem import Motion, Motions
from ..space.measure import MeanField
from .base import AbstractModel, Prediction
from .data import buffer_size
from .features import FeatureMap, Rows, Units
from .kernels import AbstractKernel

LOST_INFORMATION = 1e-4
"""Nats of the data's information that the choice of points may lose on each axis. Directions in
which data add less than this to the precision are left out of predictions and draws."""

ROUNDING = 1e-12
"""Share of a prior variance, or of a precision, below which differences are rounding errors."""


@dataclass(frozen=True)
class Factor:
    """The linear algebra of a posterior, in double precision on the host.

    Attributes:
        noise: Lambda of each axis.
        chosen: Indices of the rows that are inducing points, in the order of their choice.
        phi: phi of all rows; that of the chosen ones is triangular.
        tolerance: Information that may be lost while there is room for more points.
    """

    kernel: AbstractKernel
    noise: Float[np.ndarray, "dim"]
    rows: Rows
    chosen: Int[np.ndarray, "points"]
    phi: Float[np.ndarray, "rows points"]
    tolerance: float

    @classmethod
    def of(
        cls,
        kernel: AbstractKernel,
        noise: Float[np.ndarray, "dim"],
        rows: Rows,
        most: int,
        tolerance: float = LOST_INFORMATION,
        distinct: float = ROUNDING,
    ) -> "Factor":
        """Chooses inducing points among the rows, by pivoted Cholesky, and computes phi of all.

        The next point is always the row that those so far explain least, up to ``most`` of them; it
        must have a share ``distinct`` of its prior variance left, given the others.
        """
        inputs, least = rows.inputs, float(np.min(noise))
        prior = covariances(kernel, inputs)
        phi = np.zeros((len(inputs), min(most, len(inputs))), order="F")
        left = np.maximum(prior, 0.0)
        chosen: list[int] = []
        most_pairs = 1 << 22  # up to so many covariances are computed at once, which is faster
        pairs = covariances(kernel, inputs, inputs) if len(inputs) ** 2 <= most_pairs else None
        for column in range(phi.shape[1]):
            pivot = int(np.argmax(left))
            # Below the second limit only rounding errors are left.
            if np.sum(left) <= 2 * least * tolerance or left[pivot] <= distinct * prior[pivot]:
                break
            row = inputs[pivot : pivot + 1]
            own = covariances(kernel, inputs, row)[:, 0] if pairs is None else pairs[:, pivot]
            found = own - phi[:, :column] @ phi[pivot, :column]
            phi[:, column] = found / np.sqrt(left[pivot])
            phi[chosen, column] = 0.0  # exactly triangular
            chosen.append(pivot)
            left = np.maximum(left - phi[:, column] ** 2, 0.0)
            left[chosen] = 0.0
        index = np.asarray(chosen, dtype=int)
        return cls(kernel, noise, rows, index, phi[:, : len(chosen)], tolerance)

    @property
    def points(self) -> Float[np.ndarray, "points features"]:
        """Inputs of the inducing points."""
        return np.asarray(self.rows.inputs[self.chosen])

    @cached_property
    def precision(self) -> Float[np.ndarray, "dim points points"]:
        """A of each axis."""
        identity = np.eye(len(self.chosen))
        weights = (self.rows.weight / self.noise).T
        return np.stack([identity + (self.phi.T * w) @ self.phi for w in weights])

    @property
    def information_gain(self) -> float:
        """I(f; y), summed over the axes: half of log det A."""
        return float(0.5 * np.sum(np.linalg.slogdet(self.precision)[1]))


class Process(eqx.Module):
    r"""A Gaussian process given data, over feature vectors z, in the precision of planning.

    With $b(z)$ = ``whiten`` $k_u(z)$, the coordinates in those eigenvectors of A that data say
    something about,

        mean(z) = weights . b(z)    and    variance(z) = k(z, z) - |b(z)|^2.

    This stays accurate in single precision, as b is never longer than sqrt(k(z, z)).

    Attributes:
        points: The inducing points u, in a buffer whose size rarely changes.
        whiten: Matrix from covariances with the points to b, for each axis.
        weights: Weights of b in the mean, for each axis.
        deviations: Standard deviations of the weights, given the data, for each axis.
    """

    kernel: AbstractKernel
    points: Float[Array, "points features"]
    whiten: Float[Array, "dim rank points"]
    weights: Float[Array, "dim rank"]
    deviations: Float[Array, "dim rank"]

    @classmethod
    def of(cls, factor: Factor, dtype: Any) -> "Process":
        """The process of a factor, in another precision."""
        from scipy.linalg import solve_triangular  # slow to import

        values, vectors = np.linalg.eigh(factor.precision)
        # Largest first, so that all axes can be cut to one rank.
        values, vectors = values[:, ::-1], vectors[:, :, ::-1]
        growth = np.maximum(values - 1.0, 0.0)
        least = max(factor.tolerance, ROUNDING)
        rank = int(np.max(np.sum(growth > least, axis=1), initial=0))
        values, growth, vectors = values[:, :rank], growth[:, :rank], vectors[:, :, :rank]

        count, dim = len(factor.chosen), len(factor.noise)
        points = np.zeros((buffer_size(count, 64, 4), factor.rows.inputs.shape[1]))
        points[:count] = factor.points
        whiten = np.zeros((dim, buffer_size(rank, 64, 4), len(points)))
        weights, deviations = np.zeros(whiten.shape[:2]), np.zeros(whiten.shape[:2])
        lower, weight = factor.phi[factor.chosen], factor.rows.weight / factor.noise
        pulled = factor.phi.T @ np.where(factor.rows.observed, factor.rows.targets * weight, 0.0)
        for axis in range(dim):
            scaled = vectors[axis] * np.sqrt(growth[axis] / values[axis])
            whiten[axis, :rank, :count] = solve_triangular(lower, scaled, lower=True, trans="T").T
            size = np.sqrt(values[axis] * np.maximum(growth[axis], least))
            weights[axis, :rank] = vectors[axis].T @ pulled[:, axis] / size
        known = growth > LOST_INFORMATION
        deviations[:, :rank] = np.where(known, 1 / np.sqrt(np.where(known, growth, 1.0)), 0.0)
        return cls(
            jax.tree.map(lambda leaf: device_array(leaf, dtype), factor.kernel),
            *(device_array(x, dtype) for x in (points, whiten, weights, deviations)),
        )

    def __call__(self, z: Float[Array, "features"]) -> tuple[Array, Array]:
        """Mean and variance on each axis, at the features of one agent."""
        b = self.whitened(z)
        return jnp.sum(self.weights * b, axis=1), self.kernel(z, z) - jnp.sum(b**2, axis=1)

    def whitened(self, z: Float[Array, "features"]) -> Float[Array, "dim rank"]:
        """b(z), for each axis."""
        return self.whiten @ jax.vmap(lambda point: self.kernel(point, z))(self.points)

    def unexplained(self, z: Float[Array, "features"], b: Float[Array, "dim rank"]) -> Array:
        """The standard deviation that weights of b(z) do not explain, on each axis."""
        explained = jnp.sum((1 + self.deviations**2) * b**2, axis=1)
        return safe_root(self.kernel(z, z) - explained)


class Posterior(AbstractModel):
    """A Gaussian process as a model of a problem's motion, or reward.

    Attributes:
        noise_std: Unscaled standard deviation of the noise.
        evidence: Nats of log likelihood that each input of mu brings, if inputs were searched for.
        needed: Nats from which on an input counts as found; the search's `Search.needed`.
    """

    beta: Scalar
    features: FeatureMap
    units: Units
    noise_std: Float[Array, "outputs"]
    process: Process
    evidence: Float[Array, "inputs"]
    needed: float = eqx.field(static=True)

    @property
    def sees_centre(self) -> bool:
        """Whether no input shows more."""
        return all(isinstance(each, Here | Centre | Clock) for each in self.features.mu.inputs)

    @property
    def finding(self) -> str:
        """The inputs that the data showed to matter, in words; see `mufield.models.Search`."""
        seen = zip(self.features.mu.inputs, np.asarray(self.evidence), strict=False)
        # The own cell's mass is seen without evidence, too.
        return " and ".join(each.words for each, nats in seen if nats >= self.needed)

    def predict(self, state: State, action: Action, mu: MeanField) -> Prediction:
        """Mean and standard deviations for one agent."""
        mean, variance = self.process(self.features(state, action, mu))
        deviation = self.units.rescale(safe_root(variance))
        return Prediction(self.units.decode(state, mean), deviation, self.noise_std)

    def draw(self, key: Key) -> Motion:
        """A motion, or reward, drawn from the process."""
        motions = self.mean_and_draws(key[None])
        return lambda state, action, mu: motions(state, action, mu)[1]

    def mean_and_draws(self, keys: KeyArray[Array, "draws"]) -> Motions:
        """The mean, and draws ``weights . b(z) + rest * unexplained(z)``, with random weights."""
        process = self.process
        shape, dtype = process.weights.shape, process.weights.dtype

        def drawn(key: Key) -> tuple[Array, Array]:
            weight_key, rest_key = jax.random.split(key)
            shift = process.deviations * jax.random.normal(weight_key, shape, dtype)
            return process.weights + shift, jax.random.normal(rest_key, shape[:1], dtype)

        weights, rest = jax.vmap(drawn)(keys)
        # The mean is a draw without a shift and without a rest.
        weights = jnp.concatenate([process.weights[None], weights])
        rest = jnp.concatenate([jnp.zeros_like(rest[:1]), rest])

        def motions(state: State, action: Action, mu: MeanField) -> Float[Array, "motions outputs"]:
            z = self.features(state, action, mu)
            b = process.whitened(z)
            found = jnp.einsum("wdr,dr->wd", weights, b) + rest * process.unexplained(z, b)
            return jax.vmap(lambda each: self.units.decode(state, each))(found)

        return motions


def covariances(
    kernel: AbstractKernel,
    xs: Float[np.ndarray, "rows features"],
    ys: Float[np.ndarray, "columns features"] | None = None,
) -> Float[np.ndarray, "rows *columns"]:
    """Covariances of all pairs, in double precision; without ``ys`` the variances of ``xs``."""

    def padded(points: np.ndarray) -> Array:  # with zeros, to a size that rarely changes
        rows = 1 if len(points) == 1 else buffer_size(len(points))
        return device_array(np.pad(points, ((0, rows - len(points)), (0, 0))))

    if not len(xs):  # nothing need be compiled for it
        return np.zeros(len(xs) if ys is None else (len(xs), len(ys)))
    with jax.enable_x64(True):
        found = _evaluated(kernel, padded(xs), None if ys is None else padded(ys))
    table = np.asarray(found)[: len(xs)] if ys is None else np.asarray(found)[: len(xs), : len(ys)]
    if not np.isfinite(table).all():
        raise UserError(
            f"the kernel {kernel} returned NaN or infinity for the data; keep its parameters "
            "positive and its values bounded"
        )
    return table


@eqx.filter_jit
def _evaluated(kernel: AbstractKernel, xs: Array, ys: Array | None) -> Array:
    return jax.vmap(lambda x: kernel(x, x))(xs) if ys is None else kernel.matrix(xs, ys)


def safe_root(variance: Float[Array, "..."]) -> Float[Array, "..."]:
    """Root of a variance that rounding may have made negative; its derivative stays finite."""
    return jnp.sqrt(jnp.maximum(variance, jnp.finfo(variance.dtype).eps))
