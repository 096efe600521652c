"""Kernel parameters by the marginal likelihood, in double precision."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._types import Key, Scalar
from ..errors import UserError
from .data import buffer_size
from .features import Rows
from .kernels import AbstractKernel

MOST_ROWS = 512
"""Rows that the marginal likelihood is computed on; a random subset of more."""

MOST_STEPS = 60
"""Steps of L-BFGS-B."""

PRIOR_WIDTH = 1.0
"""Standard deviation of the log-normal prior of kernel parameters, around where they start."""

NOISE_PRIOR_WIDTH = 3.0
"""The same for the noise's variance."""

NOISE_START = 0.1
"""Where the scaled noise's variance starts."""

NOISE_BOUNDS = (1e-4, 100.0)
"""Limits of the scaled noise's variance."""


@dataclass(frozen=True)
class Limits:
    """How far a fit may move parameters.

    Attributes:
        length_scale: Least and greatest length scale.
        variance: Least and greatest multiple of every other parameter's start.
    """

    length_scale: tuple[float, float] = (0.1, 30.0)
    variance: tuple[float, float] = (0.25, 4.0)


@dataclass(frozen=True)
class Hyperparameters:
    """A kernel, and lambda of each axis."""

    kernel: AbstractKernel
    noise: Float[np.ndarray, "dim"]


def most_likely(
    kernel: AbstractKernel,
    noise: Float[np.ndarray, "dim"] | None,
    rows: Rows,
    limits: Limits | None,
    key: Key,
) -> Hyperparameters:
    """The parameters of greatest marginal likelihood, times a weak prior.

    Args:
        kernel: Where the search starts; the prior's centre.
        noise: lambda of each axis where it is known, else it is fitted too.
        rows: The data.
        limits: How far the kernel's parameters may move; none keeps the kernel.
        key: Randomness of the subset.
    """
    dim = rows.targets.shape[1]
    learned = noise is None
    start_noise = np.full(dim, NOISE_START) if noise is None else noise
    if not rows.observed.any() or (limits is None and not learned):
        return Hyperparameters(kernel, start_noise)
    free = () if limits is None else free_parameters(kernel)
    ranges = [] if limits is None else [_range(kernel, name, limits) for name in free]
    if learned:
        low, high = (np.full(dim, np.log(bound)) for bound in NOISE_BOUNDS)
        ranges.append(_Range(np.log(start_noise), low, high, np.full(dim, NOISE_PRIOR_WIDTH)))
    first, low, high, width = (np.concatenate(part) for part in zip(*ranges, strict=True))
    sample = _subset(rows, key)

    def loss(vector: Float[np.ndarray, "parameters"]) -> tuple[float, np.ndarray]:
        with jax.enable_x64(True):
            arrays = [jnp.asarray(part) for part in (vector, start_noise, *sample)]
            value, gradient = log_likelihood(kernel, free, learned, *arrays)
        away = (vector - first) / width
        total = -float(value) + 0.5 * float(away @ away)
        return total, -np.asarray(gradient) + away / width

    from scipy.optimize import minimize  # slow to import

    bounds = list(zip(low, high, strict=True))
    found = minimize(
        loss, first, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": MOST_STEPS}
    )
    if not (np.isfinite(found.fun) and np.isfinite(found.x).all()):
        raise UserError(
            f"the marginal likelihood is not finite (loss {found.fun}); raise the noise, or keep "
            "the kernel's parameters with fit_kernel=False"
        )
    best = np.exp(found.x)
    return Hyperparameters(
        kernel=_with_parameters(kernel, free, best[:-dim] if learned else best),
        noise=best[-dim:] if learned else start_noise,
    )


def free_parameters(kernel: AbstractKernel) -> tuple[str, ...]:
    """Names of the parameters that a fit changes."""
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(kernel)]
    # A product's second variance could only be traded for the first one's.
    return tuple(n for n in names if not (".second." in n and n.endswith(".variance")))


