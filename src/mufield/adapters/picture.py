"""A plain picture of a distribution, made without a drawing library."""

import numpy as np
from jaxtyping import Array, Float, UInt8

from ..space.grid import Grid

SIDE = 240
"""Pixels of the longer side, roughly: cells get a whole number of them."""

STRIP = 24
"""Height in pixels of the picture of a line."""

# Five colours of viridis, from empty to full.
COLOURS = np.array(
    [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]], dtype=float
)
WALL = np.array([128, 128, 128], dtype=float)


def picture(
    grid: Grid, mass: Float[Array | np.ndarray, "cells"]
) -> UInt8[np.ndarray, "height width 3"]:
    """Colours cells by the square root of their mass, walls grey; the first axis points right.

    The square root keeps thin cells visible beside dense ones. A line becomes a strip; a space of
    three dimensions is seen from above.
    """
    plane, walls = _flat(grid, np.asarray(mass, dtype=float))
    share = np.sqrt(np.maximum(plane, 0.0) / max(float(plane.max()), np.finfo(float).tiny))
    ticks = np.linspace(0.0, 1.0, len(COLOURS))
    colours = np.stack([np.interp(share, ticks, COLOURS[:, c]) for c in range(3)], axis=-1)
    colours[walls] = WALL
    wide = max(1, SIDE // max(plane.shape))
    high = STRIP if grid.dim == 1 else wide
    upright = np.swapaxes(colours, 0, 1)[::-1]
    return np.repeat(np.repeat(upright, high, axis=0), wide, axis=1).round().astype(np.uint8)


def _flat(
    grid: Grid, mass: Float[np.ndarray, "cells"]
) -> tuple[Float[np.ndarray, "x y"], np.ndarray]:
    """Masses and walls on a plane, whatever the grid's dimension."""
    full, walls = grid.to_array(mass, fill=0.0), grid.walls
    if grid.dim == 1:
        return full[:, None], walls[:, None]
    if grid.dim == 3:
        return full.sum(axis=2), np.asarray(walls.all(axis=2))
    return full, walls
