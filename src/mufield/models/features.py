"""The inputs z = (s, a, mu) of a model as a vector of numbers of the order of one."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._types import Action, State
from ..policies.encoders import (
    AbstractEncoder,
    Unseen,
    check_encoder,
    position_features,
    position_size,
)
from ..problem import Problem
from ..space.grid import Grid
from ..space.measure import MeanField, mean_field_at
from .data import PaddedTransitions, Transitions, Units


class FeatureMap(eqx.Module):
    """z(s, a, mu): the vector that a model sees.

    Periodic axes enter as cosine and sine; other axes and the actions are scaled to [-1, 1].

    Attributes:
        grid: The space.
        lower: Lower bounds of the actions.
        upper: Upper bounds of the actions.
        mu: How the population enters.
    """

    grid: Grid = eqx.field(static=True)
    lower: tuple[float, ...] = eqx.field(static=True)
    upper: tuple[float, ...] = eqx.field(static=True)
    mu: AbstractEncoder = eqx.field(static=True)

    def __init__(self, problem: Problem, mu: AbstractEncoder = Unseen()):
        """Builds the map for a problem."""
        self.grid, self.mu = problem.grid, check_encoder(mu)
        self.lower, self.upper = problem.actions.lower, problem.actions.upper

    @property
    def own_size(self) -> int:
        """Number of features of the agent's own state and action; those of mu follow."""
        return position_size(self.grid) + len(self.lower)

    @property
    def size(self) -> int:
        """Length of the vector."""
        return self.own_size + self.mu.size(self.grid)

    @property
    def parts(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Places of the features of the state, of the action, and of mu."""
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

        def one(state: State, action: Action, moment: Array) -> Float[Array, "features"]:
            return self(state, action, mean_field_at(self.grid, data.mass[moment], state))

        return jax.vmap(one)(data.states, data.actions, data.moment)


class Rows(NamedTuple):
    """What a model is fitted to, in double precision on the host.

    Attributes:
        inputs: Features of the transitions.
        targets: What the model should put out; zero where that was not observed.
        observed: Which targets were observed.
    """

    inputs: Float[np.ndarray, "rows features"]
    targets: Float[np.ndarray, "rows outputs"]
    observed: Bool[np.ndarray, "rows outputs"]


def regression_rows(features: FeatureMap, data: Transitions) -> Rows:
    """Inputs and scaled targets of the transitions."""
    inputs = np.asarray(_inputs(features, data.padded()), dtype=float)[: len(data)]
    observed = data.observed_outputs
    return Rows(inputs, np.where(observed, Units.of(data).encode(data), 0.0), observed)


@eqx.filter_jit
def _inputs(features: FeatureMap, data: PaddedTransitions) -> Array:
    return features.rows(data)
