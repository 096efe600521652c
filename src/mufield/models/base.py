"""Statistical models of the unknown motion (assumption WellCalibratedModel): interface, features,
predictions beside what was observed.

Models of a hidden reward (the paper's footnote on unknown rewards) have the same interface, with
one output, what the agent earns.
"""

from abc import abstractmethod
from dataclasses import fields
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from jaxtyping import Key as KeyArray

from .._types import Action, Key, Scalar, State
from ..errors import UserError
from ..policies.encoders import (
    AbstractEncoder,
    Unseen,
    check_encoder,
    position_features,
    position_size,
)
from ..problem import Motion, Motions, Problem
from ..space.grid import Grid
from ..space.measure import MeanField, mean_field_at
from .data import PaddedTransitions, Transitions, Units

LEVELS = (0.5, 0.68, 0.8, 0.9, 0.95, 0.99)
"""Levels at which coverage is reported."""


class Prediction(eqx.Module):
    """What a model says about one agent's move.

    Attributes:
        mean: m(z), where the agent is expected to aim, without noise; or what it earns.
        epistemic: sigma(z), the model's own doubt, which data reduce. Optimism uses this alone.
        aleatoric: Standard deviation of the noise, which data do not reduce.
    """

    mean: Float[Array, "outputs"]
    epistemic: Float[Array, "outputs"]
    aleatoric: Float[Array, "outputs"]


class AbstractModel(eqx.Module):
    """A fitted, frozen model of the motion, or of the reward.

    Attributes:
        beta: Scale of the confidence band: the truth is believed to lie within
            ``mean +- beta * epistemic`` on every axis.
    """

    beta: eqx.AbstractVar[Scalar]

    @abstractmethod
    def predict(self, state: State, action: Action, mu: MeanField) -> Prediction:
        """Mean and standard deviations for one agent; differentiable, batched by the caller."""

    def draw(self, key: Key) -> Motion:
        """A motion, or a reward, drawn from what the model believes, for Thompson sampling.

        By default the mean, shifted everywhere by the same random multiple of the deviation.
        """

        def motion(state: State, action: Action, mu: MeanField) -> State:
            found = self.predict(state, action, mu)
            shift = jax.random.normal(key, found.mean.shape, dtype=found.mean.dtype)
            return found.mean + found.epistemic * shift

        return motion

    def mean_and_draws(self, keys: KeyArray[Array, "draws"]) -> Motions:
        """The mean, and what `draw` returns for each key, as one function.

        Models may compute once what all of them share.
        """

        def motions(state: State, action: Action, mu: MeanField) -> Float[Array, "motions outputs"]:
            mean = self.predict(state, action, mu).mean
            drawn = jax.vmap(lambda key: jnp.asarray(self.draw(key)(state, action, mu)))(keys)
            return jnp.concatenate([mean[None], drawn])

        return motions


class AbstractModelFamily(eqx.Module):
    """A way to fit models; its attributes are the settings."""

    @abstractmethod
    def fit(self, data: Transitions, key: Key) -> AbstractModel:
        """Fits a model of the motion, or if ``data.of_reward`` of the reward.

        Without data it returns the prior. The result must depend on the arguments alone, because a
        run that is resumed fits again.

        Raises:
            FloatingPointError: If the fit is not finite. A learner then tries fewer data.
        """

    def fit_many(self, data: list[Transitions], keys: list[Key]) -> list[AbstractModel]:
        """Fits a model for each of several runs; families may do so in one compiled call."""
        return [self.fit(each, key) for each, key in zip(data, keys, strict=True)]


def refuse_words(family: AbstractModelFamily) -> None:
    """Raises if a setting is a word: configurations choose by words, Python by objects."""
    for each in fields(family):
        value = getattr(family, each.name)
        if isinstance(value, str):
            raise UserError(
                f"{each.name} must be an object or a number, for example {each.default!r}, got "
                f"{value!r}; words are for configurations"
            )


class FeatureMap(eqx.Module):
    """z(s, a, mu): the vector that a model sees.

    Periodic axes enter as cosine and sine; other axes and the actions, which lie between ``lower``
    and ``upper``, are scaled to [-1, 1].
    """

    grid: Grid = eqx.field(static=True)
    lower: tuple[float, ...] = eqx.field(static=True)
    upper: tuple[float, ...] = eqx.field(static=True)
    mu: AbstractEncoder = eqx.field(static=True)

    def __init__(self, problem: Problem, mu: AbstractEncoder = Unseen()):
        self.grid, self.mu = problem.grid, check_encoder(mu)
        self.lower, self.upper = problem.actions.lower, problem.actions.upper

    @property
    def own_size(self) -> int:
        """Number of features of state and action; those of mu follow."""
        return position_size(self.grid) + len(self.lower)

    @property
    def size(self) -> int:
        """Length of the vector."""
        return self.own_size + self.mu.size(self.grid)

    @property
    def parts(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Indices of the features of the state, of the action, and of mu."""
        first, own = position_size(self.grid), self.own_size
        return tuple(range(first)), tuple(range(first, own)), tuple(range(own, self.size))

    def __call__(self, state: State, action: Action, mu: MeanField) -> Float[Array, "features"]:
        """The features of one agent."""
        dtype = state.dtype
        low, high = (jnp.asarray(bound, dtype=dtype) for bound in (self.lower, self.upper))
        width = jnp.where(high > low, high - low, 1.0)
        return jnp.concatenate(
            [
                position_features(self.grid, state),
                2 * (action - low) / width - 1,
                self.mu(state, mu).astype(dtype),
            ]
        )

    def rows(self, data: PaddedTransitions) -> Float[Array, "rows features"]:
        """The features of every transition."""

        def one(state: State, action: Action, moment: Array, step: Array) -> Array:
            return self(state, action, mean_field_at(self.grid, data.mass[moment], state, step))

        return jax.vmap(one)(data.states, data.actions, data.moment, data.step)


class Rows(NamedTuple):
    """Data of a regression, in double precision on the host.

    Attributes:
        inputs: The features.
        targets: What was observed; zero where nothing was.
        weight: Inverse of the factor on the noise's variance: 1 for what was observed, 0 for what
            was not.
    """

    inputs: Float[np.ndarray, "rows features"]
    targets: Float[np.ndarray, "rows outputs"]
    weight: Float[np.ndarray, "rows outputs"]

    @property
    def observed(self) -> Bool[np.ndarray, "rows outputs"]:
        """Which targets say something."""
        return np.asarray(self.weight > 0)


def regression_rows(features: FeatureMap, data: Transitions) -> Rows:
    """Features and scaled targets of the transitions."""
    inputs = np.asarray(_inputs(features, data.padded()), dtype=float)[: len(data)]
    observed = data.observed_outputs
    targets = np.where(observed, Units.of(data).encode(data), 0.0)
    return Rows(inputs, targets, observed.astype(float))


@eqx.filter_jit
def _inputs(features: FeatureMap, data: PaddedTransitions) -> Array:
    return features.rows(data)


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
        self, levels: tuple[float, ...] = LEVELS, widening: float = 1.0
    ) -> Float[np.ndarray, "dim levels"]:
        """Share of the rows inside the central interval of each level, for each axis."""
        inside = self.quantiles(widening)[..., None] <= np.asarray(levels)
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
