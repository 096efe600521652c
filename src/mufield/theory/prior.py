"""The Gaussian process under which a run's information is counted."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..learning.m3ucrl import FIT
from ..models.base import AbstractModelFamily
from ..models.data import Transitions
from ..models.features import FeatureMap
from ..models.gp import GaussianProcess
from ..models.kernels import AbstractKernel, covariances
from ..policies.encoders import Unseen
from ..problem import Motion
from ..space.measure import mean_field_at
from ..space.noise import GaussianNoise
from .evidence import RunData
from .kernel_slope import feature_slopes, greatest_variance

JITTER = 1e-6
"""Epsilon of `norm_estimate`, as a share of the prior variance."""


@dataclass(frozen=True, eq=False)
class Prior:
    """The Gaussian process under which information is counted.

    Attributes:
        family: Its settings.
        own: Whether it is the run's own model; else it was nominated for an ensemble.
        kernel: The kernel, with the hyperparameters of the last fit.
        noise: Lambda of each axis.
        ratio: Greatest standard deviation of the noise over the root of lambda, scaled alike.
        variance: Greatest prior variance; infinite where it is not known.
        slopes: Slopes of the kernel metric in state, action and mu; None where not known.
    """

    family: GaussianProcess
    own: bool
    kernel: AbstractKernel
    noise: Float[np.ndarray, "dim"]
    ratio: float
    variance: float
    slopes: dict[str, float] | None

    @property
    def slope(self) -> float | None:
        """$L_d$ of assumption Kernel."""
        return None if self.slopes is None else max(self.slopes.values())


def prior_of(run: RunData) -> Prior | None:
    """The run's Gaussian process, or one nominated in an ensemble's place; None without noise."""
    problem, family = run.setup.problem, run.setup.learner.family
    own = isinstance(family, GaussianProcess)
    if not isinstance(problem.noise, GaussianNoise) or not any(problem.noise.std):
        return None
    process = _nominated(family)
    key = run.state_after(0).key
    # The key of the last fit, so that the hyperparameters are those of the run.
    key = jax.random.fold_in(jax.random.fold_in(key, len(run.ends)), FIT)
    factor = process.factor(run.data, key)
    std = np.asarray(problem.noise.std) / np.asarray(problem.max_move)
    features = FeatureMap(problem, process.mu)
    try:
        found = feature_slopes(features)
        variance = greatest_variance(factor.kernel, found.reach)
        slopes: dict[str, float] | None = found.metric_slopes(factor.kernel)
    except NotImplementedError:
        variance, slopes = float("inf"), None
    return Prior(
        family=process,
        own=own,
        kernel=factor.kernel,
        noise=factor.noise,
        ratio=float(np.max(std / np.sqrt(factor.noise))),
        variance=variance,
        slopes=slopes,
    )


def norm_estimate(prior: Prior, motion: Motion, data: Transitions) -> float:
    r"""A lower bound of the true motion's norm in the kernel's space, over all axes.

    $g^\top (K + \epsilon I)^{-1} g$ at some points is at most $\|g\|_k^2$, for any epsilon.

    Args:
        prior: The kernel.
        motion: The true motion.
        data: Where it is looked at.
    """
    problem = data.problem
    dtype = problem.initial.dtype

    def moved(state: Array, action: Array, mass: Array) -> Array:
        mu = mean_field_at(problem.grid, mass, state)
        return problem.grid.displacement(state, motion(state, action, mu))

    places = (data.states, data.actions, data.mass[data.moment])
    values = jax.vmap(moved)(*(jnp.asarray(each, dtype) for each in places))
    g = np.asarray(values, dtype=float) / np.asarray(problem.max_move)
    rows = prior.family.rows(data)
    covariance = covariances(prior.kernel, rows.inputs, rows.inputs)
    epsilon = JITTER * float(np.mean(np.diagonal(covariance)))
    solved = np.linalg.solve(covariance + epsilon * np.eye(len(g)), g)
    return float(np.sqrt(max(0.0, np.sum(g * solved))))


def _nominated(family: AbstractModelFamily) -> GaussianProcess:
    if isinstance(family, GaussianProcess):
        return family
    return GaussianProcess(mu=getattr(family, "mu", Unseen()), hyperparameters="fixed")
