"""Positions that were measured: in which cell they are, and where walls stopped an agent."""

import itertools

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from ..space.grid import Grid

CONTACT = 1e-3
"""Share of a cell within which a position touches a wall: agents rest at walls, and positions are
measured and printed with a few digits only."""

Points = Float[np.ndarray, "points dim"]


def settle(grid: Grid, points: Points) -> tuple[Points, Bool[np.ndarray, "points"]]:
    """Moves points that rounding put into a wall or out of the box back to where agents can be.

    Returns:
        The points, and which of them could not be moved: they are farther away than rounding.
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


def touching(grid: Grid, start: Points, end: Points) -> Bool[np.ndarray, "points dim"]:
    """Axes on which a wall or border may have stopped a move: it ends in contact with one.

    An agent that slid along a wall may have come past the wall's end, so the cells beside its
    whole way count.
    """
    first, last, place = _cells(grid, start), _cells(grid, end), _place(grid, end)
    face = np.round(place).astype(int)
    stopped = np.abs(place - face) <= 2 * CONTACT
    for row, axis in np.argwhere(stopped).tolist():
        # Rounding may have put the agent on either side.
        stopped[row, axis] = any(
            _wall_along(grid, first[row], last[row], axis, int(face[row, axis]) - side)
            for side in (0, 1)
        )
    return np.asarray(stopped)


def unmoved_at_walls(grid: Grid, start: Points, end: Points) -> Bool[np.ndarray, "points dim"]:
    """Axes on which agents that stand in cells stayed beside a wall or border.

    Nobody can tell whether they were stopped, so their moves on these axes are not learned from.
    """
    first, last = _cells(grid, start), _cells(grid, end)
    stopped = np.asarray(first == last)
    for row, axis in np.argwhere(stopped).tolist():
        stopped[row, axis] = any(
            _wall_along(grid, first[row], last[row], axis, int(last[row, axis]) + way)
            for way in (-1, 1)
        )
    return stopped


def _wall_along(
    grid: Grid, first: Int[np.ndarray, "dim"], last: Int[np.ndarray, "dim"], axis: int, beyond: int
) -> bool:
    """Whether a wall or border is among the cells ``beyond`` on one axis, along the way from one
    cell to another on the others.
    """
    if grid.periodic[axis]:
        beyond %= grid.shape[axis]
    elif not 0 <= beyond < grid.shape[axis]:
        return True
    between = []
    for other in range(grid.dim):
        low, high = sorted((int(first[other]), int(last[other])))
        # Round a periodic axis the way is unknown; the cell at the end is certain.
        around = grid.periodic[other] and high - low > grid.shape[other] // 2
        between.append(
            slice(beyond, beyond + 1)
            if other == axis
            else slice(int(last[other]), int(last[other]) + 1)
            if around
            else slice(low, high + 1)
        )
    return bool(grid.walls[tuple(between)].any())


def _place(grid: Grid, points: Points) -> Points:
    """Points in units of cells, in double precision."""
    offset = np.asarray(points, dtype=float) - np.asarray(grid.lower)
    return np.asarray(offset / np.asarray(grid.cell_size))


def _cells(grid: Grid, points: Points) -> Int[np.ndarray, "points dim"]:
    """The cells of points inside the box; its upper border belongs to the last ones."""
    # Clipped first: far away, numbers are larger than an integer can be.
    cells = np.clip(np.floor(_place(grid, points)), 0, np.asarray(grid.shape) - 1)
    return np.asarray(cells.astype(int))


def _free(grid: Grid, points: Points) -> Bool[np.ndarray, "points"]:
    """Which points are in free cells of the box, by our precision and by the learner's."""
    place = _place(grid, points)
    inside = ((place >= 0) & (place <= np.asarray(grid.shape))).all(axis=1)
    walls = grid.walls[tuple(_cells(grid, points).T)]
    known = np.asarray(grid.index_of(jnp.asarray(points))) >= 0
    return np.asarray(inside & ~walls & known)
