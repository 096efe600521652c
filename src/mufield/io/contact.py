"""What recorded positions tell of walls: which agents walls may have stopped."""

import itertools

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from ..space.grid import Grid

CONTACT = 1e-3
"""A position this near to a wall, as a share of a cell, touches it: agents rest at walls, and
positions are measured and printed with a few digits only."""

Points = Float[np.ndarray, "points dim"]
Axes = Bool[np.ndarray, "points dim"]


def settle(grid: Grid, points: Points) -> tuple[Points, Bool[np.ndarray, "points"]]:
    """Moves points that rounding put into a wall or out of the box back to free cells.

    Also returns which points could not be moved: rounding alone does not explain them.
    """
    settled, lost = points.copy(), ~_free(grid, points)
    step = CONTACT * np.asarray(grid.cell_size)
    for signs in itertools.product((0, -1, 1), repeat=grid.dim):
        rows = np.flatnonzero(lost)
        tried = (points[rows] + np.asarray(signs) * step).astype(points.dtype)
        free = _free(grid, tried)
        settled[rows[free]] = tried[free]
        lost[rows[free]] = False
    return settled, lost


def touching(grid: Grid, start: Points, end: Points) -> Axes:
    """Axes on which a wall or border may have stopped a reported move, as it ends in contact."""
    place = grid.in_cells(np.asarray(end, dtype=float))
    face = np.round(place).astype(int)
    near = np.abs(place - face) <= 2 * CONTACT
    # Rounding may have put the agent on either side of the face.
    return _beside_wall(grid, start, end, near, face - 1, face)


def unmoved_at_walls(grid: Grid, start: Points, end: Points) -> Axes:
    """Axes on which agents that move from cell to cell stayed beside a wall or border.

    Nobody can tell whether they were stopped, so their moves on these axes are not learned from.
    """
    first, last = _cells(grid, start), _cells(grid, end)
    return _beside_wall(grid, start, end, np.equal(first, last), last - 1, last + 1)


def _beside_wall(
    grid: Grid, start: Points, end: Points, where: Axes, below: np.ndarray, above: np.ndarray
) -> Axes:
    """For each axis in ``where``, whether its cell ``below`` or ``above`` is a wall or border.

    An agent that slid along a wall may have come past the wall's end. So on the other axes all
    cells count from the agent's start to its end.
    """
    first, last = _cells(grid, start), _cells(grid, end)
    # A move may have gone either way round a periodic axis; then only its end is certain.
    around = np.asarray(grid.periodic) & (np.abs(last - first) > np.asarray(grid.shape) // 2)
    first = np.where(around, last, first)
    low, high = np.minimum(first, last), np.maximum(first, last)
    walls = grid.padded_walls(1)  # cells are counted from 1 in it
    found = np.zeros_like(where)
    for row, axis in np.argwhere(where).tolist():
        way = [slice(a + 1, b + 2) for a, b in zip(low[row], high[row], strict=True)]
        for cell in (below[row, axis], above[row, axis]):
            way[axis] = slice(cell + 1, cell + 2)
            found[row, axis] |= walls[tuple(way)].any()
    return found


def _cells(grid: Grid, points: Points) -> Int[np.ndarray, "points dim"]:
    """The cells of points inside the box; the upper border belongs to the last cell."""
    # Clipped before the conversion: far-away positions do not fit into integers.
    place = np.floor(grid.in_cells(np.asarray(points, dtype=float)))
    return np.asarray(np.clip(place, 0, np.asarray(grid.shape) - 1).astype(int))


def _free(grid: Grid, points: Points) -> Bool[np.ndarray, "points"]:
    """Which points are in free cells, in double precision as well as in the learner's."""
    inside = ((points >= np.asarray(grid.lower)) & (points <= np.asarray(grid.upper))).all(axis=1)
    ours = grid.index_of(np.asarray(points, dtype=float))
    learners = np.asarray(grid.index_of(jnp.asarray(points)))
    return np.asarray(inside & (ours >= 0) & (learners >= 0))
