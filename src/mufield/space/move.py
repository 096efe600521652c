"""How one agent moves: noise, and the one rule for walls and borders.

The simulator, the mean-field transition and finite populations all use this rule, `trace`.
"""

import itertools
import math
from collections.abc import Sequence
from functools import reduce
from operator import and_, or_
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._types import CellIndex, Key, State, Stopped
from ..errors import UserError
from .grid import Grid, PerAxis, unit_steps


class Move(eqx.Module):
    """Where one move ended.

    Attributes:
        position: Where the agent is now.
        stopped: Axes on which a wall or a border stopped it. There the displacement is censored:
            it is shorter than the motion that was intended.
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
        aim: Where the agent would be without walls; may lie outside the box. An infinite or NaN
            coordinate gives NaN.
    """
    path = trace(grid, grid.lattice(start), grid.lattice(aim))
    parts = zip(tuple(aim), path.cell, path.stopped, path.direction > 0, strict=True)
    ends = [rest(grid, axis, *part) for axis, part in enumerate(parts)]
    return Move(
        position=jnp.stack([end.position for end in ends]),
        stopped=path.stopped,
        index=_entry(jnp.asarray(grid.index_table), [end.cell for end in ends]),
    )


class Rest(NamedTuple):
    """Where a move ended on one axis, and in which cell of the box."""

    position: Array
    cell: Array


def wall_margin(grid: Grid, dtype: Any) -> float:
    """How far in front of a wall stopped agents rest: some rounding errors of positions."""
    magnitude = max(*(abs(b) for b in grid.lower), *(abs(b) for b in grid.upper))
    return 8.0 * magnitude * float(jnp.finfo(dtype).eps)


def rest(grid: Grid, axis: int, aim: Array, cell: Array, stopped: Array, upward: Array) -> Rest:
    """Where moves come to rest on one axis, given the cell in which their path ended."""
    lower, size, extent = grid.lower[axis], grid.cell_size[axis], grid.extent[axis]
    dtype, free = aim.dtype, aim
    if grid.periodic[axis]:
        wrapped = jnp.mod(aim - lower, extent)
        free = lower + jnp.where(wrapped >= extent, 0.0, wrapped)
        cell = cell % grid.shape[axis]
    margin = wall_margin(grid, dtype)
    low = lower + cell.astype(dtype) * size
    at_wall = jnp.where(upward, low + size - margin, low + margin)
    # Rounding must not put a position into another cell than the path ended in.
    inside = jnp.clip(free, low + margin, low + size - margin)
    position = jnp.where(stopped, at_wall, inside)
    return Rest(jnp.where(jnp.isfinite(aim), position, jnp.nan), cell)


class Path(eqx.Module):
    """Where a straight line starts and ends, in cell coordinates.

    Attributes:
        cell: Cell in which the line ends, not wrapped on periodic axes.
        start: Cell in which it starts.
        stopped: Axes that a wall or a border stopped.
        direction: Sign of the displacement, in whole cells.
    """

    cell: Int[Array, "dim"]
    start: Int[Array, "dim"]
    stopped: Stopped
    direction: Int[Array, "dim"]


def trace(grid: Grid, start: State, aim: State, tie_rank: Int[Array, "dim"] | None = None) -> Path:
    """Follows the straight line from ``start`` to ``aim`` until walls stop it.

    Args:
        grid: The space.
        start: Start in units of cells, inside a free cell.
        aim: End in units of cells.
        tie_rank: If given, a line that hits a lattice corner exactly crosses the axes in the
            order of these ranks, as a line that passes just beside the corner would. Averaging
            over all orders then treats all axes alike. Without it, the rule of `move` holds.
    """
    shape = jnp.asarray(grid.shape, dtype=jnp.int32)
    delta = aim - start
    first = jnp.clip(jnp.floor(start).astype(jnp.int32), 0, shape - 1)
    last = jnp.floor(aim).astype(jnp.int32)
    direction = jnp.sign(last - first)
    map_around = jnp.asarray(walls_around(grid, 1))

    # Axes that are not finite stay put: their last cell would be arbitrary, the loop endless.
    goal = jnp.where(jnp.isfinite(delta), last, first)
    starts, slopes = tuple(start), tuple(jnp.where(delta == 0, 1.0, delta))

    def cross(walk: _Walk) -> _Walk:
        cells, goals = walk
        going = [c != g for c, g in zip(cells, goals, strict=True)]
        lines = zip(going, cells, goals, starts, slopes, strict=True)
        times = [jnp.where(a, (c + (g > c) - x) / d, jnp.inf) for a, c, g, x, d in lines]
        now = _earliest(going, times)
        if tie_rank is not None:
            ranks = zip(now, tuple(tie_rank), strict=True)
            now = _earliest(now, [jnp.where(n, rank, grid.dim) for n, rank in ranks])
        wraps = zip(cells, grid.shape, grid.periodic, strict=True)
        around = _entry(map_around, [c % n if wrapped else c for c, n, wrapped in wraps])
        steps = [jnp.sign(g - c) for c, g in zip(cells, goals, strict=True)]
        hit = _hits(around, steps, now)
        onward = [s * (n & ~h) for s, n, h in zip(steps, now, hit, strict=True)]
        return _Walk(
            cell=tuple(c + o for c, o in zip(cells, onward, strict=True)),
            goal=tuple(jnp.where(h, c, g) for h, c, g in zip(hit, cells, goals, strict=True)),
        )

    begin = _Walk(cell=tuple(first), goal=tuple(goal))
    end = jax.lax.while_loop(lambda walk: reduce(or_, map(jnp.not_equal, *walk)), cross, begin)
    return Path(
        cell=jnp.stack(end.cell),
        start=first,
        stopped=jnp.stack(end.goal) != goal,
        direction=direction,
    )


