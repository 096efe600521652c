r"""Fits kernel parameters by the marginal likelihood, in double precision, and so finds inputs.

Its logarithm is the *evidence*, in nats. By it data show what a motion looks at besides state and
action: the mass of the own cell, the mass around, the population's mean or the step. A prior has
one part for each. As in forward selection, `Search` fits with the first input, then asks what each
of the others would add, and fits again only if one adds much. Where nothing is found, that is one
fit and a few Cholesky factors.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._arrays import Key, Scalar, device_array
from ..errors import UserError
from .data import buffer_size
from .features import Rows, with_stopped_moves
from .kernels import AbstractKernel, Sum
from .posterior import covariances

LEAST_NOISE = 1e-4
"""Least lambda of scaled targets: with less, single precision is not enough."""


class Limits(NamedTuple):
    """Limits of a fit: of length scales, and of the factors by which other parameters change."""

    length_scale: tuple[float, float] = (0.1, 30.0)
    variance: tuple[float, float] = (0.25, 4.0)


class Hyperparameters(NamedTuple):
    """A kernel, and lambda of each axis.

    Attributes:
        sample: The rows that chose them, padded; None if nothing was fitted.
        inputs: Numbers of the inputs of mu that a search found, from 1.
        evidence: Nats that each of them brings.
    """

    kernel: AbstractKernel
    noise: Float[np.ndarray, "dim"]
    sample: Rows | None = None
    inputs: tuple[int, ...] = ()
    evidence: tuple[float, ...] = ()


def most_likely(
    kernel: AbstractKernel,
    noise: Float[np.ndarray, "dim"] | None,
    rows: Rows,
    limits: Limits | None,
    key: Key,
) -> Hyperparameters:
    """The parameters that maximise the marginal likelihood times a weak prior around ``kernel``.

    Without ``noise``, lambda of each axis, it is fitted, too; without ``limits`` the kernel is
    kept. Moves that a wall stopped count as what they say under the first parameters.
    """
    start_noise = np.full(rows.targets.shape[1], 0.1) if noise is None else noise
    if not rows.observed.any() or (limits is None and noise is not None):
        return Hyperparameters(kernel, start_noise)
    values, low, high = _ranges(kernel, limits)
    bounds = [np.full_like(start_noise, b) for b in (LEAST_NOISE, 100.0)]
    lambdas = bounds if noise is None else [noise, noise]
    start = np.concatenate([values, start_noise])
    low, high = np.concatenate([low, lambdas[0]]), np.concatenate([high, lambdas[1]])
    # The prior is log-normal around the first values, wider for the noise than for the kernel.
    width = np.repeat([1.2, 3.0], [len(values), len(start_noise)])
    free, first = low < high, np.log(np.clip(start, low, high))
    # What a stopped move says depends on the noise: as long as that is unknown, nothing.
    known = rows if noise is not None else rows._replace(side=np.zeros_like(rows.side))
    sample = _subset(kernel, known, start_noise, key)

    def loss(vector: Float[np.ndarray, "parameters"]) -> tuple[float, np.ndarray]:
        with jax.enable_x64(True):
            value, slopes = log_likelihood(kernel, *map(device_array, (vector, *sample[:3])))
        away = (vector - first) / width
        total = -float(value) + 0.5 * float(away @ away)
        return total, np.where(free, away / width - np.asarray(slopes), 0.0)

    from scipy.optimize import minimize  # slow to import

    ranges = np.log(np.stack([low, high], axis=1))
    options = {"maxiter": 60, "ftol": 1e-4}  # further steps hardly change predictions
    found = minimize(loss, first, jac=True, method="L-BFGS-B", bounds=ranges, options=options)
    if not (np.isfinite(found.fun) and np.isfinite(found.x).all()):
        raise UserError(
            f"the marginal likelihood is not finite (loss {found.fun}); raise the noise, or keep "
            "the kernel's parameters with fit_kernel=False"
        )
    best = np.where(free, np.exp(found.x), start)
    return Hyperparameters(_with_parameters(kernel, best), best[len(values) :], sample)


@eqx.filter_jit
def log_likelihood(
    kernel: AbstractKernel,
    vector: Float[Array, "parameters"],
    inputs: Float[Array, "rows features"],
    targets: Float[Array, "rows dim"],
    weight: Float[Array, "rows dim"],
) -> tuple[Scalar, Array]:
    """The logarithm of p(y), summed over the axes, and its gradient by ``vector``.

    ``vector`` holds logarithms: of the kernel's parameters, which replace those of ``kernel``, and
    of lambda of each axis.
    """
    dim = targets.shape[1]
    logs, noise = vector[:-dim], jnp.exp(vector[-dim:])
    covariance = _with_parameters(kernel, jnp.exp(logs)).matrix(inputs, inputs)
    # The barriers keep the compiler from computing covariances anew wherever they are used.
    value, slopes, by_noise = jax.vmap(_axis, in_axes=(None, 0, 1, 1))(
        jax.lax.optimization_barrier(covariance), noise, targets, weight
    )
    slope = jax.lax.optimization_barrier(jnp.sum(slopes, axis=0))

    def weighted(logs: Array, row: Array, slope: Array) -> Scalar:
        return jnp.vdot(slope, _with_parameters(kernel, jnp.exp(logs)).matrix(row[None], inputs))

    # Row by row, all that the gradient needs stays in a core's cache: several times faster.
    by_row = jax.lax.map(lambda row: jax.grad(weighted)(logs, *row), (inputs, slope), batch_size=2)
    return jnp.sum(value), jnp.concatenate([jnp.sum(by_row, axis=0), by_noise * noise])


def _axis(
    covariance: Array, noise: Scalar, targets: Array, weight: Array
) -> tuple[Scalar, Array, Scalar]:
    """The log likelihood of one axis, and its derivatives by the covariances and by lambda.

    The formula (alpha alpha' - A^-1) / 2 costs less than differentiating a Cholesky factor.
    """
    observed = weight > 0
    seen = observed.astype(covariance.dtype)
    both = seen[:, None] * seen
    spread = 1 / jnp.where(observed, weight, 1.0)
    matrix = covariance * both + jnp.diag(jnp.where(observed, noise * spread, 1.0))
    lower = jnp.linalg.cholesky(matrix)
    inverse = jax.scipy.linalg.cho_solve((lower, True), jnp.eye(len(seen), dtype=lower.dtype))
    y = jnp.where(observed, targets, 0.0)
    alpha = inverse @ y
    constant = 0.5 * jnp.sum(seen) * jnp.log(2 * jnp.pi)
    value = -0.5 * y @ alpha - jnp.sum(jnp.log(jnp.diagonal(lower))) - constant
    slopes = 0.5 * (jnp.outer(alpha, alpha) - inverse) * both
    return value, slopes, jnp.sum(jnp.diagonal(slopes) * spread)


def _ranges(kernel: AbstractKernel, limits: Limits | None) -> np.ndarray:
    """All parameters of a kernel as one vector, and their least and greatest values in a fit."""
    ranges = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(kernel):
        name, value = jax.tree_util.keystr(path), np.asarray(leaf, dtype=float).reshape(-1)
        low = high = value
        # Of a product's two variances only their product matters.
        traded = ".second." in name and name.endswith(".variance")
        if limits is not None and name.endswith("length_scale"):
            low, high = (np.full_like(value, bound) for bound in limits.length_scale)
        elif limits is not None and not traded:
            low, high = (value * bound for bound in limits.variance)
        ranges.append(np.stack([value, low, high]))
    return np.concatenate(ranges, axis=1)


def _with_parameters(kernel: AbstractKernel, values: Any) -> AbstractKernel:
    """The kernel with other parameters, in the order of `_ranges`."""
    leaves, structure = jax.tree.flatten(kernel)
    shaped, end = [], 0
    for leaf in leaves:
        end += np.size(leaf)
        shaped.append(values[end - np.size(leaf) : end].reshape(np.shape(leaf)))
    return jax.tree.unflatten(structure, shaped)


def _subset(kernel: AbstractKernel, rows: Rows, noise: Float[np.ndarray, "dim"], key: Key) -> Rows:
    """At most 384 rows, padded to a size that rarely changes, with stopped moves."""
    count, most = len(rows.inputs), 384  # the work grows with their cube
    if count > most:
        # Drawn by NumPy: JAX would compile a program for every number of rows.
        draw = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        rows = rows.at(np.sort(draw.choice(count, most, replace=False)))
    if np.any(rows.side):
        covariance = covariances(kernel, rows.inputs, rows.inputs)
        jitter = 1e-9 * (np.trace(covariance) / len(covariance))
        phi = np.linalg.cholesky(covariance + jitter * np.eye(len(covariance)))
        rows = with_stopped_moves(rows, phi, noise)
    return rows.padded(min(buffer_size(len(rows.inputs)), most))


@dataclass(frozen=True)
class Search:
    """What evidence the search asks for, in nats.

    Attributes:
        needed: An input is added if it brings more than this.
        hidden: The first input is hidden if it costs more than this. Without evidence either way it
            is seen, because then the model is unsure; one that does not see it is sure, and perhaps
            wrong. The others are too many for that.
        shares: Sizes at which a part is tried, as shares of its prior variance.
    """

    needed: float = 5.0
    hidden: float = 1.0
    shares: tuple[float, ...] = (1.0, 0.1)

    def __call__(
        self,
        parts: tuple[AbstractKernel, ...],
        noise: Float[np.ndarray, "dim"] | None,
        rows: Rows,
        limits: Limits | None,
        key: Key,
    ) -> Hyperparameters:
        """Fits a sum of kernels, the first of which sees state and action alone.

        The others see one input each. Other arguments are as of `most_likely`; features of ``rows``
        have all inputs.
        """
        if not rows.observed.any():  # plans are faster without mu, and nothing is known of it
            return most_likely(parts[0], noise, rows, limits, key)
        chosen = [1]
        while True:
            kernel = Sum(parts[0], *(parts[i] for i in chosen))
            found = most_likely(kernel, noise, rows, limits, key)
            if found.sample is None:
                return found._replace(inputs=tuple(chosen), evidence=(0.0,) * len(chosen))
            others = [i for i in range(1, len(parts)) if i not in chosen]
            own, *matrices = _matrices((found.kernel, *(parts[i] for i in others)), found.sample)
            gains = [
                max(_evidence(own + share * each, found) for share in self.shares)
                for each in matrices
            ]
            if not gains or max(gains) - _evidence(own, found) < self.needed:
                return self._kept(chosen, found)
            chosen = sorted([*chosen, others[int(np.argmax(gains))]])

    def _kept(self, chosen: list[int], found: Hyperparameters) -> Hyperparameters:
        """The inputs that are worth their cost; the worst one is left out at a time."""
        assert found.sample is not None
        assert isinstance(found.kernel, Sum)
        fitted = found.kernel.terms
        own, *others = _matrices(fitted, found.sample)
        kept = dict(zip(chosen, zip(fitted[1:], others, strict=True), strict=True))
        while True:
            whole = own + sum(matrix for _, matrix in kept.values())
            now = _evidence(whole, found)
            brings = {i: now - _evidence(whole - kept[i][1], found) for i in kept}
            spare = {i: brings[i] - (-self.hidden if i == 1 else self.needed) for i in kept}
            worst = min(spare, key=lambda i: spare[i], default=0)
            if not kept or spare[worst] >= 0:
                kernel = Sum(fitted[0], *(part for part, _ in kept.values()))
                evidence = tuple(brings.values())
                return found._replace(kernel=kernel, inputs=tuple(kept), evidence=evidence)
            del kept[worst]


def _matrices(kernels: tuple[AbstractKernel, ...], sample: Rows) -> list[np.ndarray]:
    with jax.enable_x64(True):
        return [np.asarray(each) for each in _evaluated(kernels, device_array(sample.inputs))]


@eqx.filter_jit
def _evaluated(kernels: tuple[AbstractKernel, ...], inputs: Array) -> list[Any]:
    return [kernel.matrix(inputs, inputs) for kernel in kernels]


def _evidence(covariance: Float[np.ndarray, "rows rows"], found: Hyperparameters) -> float:
    """The log likelihood of the sample, summed over the axes, up to a constant."""
    from scipy.linalg import cholesky, solve_triangular  # slow to import

    assert found.sample is not None
    _, targets, weight, _ = found.sample
    total = 0.0
    for axis, noise in enumerate(found.noise):
        seen = np.flatnonzero(weight[:, axis] > 0)
        matrix = covariance[np.ix_(seen, seen)] + np.diag(noise / weight[seen, axis])
        lower = cholesky(matrix, lower=True, overwrite_a=True, check_finite=False)
        left = solve_triangular(lower, targets[seen, axis], lower=True, check_finite=False)
        total -= 0.5 * float(left @ left) + float(np.log(np.diagonal(lower)).sum())
    return total
