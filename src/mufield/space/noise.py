"""The noise of the motion, and the move that an agent makes with it."""

import math
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._types import Key, State
from ..errors import UserError
from .grid import Grid, PerAxis, unit_steps
from .move import Move, move


class GaussianNoise(eqx.Module):
    """Independent Gaussian noise on each axis, added to where an agent aims."""

    std: tuple[float, ...] = eqx.field(static=True)
    centred: ClassVar[bool] = False
    """Whether agents always stand in the middle of their cells."""

    def __init__(self, std: PerAxis):
        """Builds the noise; one number stands for all axes."""
        values = tuple(float(s) for s in np.atleast_1d(std))
        if any(not (math.isfinite(s) and s >= 0) for s in values):
            raise UserError(f"the noise's standard deviation must be 0 or more, got {std}")
        self.std = values

    def draws(
        self, grid: Grid, key: Key, shape: tuple[int, ...], dtype: Any
    ) -> Float[Array, "*agents draws"]:
        """The random numbers that `move` needs, for agents in any shape."""
        return jax.random.normal(key, (*shape, grid.dim), dtype=dtype)

    def move(self, grid: Grid, state: State, aim: State, draws: Float[Array, "draws"]) -> Move:
        """Moves one agent to where it aims, give or take the noise."""
        return move(grid, state, aim + jnp.asarray(self.std, dtype=state.dtype) * draws)

    def scaled(self, factor: float) -> "GaussianNoise":
        """Noise of ``factor`` times the standard deviation."""
        _check_factor(factor)
        return GaussianNoise(tuple(factor * std for std in self.std))


class NeighbourNoise(eqx.Module):
    """Noise of the discrete rooms: after its move, an agent may be pushed to a neighbour.

    With probability ``intensity`` the agent takes one more move, drawn uniformly from staying
    and the free neighbours of its cell.
    """

    intensity: float = eqx.field(static=True)
    centred: ClassVar[bool] = True

    def __init__(self, intensity: float):
        """Builds the noise."""
        if not 0 <= intensity <= 1:
            raise UserError(f"the noise intensity must be between 0 and 1, got {intensity}")
        self.intensity = float(intensity)

    def weights(self, grid: Grid) -> Float[np.ndarray, "cells directions"]:
        """Probability of each of the `unit_steps` in each cell; the first is to stay."""
        free = grid.neighbours >= 0
        weights = self.intensity * free / free.sum(axis=1, keepdims=True)
        weights[:, 0] += 1.0 - self.intensity
        return np.asarray(weights)

    def draws(
        self, grid: Grid, key: Key, shape: tuple[int, ...], dtype: Any
    ) -> Float[Array, "*agents draws"]:
        """The random numbers that `move` needs, for agents in any shape."""
        return jax.random.gumbel(key, (*shape, len(unit_steps(grid.dim))), dtype=dtype)

    def move(self, grid: Grid, state: State, aim: State, draws: Float[Array, "draws"]) -> Move:
        """Moves one agent to where it aims, then pushes it."""
        moved = move(grid, state, aim)
        dtype = state.dtype
        weights = jnp.asarray(self.weights(grid), dtype=dtype)[moved.index]
        # The largest of logarithms of weights and Gumbel draws has the weights as probabilities.
        direction = jnp.argmax(jnp.log(weights) + draws)
        step = jnp.asarray(unit_steps(grid.dim), dtype=dtype)[direction]
        size = jnp.asarray(grid.cell_size, dtype=dtype)
        pushed = move(grid, moved.position, moved.position + step * size)
        centre = jnp.asarray(grid.centres, dtype=dtype)[pushed.index]
        return Move(position=centre, stopped=moved.stopped, index=pushed.index)

    def scaled(self, factor: float) -> "NeighbourNoise":
        """Noise of ``factor`` times the intensity."""
        _check_factor(factor)
        if self.intensity * factor > 1:
            raise UserError(
                f"noise_factor {factor} makes a probability of {self.intensity * factor} of the "
                f"noise intensity {self.intensity}; choose at most {1 / self.intensity:g}"
            )
        return NeighbourNoise(self.intensity * factor)


Noise = GaussianNoise | NeighbourNoise


def _check_factor(factor: float) -> None:
    if not (math.isfinite(factor) and factor >= 0):
        raise UserError(f"noise_factor must be 0 or more, got {factor}")
