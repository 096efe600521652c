"""The interface of a statistical model of the unknown motion (assumption WellCalibratedModel).

An `AbstractModelFamily`, whose fields are its settings, fits `Transitions`; an `AbstractModel` is
the result. Planning, learning and metrics use nothing else. ``docs/extending.md`` has a complete
family, and says what it must handle: moves that walls censored, no data, and hidden rewards.
"""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from jaxtyping import Key as KeyArray

from .._arrays import Action, Key, Scalar, State, Target
from ..errors import UserError
from ..problem import Motion, Motions, Problem
from ..space.measure import MeanField
from .data import Transitions


class Prediction(eqx.Module):
    """What a model says about one agent's move, or reward.

    Attributes:
        mean: m(z), the expected target of the agent, without noise; or its expected reward.
        epistemic: sigma(z), the standard deviation of m(z), which data reduce. Optimism uses this
            alone.
        aleatoric: Standard deviation of the noise, which data do not reduce.
    """

    mean: Float[Array, "outputs"]
    epistemic: Float[Array, "outputs"]
    aleatoric: Float[Array, "outputs"]


class AbstractModel(eqx.Module):
    """A fitted model. The credible band of the truth is ``mean +- beta * epistemic`` on each axis.

    Attributes:
        beta: Half-width of the band in epistemic deviations, as an array or a plain number.
    """

    beta: eqx.AbstractVar[Scalar | float]

    def beta_as(self, dtype: Any) -> Scalar:
        """Beta as an array, whether a model has an array or a plain number."""
        return jnp.asarray(self.beta, dtype)

    @abstractmethod
    def predict(self, state: State, action: Action, mu: MeanField) -> Prediction:
        """Mean and standard deviations for one agent; differentiable, batched by the caller."""

    @property
    def sees_centre(self) -> bool:
        """Whether of ``mu.mass`` it looks only at the `Centre`: planners then tabulate it."""
        return False

    @property
    def finding(self) -> str:
        """What the motion was seen to depend on besides state and action; empty if nothing."""
        return ""

    def draw(self, key: Key) -> Motion:
        """A motion, or a reward, drawn from the posterior, for Thompson sampling.

        By default ``mean + epistemic * shift``, with one standard normal shift for all (s, a, mu).
        """

        def motion(state: State, action: Action, mu: MeanField) -> State:
            found = self.predict(state, action, mu)
            shift = jax.random.normal(key, found.mean.shape, dtype=found.mean.dtype)
            return found.mean + found.epistemic * shift

        return motion

    def mean_and_draws(self, keys: KeyArray[Array, "draws"]) -> Motions:
        """The mean, and the `draw` of each key, as one function; models may share their work."""

        def motions(state: State, action: Action, mu: MeanField) -> Float[Array, "motions outputs"]:
            mean = self.predict(state, action, mu).mean
            drawn = jax.vmap(lambda key: jnp.asarray(self.draw(key)(state, action, mu)))(keys)
            return jnp.concatenate([mean[None], drawn])

        return motions


class AbstractModelFamily(eqx.Module):
    """A way to fit models; its fields are the settings."""

    @abstractmethod
    def fit(self, data: Transitions, key: Key) -> AbstractModel:
        """Fits a model of the motion, or if ``data.of_reward`` of the reward.

        Without data it returns the prior. The result must depend on the arguments alone, because a
        run that is resumed fits again.

        Raises:
            FloatingPointError: If the fit fails. A learner then, and if the model is not finite,
                tries fewer data.
        """

    def check(self, problem: Problem) -> None:
        """Raises if the family cannot model the problem; called before anything is learned."""

    def for_rewards(self) -> "AbstractModelFamily":
        """The family that models a hidden reward where none was chosen; raises if there is none."""
        raise UserError(
            f"no model of the hidden reward is known to go with {type(self).__name__}; pass "
            "reward_family, for example GaussianProcess(prior=Additive(), mu=LogHere())"
        )


class Residuals(eqx.Module):
    """A model's predictions for transitions beside what was observed.

    Attributes:
        error: Observed displacement, or reward, minus the predicted one.
        epistemic: As of `Prediction`.
        aleatoric: As of `Prediction`.
        observed: Entries that no wall censored; only these count.
    """

    error: Float[np.ndarray, "rows outputs"]
    epistemic: Float[np.ndarray, "rows outputs"]
    aleatoric: Float[np.ndarray, "rows outputs"]
    observed: Bool[np.ndarray, "rows outputs"]

    def quantiles(self, widening: float = 1.0) -> Float[np.ndarray, "rows outputs"]:
        """Predicted probability of an error smaller in size; uniform on [0, 1] if calibrated.

        Only noisy moves are observed, so that the variance is that of the noise plus the epistemic
        one. ``widening`` is a factor on the epistemic deviation.
        """
        from scipy.special import ndtr  # slow to import

        deviation = np.sqrt((widening * self.epistemic) ** 2 + self.aleatoric**2)
        return np.asarray(2 * ndtr(np.abs(self.error) / np.maximum(deviation, 1e-30)) - 1)


def predict_rows(model: AbstractModel, data: Transitions) -> Residuals:
    """A model's predictions for transitions beside what was observed."""
    found = data.map(model.predict)
    if data.of_reward:
        assert data.earned is not None
        error = data.earned[:, None] - found.mean
    else:
        moved = data.problem.grid.displacement(data.states, data.next_states)
        error = moved - (found.mean - data.states)
    return Residuals(np.asarray(error), found.epistemic, found.aleatoric, data.observed_outputs)


class ModelByShock(AbstractModel):
    """Models of which the present shock chooses one.

    Attributes:
        beta: The greatest beta of them.
        models: The models, in the order of the shocks' values.
    """

    beta: Scalar | float
    models: tuple[AbstractModel, ...]

    def predict(self, state: State, action: Action, mu: MeanField) -> Prediction:
        """What the model of the present shock predicts."""
        each = [lambda *z, model=model: model.predict(*z) for model in self.models]
        return jax.lax.switch(_number(mu), each, state, action, mu)

    def draw(self, key: Key) -> Motion:
        """A draw of each model."""

        def motion(state: State, action: Action, mu: MeanField) -> Target:
            drawn = [model.draw(key) for model in self.models]
            return jax.lax.switch(_number(mu), drawn, state, action, mu)

        return motion


class FamilyByShock(AbstractModelFamily):
    """Fits a model of a family to the moves under each shock."""

    family: AbstractModelFamily

    def fit(self, data: Transitions, key: Key) -> ModelByShock:
        """Fits them; a shock that was never seen has the prior."""
        assert data.problem.shocks is not None
        assert data.shocks is not None
        now, count = data.shocks[data.moment], data.problem.shocks.count
        models = tuple(self.family.fit(data.rows(now == value), key) for value in range(count))
        beta = jnp.max(jnp.stack([jnp.asarray(model.beta) for model in models]))
        return ModelByShock(beta=beta, models=models)

    def check(self, problem: Problem) -> None:
        """Raises if the family cannot model the problem."""
        self.family.check(problem)


def model_under(model: AbstractModel, number: int) -> AbstractModel:
    """The model of the shock of this number; a model that does not look at shocks is its own."""
    return model.models[number] if isinstance(model, ModelByShock) else model


def _number(mu: MeanField) -> Array:
    assert mu.shock_number is not None
    return mu.shock_number
