"""What models tell, as numbers of the order of one: where agents aim, or what they earn."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._types import State
from ..space.grid import Grid
from ..space.noise import GaussianNoise
from .data import PaddedTransitions, Transitions

Told = Float[Array, "*points outputs"]
"""One number for each axis of a motion, a single one for a reward."""

Numbers = Float[Array | np.ndarray, "*runs outputs"]

EQUAL = 1e-6
"""Rewards whose spread is a smaller share of their size are taken for equal."""


class Units(eqx.Module):
    """Between a model's outputs and what they stand for.

    Attributes:
        scale: What outputs are multiplied with: the farthest move, or the spread of the rewards.
        centre: Where they count from: the mean of the rewards; none for motions, which count
            from the agent's own place.
    """

    scale: Numbers
    centre: Numbers | None

    @classmethod
    def of(cls, data: Transitions) -> "Units":
        """The units of what the data are about, in double precision on the host."""
        if data.target == "motion":
            return cls(np.asarray(data.problem.max_move, dtype=float), None)
        assert data.earned is not None
        if len(data) == 0:
            return cls(np.ones(1), np.zeros(1))
        centre, scale = float(data.earned.mean()), float(data.earned.std())
        equal = scale <= EQUAL * max(1.0, abs(centre))
        return cls(np.array([1.0 if equal else scale]), np.array([centre]))

    def cast(self, dtype: Any) -> "Units":
        """The units in another precision, for planning."""
        centre = None if self.centre is None else jnp.asarray(self.centre, dtype)
        return Units(jnp.asarray(self.scale, dtype), centre)

    def told(self, state: State, outputs: Told) -> Told:
        """What outputs say of an agent: where it aims, or what it earns."""
        start = state if self.centre is None else jnp.asarray(self.centre)
        return start + self.spread(outputs)

    def spread(self, deviation: Told) -> Told:
        """What a standard deviation of the outputs is of what they stand for."""
        return jnp.asarray(self.scale) * deviation

    def targets(
        self, grid: Grid, data: Transitions | PaddedTransitions
    ) -> Float[Array, "rows outputs"]:
        """What a model should have put out for each transition."""
        if self.centre is None:
            ends = jnp.asarray(data.states), jnp.asarray(data.next_states)
            return grid.displacement(*ends) / self.scale
        assert data.earned is not None
        return (jnp.asarray(data.earned)[:, None] - self.centre) / self.scale


def known_noise(data: Transitions) -> Float[np.ndarray, "outputs"] | None:
    """The noise's standard deviation where the problem says it, else none."""
    problem = data.problem
    if data.target == "reward":
        return np.array([problem.reward_noise])
    if isinstance(problem.noise, GaussianNoise):
        return np.asarray(problem.noise.std, dtype=float)
    return None
