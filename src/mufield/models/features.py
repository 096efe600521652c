"""What models see and predict: features z(s, a, mu), scaled outputs, and regression data."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

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
from .data import PaddedTransitions, Transitions


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


Outputs = Float[Array, "*points outputs"]
"""One number for each axis of a motion, a single one for a reward."""


class Units(eqx.Module):
    """Converts between a model's outputs, of the order of one, and motions or rewards.

    Attributes:
        scale: Unit of the outputs: the farthest move, or the rewards' standard deviation.
        centre: Mean of the rewards; None for motions, whose outputs are displacements.
    """

    scale: Float[Array | np.ndarray, "*runs outputs"]
    centre: Float[Array | np.ndarray, "*runs outputs"] | None

    @classmethod
    def of(cls, data: Transitions) -> "Units":
        """The units for a model of the data, in double precision on the host."""
        if not data.of_reward:
            return cls(np.asarray(data.problem.max_move, dtype=float), None)
        assert data.earned is not None
        if len(data) == 0:
            return cls(np.ones(1), np.zeros(1))
        centre, scale = float(data.earned.mean()), float(data.earned.std())
        equal = scale <= 1e-6 * max(1.0, abs(centre))  # up to rounding
        return cls(np.array([1.0 if equal else scale]), np.array([centre]))

    def cast(self, dtype: Any) -> "Units":
        """The units in another precision, for planning."""
        centre = None if self.centre is None else jnp.asarray(self.centre, dtype)
        return Units(jnp.asarray(self.scale, dtype), centre)

    def decode(self, state: State, outputs: Outputs) -> Outputs:
        """Where an agent aims, or what it earns."""
        start = state if self.centre is None else jnp.asarray(self.centre)
        return start + self.rescale(outputs)

    def rescale(self, deviation: Outputs) -> Outputs:
        """A standard deviation of outputs, as one of motions or rewards."""
        return jnp.asarray(self.scale) * deviation

    def encode(self, data: Transitions) -> Float[np.ndarray, "rows outputs"]:
        """The outputs that a perfect model would have for the transitions."""
        if self.centre is None:
            moved = data.problem.grid.displacement(data.states, data.next_states)
            return np.asarray(moved / self.scale)
        assert data.earned is not None
        return np.asarray((data.earned[:, None] - self.centre) / self.scale)


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


def censored_rows(
    features: FeatureMap, data: Transitions, censored: bool
) -> tuple[Rows, Int[np.ndarray, "rows outputs"]]:
    """The regression's data, and the side on which walls censored targets; 0 where none did.

    Censored targets are where the wall is. If ``censored`` is False they are left out.
    """
    rows = regression_rows(features, data)
    if not censored or data.of_reward:  # walls stop moves, not rewards
        return rows, np.zeros(rows.targets.shape, dtype=int)
    side = data.side
    targets = np.where(side != 0, Units.of(data).encode(data), rows.targets)
    return rows._replace(targets=targets), side


@eqx.filter_jit
def _inputs(features: FeatureMap, data: PaddedTransitions) -> Array:
    return features.rows(data)
