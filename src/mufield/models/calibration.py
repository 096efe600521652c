"""How far a model's confidence can be trusted: held-out coverage and an empirical beta.

Only noisy moves are observed, so coverage is that of the predictive distribution, in which the
epistemic deviation and the noise add up. Only the epistemic deviation is adjusted, and never
downwards: held-out moves lie where the data are, plans go where they are not.
"""

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._types import Action, Key, State
from ..errors import UserError
from ..space.grid import Grid
from ..space.measure import mean_field_at
from .base import AbstractModel, AbstractModelFamily, Prediction
from .data import PaddedTransitions, Transitions


class HeldOut(eqx.Module):
    """Predictions for moves that the model was not fitted to.

    Attributes:
        error: Observed displacement, or reward, minus the predicted one.
        epistemic: As of `Prediction`.
        aleatoric: As of `Prediction`.
        observed: Entries that no wall censored; only these count.
    """

    error: Float[np.ndarray, "rows dim"]
    epistemic: Float[np.ndarray, "rows dim"]
    aleatoric: Float[np.ndarray, "rows dim"]
    observed: Bool[np.ndarray, "rows dim"]

    def quantiles(self, widening: float = 1.0) -> Float[np.ndarray, "rows dim"]:
        """Predicted probability that the error is smaller; uniform on [0, 1] if calibrated.

        ``widening`` is a factor on the epistemic deviation.
        """
        from scipy.special import ndtr  # slow to import

        deviation = np.sqrt((widening * self.epistemic) ** 2 + self.aleatoric**2)
        return np.asarray(2 * ndtr(np.abs(self.error) / np.maximum(deviation, 1e-30)) - 1)

    def coverage(
        self, levels: Float[np.ndarray, "levels"], widening: float = 1.0
    ) -> Float[np.ndarray, "dim levels"]:
        """Share of the rows inside the central interval of each level, for each axis."""
        inside = self.quantiles(widening)[..., None] <= levels
        count = np.maximum(self.observed.sum(axis=0), 1)
        return np.asarray((inside & self.observed[..., None]).sum(axis=0) / count[:, None])


def predict_rows(model: AbstractModel, data: Transitions) -> HeldOut:
    """A model's predictions for transitions beside what was observed."""
    count = len(data)
    error, found = _predictions(model, data.padded(), data.problem.grid, data.of_reward)
    return HeldOut(
        error=np.asarray(error, dtype=float)[:count],
        epistemic=np.asarray(found.epistemic, dtype=float)[:count],
        aleatoric=np.asarray(found.aleatoric, dtype=float)[:count],
        observed=data.observed_outputs,
    )


@eqx.filter_jit
def _predictions(
    model: AbstractModel, data: PaddedTransitions, grid: Grid, of_reward: bool
) -> tuple[Float[Array, "rows outputs"], Prediction]:
    def one(
        state: State, action: Action, seen: Array, moment: Array, step: Array
    ) -> tuple[Array, Prediction]:
        found = model.predict(state, action, mean_field_at(grid, data.mass[moment], state, step))
        if of_reward:
            return seen - found.mean, found
        return grid.displacement(state, seen) - (found.mean - state), found

    seen = data.earned if of_reward else data.next_states
    assert seen is not None
    return jax.vmap(one)(data.states, data.actions, seen, data.moment, data.step)


def held_out(
    family: AbstractModelFamily, data: Transitions, key: Key, *, folds: int = 5
) -> HeldOut:
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
    together: HeldOut = jax.tree.map(lambda *each: np.concatenate(each), *parts)
    return together


def widening(held: HeldOut) -> Float[np.ndarray, "dim"]:
    """Factor on each axis' epistemic deviation with which coverage is nearest to its levels.

    At least one. Kuleshov et al. pass every predicted quantile through a map. Here the noise is
    known, so only the epistemic deviation is corrected: if noise dominates, stretching the whole
    predictive distribution would blame the model for chance.
    """
    levels, factors = np.linspace(0.05, 0.95, 19), np.geomspace(1.0, 10.0, 47)
    misses = [np.sum((held.coverage(levels, c) - levels) ** 2, axis=1) for c in factors]
    return np.where(held.observed.any(axis=0), factors[np.argmin(misses, axis=0)], 1.0)


class EmpiricalBeta(eqx.Module):
    """A beta of two standard deviations times the widening of the worst axis, from held-out folds.

    Attributes:
        folds: Number of parts that are held out in turn.
    """

    folds: int = eqx.field(static=True, default=5)

    def __call__(self, family: AbstractModelFamily, data: Transitions, key: Key) -> float:
        """Beta for a family's fit to the data; two if there are too few."""
        deviations = 2.0
        if len(data) < 2 * self.folds:
            return deviations
        return deviations * float(widening(held_out(family, data, key, folds=self.folds)).max())


def _folds(count: int, folds: int) -> Int[np.ndarray, "rows"]:
    """The fold of each row; successive moves are alike, so blocks of them stay together."""
    block = max(1, count // (4 * folds))
    return np.asarray((np.arange(count) // block) % folds)
