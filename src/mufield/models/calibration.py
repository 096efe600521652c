"""How far a model's confidence can be trusted: held-out coverage, recalibration, empirical beta.

Only noisy moves are observed, so coverage is that of the predictive distribution, in which the
epistemic deviation and the noise add up. Only the epistemic deviation is adjusted, and never
downwards: held-out moves lie where the data are, plans go where they are not.
"""

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float, Int

from .._types import Key
from ..errors import UserError
from .base import AbstractModelFamily, HeldOut, predict_rows
from .data import Transitions

WIDENINGS = np.geomspace(1.0, 10.0, 47)
"""Factors on the epistemic deviation that are tried."""

BAND = 2.0
"""Standard deviations of an empirical band before it is widened."""

FEWEST_ROWS = 10
"""With fewer transitions nothing is held out."""


class Recalibration(eqx.Module):
    """The map from predicted to observed frequencies (Kuleshov et al.) and how to correct it.

    Attributes:
        predicted: Predicted frequencies.
        observed: Observed frequencies for each axis, made monotone.
        widening: Factor on the epistemic deviation of each axis, at least one, with which observed
            frequencies are nearest to predicted ones.
    """

    predicted: Float[np.ndarray, "levels"]
    observed: Float[np.ndarray, "dim levels"]
    widening: Float[np.ndarray, "dim"]


def held_out(
    family: AbstractModelFamily, data: Transitions, key: Key, *, folds: int = 5
) -> HeldOut:
    """Predicts each fold of the data with a model that is fitted to the other folds."""
    if len(data) < max(folds, FEWEST_ROWS):
        raise UserError(
            f"held-out folds need at least {max(folds, FEWEST_ROWS)} transitions, got {len(data)}"
        )
    fold_of = _folds(len(data), folds)
    parts = []
    for fold, fold_key in enumerate(jax.random.split(key, folds)):
        model = family.fit(data.rows(fold_of != fold), fold_key)
        parts.append(predict_rows(model, data.rows(fold_of == fold)))
    together: HeldOut = jax.tree.map(lambda *each: np.concatenate(each), *parts)
    return together


def recalibration(held: HeldOut) -> Recalibration:
    """The recalibration map, and the widening that brings it closest to the identity.

    Kuleshov et al. pass every predicted quantile through the map. Here the noise is known, so only
    the epistemic deviation is corrected: if noise dominates, stretching the whole predictive
    distribution would blame the model for chance.
    """
    from scipy.optimize import isotonic_regression  # slow to import

    levels = np.linspace(0.05, 0.95, 19)
    dim = held.error.shape[1]
    raw = held.coverage(tuple(levels))
    widening = np.ones(dim)
    misses = np.stack([_miss(held.coverage(tuple(levels), c), levels) for c in WIDENINGS])
    for axis in range(dim):
        if held.observed[:, axis].any():
            widening[axis] = WIDENINGS[int(np.argmin(misses[:, axis]))]
    monotone = np.stack([isotonic_regression(row).x for row in raw])
    return Recalibration(predicted=levels, observed=monotone, widening=widening)


class EmpiricalBeta(eqx.Module):
    """A beta of two standard deviations times the widening of the worst axis, from held-out folds.

    Attributes:
        folds: Number of parts that are held out in turn.
    """

    folds: int = eqx.field(static=True, default=5)

    def __call__(self, family: AbstractModelFamily, data: Transitions, key: Key) -> float:
        """Beta for a family's fit to the data; two if there are too few."""
        if len(data) < max(self.folds, FEWEST_ROWS):
            return BAND
        found = recalibration(held_out(family, data, key, folds=self.folds))
        return BAND * float(found.widening.max())


def _miss(
    coverage: Float[np.ndarray, "dim levels"], levels: Float[np.ndarray, "levels"]
) -> Float[np.ndarray, "dim"]:
    return np.asarray(np.sum((coverage - levels) ** 2, axis=1))


def _folds(count: int, folds: int) -> Int[np.ndarray, "rows"]:
    """The fold of each row; successive moves are alike, so blocks of them stay together."""
    block = max(1, count // (4 * folds))
    return np.asarray((np.arange(count) // block) % folds)
