"""The information of a run's data under a Gaussian process, and the most that is possible."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from ..actions import Box
from ..learning.state import Use, key_after
from ..models.data import Transitions
from ..models.features import FeatureMap, Rows
from ..models.gp import GaussianProcess
from ..models.kernels import AbstractKernel, covariances, variances
from ..models.posterior import Factor, solve_triangular
from ..policies.encoders import Unseen
from ..space.move import GaussianNoise
from .bounds import Log
from .information import (
    cover_allowance,
    gains,
    greedy,
    log_stale_factor,
    most_information,
    stale_bound,
    stale_variances,
)
from .kernel_metric import feature_slopes, kernel_bounds
from .run import RunData

PerEpisode = Float[np.ndarray, "episodes"]


@dataclass(frozen=True, eq=False)
class Prior:
    """The Gaussian process under which information is counted.

    Attributes:
        own: Whether it is the run's own model; otherwise it stands in for an ensemble.
        kernel: The kernel, with the hyperparameters of the last fit.
        noise: Lambda of each axis.
        ratio: The noise's standard deviation over the root of lambda, the greatest of all axes.
        variance: Greatest prior variance; infinite if unknown.
        slopes: Slopes of the kernel metric in state, action and mu, whose greatest is L_d of
            assumption Kernel; None if unknown.
    """

    family: GaussianProcess
    own: bool
    kernel: AbstractKernel
    noise: Float[np.ndarray, "dim"]
    ratio: float
    variance: float
    slopes: dict[str, float] | None


def prior_of(run: RunData) -> Prior | None:
    """The run's Gaussian process, or a default one in an ensemble's place; None without noise."""
    problem, family = run.setup.problem, run.setup.learner.family
    if not isinstance(problem.noise, GaussianNoise) or not any(problem.noise.std):
        return None
    own = isinstance(family, GaussianProcess)
    if not isinstance(family, GaussianProcess):
        family = GaussianProcess(mu=getattr(family, "mu", Unseen()), fit_kernel=False)
    # The key of the last fit, so that the hyperparameters are those of the run.
    key = jax.random.key(run.store.config.seed)
    key = key_after(key, len(run.ends), Use.FIT)
    family, factor = family.settled(run.data, key)
    std = np.asarray(problem.noise.std) / np.asarray(problem.max_move)
    variance, slopes = math.inf, None
    try:
        found = feature_slopes(FeatureMap(problem, family.mu or Unseen()))
        slopes = found.metric_slopes(factor.kernel)
        variance = kernel_bounds(factor.kernel, (), found.reach).variance
    except NotImplementedError:
        pass
    return Prior(
        family=family,
        own=own,
        kernel=factor.kernel,
        noise=factor.noise,
        ratio=float(np.max(std / np.sqrt(factor.noise))),
        variance=variance,
        slopes=slopes,
    )


@dataclass(frozen=True, eq=False)
class Information:
    r"""Information in nats after each episode, summed over the axes.

    Attributes:
        gathered: Information of the run's data.
        least: Information of as many points, chosen greedily: a lower bound of $\gamma$.
        most: Upper bound of $\gamma$ among the candidates.
        everywhere: Upper bound of $\gamma$ over the whole space.
        prior_most: Information of as many independent observations.
        complexity: $I_t$ of the data under the last kernel, in squared units of the space.
        complexity_bound: Bound of the complexity by the data's information.
        prior_complexity: Bound of the complexity by the prior variance alone.
        factor: Logarithm of C with $I_T \le C \gamma$, in the same units.
    """

    gathered: PerEpisode
    least: PerEpisode
    most: PerEpisode
    everywhere: PerEpisode
    prior_most: PerEpisode
    complexity: PerEpisode
    complexity_bound: PerEpisode | None
    prior_complexity: PerEpisode
    factor: Log | None


def information_of(run: RunData, prior: Prior, *, most_exact: int = 3000) -> Information:
    """Counts the information of a run's data and bounds it, axis by axis.

    Up to ``most_exact`` observations it is computed exactly; beyond, with inducing points.
    """
    scales, noises = np.asarray(run.setup.problem.max_move), prior.noise.tolist()
    ends = np.asarray(run.ends)
    points = int(np.max(np.diff(ends, prepend=0)))
    gathered = [_gathered(run, prior, axis, most_exact) for axis in range(len(noises))]
    bound, factor = None, None
    if math.isfinite(prior.variance):
        axes = list(zip(scales.tolist(), noises, gathered, strict=True))
        bound = np.sum(
            [s**2 * stale_bound(n, prior.variance, points, own.information) for s, n, own in axes],
            axis=0,
        )
        factor = max(
            2 * math.log(s) + log_stale_factor(n, prior.variance, points) for s, n, _ in axes
        )
    candidates = _candidates(run, prior)
    table = covariances(prior.kernel, candidates.inputs, candidates.inputs)
    chosen = {noise: greedy(table, noise, int(ends[-1])) for noise in set(noises)}

    def summed(of_axis: Callable[[float, int], float]) -> PerEpisode:
        return np.asarray([sum(of_axis(noise, n) for noise in noises) for n in ends.tolist()])

    def independent(noise: float, count: int) -> float:
        return most_information(count, prior.variance, noise)

    def anywhere(noise: float, count: int) -> float:
        most = independent(noise, count)
        if candidates.radius is None:
            return most
        allowance = cover_allowance(count, candidates.radius, prior.variance, noise)
        return min(most, chosen[noise].upper(count) + allowance)

    return Information(
        gathered=np.cumsum(np.sum([own.information for own in gathered], axis=0)),
        least=summed(lambda noise, count: chosen[noise].lower(count)),
        most=summed(lambda noise, count: chosen[noise].upper(count)),
        everywhere=summed(anywhere),
        prior_most=summed(independent),
        complexity=np.cumsum(scales**2 @ np.stack([own.stale for own in gathered])),
        complexity_bound=bound,
        prior_complexity=np.sum(scales**2) * prior.variance * ends,
        factor=factor,
    )


class _Gathered(NamedTuple):
    """Information that each episode adds on one axis, and its sum of `stale_variances`."""

    information: PerEpisode
    stale: PerEpisode


def _gathered(run: RunData, prior: Prior, axis: int, most_exact: int) -> _Gathered:
    """The information of one axis, episode by episode; censored moves do not count."""
    rows, noise = prior.family.rows(run.data), float(prior.noise[axis])
    seen = rows.observed[:, axis]
    ends = np.cumsum(seen)[np.asarray(run.ends) - 1]
    inputs = rows.inputs[seen]
    if len(inputs) > most_exact:
        return _through_points(prior.kernel, noise, inputs, ends)
    covariance = covariances(prior.kernel, inputs, inputs)
    each = gains(covariance, noise), stale_variances(covariance, noise, ends)
    sums = [np.concatenate([[0.0], np.cumsum(values)])[ends] for values in each]
    return _Gathered(*(np.diff(total, prepend=0.0) for total in sums))


def _through_points(
    kernel: AbstractKernel,
    noise: float,
    inputs: Float[np.ndarray, "rows features"],
    ends: Int[np.ndarray, "episodes"],
) -> _Gathered:
    """`_gathered` with inducing points, for many rows."""
    shape = (len(inputs), 1)
    rows = Rows(inputs, np.zeros(shape), np.ones(shape))
    # Number of inducing points.
    most_inducing = 256
    phi = Factor.of(kernel, np.asarray([noise]), rows, most_inducing).phi
    rest = variances(kernel, inputs) - np.sum(phi**2, axis=1)
    precision = np.eye(phi.shape[1])
    information, stale, before = [], [], 0
    for end in ends.tolist():
        new, known = phi[before:end], np.linalg.cholesky(precision)
        left = rest[before:end] + np.sum(solve_triangular(known, new.T) ** 2, axis=0)
        stale.append(np.sum(np.maximum(left, 0.0)))
        precision = precision + new.T @ new / noise
        after = np.linalg.cholesky(precision)
        information.append(np.sum(np.log(np.diagonal(after) / np.diagonal(known))))
        before = end
    return _Gathered(np.asarray(information), np.asarray(stale))


class _Candidates(NamedTuple):
    """Points spread over the space; any other is within ``radius`` of one, in the kernel metric."""

    inputs: Float[np.ndarray, "rows features"]
    radius: float | None


def _candidates(run: RunData, prior: Prior) -> _Candidates:
    problem = run.setup.problem
    grid, actions = problem.grid, problem.actions
    # Actions of the candidates on each axis, by the number of axes.
    points, half_gap = {1: 9, 2: 5, 3: 3}.get(actions.dim, 2), 0.0
    tried = np.asarray(actions.points(points, border=False), dtype=float)
    if isinstance(actions, Box):
        widths = np.asarray(actions.upper) - np.asarray(actions.lower)
        half_gap = float(np.linalg.norm(widths / points / 2))
    # Candidate points of the greedy choice for the greatest information.
    most_candidates = 400
    stride = max(1, -(-grid.n_cells * len(tried) // most_candidates))
    cells = grid.centres[::stride]
    states = np.repeat(cells, len(tried), axis=0)
    spread = Transitions(
        problem=problem,
        states=states,
        actions=np.tile(tried, (len(cells), 1)),
        next_states=states,
        observed=np.ones(states.shape, dtype=bool),
        mass=run.data.mass,
        moment=np.resize(np.arange(len(run.data.mass)), len(states)),
        step=np.resize(np.arange(problem.horizon), len(states)),
    )
    inputs = prior.family.rows(spread).inputs
    if prior.slopes is None or prior.family.mu != Unseen():
        return _Candidates(inputs, None)
    # From a point to its cell's centre, and from there to the nearest centre that was kept.
    apart = np.linalg.norm(grid.centres[:, None] - cells[None], axis=-1)
    far = 0.5 * float(np.linalg.norm(grid.cell_size)) + float(apart.min(axis=1).max())
    radius = prior.slopes["state"] * far + prior.slopes["action"] * half_gap
    return _Candidates(inputs, radius)
