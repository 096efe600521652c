"""Where an agent ends that wants to go somewhere: the one rule for walls and borders.

The simulator, the mean-field transition and the N-agent world all call `trace`.
"""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from .._types import CellIndex, State, Stopped
from .grid import Grid


class Move(eqx.Module):
    """The end of one move.

    Attributes:
        position: Where the agent is now.
        stopped: Axes on which a wall or a border stopped it. On those the displacement says
            nothing exact about the motion that was intended: it is censored.
        index: Free-cell index of the position.
    """

    position: State
    stopped: Stopped
    index: CellIndex


def move(grid: Grid, start: State, aim: State) -> Move:
    """Moves one agent from ``start`` along the straight line towards ``aim``.

    Where an axis meets a wall or a border, that axis stops there and the others go on, so agents
    slide along walls. A path that hits the corner of a wall exactly stops on all axes that meet
    there, so that no axis is preferred. Periodic axes wrap. The paper leaves the rule open
    ("stopped by the walls", Sec. 6; "redistribute some of the probability mass", App. D.2).

    Stopped agents rest a rounding error in front of the wall, so that the cell of their position
    is always free.

    Args:
        grid: The space.
        start: A position in a free cell.
        aim: Where the agent would be without walls; may lie outside the box. An axis that is not
            finite gives a position that is not a number.
    """
    path = trace(grid, grid.lattice(start), grid.lattice(aim))
    dtype = start.dtype
    lower, size = jnp.asarray(grid.lower, dtype), jnp.asarray(grid.cell_size, dtype)
    extent, periodic = jnp.asarray(grid.extent, dtype), jnp.asarray(grid.periodic)
    shape = jnp.asarray(grid.shape, dtype=jnp.int32)

    wrapped = jnp.mod(aim - lower, extent)
    free = jnp.where(periodic, lower + jnp.where(wrapped >= extent, 0.0, wrapped), aim)
    magnitude = max(*(abs(b) for b in grid.lower), *(abs(b) for b in grid.upper))
    margin = 8.0 * magnitude * jnp.finfo(dtype).eps
    cell = jnp.where(periodic, path.cell % shape, path.cell)
    low = lower + cell * size
    at_wall = jnp.where(path.direction > 0, low + size - margin, low + margin)
    # Rounding must not put a position into another cell than the path ended in.
    inside = jnp.clip(free, low + margin, low + size - margin)
    position = jnp.where(path.stopped, at_wall, inside).astype(dtype)
    position = jnp.where(jnp.isfinite(aim), position, jnp.nan)
    index = jnp.asarray(grid.index_table)[tuple(cell)]
    return Move(position=position, stopped=path.stopped, index=index)


class Path(eqx.Module):
    """The cells a straight line leads to, in units of cells.

    Attributes:
        cell: Cell in which the line ends, not wrapped on periodic axes.
        start: Cell in which it starts.
        stopped: Axes that a wall or a border stopped.
        direction: Sign of the displacement in cells.
    """

    cell: Int[Array, "dim"]
    start: Int[Array, "dim"]
    stopped: Stopped
    direction: Int[Array, "dim"]


def trace(grid: Grid, start: State, aim: State, tie_rank: Int[Array, "dim"] | None = None) -> Path:
    """Follows the line from ``start`` to ``aim``, both in units of cells, through the walls.

    Args:
        grid: The space.
        start: Start in units of cells, inside a free cell.
        aim: End in units of cells.
        tie_rank: If given, a line that hits a lattice corner exactly is treated as crossing
            the axes in the order of these ranks, as a line that passes beside the corner would.
            Averages over all orders integrate over lines without bias. Without it, the rule of
            `move` holds.
    """
    shape = jnp.asarray(grid.shape, dtype=jnp.int32)
    delta = aim - start
    first = jnp.clip(jnp.floor(start).astype(jnp.int32), 0, shape - 1)
    last = jnp.floor(aim).astype(jnp.int32)
    direction = jnp.sign(last - first)
    # What is not finite goes nowhere: its cell would be arbitrary and the walk without end.
    total = jnp.where(jnp.isfinite(delta), jnp.abs(last - first), 0)

    # State of the walk: current cell, lattice lines crossed on each axis, stopped axes.
    def active(crossed: Int[Array, "dim"], stopped: Stopped) -> Stopped:
        return ~stopped & (crossed < total)

    def unfinished(walk: tuple[Array, Array, Array]) -> Bool[Array, ""]:
        _, crossed, stopped = walk
        return jnp.any(active(crossed, stopped))

    def cross(walk: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        cell, crossed, stopped = walk
        going = active(crossed, stopped)
        edge = cell + (direction > 0)
        time = jnp.where(going, (edge - start) / jnp.where(delta == 0, 1.0, delta), jnp.inf)
        now = going & (time == jnp.min(time))
        if tie_rank is not None:
            rank = jnp.where(now, tie_rank, grid.dim)
            now = now & (rank == jnp.min(rank))
        hit = now & _blocked_alone(grid, cell, direction)
        free = now & ~hit
        hit = hit | (free & _corner_blocked(grid, cell, direction, free))
        onward = now & ~hit
        return cell + direction * onward, crossed + onward, stopped | hit

    none = jnp.zeros_like(first)
    cell, _, stopped = jax.lax.while_loop(unfinished, cross, (first, none, none.astype(bool)))
    return Path(cell=cell, start=first, stopped=stopped, direction=direction)


def _blocked(grid: Grid, cell: Int[Array, "dim"]) -> Bool[Array, ""]:
    shape = jnp.asarray(grid.shape, dtype=jnp.int32)
    cell = jnp.where(jnp.asarray(grid.periodic), cell % shape, cell)
    outside = jnp.any((cell < 0) | (cell >= shape))
    return outside | jnp.asarray(grid.walls)[tuple(jnp.clip(cell, 0, shape - 1))]


def _blocked_alone(
    grid: Grid, cell: Int[Array, "dim"], direction: Int[Array, "dim"]
) -> Bool[Array, "dim"]:
    """For each axis: is the neighbour in that direction alone blocked?"""
    steps = jnp.diag(direction)
    return jnp.stack([_blocked(grid, cell + steps[axis]) for axis in range(grid.dim)])


def _corner_blocked(
    grid: Grid, cell: Int[Array, "dim"], direction: Int[Array, "dim"], together: Stopped
) -> Bool[Array, ""]:
    """Is any cell blocked that the axes in ``together`` reach when they cross at once?"""
    blocked = jnp.asarray(False)
    for size in range(2, grid.dim + 1):
        for axes in itertools.combinations(range(grid.dim), size):
            chosen = jnp.zeros(grid.dim, dtype=jnp.int32).at[jnp.asarray(axes)].set(1)
            involved = jnp.all(together[jnp.asarray(axes)])
            blocked = blocked | (involved & _blocked(grid, cell + direction * chosen))
    return blocked
