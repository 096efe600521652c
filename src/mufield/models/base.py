"""What every statistical model of the unknown motion offers (assumption WellCalibratedModel).

The same interface serves a hidden reward, by the same assumption (the paper's footnote on unknown
rewards): then a model's one output is what the agent earns.
"""

from abc import abstractmethod
from dataclasses import fields

import equinox as eqx
import jax
from jaxtyping import Array, Float

from .._types import Action, Key, Scalar, State
from ..errors import UserError
from ..problem import Motion
from ..space.measure import MeanField
from .data import Transitions


class Prediction(eqx.Module):
    """What a model says about one agent's move.

    Attributes:
        mean: m(z), where the agent is expected to aim, without noise; or what it earns.
        epistemic: sigma(z), standard deviation of what more data would tell. Optimism uses this
            part only.
        aleatoric: Standard deviation of the noise, which no data take away.
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

        Unless a model knows better: the mean, shifted on each axis by the same multiple of the
        standard deviation everywhere.
        """

        def motion(state: State, action: Action, mu: MeanField) -> State:
            found = self.predict(state, action, mu)
            shift = jax.random.normal(key, found.mean.shape, dtype=found.mean.dtype)
            return found.mean + found.epistemic * shift

        return motion


class AbstractModelFamily(eqx.Module):
    """A way to fit models; its attributes are the settings."""

    @abstractmethod
    def fit(self, data: Transitions, key: Key) -> AbstractModel:
        """Fits a model to all transitions so far; without data it returns the prior.

        ``data.of_reward`` says what the model is of: the reward, or the motion.
        The result must be a function of the arguments alone: a run that is resumed fits again.

        Raises:
            FloatingPointError: If the fit is not finite. A learner then goes on with fewer data.
        """

    def fit_many(self, data: list[Transitions], keys: list[Key]) -> list[AbstractModel]:
        """Fits one model to each of several runs' data; side by side where a family can."""
        return [self.fit(each, key) for each, key in zip(data, keys, strict=True)]


def refuse_words(family: AbstractModelFamily) -> None:
    """Raises if a setting is a word, as configurations have it, where Python takes an object."""
    for each in fields(family):
        value = getattr(family, each.name)
        if isinstance(value, str):
            raise UserError(
                f"{each.name} must be an object or a number, for example {each.default!r}, got "
                f"{value!r}; words are for configurations"
            )
