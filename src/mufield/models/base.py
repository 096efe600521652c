"""Interfaces of statistical models of the unknown motion (assumption WellCalibratedModel).

Models of a hidden reward (the paper's footnote on unknown rewards) have the same interface, with
one output, what the agent earns.
"""

from abc import abstractmethod
from dataclasses import fields
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from jaxtyping import Key as KeyArray

from .._types import Action, Key, Scalar, State
from ..errors import UserError
from ..problem import Motion, Motions
from ..space.measure import MeanField
from .data import Transitions


class Prediction(eqx.Module):
    """What a model says about one agent's move.

    Attributes:
        mean: m(z), where the agent is expected to aim, without noise; or what it earns.
        epistemic: sigma(z), the standard deviation of m(z), which data reduce. Optimism uses this
            alone.
        aleatoric: Standard deviation of the noise, which data do not reduce.
    """

    mean: Float[Array, "outputs"]
    epistemic: Float[Array, "outputs"]
    aleatoric: Float[Array, "outputs"]


class AbstractModel(eqx.Module):
    """A fitted, frozen model of the motion, or of the reward.

    Attributes:
        beta: Scale of the confidence band: the truth is believed to lie within
            ``mean +- beta * epistemic`` on every axis. An array or a number; `beta_as` returns an
            array in either case.
    """

    beta: eqx.AbstractVar[Scalar | float]

    def beta_as(self, dtype: Any) -> Scalar:
        """Beta as an array, whether a model has an array or a plain number."""
        return jnp.asarray(self.beta, dtype)

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
