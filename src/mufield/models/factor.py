"""The linear algebra of Gaussian processes, in double precision on the host.

Both factors bring the posterior to the same form. With k(z) the covariances of a point z with the
``points`` and, on each axis, b(z) = whiten @ k(z),

    mean(z) = weights . b(z)    and    variance(z) = k(z, z) - |b(z)|^2.

Rounded to single precision this form stays accurate: b is never longer than sqrt(k(z, z)).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from .kernels import AbstractKernel, covariances, variances

Matrix = Float[np.ndarray, "rows columns"]
Points = Float[np.ndarray, "rows features"]

LOST_INFORMATION = 1e-4
"""Nats of the data's information, on each axis, that inducing points may lose; also the growth of
the precision up to which a direction is left out of predictions."""

ROUNDING = 1e-12
"""Share of a prior variance, or of a precision, below which differences are rounding."""


class Rows(NamedTuple):
    """Inputs and scaled targets; where ``observed`` is false the target means nothing."""

    inputs: Points
    targets: Float[np.ndarray, "rows dim"]
    observed: Bool[np.ndarray, "rows dim"]


class Whitened(NamedTuple):
    """What predictions need, in the form above."""

    points: Points
    whiten: Float[np.ndarray, "dim rank points"]
    weights: Float[np.ndarray, "dim rank"]


@dataclass(frozen=True)
class ExactFactor:
    r"""Cholesky factors of $\boldsymbol{K} + \lambda \boldsymbol{I}$, one for each axis.

    The rows that are not observed on an axis get a unit diagonal and no covariance with others,
    so that they have no influence there.

    Attributes:
        kernel: The kernel, shared by the axes.
        noise: lambda of each axis.
        rows: The data.
        lower: The factors.
        solved: Factors' inverses times targets.
    """

    kernel: AbstractKernel
    noise: Float[np.ndarray, "dim"]
    rows: Rows
    lower: Float[np.ndarray, "dim rows rows"]
    solved: Float[np.ndarray, "dim rows"]

    @classmethod
    def of(
        cls, kernel: AbstractKernel, noise: Float[np.ndarray, "dim"], rows: Rows
    ) -> "ExactFactor":
        """Factorises from nothing."""
        dim, features = len(noise), rows.inputs.shape[1]
        nothing = Rows(np.zeros((0, features)), np.zeros((0, dim)), np.zeros((0, dim), dtype=bool))
        start = cls(kernel, noise, nothing, np.zeros((dim, 0, 0)), np.zeros((dim, 0)))
        return start.extend(rows)

    def extend(self, new: Rows) -> "ExactFactor":
        """Adds rows; the old rows' block of the factors is kept, not computed again."""
        n, m = len(self.rows.inputs), len(new.inputs)
        cross = covariances(self.kernel, self.rows.inputs, new.inputs)
        corner = covariances(self.kernel, new.inputs, new.inputs)
        rows = Rows(*(np.concatenate(pair) for pair in zip(self.rows, new, strict=True)))
        lower = np.zeros((len(self.noise), n + m, n + m))
        lower[:, :n, :n] = self.lower
        solved = np.zeros((len(self.noise), n + m))
        solved[:, :n] = self.solved
        for axis, noise in enumerate(self.noise):
            seen = new.observed[:, axis]
            between = cross * self.rows.observed[:, axis, None] * seen
            own = corner * np.outer(seen, seen) + np.diag(np.where(seen, noise, 1.0))
            side = solve_triangular(self.lower[axis], between, lower=True).T
            below = _factorised(own - side @ side.T)
            targets = np.where(seen, new.targets[:, axis], 0.0)
            lower[axis, n:, :n], lower[axis, n:, n:] = side, below
            rest = targets - side @ self.solved[axis]
            solved[axis, n:] = solve_triangular(below, rest, lower=True)
        return ExactFactor(self.kernel, self.noise, rows, lower, solved)

    @property
    def information_gain(self) -> float:
        """I(f; y), summed over the axes: half of log det(I + K / lambda)."""
        diagonal = np.diagonal(self.lower, axis1=1, axis2=2)
        of_noise = np.sum(self.rows.observed, axis=0) * np.log(self.noise)
        return float(np.sum(np.log(diagonal)) - 0.5 * np.sum(of_noise))

    def whitened(self) -> Whitened:
        """b(z) is the factor's inverse times k(z), with zeros where nothing was observed."""
        identity = np.eye(len(self.rows.inputs))
        whiten = [
            solve_triangular(lower, identity * seen, lower=True)
            for lower, seen in zip(self.lower, self.rows.observed.T, strict=True)
        ]
        shape = (len(self.noise), *identity.shape)
        return Whitened(self.rows.inputs, np.asarray(whiten).reshape(shape), self.solved)


