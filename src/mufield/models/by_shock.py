"""One model of the motion for each value of the shocks."""

import jax
import jax.numpy as jnp

from .._types import Action, Key, Scalar, State, Target
from ..problem import Motion, Problem
from ..space.measure import MeanField
from .base import AbstractModel, AbstractModelFamily, Prediction
from .data import Transitions


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
        found: Prediction = jax.lax.switch(_number(mu), each, state, action, mu)
        return found

    def draw(self, key: Key) -> Motion:
        """A draw of each model."""

        def motion(state: State, action: Action, mu: MeanField) -> Target:
            drawn = [model.draw(key) for model in self.models]
            found: Target = jax.lax.switch(_number(mu), drawn, state, action, mu)
            return found

        return motion


class FamilyByShock(AbstractModelFamily):
    """Fits a model of a family to the moves under each shock.

    Attributes:
        family: The family.
    """

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


def _number(mu: MeanField) -> jax.Array:
    assert mu.shock_number is not None
    return mu.shock_number
