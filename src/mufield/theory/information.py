r"""Information that noisy observations give about a function (App. "Gaussian Processes").

With the covariances $K$ of the function's values at some points and noise of variance $\lambda$,
observing them gains $I = \frac12 \log\det(I + K / \lambda)$ nats. The greatest gain of any $n$
points is the maximum mutual information $\gamma_n$ (definition MaximumInformationGain). Finding it
is hard, but the gain is monotone and submodular in the set of points, so that choosing greedily
comes within a factor of $1 - 1/e$.

Points may be chosen again and again: each observation has its own noise.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from ..errors import UserError

Covariance = Float[np.ndarray, "points points"]


def gains(covariance: Covariance, noise: float) -> Float[np.ndarray, "points"]:
    r"""What each observation adds to those before it, by the chain rule.

    $$\tfrac12 \log(1 + \lambda^{-1} \sigma_{i-1}^2(x_i))$$

    where $\sigma_{i-1}$ is the posterior after the first i - 1 observations. Lemma
    Chowdhury2019ConcentrationofanRKHSmember prints $\sigma_{t-1}$ in every term, the posterior
    after all of them, with which the sum would be less than the information; the index must be
    the term's own.

    The squares on the diagonal of the Cholesky factor of $K + \lambda I$ are
    $\lambda + \sigma_{i-1}^2(x_i)$.
    """
    _check_noise(noise)
    # In units of the noise, so that the factor is of the order of one.
    scaled = np.asarray(covariance, dtype=float) / noise
    lower = np.linalg.cholesky(scaled + np.eye(len(scaled)))
    # Rounding may bring a certain point's square below one.
    return np.asarray(np.maximum(np.log(np.diagonal(lower)), 0.0))


def stale_variances(
    covariance: Covariance, noise: float, ends: Int[np.ndarray, "episodes"]
) -> Float[np.ndarray, "points"]:
    r"""Variances $\sigma_{t-1}^2(x_{t,i})$ of each episode's points before any of its observations.

    Args:
        covariance: Prior covariances of all points, in the order of their observation.
        noise: Lambda.
        ends: Number of points after each episode.
    """
    _check_noise(noise)
    matrix = np.asarray(covariance, dtype=float)
    lower = np.linalg.cholesky(matrix + noise * np.eye(len(matrix)))
    left = np.array(np.diagonal(matrix))
    start = 0
    for end in np.asarray(ends).tolist():
        # A row of the factor up to the start is the whitened covariance with all data before.
        left[start:end] -= np.sum(lower[start:end, :start] ** 2, axis=1)
        start = end
    return np.asarray(np.maximum(left, 0.0))


def information_gain(covariance: Covariance, noise: float) -> float:
    r"""$I(y; f) = \frac12 \log\det(I + K / \lambda)$ of the observations together."""
    return float(np.sum(gains(covariance, noise)))


@dataclass(frozen=True, eq=False)
class Capacity:
    r"""What is known of $\gamma_n$, the greatest information of n observations at the candidates.

    Attributes:
        count: n.
        gains: What each greedily chosen observation added; at least n of them.
        chosen: The candidates in the order in which they were chosen.
        left: The most that one more observation could add after each of them.
    """

    count: int
    gains: Float[np.ndarray, "steps"]
    chosen: Int[np.ndarray, "steps"]
    left: Float[np.ndarray, "steps"]

    @property
    def lower(self) -> float:
        """The information of the n observations that were chosen."""
        return float(np.sum(self.gains[: self.count]))

    @property
    def submodular(self) -> float:
        r"""Greedy's guarantee: $\gamma_n \le I_{\text{greedy}} / (1 - 1/e)$."""
        return self.lower / (1 - math.exp(-1))

    @property
    def online(self) -> float:
        """The bound that the choice itself proves, often much sharper.

        By submodularity no set of n observations adds more to the chosen ones than n times the
        most that one can add, after however many of them.
        """
        if self.count == 0:
            return 0.0
        known = np.concatenate([[0.0], np.cumsum(self.gains)])
        most = np.concatenate([self.gains[:1], self.left])
        return float(np.min(known + self.count * most))

    @property
    def upper(self) -> float:
        """The smaller of the two upper bounds."""
        return min(self.submodular, self.online)


def greedy(covariance: Covariance, noise: float, count: int, *, more: int = 0) -> Capacity:
    """Chooses observations one by one, always at the candidate that is known least.

    Args:
        covariance: Prior covariances of the candidates.
        noise: Lambda.
        count: Number of observations n.
        more: Observations chosen beyond n, which only sharpen `Capacity.online`.
    """
    _check_noise(noise)
    if len(covariance) == 0 or count < 0:
        raise UserError(
            f"expected at least one candidate and a count of 0 or more, got {len(covariance)} "
            f"and {count}"
        )
    left = np.array(covariance, dtype=float)
    steps = count + more
    found, chosen, after = np.zeros(steps), np.zeros(steps, dtype=np.int64), np.zeros(steps)
    for step in range(steps):
        best = int(np.argmax(np.diagonal(left)))
        found[step] = _gain(left[best, best], noise)
        chosen[step] = best
        column = left[:, best].copy()
        left -= np.outer(column, column / (noise + max(column[best], 0.0)))
        after[step] = _gain(float(np.max(np.diagonal(left))), noise)
    return Capacity(count, found, chosen, after)


def most_information(count: int, variance: float, noise: float) -> float:
    """What n observations can tell at the very most: as much as if no two had to do with another.

    Args:
        count: n.
        variance: Greatest prior variance.
        noise: Lambda.
    """
    return count * _gain(variance, noise)


def cover_allowance(count: int, radius: float, variance: float, noise: float) -> float:
    r"""What points between the candidates can tell more than the candidates.

    If every point of the space lies within ``radius`` of a candidate in the kernel metric $d_k$
    (assumption Kernel), move n points to their candidates. With features $\phi$ of the kernel,
    $K - K'$ is a sum of two products of matrices with rows of length up to $\epsilon$ and
    $\sqrt v$, and one with both up to $\epsilon$; its trace norm is at most
    $n (2 \epsilon \sqrt v + \epsilon^2)$. The logarithm of the determinant is concave, so that

    $$\gamma_n(Z) \le \gamma_n(\text{candidates})
    + n \frac{2 \epsilon \sqrt v + \epsilon^2}{2 \lambda}.$$

    Args:
        count: n.
        radius: Epsilon.
        variance: v, the greatest prior variance.
        noise: Lambda.
    """
    return count * (2 * radius * math.sqrt(variance) + radius**2) / (2 * noise)


def _gain(variance: float, noise: float) -> float:
    return 0.5 * math.log1p(max(float(variance), 0.0) / noise)


def _check_noise(noise: float) -> None:
    if not noise > 0:
        raise UserError(f"the noise's variance lambda must be positive, got {noise}")
