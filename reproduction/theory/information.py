r"""Information that noisy observations give about a function, and the complexity that it bounds.

Observing a function at points where its values have the covariances $K$, with noise of variance
$\lambda$, gains $\frac12 \log\det(I + K / \lambda)$ nats. The greatest gain of any $n$ points,
which may repeat, is $\gamma_n$ (definition MaximumInformationGain). Formulas are about one scalar
output; those of several axes are added. The derivations are in docs/theory.md.

In signatures ``noise`` is $\lambda$, ``variance`` is v, the greatest prior variance, ``count`` is
n and ``points`` the number of observations in an episode.
"""

import math
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from mufield.errors import UserError
from mufield.learning.state import Use, key_after
from mufield.models.features import Rows
from mufield.models.gp import GaussianProcess
from mufield.models.posterior import covariances

from .bounds import Log, log
from .run import RunData

Covariance = Float[np.ndarray, "points points"]


def gains(covariance: Covariance, noise: float) -> Float[np.ndarray, "points"]:
    r"""Information of each observation: $\frac12 \log(1 + \sigma_{i-1}^2(x_i) / \lambda)$."""
    # The squares on the factor's diagonal are the arguments of these logarithms. Rounding may bring
    # that of a point that is known for certain below one.
    return np.asarray(np.maximum(np.log(np.diagonal(_factor(covariance, noise))), 0.0))


def stale_variances(
    covariance: Covariance, noise: float, ends: Int[np.ndarray, "episodes"]
) -> Float[np.ndarray, "points"]:
    r"""Variance of each point under the posterior before its episode, $\sigma_{t-1}^2(x_{t,i})$.

    "Stale", because the posterior is updated between episodes only. Their sum is the complexity
    $I_T$ (eq. complexityMeasure). ``ends`` counts the points up to the end of each episode.
    """
    lower = _factor(covariance, noise)
    left = np.array(np.diagonal(covariance), dtype=float)
    start = 0
    for end in np.asarray(ends).tolist():
        # Up to `start`, a row of the factor is the whitened covariance with all earlier points.
        left[start:end] -= noise * np.sum(lower[start:end, :start] ** 2, axis=1)
        start = end
    return np.asarray(np.maximum(left, 0.0))


def most_information(count: int, variance: float, noise: float) -> float:
    """The information of n independent observations; no others give more."""
    return count * 0.5 * math.log1p(max(float(variance), 0.0) / noise)


def log_stale_factor(noise: float, variance: float, points: int) -> Log:
    r"""Logarithm of C such that the complexity is at most C times the information.

    $$C = (1 + v / \lambda)^{n - 1} \, \frac{2 v}{\log(1 + v / \lambda)}$$

    for episodes of n ``points``. With the paper's $\lambda = n$ and $v \le 1$ it is less than
    $2 e n$ (eq. ChodhuryOnlineLemma11Partial); with a small lambda it grows exponentially in n.
    """
    return (points - 1) * math.log1p(variance / noise) + _log_lost(noise, variance)


def stale_bound(
    noise: float, variance: float, points: int, by_episode: Float[np.ndarray, "episodes"]
) -> Float[np.ndarray, "episodes"]:
    r"""Upper bounds of the complexity after each episode, from the information that episodes add.

    As `log_stale_factor`, but an episode that adds the information I has the factor $e^{2 I}$ where
    that is less than $(1 + v/\lambda)^{n-1}$, and contributes at most its prior variance $n v$.
    """
    own = np.asarray(by_episode, dtype=float)
    stale = np.minimum(2 * own, (points - 1) * math.log1p(variance / noise))
    with np.errstate(divide="ignore", over="ignore"):
        bound = np.exp(stale + _log_lost(noise, variance) + np.log(own))
    return np.cumsum(np.minimum(bound, points * variance))


def _log_lost(noise: float, variance: float) -> Log:
    """Logarithm of 2 v / log(1 + v / lambda)."""
    _check_positive(noise, variance)
    return log(2 * variance) - log(math.log1p(variance / noise))


def _factor(covariance: Covariance, noise: float) -> Covariance:
    """Cholesky factor of K / lambda + I."""
    _check_positive(noise)
    scaled = np.asarray(covariance, dtype=float) / noise
    return np.asarray(np.linalg.cholesky(scaled + np.eye(len(scaled))))


def _check_positive(*variances: float) -> None:
    if min(variances) <= 0:
        raise UserError(f"noise and prior variances must be positive, got {variances}")


class Information(NamedTuple):
    r"""Information of a run's data in nats, summed over the axes.

    Attributes:
        gathered: Information of the data.
        capacity: What as many observations with nothing in common would give: it bounds $\gamma$
            among points whose prior variance is no greater than the data's.
        complexity: $I_T$ at the data under the last kernel, in squared units of the space.
        complexity_bound: Its bound by the information of the data.
        prior_complexity: Its bound by the prior variance alone.
        factor: Logarithm of C with $I_T \le C \gamma$, in the same units.
    """

    gathered: float
    capacity: float
    complexity: float
    complexity_bound: float
    prior_complexity: float
    factor: Log


def information_of(run: RunData, most: int = 5000) -> Information | None:
    """The information of the data of a Gaussian process' run, under its last kernel.

    None for other models, without noise, or for more than ``most`` transitions. The prior variance
    is the greatest at the data.
    """
    family, ends = run.setup.learner.family, np.asarray(run.ends)
    if not isinstance(family, GaussianProcess) or len(run.data) > most:
        return None
    key = key_after(jax.random.key(run.store.config.seed), len(ends), Use.FIT)
    features, _, factor, _ = family.solve(run.data, key)  # with the hyperparameters of the last fit
    if not np.all(factor.noise > 0):
        return None
    rows = Rows.of(features, run.data)
    table = covariances(factor.kernel, rows.inputs, rows.inputs)
    variance, points = float(np.max(np.diagonal(table))), int(np.max(np.diff(ends, prepend=0)))
    found = []
    for axis, scale in enumerate(run.setup.problem.max_move):
        noise, seen = float(factor.noise[axis]), rows.observed[:, axis].astype(bool)
        own, stop = table[np.ix_(seen, seen)], np.cumsum(seen)[ends - 1]  # censored moves are out
        gained = np.diff(np.append(0.0, np.cumsum(gains(own, noise)))[stop], prepend=0.0)
        found.append(
            Information(
                gathered=float(gained.sum()),
                capacity=most_information(len(own), variance, noise),
                complexity=scale**2 * float(stale_variances(own, noise, stop).sum()),
                complexity_bound=scale**2 * stale_bound(noise, variance, points, gained)[-1],
                prior_complexity=scale**2 * variance * len(own),
                factor=2 * math.log(scale) + log_stale_factor(noise, variance, points),
            )
        )
    sums = [float(sum(column)) for column in zip(*found, strict=True)]
    return Information(*sums)._replace(factor=max(each.factor for each in found))
