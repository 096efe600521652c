r"""The complexity $I_T$ (eq. complexityMeasure) and how the information bounds it.

$I_T$ sums $\|\sigma_{t-1}(z)\|^2$, the variance under the *old* posterior, over the points of the
*new* episode. Eq. complexityMeasure prints the points of all episodes up to t, and
eq. ChodhuryOnlineLemma11Partial those up to t - 1. The proof of theorem main needs neither: it
sums over $z_{t,h}$ of episode t alone.

All variances here are of one scalar output; outputs that the prior holds for independent are
bounded one by one and added.
"""

import math

import numpy as np
from jaxtyping import Float

from ..errors import UserError


def stale_factor(noise: float, variance: float, points: int) -> float:
    r"""How much larger, summed up, old variances are than the information of their observations.

    For observations in episodes of n points each, posteriors updated between episodes only:

    $$\sum_{t,i} \sigma_{t-1}^2(x_{t,i}) \le C \, I, \qquad
    C = (1 + v / \lambda)^{n - 1} \, \frac{2 v}{\log(1 + v / \lambda)}$$

    with $v$ the greatest prior variance. First factor: one observation lowers no variance by
    more than $1 + v / \lambda$, and an old posterior lacks at most n - 1 of its episode. Second
    factor: $x \le v \log(1 + x / \lambda) / \log(1 + v / \lambda)$ for $0 \le x \le v$, and the
    information is half the sum of these logarithms (`information.gains`).

    With the paper's $\lambda = p H$, $v \le 1$ and $n = p H$ this is less than $2 e p H$, the
    constant of eq. ChodhuryOnlineLemma11Partial. With a lambda of the order of the noise's
    variance it grows exponentially in n.

    Args:
        noise: Lambda.
        variance: v.
        points: n, observations of the output in an episode.
    """
    if points < 1:
        raise UserError(f"an episode needs at least one observation, got {points}")
    return math.exp(log_stale_factor(noise, variance, points))


def log_stale_factor(noise: float, variance: float, points: int) -> float:
    """Its logarithm, which does not overflow."""
    return (points - 1) * math.log1p(variance / noise) + _log_lost(noise, variance)


def stale_bound(
    noise: float, variance: float, points: int, by_episode: Float[np.ndarray, "episodes"]
) -> Float[np.ndarray, "episodes"]:
    r"""Upper bounds of $\sum_{s \le t} \sum_i \sigma_{s-1}^2(x_{s,i})$ from the data's information.

    What an episode's own observations lower any variance by is at most $e^{2 I_s}$, with the
    information $I_s$ that they add. The bound of each episode is the least of

    - $e^{2 I_s} \cdot \frac{2 v}{\log(1 + v/\lambda)} I_s$, which knows the data,
    - the same with $(1 + v/\lambda)^{n-1}$ in place of $e^{2 I_s}$ (`stale_factor`),
    - $n v$, what the prior says.

    Args:
        noise: Lambda.
        variance: v.
        points: n, observations of the output in an episode.
        by_episode: Information that each episode adds.
    """
    own = np.asarray(by_episode, dtype=float)
    stale = np.minimum(2 * own, (points - 1) * math.log1p(variance / noise))
    with np.errstate(divide="ignore", over="ignore"):
        bound = np.exp(stale + _log_lost(noise, variance) + np.log(own))
    return np.cumsum(np.minimum(bound, points * variance))


def expected_bound(observed: float, most: float, delta: float) -> float:
    r"""Bounds sums of conditional expectations by the sum of what was observed.

    The regret of an episode is bounded by an expectation over its noise, given the past; the
    data are one draw of it. The proof of theorem main passes from one to the other under a full
    expectation, so that strictly it bounds the regret's expectation. For a statement with high
    probability: if $0 \le X_t \le b$, then
    $\mathbb{E}_t[e^{-X_t / b}] \le 1 - (1 - 1/e) \mathbb{E}_t[X_t] / b$, the exponential of
    $\sum_t ((1 - 1/e) \mathbb{E}_t[X_t] - X_t) / b$ is a supermartingale, and by Ville's
    inequality, with probability at least $1 - \delta$ for all T at once,

    $$\sum_{t \le T} \mathbb{E}_t[X_t] \le \frac{e}{e - 1}
    \Big( \sum_{t \le T} X_t + b \log \frac1\delta \Big).$$

    Args:
        observed: The sum of the $X_t$.
        most: b.
        delta: Probability that the bound fails.
    """
    if not 0 < delta < 1:
        raise UserError(f"delta must be between 0 and 1, got {delta}")
    return (observed + most * math.log(1 / delta)) / (1 - math.exp(-1))


def _log_lost(noise: float, variance: float) -> float:
    """Logarithm of 2 v / log(1 + v / lambda)."""
    if not (noise > 0 and variance > 0):
        raise UserError(
            f"noise and variance must be positive, got {noise} and {variance}; without either "
            "there is nothing to bound"
        )
    return math.log(2 * variance) - math.log(math.log1p(variance / noise))