class _Walk(NamedTuple):
    """The current and the last cell of a line; a stopped axis has reached its goal.

    Tuples of scalars, one for each axis, are several times faster than vectors when vmapped over
    many agents: the walk then needs no reductions and few arrays.
    """

    cell: tuple[Array, ...]
    goal: tuple[Array, ...]


def _entry(table: Int[Array, "..."], cell: Sequence[Array]) -> Int[Array, ""]:
    """The table's entry for a cell. Bounds are not checked: that would cost more than reading."""
    place = jnp.asarray(0, dtype=jnp.int32)
    for number, size in zip(cell, table.shape, strict=True):
        place = place * size + number
    return table.reshape(-1).at[place].get(mode="promise_in_bounds", wrap_negative_indices=False)


def _earliest(among: Sequence[Array], times: Sequence[Array]) -> list[Array]:
    """Which of the axes marked in ``among`` have the least time."""
    least = reduce(jnp.minimum, times)
    return [a & (t == least) for a, t in zip(among, times, strict=True)]


def _hits(around: Array, steps: Sequence[Array], now: Sequence[Array]) -> list[Array]:
    """Which of the axes that cross a cell's edge ``now`` meet a wall, alone or at a corner."""

    def blocked(axes: Sequence[int]) -> Array:
        bit = wall_bit([step if axis in axes else 0 for axis, step in enumerate(steps)], 1)
        return jnp.asarray((around >> bit) & 1, dtype=bool)

    alone = [n & blocked([axis]) for axis, n in enumerate(now)]
    free = [n & ~h for n, h in zip(now, alone, strict=True)]
    corner = jnp.asarray(False)
    for size in range(2, len(steps) + 1):
        for axes in itertools.combinations(range(len(steps)), size):
            corner = corner | (reduce(and_, (free[a] for a in axes)) & blocked(axes))
    return [h | (f & corner) for h, f in zip(alone, free, strict=True)]


def wall_bit(offset: Sequence[Any], reach: int) -> Any:
    """Number of the bit in `walls_around` that stands for the cell at an offset."""
    return sum((step + reach) * (2 * reach + 1) ** axis for axis, step in enumerate(offset))


def walls_around(grid: Grid, reach: int) -> Int[np.ndarray, "..."]:
    """For each cell a number whose bits say which cells within ``reach`` on each axis are walls."""
    blocked = grid.padded_walls(reach)
    around = np.zeros(grid.shape, dtype=np.uint32)
    for offset in itertools.product(range(-reach, reach + 1), repeat=grid.dim):
        begin = [reach + o for o in offset]
        window = tuple(slice(b, b + n) for b, n in zip(begin, grid.shape, strict=True))
        around |= blocked[window].astype(np.uint32) << np.uint32(wall_bit(offset, reach))
    return around.astype(np.int32)


class GaussianNoise(eqx.Module):
    """Independent Gaussian noise on each axis, added to where an agent aims."""

    std: tuple[float, ...] = eqx.field(static=True)
    centred: ClassVar[bool] = False
    """Whether agents always stand in the middle of their cells."""

    def __init__(self, std: PerAxis):
        values = tuple(float(s) for s in np.atleast_1d(std))
        if any(not (math.isfinite(s) and s >= 0) for s in values):
            raise UserError(f"the noise's standard deviation must be 0 or more, got {std}")
        self.std = values

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
        if not 0 <= intensity <= 1:
            raise UserError(f"the noise intensity must be between 0 and 1, got {intensity}")
        self.intensity = float(intensity)

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
