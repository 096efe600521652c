"""Contact with walls: where rounding put agents into one, and which axes of a move one stopped.

For moves that others report. Where our own simulator moves agents, `move` says who was stopped.
"""

import itertools

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from .grid import Grid

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
        if len(rows) == 0:
            break
        tried = (points[rows] + np.asarray(signs) * step).astype(points.dtype)
        free = _free(grid, tried)
        settled[rows[free]] = tried[free]
        lost[rows[free]] = False
    return settled, lost


def touching(grid: Grid, start: Points, end: Points) -> Axes:
    """Axes on which a wall or border may have stopped a move, as the move ends in contact."""
    place = grid.lattice(np.asarray(end, dtype=float))
    face = np.round(place).astype(int)
    near = np.abs(place - face) <= 2 * CONTACT
    # Rounding may have put the agent on either side of the face.
    return np.asarray(near & _beside_wall(grid, start, end, near, face - 1, face))


def unmoved_at_walls(grid: Grid, start: Points, end: Points) -> Axes:
    """Axes on which agents that move from cell to cell stayed beside a wall or border.

    Nobody can tell whether they were stopped, so their moves on these axes are not learned from.
    """
    last = _cells(grid, end)
    stayed = np.asarray(_cells(grid, start) == last)
    return np.asarray(stayed & _beside_wall(grid, start, end, stayed, last - 1, last + 1))


def _beside_wall(
    grid: Grid, start: Points, end: Points, where: Axes, below: np.ndarray, above: np.ndarray
) -> Axes:
    """For each axis in ``where``, whether its cell ``below`` or ``above`` is a wall or border.

    An agent that slid along a wall may have come past the wall's end. So on the other axes all
    cells count from the agent's start to its end.
    """
    first, last = _cells(grid, start), _cells(grid, end)
    walls = grid.padded_walls(1)  # cells are counted from 1 in it
    found = np.zeros_like(where)
    for row, axis in np.argwhere(where).tolist():
        way = []
        for other in range(grid.dim):
            low, high = sorted((int(first[row, other]), int(last[row, other])))
            if grid.periodic[other] and high - low > grid.shape[other] // 2:
                # The move may have gone either way round the axis; only its end is certain.
                low = high = int(last[row, other])
            way.append(slice(low + 1, high + 2))
        for cell in (int(below[row, axis]), int(above[row, axis])):
            way[axis] = slice(cell + 1, cell + 2)
            found[row, axis] |= walls[tuple(way)].any()
    return found


def _cells(grid: Grid, points: Points) -> Int[np.ndarray, "points dim"]:
    """The cells of points inside the box; the upper border belongs to the last cell."""
    # Clipped before the conversion: far-away positions do not fit into integers.
    place = grid.lattice(np.asarray(points, dtype=float))
    cells = np.clip(np.floor(place), 0, np.asarray(grid.shape) - 1)
    return np.asarray(cells.astype(int))


def _free(grid: Grid, points: Points) -> Bool[np.ndarray, "points"]:
    """Which points are in free cells, in double precision as well as in the learner's."""
    inside = ((points >= np.asarray(grid.lower)) & (points <= np.asarray(grid.upper))).all(axis=1)
    ours = grid.index_of(np.asarray(points, dtype=float))
    learners = np.asarray(grid.index_of(jnp.asarray(points)))
    return np.asarray(inside & (ours >= 0) & (learners >= 0))