@eqx.filter_jit
def log_likelihood(
    kernel: AbstractKernel,
    free: tuple[str, ...],
    learned: bool,
    vector: Array,
    noise: Array,
    inputs: Array,
    targets: Array,
    observed: Array,
) -> tuple[Scalar, Array]:
    """The logarithm of p(y), summed over the axes, and its gradient.

    Args:
        kernel: The kernel.
        free: Names of its parameters that ``vector`` holds.
        learned: Whether ``vector`` also holds lambda of each axis, at its end.
        vector: Logarithms of parameters; the gradient is by these.
        noise: lambda of each axis, unless it is learned.
        inputs: Features of the rows.
        targets: Targets of the rows.
        observed: Which targets count.
    """

    def covariance_at(logs: Array) -> Array:
        return _with_parameters(kernel, free, jnp.exp(logs)).matrix(inputs, inputs)

    dim = noise.shape[0]
    logs = vector[:-dim] if learned else vector
    noise = jnp.exp(vector[-dim:]) if learned else noise
    covariance, pull_back = jax.vjp(covariance_at, logs)
    value, slopes, by_noise = jax.vmap(_axis, in_axes=(None, 0, 1, 1))(
        covariance, noise, targets, observed
    )
    gradient = pull_back(jnp.sum(slopes, axis=0))[0]
    if learned:
        gradient = jnp.concatenate([gradient, by_noise * noise])
    return jnp.sum(value), gradient


def _axis(
    covariance: Array, noise: Scalar, targets: Array, observed: Array
) -> tuple[Scalar, Array, Scalar]:
    """One axis: the log likelihood, and its slopes by the covariances and by lambda.

    The slope (alpha alpha' - A^-1) / 2 costs less than the derivative of a Cholesky factor.
    """
    seen = observed.astype(covariance.dtype)
    both = seen[:, None] * seen
    matrix = covariance * both + jnp.diag(jnp.where(observed, noise, 1.0))
    lower = jnp.linalg.cholesky(matrix)
    inverse = jax.scipy.linalg.cho_solve((lower, True), jnp.eye(len(seen), dtype=lower.dtype))
    y = jnp.where(observed, targets, 0.0)
    alpha = inverse @ y
    constant = 0.5 * jnp.sum(seen) * jnp.log(2 * jnp.pi)
    value = -0.5 * y @ alpha - jnp.sum(jnp.log(jnp.diagonal(lower))) - constant
    slopes = 0.5 * (jnp.outer(alpha, alpha) - inverse) * both
    return value, slopes, jnp.trace(slopes)


class _Range(NamedTuple):
    """Logarithms of a parameter's start and bounds, and the width of its prior."""

    start: np.ndarray
    low: np.ndarray
    high: np.ndarray
    width: np.ndarray


def _range(kernel: AbstractKernel, name: str, limits: Limits) -> _Range:
    leaves = {
        jax.tree_util.keystr(path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(kernel)
    }
    value = np.log(np.asarray(leaves[name], dtype=float)).reshape(-1)
    if name.endswith("length_scale"):
        low, high = (np.full_like(value, np.log(bound)) for bound in limits.length_scale)
    else:
        low, high = (value + np.log(bound) for bound in limits.variance)
    return _Range(np.clip(value, low, high), low, high, np.full_like(value, PRIOR_WIDTH))


def _with_parameters(kernel: AbstractKernel, free: tuple[str, ...], values: Any) -> AbstractKernel:
    """The kernel with ``values``, one after the other, in place of its free parameters."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(kernel)
    changed, used = [], 0
    for path, leaf in leaves:
        if jax.tree_util.keystr(path) in free:
            size = int(np.size(leaf))
            leaf, used = values[used : used + size].reshape(np.shape(leaf)), used + size
        changed.append(leaf)
    result: AbstractKernel = jax.tree.unflatten(structure, changed)
    return result


def _subset(rows: Rows, key: Key) -> Rows:
    """At most `MOST_ROWS` rows, in buffers of a size that rarely changes."""
    count = len(rows.inputs)
    if count > MOST_ROWS:
        chosen = np.sort(np.asarray(jax.random.choice(key, count, (MOST_ROWS,), replace=False)))
        rows = Rows(*(part[chosen] for part in rows))
    missing = buffer_size(len(rows.inputs)) - len(rows.inputs)
    return Rows(*(np.pad(part, ((0, missing), (0, 0))) for part in rows))