@dataclass(frozen=True)
class InducingFactor:
    r"""The posterior through a few of the data's points, $u$.

    With $\phi(z) = L_{uu}^{-1} k_u(z)$, the prior splits into $\phi(z)^\top \theta$ with
    independent standard normal $\theta$ and a rest of variance $k(z, z) - |\phi(z)|^2$, about
    which data are taken to say nothing. The posterior of $\theta$ on an axis has the precision
    $A = I + \Phi^\top \Phi / \lambda$ and the mean $A^{-1} \Phi^\top y / \lambda$, sums over the
    rows observed on the axis.

    Attributes:
        kernel: The kernel, shared by the axes.
        noise: lambda of each axis.
        points: The inducing points.
        lower: The factor of their covariances.
        precision: A of each axis.
        pulled: Targets pulled back to the weights, of each axis.
        lost: Bound of the information that is lost on an axis: half of the variance that the
            points leave unexplained on the data, over lambda.
        tolerance: What may be lost.
    """

    kernel: AbstractKernel
    noise: Float[np.ndarray, "dim"]
    points: Points
    lower: Matrix
    precision: Float[np.ndarray, "dim points points"]
    pulled: Float[np.ndarray, "dim points"]
    lost: float
    tolerance: float

    @classmethod
    def of(
        cls,
        kernel: AbstractKernel,
        noise: Float[np.ndarray, "dim"],
        rows: Rows,
        size: int,
        tolerance: float = LOST_INFORMATION,
        distinct: float = ROUNDING,
    ) -> "InducingFactor":
        """Chooses at most ``size`` points among the data and takes all rows in.

        Args:
            kernel: The kernel.
            noise: lambda of each axis.
            rows: The data.
            size: Most points.
            tolerance: Information that may be lost.
            distinct: Share of its prior variance that a point must have left, given the others.
        """
        least = float(np.min(noise))
        chosen = choose_points(kernel, rows.inputs, size, 2 * least * tolerance, distinct)
        count, dim = len(chosen.pivots), len(noise)
        start = cls(
            kernel,
            noise,
            rows.inputs[chosen.pivots],
            chosen.phi[chosen.pivots],
            np.broadcast_to(np.eye(count), (dim, count, count)),
            np.zeros((dim, count)),
            0.5 * chosen.left / least,
            tolerance,
        )
        return start._take(chosen.phi, rows)

    def extend(self, new: Rows) -> "InducingFactor":
        """Adds rows; the points stay as they are."""
        between = covariances(self.kernel, self.points, new.inputs)
        return self._take(solve_triangular(self.lower, between, lower=True).T, new)

    @property
    def information_gain(self) -> float:
        """I(f; y), summed over the axes: half of log det A."""
        return float(0.5 * np.sum(np.linalg.slogdet(self.precision)[1]))

    def whitened(self) -> Whitened:
        """b(z) in the eigenvectors of A, without the directions that data say nothing about."""
        values, vectors = np.linalg.eigh(self.precision)
        growth = np.maximum(values - 1.0, 0.0)
        # Largest first, so that all axes can be cut to one rank.
        values, growth, vectors = values[:, ::-1], growth[:, ::-1], vectors[:, :, ::-1]
        least = max(self.tolerance, ROUNDING)
        rank = int(np.max(np.sum(growth > least, axis=1), initial=0))
        values, growth, vectors = values[:, :rank], growth[:, :rank], vectors[:, :, :rank]
        root = np.sqrt(growth / values)
        whiten = np.empty((len(self.noise), rank, len(self.points)))
        for axis in range(len(self.noise)):
            scaled = vectors[axis] * root[axis]
            whiten[axis] = solve_triangular(self.lower, scaled, lower=True, trans="T").T
        pulled = np.einsum("apr,ap->ar", vectors, self.pulled)
        weights = pulled / np.sqrt(values * np.maximum(growth, least))
        return Whitened(self.points, whiten, weights)

    def _take(self, phi: Matrix, rows: Rows) -> "InducingFactor":
        weight = rows.observed / self.noise
        targets = np.where(rows.observed, rows.targets, 0.0)
        return InducingFactor(
            self.kernel,
            self.noise,
            self.points,
            self.lower,
            np.stack(
                [p + (phi.T * w) @ phi for p, w in zip(self.precision, weight.T, strict=True)]
            ),
            self.pulled + (phi.T @ (targets * weight)).T,
            self.lost,
            self.tolerance,
        )


class Chosen(NamedTuple):
    """Inducing points: their rows, phi of all rows, and the variance left, summed over rows."""

    pivots: np.ndarray
    phi: Matrix
    left: float


def choose_points(
    kernel: AbstractKernel, inputs: Points, size: int, enough: float, distinct: float = ROUNDING
) -> Chosen:
    """Greedy choice by pivoted Cholesky: always the row that the points so far explain least.

    Ends early when the variance left, summed over the rows, is at most ``enough``, or nowhere
    more than the share ``distinct`` of what it was.
    """
    n = len(inputs)
    if n == 0:
        return Chosen(np.zeros(0, dtype=int), np.zeros((0, 0)), 0.0)
    prior = variances(kernel, inputs)
    left = prior.copy()
    phi = np.zeros((n, min(size, n)))
    index: list[int] = []
    for column in range(phi.shape[1]):
        pivot = int(np.argmax(left))
        # Beyond the second limit it is rounding that is left.
        if np.sum(left) <= enough or left[pivot] <= distinct * prior[pivot]:
            break
        between = covariances(kernel, inputs, inputs[pivot : pivot + 1])[:, 0]
        new = between - phi[:, :column] @ phi[pivot, :column]
        phi[:, column] = new / np.sqrt(left[pivot])
        # Exact zeros above the diagonal, so that the chosen rows are a triangular factor.
        phi[index, column] = 0.0
        index.append(pivot)
        left = np.maximum(left - phi[:, column] ** 2, 0.0)
        left[index] = 0.0
    return Chosen(np.asarray(index, dtype=int), phi[:, : len(index)], float(np.sum(left)))


def solve_triangular(matrix: Matrix, right: np.ndarray, **options: Any) -> np.ndarray:
    """SciPy's, imported when it is first used: it takes a fifth of a second."""
    from scipy.linalg import solve_triangular as solve

    return np.asarray(solve(matrix, right, **options))


def _factorised(matrix: Matrix) -> Matrix:
    from scipy.linalg import cholesky

    try:
        return np.asarray(cholesky(matrix, lower=True))
    except np.linalg.LinAlgError as error:
        raise FloatingPointError(
            "the covariance of the data is not positive definite; raise the noise, or check that "
            f"the kernel is positive semi-definite ({error})"
        ) from error
