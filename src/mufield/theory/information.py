r"""Information that noisy observations give about a function, and the complexity that it bounds.

With the covariances $K$ of the function's values at some points and noise of variance $\lambda$,
observing them gains $I = \frac12 \log\det(I + K / \lambda)$ nats. The greatest gain of any $n$
points, which may repeat, is the maximum mutual information $\gamma_n$ (definition
MaximumInformationGain). All variances are of one scalar output; outputs that the prior holds for
independent are bounded one by one and added. The derivations are in docs/theory.md.

Throughout, ``noise`` is $\lambda$, ``variance`` is v, the greatest prior variance, ``count`` is n
and ``points`` the number of observations in an episode.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from ..errors import UserError
from .bounds import Log, log

Covariance = Float[np.ndarray, "points points"]


def gains(covariance: Covariance, noise: float) -> Float[np.ndarray, "points"]:
    r"""What each observation adds to those before it: $\frac12 \log(1 + \sigma_{i-1}^2 / \lambda)$.

    $\sigma_{i-1}$ is the posterior after the first i - 1 observations; the squares on the diagonal
    of the Cholesky factor of $K / \lambda + I$ are $1 + \sigma_{i-1}^2(x_i) / \lambda$.
    """
    # Rounding may bring the square of a point that is known for certain below one.
    return np.asarray(np.maximum(np.log(np.diagonal(_factor(covariance, noise))), 0.0))


def stale_variances(
    covariance: Covariance, noise: float, ends: Int[np.ndarray, "episodes"]
) -> Float[np.ndarray, "points"]:
    r"""Variances $\sigma_{t-1}^2(x_{t,i})$ of each episode's points before any of its observations.

    Their sum is the complexity $I_T$ (eq. complexityMeasure, with the points of the new episode
    as in the proof of theorem main). ``ends`` are the numbers of points after each episode.
    """
    lower = _factor(covariance, noise)
    left = np.array(np.diagonal(covariance), dtype=float)
    start = 0
    for end in np.asarray(ends).tolist():
        # A row of the factor up to the start is the whitened covariance with all data before.
        left[start:end] -= noise * np.sum(lower[start:end, :start] ** 2, axis=1)
        start = end
    return np.asarray(np.maximum(left, 0.0))


@dataclass(frozen=True, eq=False)
class Capacity:
    r"""What greedily chosen observations say of $\gamma_n$ among the candidates.

    The information is monotone and submodular in the set of points, so that choosing greedily
    comes within a factor of $1 - 1/e$ of the greatest.

    Attributes:
        gains: What each chosen observation added.
        chosen: The candidates in the order in which they were chosen.
        left: The most that one more observation could add after each of them.
    """

    gains: Float[np.ndarray, "steps"]
    chosen: Int[np.ndarray, "steps"]
    left: Float[np.ndarray, "steps"]

    def lower(self, count: int) -> float:
        r"""The information of the first n chosen observations: a lower bound of $\gamma_n$."""
        return float(np.sum(self.gains[:count]))

    def submodular(self, count: int) -> float:
        r"""Greedy's guarantee: $\gamma_n \le I_{\text{greedy}} / (1 - 1/e)$."""
        return self.lower(count) / (1 - math.exp(-1))

    def online(self, count: int) -> float:
        r"""The bound of $\gamma_n$ that the choice itself proves, often much sharper.

        By submodularity no set of n observations adds more to the chosen ones than n times the
        most that one can add, after however many of them.
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
    """Chooses observations one by one, always at the candidate that is known least.

    More ``steps`` than n only sharpen `Capacity.online`.
    """
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
    """What n observations can tell at most: as much as if each were independent of the others."""
    return count * 0.5 * math.log1p(max(float(variance), 0.0) / noise)


def cover_allowance(count: int, radius: float, variance: float, noise: float) -> float:
    r"""What n points anywhere can tell more than candidates near them.

    $n (2 \epsilon \sqrt v + \epsilon^2) / (2 \lambda)$ if every point of the space lies within
    $\epsilon$ (``radius``) of a candidate in the kernel metric $d_k$ (assumption Kernel).
    """
    return count * (2 * radius * math.sqrt(variance) + radius**2) / (2 * noise)


def log_stale_factor(noise: float, variance: float, points: int) -> Log:
    r"""Logarithm of C with $I_T \le C \, I$ for episodes of n ``points``.

    $$C = (1 + v / \lambda)^{n - 1} \, \frac{2 v}{\log(1 + v / \lambda)}$$

    With the paper's $\lambda = p H$, $v \le 1$ and $n = p H$ this is less than $2 e p H$, the
    constant of eq. ChodhuryOnlineLemma11Partial. With a lambda of the order of the noise's
    variance it grows exponentially in n.
    """
    if points < 1:
        raise UserError(f"an episode needs at least one observation, got {points}")
    return (points - 1) * math.log1p(variance / noise) + _log_lost(noise, variance)


def stale_bound(
    noise: float, variance: float, points: int, by_episode: Float[np.ndarray, "episodes"]
) -> Float[np.ndarray, "episodes"]:
    r"""Upper bounds of the complexity after each episode, from the data's information.

    The bound of an episode that adds the information $I_s$ is the least of

    - $e^{2 I_s} \cdot \frac{2 v}{\log(1 + v/\lambda)} I_s$, which knows the data,
    - the same with $(1 + v/\lambda)^{n-1}$ in place of $e^{2 I_s}$ (`log_stale_factor`),
    - $n v$, what the prior says.
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
    """Cholesky factor of K / lambda + I: in units of the noise it is of the order of one."""
    _check_noise(noise)
    scaled = np.asarray(covariance, dtype=float) / noise
    return np.asarray(np.linalg.cholesky(scaled + np.eye(len(scaled))))


def _check_noise(noise: float) -> None:
    if not noise > 0:
        raise UserError(f"the noise's variance lambda must be positive, got {noise}")
