"""The one rule for walls and borders, on the lattice of cells.

The simulator, the mean-field transition and finite populations all use it. `_cross` is the rule:
it takes lines across the next edge of the lattice. `trace` follows one line of any length,
`short_walk` many short ones at a time. Each axis has an array of its own, a number for one agent or
one entry for each of many: of that the compiler makes faster code than of vectors.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import reduce
from operator import and_, or_
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from .._arrays import State, Stopped
from .grid import Grid

Places = tuple[Float[Array, "*agents"], ...]
"""Positions: one array for each axis."""


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


def trace(
    grid: Grid, start: State, target: State, tie_rank: Int[Array, "dim"] | None = None
) -> Path:
    """Follows the straight line from ``start`` to ``target`` until walls stop it.

    Args:
        grid: The space.
        start: Start in units of cells, inside a free cell.
        target: End in units of cells.
        tie_rank: If given, a line that hits a lattice corner exactly crosses the axes in the
            order of these ranks, as a line that passes just beside the corner would. Averaging
            over all orders then treats all axes alike. Without it, the rule of `move` holds.
    """
    lines = lines_between(grid, tuple(start), tuple(target))
    around = jnp.asarray(walls_around(grid, 1))
    ranks = None if tie_rank is None else tuple(tie_rank)

    def onward(walk: _Walk) -> _Walk:
        cells = [line.first + p for line, p in zip(lines, walk.passed, strict=True)]
        wraps = zip(cells, grid.shape, grid.periodic, strict=True)
        walls = look_up(around, [c % n if wrapped else c for c, n, wrapped in wraps])
        return _cross(lines, walk, lambda step: ((walls >> _wall_bit(step, 1)) & 1) != 0, ranks)

    goals = tuple(line.steps for line in lines)
    walk = _Walk(tuple(map(jnp.zeros_like, goals)), goals)
    walk = jax.lax.while_loop(lambda walk: reduce(or_, map(jnp.not_equal, *walk)), onward, walk)
    first, steps = (jnp.stack([getattr(x, name) for x in lines]) for name in ("first", "steps"))
    return Path(
        cell=first + jnp.stack(walk.passed),
        start=first,
        stopped=jnp.stack(walk.goal) != steps,
        direction=jnp.sign(steps),
    )


class Line(NamedTuple):
    """Straight lines on the lattice, along one axis.

    They start in the cells ``first``, at the share ``inside`` of the edge, and go ``delta`` cells
    (1 in place of 0) across ``steps`` edges.
    """

    first: Int[Array, "*agents"]
    inside: Float[Array, "*agents"]
    delta: Float[Array, "*agents"]
    steps: Int[Array, "*agents"]


class _Walk(NamedTuple):
    """Edges that lines have crossed and will cross, by axis; equal on axes that have ended."""

    passed: Sequence[Int[Array, "*agents"]]
    goal: Sequence[Int[Array, "*agents"]]


def lines_between(grid: Grid, start: Places, target: Places) -> list[Line]:
    """The lines from ``start`` to ``target``, both in units of cells."""
    lines = []
    for count, here, there in zip(grid.shape, start, target, strict=True):
        first = jnp.clip(jnp.floor(here).astype(jnp.int32), 0, count - 1)
        delta = there - here
        # An axis that is not finite stays put: its last cell would be arbitrary, a loop endless.
        steps = jnp.where(jnp.isfinite(delta), jnp.floor(there).astype(jnp.int32) - first, 0)
        lines.append(Line(first, here - first, jnp.where(delta == 0, 1.0, delta), steps))
    return lines


def _cross(
    lines: Sequence[Line],
    walk: _Walk,
    is_wall: Callable[[Sequence[Any]], Array],
    tie_rank: Sequence[Array] | None = None,
) -> _Walk:
    """Crosses the next edge of the lattice, or stops there on the axes that meet a wall.

    ``is_wall(step)`` says whether the cell one ``step`` on, in units of cells, is a wall.
    """
    (passed, goals), dim = walk, len(lines)
    going = [p != g for p, g in zip(passed, goals, strict=True)]
    signs = [jnp.sign(line.steps) for line in lines]
    times = [
        jnp.where(go, (p + (sign > 0).astype(p.dtype) - line.inside) / line.delta, jnp.inf)
        for line, sign, go, p in zip(lines, signs, going, passed, strict=True)
    ]
    now = _earliest(going, times)
    if tie_rank is not None:
        now = _earliest(now, [jnp.where(n, r, dim) for n, r in zip(now, tie_rank, strict=True)])

    def blocked(axes: Sequence[int]) -> Array:
        return is_wall([sign if axis in axes else 0 for axis, sign in enumerate(signs)])

    alone = [n & blocked([axis]) for axis, n in enumerate(now)]
    free = [n & ~a for n, a in zip(now, alone, strict=True)]
    corner = jnp.zeros_like(now[0])
    for size in range(2, dim + 1):
        for axes in itertools.combinations(range(dim), size):
            corner = corner | (reduce(and_, (free[a] for a in axes)) & blocked(axes))
    hits = [a | (f & corner) for a, f in zip(alone, free, strict=True)]
    steps = zip(passed, signs, free, strict=True)
    return _Walk(
        passed=tuple(p + jnp.where(f & ~corner, sign, 0) for p, sign, f in steps),
        goal=tuple(jnp.where(h, p, g) for h, p, g in zip(hits, passed, goals, strict=True)),
    )


def _earliest(among: Sequence[Array], times: Sequence[Array]) -> list[Array]:
    """Which of the axes marked in ``among`` come first."""
    first = reduce(jnp.minimum, times)
    return [a & (t == first) for a, t in zip(among, times, strict=True)]


def short_walk(grid: Grid, lines: Sequence[Line], cell: Array) -> Int[Array, "agents"]:
    """Where lines end and what stopped them, as one number for `decode`; negative for long lines.

    One number, because the compiler would walk again for each of several results. One look-up
    tells all walls that an agent may meet.
    """
    far, dim = short_distance(grid.dim), grid.dim
    seen = look_up(jnp.asarray(walls_around(grid, far)[tuple(grid.free_cells.T)]), [cell])
    short = reduce(and_, (jnp.abs(line.steps) <= far for line in lines))
    walked = [line._replace(steps=jnp.where(short, line.steps, 0)) for line in lines]
    goals = tuple(line.steps for line in walked)
    walk = _Walk(tuple(map(jnp.zeros_like, goals)), goals)
    for _ in range(dim * far):

        def is_wall(step: Sequence[Any], passed: Sequence[Array] = walk.passed) -> Array:
            there = [p + s for p, s in zip(passed, step, strict=True)]
            return jnp.not_equal((seen >> _wall_bit(there, far)) & 1, 0)

        walk = _cross(walked, walk, is_wall)
    code, bits = jnp.where(short, 0, -1), (2 * far).bit_length()
    for axis, (line, p, goal) in enumerate(zip(lines, *walk, strict=True)):
        code = code | ((p + far) << (bits * axis))
        code = code | ((goal != line.steps).astype(jnp.int32) << (bits * dim + axis))
    return code


def decode(code: Int[Array, "agents"], dim: int) -> tuple[list[Array], list[Array]]:
    """The edges that lines of `short_walk` crossed, and whether they were stopped, by axis."""
    far = short_distance(dim)
    bits = (2 * far).bit_length()
    passed = [((code >> (bits * axis)) & ((1 << bits) - 1)) - far for axis in range(dim)]
    return passed, [((code >> (bits * dim + axis)) & 1) != 0 for axis in range(dim)]


def walls_around(grid: Grid, far: int) -> Int[np.ndarray, "..."]:
    """For each cell a number whose bits say which cells up to ``far`` cells away are walls."""
    blocked = grid.padded_walls(far)
    around = np.zeros(grid.shape, dtype=np.uint32)
    for offset in itertools.product(range(-far, far + 1), repeat=grid.dim):
        begin = [far + o for o in offset]
        window = tuple(slice(b, b + n) for b, n in zip(begin, grid.shape, strict=True))
        around |= blocked[window].astype(np.uint32) << np.uint32(_wall_bit(offset, far))
    return around.astype(np.int32)


def _wall_bit(offset: Sequence[Any], far: int) -> Any:
    """Number of the bit in `walls_around` that stands for the cell at an offset."""
    return sum((step + far) * (2 * far + 1) ** axis for axis, step in enumerate(offset))


def look_up(table: Shaped[Array, "..."], cell: Sequence[Array]) -> Shaped[Array, "*agents"]:
    """The table's entry for cells. Bounds are not checked: that would cost more than reading."""
    place: Any = 0
    for number, size in zip(cell, table.shape, strict=True):
        place = place * size + number
    return table.reshape(-1).at[place].get(mode="promise_in_bounds", wrap_negative_indices=False)


def short_distance(dim: int) -> int:
    """The cells on each axis that a short walk may cross: 32 bits hold all walls around."""
    return {1: 3, 2: 2, 3: 1}[dim]
