r"""Information that noisy observations give about a function, and the complexity that it bounds.

Observing a function at points where its values have the covariances $K$, with noise of variance
$\lambda$, gains $\frac12 \log\det(I + K / \lambda)$ nats. The greatest gain of any $n$ points,
which may repeat, is $\gamma_n$ (definition MaximumInformationGain). Everything here is about one
scalar output; those of several axes are added. The derivations are in docs/theory.md.

In signatures ``noise`` is $\lambda$, ``variance`` is v, the greatest prior variance, ``count`` is
n and ``points`` the number of observations in an episode.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from ..errors import UserError
from .bounds import Log, log

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


@dataclass(frozen=True, eq=False)
class Capacity:
    r"""Bounds of $\gamma_n$ from points that were chosen greedily among candidates.

    Attributes:
        gains: Information that each chosen point added.
        chosen: Indices of the chosen candidates, in order.
        left: After each choice, the most that one more observation could add.
    """

    gains: Float[np.ndarray, "steps"]
    chosen: Int[np.ndarray, "steps"]
    left: Float[np.ndarray, "steps"]

    def lower(self, count: int) -> float:
        r"""A lower bound of $\gamma_n$: the information of the first n chosen points."""
        return float(np.sum(self.gains[:count]))

    def submodular(self, count: int) -> float:
        r"""An upper bound: as information is submodular, greedy reaches $(1 - 1/e) \gamma_n$."""
        return self.lower(count) / (1 - math.exp(-1))

    def online(self, count: int) -> float:
        r"""An upper bound that is often sharper.

        By submodularity, n observations add at most n times what the best single one adds to the
        points chosen so far; the bound is the least over all stages of the choice.
        """
        if count == 0:
            return 0.0
        known = np.concatenate([[0.0], np.cumsum(self.gains)])
        most = np.concatenate([self.gains[:1], self.left])
        return float(np.min(known + count * most))

    def upper(self, count: int) -> float:
        r"""The smaller of the two upper bounds of $\gamma_n$."""
        return min(self.submodular(count), self.online(count))


def greedy(covariance: Covariance, noise: float, steps: int) -> Capacity:
    """Chooses ``steps`` points one by one, always the candidate whose value is known least."""
    _check_noise(noise)
    if len(covariance) == 0 or steps < 0:
        raise UserError(
            f"expected at least one candidate and 0 or more steps, got {len(covariance)} "
            f"and {steps}"
        )
    left = np.array(covariance, dtype=float)
    found, chosen, after = np.zeros(steps), np.zeros(steps, dtype=np.int64), np.zeros(steps)
    for step in range(steps):
        best = int(np.argmax(np.diagonal(left)))
        found[step] = most_information(1, left[best, best], noise)
        chosen[step] = best
        column = left[:, best].copy()
        left -= np.outer(column, column / (noise + max(column[best], 0.0)))
        after[step] = most_information(1, float(np.max(np.diagonal(left))), noise)
    return Capacity(found, chosen, after)


def most_information(count: int, variance: float, noise: float) -> float:
    """The information of n independent observations; no others give more."""
    return count * 0.5 * math.log1p(max(float(variance), 0.0) / noise)


def cover_allowance(count: int, radius: float, variance: float, noise: float) -> float:
    r"""How much more information n points anywhere can give than n of the candidates.

    Every point of the space lies within ``radius`` of a candidate, in the kernel metric $d_k$.
    """
    return count * (2 * radius * math.sqrt(variance) + radius**2) / (2 * noise)


def log_stale_factor(noise: float, variance: float, points: int) -> Log:
    r"""Logarithm of C such that the complexity is at most C times the information.

    $$C = (1 + v / \lambda)^{n - 1} \, \frac{2 v}{\log(1 + v / \lambda)}$$

    for episodes of n ``points``. With the paper's $\lambda = n$ and $v \le 1$ it is less than
    $2 e n$ (eq. ChodhuryOnlineLemma11Partial); with a small lambda it grows exponentially in n.
    """
    if points < 1:
        raise UserError(f"an episode needs at least one observation, got {points}")
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
    if not (noise > 0 and variance > 0):
        raise UserError(
            f"noise and variance must be positive, got {noise} and {variance}; without either "
            "there is nothing to bound"
        )
    return log(2 * variance) - log(math.log1p(variance / noise))


def _factor(covariance: Covariance, noise: float) -> Covariance:
    """Cholesky factor of K / lambda + I."""
    _check_noise(noise)
    scaled = np.asarray(covariance, dtype=float) / noise
    return np.asarray(np.linalg.cholesky(scaled + np.eye(len(scaled))))


def _check_noise(noise: float) -> None:
    if not noise > 0:
        raise UserError(f"the noise's variance lambda must be positive, got {noise}")
