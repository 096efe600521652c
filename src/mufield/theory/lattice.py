"""Lipschitz constants between the centres of cells, where a flow on a grid looks."""

import numpy as np
from jaxtyping import Float

from ..space.grid import Grid
from ..space.transport import ground_distance

ROWS = 64
"""Rows of pairs that are compared at once, for the memory's sake."""


def between_cells(
    grid: Grid,
    table: Float[np.ndarray, "cells *size"],
    *,
    order: int = 2,
    wrapped: bool = False,
) -> float:
    """Greatest change of a table's rows between two cells, over their distance.

    Of functions of mu that average the rows over mu, this is the Lipschitz constant in W1
    (Kantorovich).

    Args:
        grid: The space.
        table: One row for each free cell.
        order: Of the norm in which rows are compared.
        wrapped: Whether rows are points of the space, compared the shorter way round.
    """
    rows = np.asarray(table, dtype=float).reshape(grid.n_cells, -1)
    distance = ground_distance(grid, "straight")
    steepest = 0.0
    for start in range(0, grid.n_cells, ROWS):
        between = rows[start : start + ROWS, None] - rows[None]
        if wrapped:
            extent, periodic = np.asarray(grid.extent), np.asarray(grid.periodic)
            between = between - periodic * extent * np.round(between / extent)
        apart = np.linalg.norm(between, order, axis=-1)
        over = distance[start : start + ROWS]
        steepest = max(steepest, float(np.max(apart[over > 0] / over[over > 0], initial=0.0)))
    return steepest


def diameter(grid: Grid) -> float:
    """Greatest distance between two cells: no W1 exceeds it."""
    return float(ground_distance(grid, "straight").max())
