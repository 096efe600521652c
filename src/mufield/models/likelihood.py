r"""Fits kernel parameters by the marginal likelihood, in double precision.

Of a move that a wall stopped all that is known on the stopped axis is that the agent, noise
included, aimed beyond the wall. With the side $d = \pm 1$ and the wall at $t$, its likelihood is
$\Phi(d (f - t) / \sqrt{\lambda})$. Leaving these moves out would teach that walls push: the moves
that reach no wall are those whose noise pointed away from it. Expectation propagation replaces each
likelihood by the Gaussian one that gives the same mean and variance, given all other data.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._arrays import device_array
from .._types import Key, Scalar
from ..errors import UserError
from .data import buffer_size
from .features import Rows
from .kernels import AbstractKernel
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
    """

    kernel: AbstractKernel
    noise: Float[np.ndarray, "dim"]
    sample: Rows | None = None


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


def with_stopped_moves(
    rows: Rows, phi: Float[np.ndarray, "rows points"], noise: Float[np.ndarray, "outputs"]
) -> Rows:
    """The rows with a Gaussian observation for each axis that a wall stopped.

    The function is linear in the coordinates ``phi`` of the rows, with independent standard normal
    weights; ``noise`` is lambda of each axis.
    """
    from scipy.linalg import cho_solve, solve_triangular  # slow to import
    from scipy.special import log_ndtr

    # After eight rounds of expectation propagation the sites hardly change; damped, they converge.
    rounds, damping = 8, 0.8
    side, walls = rows.side, rows.targets
    targets, weight = walls.copy(), np.where(side != 0, 0.0, rows.weight)
    for axis, variance in enumerate(noise):
        stopped = np.flatnonzero(side[:, axis])
        if not len(stopped):
            continue
        own, towards, wall = phi[stopped], side[stopped, axis], walls[stopped, axis]
        share = weight[:, axis] / variance
        precision = np.eye(phi.shape[1]) + (phi.T * share) @ phi
        pulled = phi.T @ (share * walls[:, axis])
        tau, nu = np.zeros(len(stopped)), np.zeros(len(stopped))
        for _ in range(rounds):
            lower = np.linalg.cholesky(precision + (own.T * tau) @ own)
            mean = own @ cho_solve((lower, True), pulled + own.T @ nu)
            spread = np.sum(solve_triangular(lower, own.T, lower=True) ** 2, axis=0)
            # The posterior without the site itself, then what the likelihood makes of it.
            cavity = 1 / np.maximum(1 / spread - tau, 1e-12)
            centre = cavity * (mean / spread - nu)
            total = np.sqrt(variance + cavity)
            z = towards * (centre - wall) / total
            ratio = np.exp(-0.5 * z**2 - 0.5 * np.log(2 * np.pi) - log_ndtr(z))
            after = cavity - (cavity / total) ** 2 * ratio * (z + ratio)
            moved = centre + towards * cavity * ratio / total
            tau += damping * (np.maximum(1 / after - 1 / cavity, 0.0) - tau)
            nu += damping * (moved / after - centre / cavity - nu)
        kept = tau * variance > 1e-6  # what weighs less, in observations, is left out
        weight[stopped, axis] = np.where(kept, tau * variance, 0.0)
        targets[stopped, axis] = np.where(kept, nu / np.where(kept, tau, 1.0), 0.0)
    return Rows(rows.inputs, targets, weight, np.zeros_like(side))
