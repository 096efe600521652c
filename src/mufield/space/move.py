"""How agents move: where they aim, the noise, and the rule for walls (`wall_rule`)."""

from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._types import Key, State
from ..checks import finite, non_negative, number, numbers
from ..errors import UserError
from .grid import Grid, PerAxis, per_axis, unit_steps
from .wall_rule import Ends, Move, Places, move, move_many, one_by_one


class GaussianNoise(eqx.Module):
    """Independent Gaussian noise on each axis, added to where an agent aims."""

    std: tuple[float, ...] = eqx.field(static=True)
    centred: ClassVar[bool] = False
    """Whether agents always stand in the middle of their cells."""

    def __init__(self, std: PerAxis):
        name, remedy = "the noise's standard deviation", "it must be 0 or more on each axis"
        values = np.atleast_1d(numbers(std, name, remedy))
        finite(values, name, remedy)
        non_negative(values, name, remedy)
        self.std = tuple(values.astype(float).tolist())

    def draws(
        self, grid: Grid, key: Key, shape: tuple[int, ...], dtype: Any
    ) -> Float[Array, "*agents draws"]:
        """The random numbers that `move` needs, for an array of agents of this shape."""
        return jax.random.normal(key, (*shape, grid.dim), dtype=dtype)

    def move(self, grid: Grid, state: State, aim: State, draws: Float[Array, "draws"]) -> Move:
        """Moves one agent to where it aims plus the noise."""
        return move(grid, state, aim + jnp.asarray(self.std, dtype=state.dtype) * draws)

    def scaled(self, factor: float) -> "GaussianNoise":
        """Noise of ``factor`` times the standard deviation."""
        factor = number(factor, "noise_factor", 0.0)
        return GaussianNoise(tuple(factor * std for std in self.std))


class NeighbourNoise(eqx.Module):
    """Noise of the discrete rooms: after its move, an agent may be pushed to a neighbour.

    With probability ``intensity`` the agent takes one more move, drawn uniformly from staying
    and the free neighbours of its cell.
    """

    intensity: float = eqx.field(static=True)
    centred: ClassVar[bool] = True

    def __init__(self, intensity: float):
        self.intensity = number(intensity, "the noise intensity", 0.0, 1.0)

    def weights(self, grid: Grid) -> Float[np.ndarray, "cells directions"]:
        """Probability of each of the `unit_steps` in each cell."""
        free = grid.neighbours >= 0
        weights = self.intensity * free / free.sum(axis=1, keepdims=True)
        weights[:, 0] += 1.0 - self.intensity
        return np.asarray(weights)

    def draws(
        self, grid: Grid, key: Key, shape: tuple[int, ...], dtype: Any
    ) -> Float[Array, "*agents draws"]:
        """The random numbers that `move` needs, for an array of agents of this shape."""
        return jax.random.gumbel(key, (*shape, len(unit_steps(grid.dim))), dtype=dtype)

    def move(self, grid: Grid, state: State, aim: State, draws: Float[Array, "draws"]) -> Move:
        """Moves one agent to where it aims, then perhaps on to a neighbour."""
        moved = move(grid, state, aim)
        dtype = state.dtype
        weights = jnp.asarray(self.weights(grid), dtype=dtype)[moved.index]
        # The Gumbel trick: this argmax has the weights as its probabilities.
        direction = jnp.argmax(jnp.log(weights) + draws)
        step = jnp.asarray(unit_steps(grid.dim), dtype=dtype)[direction]
        size = jnp.asarray(grid.cell_size, dtype=dtype)
        pushed = move(grid, moved.position, moved.position + step * size)
        centre = jnp.asarray(grid.centres, dtype=dtype)[pushed.index]
        return Move(position=centre, stopped=moved.stopped, index=pushed.index)

    def scaled(self, factor: float) -> "NeighbourNoise":
        """Noise of ``factor`` times the intensity."""
        factor = number(factor, "noise_factor", 0.0)
        if self.intensity * factor > 1:
            raise UserError(
                f"noise_factor {factor} makes a probability of {self.intensity * factor} of the "
                f"noise intensity {self.intensity}; choose at most {1 / self.intensity:g}"
            )
        return NeighbourNoise(self.intensity * factor)


Noise = GaussianNoise | NeighbourNoise


def move_with_noise(
    grid: Grid, noise: Noise, start: Places, cell: Int[Array, "agents"], aim: Places, draws: Places
) -> Ends:
    """Moves many agents to where they aim and the noise pushes them.

    ``draws`` are those of ``noise.move``, with one array for each number.
    """
    if isinstance(noise, GaussianNoise):
        std = per_axis(noise.std, grid.dim, float)
        pushed = [a + s * draw for a, s, draw in zip(aim, std, draws, strict=True)]
        return move_many(grid, start, cell, tuple(pushed))
    return one_by_one(partial(noise.move, grid), start, aim, draws)
