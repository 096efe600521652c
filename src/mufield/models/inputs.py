r"""Finds out from data what a motion looks at besides state and action.

Possible inputs are the mass of the own cell, the mass around, the population's mean and the step. A
prior has one part for each, and a part is added if the *evidence* asks for it: the logarithm of the
marginal likelihood of the data, in nats. As in forward selection, the search fits with the first
input, then asks what each of the others would add, and fits again only if one adds much. Where
nothing is found, that is one fit and a few Cholesky factors.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from .._arrays import device_array
from .._types import Key
from .features import Rows
from .kernels import AbstractKernel, Sum
from .likelihood import Hyperparameters, Limits, most_likely


@dataclass(frozen=True)
class Search:
    """What evidence the search asks for, in nats.

    Attributes:
        needed: An input is added if it brings more than this.
        hidden: The first input is hidden if it costs more than this. Without evidence either way it
            is seen, because then the model is unsure; one that does not see it is sure, and perhaps
            wrong. The others are too many for that.
        shares: Sizes at which a part is tried, as shares of its prior variance.
    """

    needed: float = 5.0
    hidden: float = 1.0
    shares: tuple[float, ...] = (1.0, 0.1)

    def __call__(
        self,
        parts: tuple[AbstractKernel, ...],
        noise: Float[np.ndarray, "dim"] | None,
        rows: Rows,
        limits: Limits | None,
        key: Key,
    ) -> "FoundInputs":
        """Fits a sum of kernels, the first of which sees state and action alone.

        The others see one input each. Other arguments are as of `most_likely`; features of ``rows``
        have all inputs.
        """
        if not rows.observed.any():  # plans are faster without mu, and nothing is known of it
            found = most_likely(parts[0], noise, rows, limits, key)
            return FoundInputs((), found.kernel, found.noise, ())
        chosen = [1]
        while True:
            kernel = Sum(parts[0], *(parts[i] for i in chosen))
            found = most_likely(kernel, noise, rows, limits, key)
            if found.sample is None:
                return FoundInputs(tuple(chosen), found.kernel, found.noise, (0.0,) * len(chosen))
            others = [i for i in range(1, len(parts)) if i not in chosen]
            own, *matrices = _matrices((found.kernel, *(parts[i] for i in others)), found.sample)
            gains = [
                max(_evidence(own + share * each, found) for share in self.shares)
                for each in matrices
            ]
            if not gains or max(gains) - _evidence(own, found) < self.needed:
                return self._kept(chosen, found)
            chosen = sorted([*chosen, others[int(np.argmax(gains))]])

    def _kept(self, chosen: list[int], found: Hyperparameters) -> "FoundInputs":
        """The inputs that are worth their cost; the worst one is left out at a time."""
        assert found.sample is not None
        assert isinstance(found.kernel, Sum)
        fitted = found.kernel.terms
        own, *others = _matrices(fitted, found.sample)
        kept = dict(zip(chosen, zip(fitted[1:], others, strict=True), strict=True))
        while True:
            whole = own + sum(matrix for _, matrix in kept.values())
            now = _evidence(whole, found)
            brings = {i: now - _evidence(whole - kept[i][1], found) for i in kept}
            spare = {i: brings[i] - (-self.hidden if i == 1 else self.needed) for i in kept}
            worst = min(spare, key=lambda i: spare[i], default=0)
            if not kept or spare[worst] >= 0:
                kernel = Sum(fitted[0], *(part for part, _ in kept.values()))
                return FoundInputs(tuple(kept), kernel, found.noise, tuple(brings.values()))
            del kept[worst]


class FoundInputs(NamedTuple):
    """What a search found.

    Attributes:
        inputs: Numbers of the inputs that are seen, from 1.
        kernel: The fitted sum of the kernels of state and action and of these inputs.
        noise: Lambda of each axis.
        evidence: Nats that each input brings.
    """

    inputs: tuple[int, ...]
    kernel: AbstractKernel
    noise: Float[np.ndarray, "dim"]
    evidence: tuple[float, ...]


def _matrices(kernels: tuple[AbstractKernel, ...], sample: Rows) -> list[np.ndarray]:
    with jax.enable_x64(True):
        return [np.asarray(each) for each in _evaluated(kernels, device_array(sample.inputs))]


@eqx.filter_jit
def _evaluated(kernels: tuple[AbstractKernel, ...], inputs: Array) -> list[Any]:
    return [kernel.matrix(inputs, inputs) for kernel in kernels]


def _evidence(covariance: Float[np.ndarray, "rows rows"], found: Hyperparameters) -> float:
    """The log likelihood of the sample, summed over the axes, up to a constant."""
    from scipy.linalg import cholesky, solve_triangular  # slow to import

    assert found.sample is not None
    _, targets, weight, _ = found.sample
    total = 0.0
    for axis, noise in enumerate(found.noise):
        seen = np.flatnonzero(weight[:, axis] > 0)
        matrix = covariance[np.ix_(seen, seen)] + np.diag(noise / weight[seen, axis])
        lower = cholesky(matrix, lower=True, overwrite_a=True, check_finite=False)
        left = solve_triangular(lower, targets[seen, axis], lower=True, check_finite=False)
        total -= 0.5 * float(left @ left) + float(np.log(np.diagonal(lower)).sum())
    return total
