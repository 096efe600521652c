"""The noise of the discrete rooms as a linear map of distributions."""

import itertools

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._types import Mass
from ..space.grid import Grid
from .routing import Routing


class NeighbourKernel(eqx.Module):
    """With some probability, one more move to a free neighbour or to stay, all alike.

    Attributes:
        routing: From (cell, direction) to the cell reached.
        weights: Probability of each direction in each cell; the first is to stay.
    """

    routing: Routing
    weights: Float[Array, "cells directions"]

    @classmethod
    def build(cls, grid: Grid, intensity: float) -> "NeighbourKernel":
        """Builds the map for a grid."""
        steps = unit_steps(grid.dim)
        ends = legal_ends(grid, steps)
        legal = ends >= 0
        weights = intensity * legal / legal.sum(axis=1, keepdims=True)
        weights[:, 0] += 1.0 - intensity
        links = np.flatnonzero(legal.ravel())
        return cls(
            routing=Routing.build(links, ends.ravel()[links], ends.size, grid.n_cells),
            weights=jnp.asarray(weights, dtype=jnp.result_type(float)),
        )

    def __call__(self, mass: Mass) -> Mass:
        """The distribution after the noise."""
        return self.routing((mass[:, None] * self.weights.astype(mass.dtype)).reshape(-1))


def unit_steps(dim: int) -> Int[np.ndarray, "directions dim"]:
    """To stay, then one cell down and up each axis."""
    moves = [
        [sign * (axis == a) for a in range(dim)]
        for axis, sign in itertools.product(range(dim), (-1, 1))
    ]
    return np.array([[0] * dim, *moves])


def legal_ends(
    grid: Grid, steps: Int[np.ndarray, "directions dim"]
) -> Int[np.ndarray, "cells directions"]:
    """Free-cell index that each whole-cell step leads to from each free cell; -1 if blocked."""
    cells = grid.free_cells[:, None, :] + steps[None]
    shape = np.array(grid.shape)
    cells = np.where(np.array(grid.periodic), cells % shape, cells)
    inside = np.all((cells >= 0) & (cells < shape), axis=-1)
    index = grid.index_table[tuple(np.moveaxis(np.clip(cells, 0, shape - 1), -1, 0))]
    return np.where(inside, index, -1)
