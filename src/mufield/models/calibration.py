"""How far a model's confidence can be trusted: held-out coverage and an empirical beta.

Only the epistemic deviation is adjusted, and never downwards: held-out moves lie where the data
are, plans go where they are not.
"""

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float, Int

from .._types import Key
from ..errors import UserError
from .base import AbstractBeta, AbstractModel, AbstractModelFamily, Residuals, predict_rows
from .data import Transitions


def coverage(
    held: Residuals, levels: Float[np.ndarray, "levels"], widening: float = 1.0
) -> Float[np.ndarray, "outputs levels"]:
    """Share of the rows inside the central interval of each level, for each axis."""
    inside = held.quantiles(widening)[..., None] <= levels
    count = np.maximum(held.observed.sum(axis=0), 1)
    return np.asarray((inside & held.observed[..., None]).sum(axis=0) / count[:, None])


def held_out(
    family: AbstractModelFamily, data: Transitions, key: Key, *, folds: int = 5
) -> Residuals:
    """Predicts each fold of the data with a model that is fitted to the other folds."""
    if len(data) < 2 * folds:
        raise UserError(
            f"{folds} held-out folds need at least {2 * folds} transitions, got {len(data)}"
        )
    fold_of = _folds(len(data), folds)
    parts = []
    for fold, fold_key in enumerate(jax.random.split(key, folds)):
        model = family.fit(data.rows(fold_of != fold), fold_key)
        parts.append(predict_rows(model, data.rows(fold_of == fold)))
    together: Residuals = jax.tree.map(lambda *each: np.concatenate(each), *parts)
    return together


def widening(held: Residuals) -> Float[np.ndarray, "outputs"]:
    """Factor on each axis' epistemic deviation with which coverage is nearest to its levels.

    At least one. Kuleshov et al. pass every predicted quantile through a map. Here the noise is
    known, so only the epistemic deviation is corrected: if noise dominates, stretching the whole
    predictive distribution would blame the model for chance.
    """
    levels, factors = np.linspace(0.05, 0.95, 19), np.geomspace(1.0, 10.0, 47)
    misses = [np.sum((coverage(held, levels, c) - levels) ** 2, axis=1) for c in factors]
    return np.where(held.observed.any(axis=0), factors[np.argmin(misses, axis=0)], 1.0)


class EmpiricalBeta(AbstractBeta):
    """A beta of two standard deviations times the widening of the worst axis, from held-out folds.

    Attributes:
        folds: Number of parts that are held out in turn.
    """

    folds: int = eqx.field(static=True, default=5)

    def of_fit(
        self, family: AbstractModelFamily, model: AbstractModel, data: Transitions, key: Key
    ) -> float:
        """Beta of other fits of the family, to all folds but one; two if there are too few data."""
        deviations = 2.0
        if len(data) < 2 * self.folds:
            return deviations
        return deviations * float(widening(held_out(family, data, key, folds=self.folds)).max())


def _folds(count: int, folds: int) -> Int[np.ndarray, "rows"]:
    """The fold of each row; successive moves are alike, so blocks of them stay together."""
    block = max(1, count // (4 * folds))
    return np.asarray((np.arange(count) // block) % folds)
