"""The one rule for walls and borders, for one agent (`move`, `trace`) and for many (`move_many`).

The simulator, the mean-field transition and finite populations all use it. `_cross` is the rule:
it takes lines across the next edge of the lattice. Each axis has an array of its own, a number for
one agent or one entry for each of many: of that the compiler makes faster code than of vectors.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial, reduce
from operator import and_, or_
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._types import CellIndex, State, Stopped
from .grid import Grid
from .wall_bits import entry, is_set, short_reach, wall_bit, wall_margin, walls_around

Places = tuple[Float[Array, "*agents"], ...]
"""Positions: one array for each axis."""


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


class Ends(NamedTuple):
    """Where the moves of many agents ended, as `Move` says it of one; an array for each axis."""

    position: Places
    stopped: tuple[Bool[Array, "*agents"], ...]
    cell: Int[Array, "*agents"]


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
    ends = _at_rest(grid, *map(tuple, (aim, path.cell, path.stopped, path.direction > 0)))
    return Move(jnp.stack(ends.position), path.stopped, ends.cell)


def move_many(grid: Grid, start: Places, cell: Int[Array, "agents"], aim: Places) -> Ends:
    """Moves agents as `move` does, from ``start``, which is in the free cell ``cell``.

    If one of them crosses many cells, all go by the rule for any distance, which is slower: call it
    for some thousand agents at a time.
    """
    axes = zip(grid.lower, grid.cell_size, start, aim, strict=True)
    ends = [((here - low) / size, (there - low) / size) for low, size, here, there in axes]
    lines = _lines(grid, *zip(*ends, strict=True))

    def at_rest(passed: Sequence[Array], stopped: Sequence[Array]) -> Ends:
        cells = [line.first + p for line, p in zip(lines, passed, strict=True)]
        return _at_rest(grid, aim, cells, stopped, [line.steps > 0 for line in lines])

    if not walls_around(grid, 1).any():
        nowhere = jnp.zeros_like(cell, dtype=bool)
        return at_rest([line.steps for line in lines], [nowhere] * grid.dim)
    code = _short_walk(grid, lines, cell)

    def all_short(code: Array) -> Ends:
        reach, dims = short_reach(grid.dim), range(grid.dim)
        bits = (2 * reach).bit_length()
        passed = [((code >> (bits * a)) & ((1 << bits) - 1)) - reach for a in dims]
        return at_rest(passed, [((code >> (bits * grid.dim + a)) & 1) != 0 for a in dims])

    def any_distance(_: Array) -> Ends:
        return one_by_one(partial(move, grid), start, aim)

    return Ends(*jax.lax.cond(jnp.min(code) >= 0, all_short, any_distance, code))


def one_by_one(rule: Callable[..., Move], *parts: Places) -> Ends:
    """The moves of many agents by a rule for one, which takes vectors."""

    def one(*parts: Sequence[Array]) -> Ends:
        moved = rule(*map(jnp.stack, parts))
        return Ends(tuple(moved.position), tuple(moved.stopped), moved.index)

    return Ends(*jax.vmap(one)(*parts))


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
    lines = _lines(grid, tuple(start), tuple(aim))
    walk = _walk(grid, lines, tie_rank)
    first, steps = (
        jnp.stack(each) for each in ([x.first for x in lines], [x.steps for x in lines])
    )
    return Path(
        cell=first + jnp.stack(walk.passed),
        start=first,
        stopped=jnp.stack(walk.goal) != steps,
        direction=jnp.sign(steps),
    )


class _Line(NamedTuple):
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


def _lines(grid: Grid, start: Places, aim: Places) -> list[_Line]:
    """The lines from ``start`` to ``aim``, both in units of cells."""
    lines = []
    for count, here, there in zip(grid.shape, start, aim, strict=True):
        first = jnp.clip(jnp.floor(here).astype(jnp.int32), 0, count - 1)
        delta = there - here
        # An axis that is not finite stays put: its last cell would be arbitrary, a loop endless.
        steps = jnp.where(jnp.isfinite(delta), jnp.floor(there).astype(jnp.int32) - first, 0)
        lines.append(_Line(first, here - first, jnp.where(delta == 0, 1.0, delta), steps))
    return lines


def _cross(
    lines: Sequence[_Line],
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
        ranks = [jnp.where(n, rank, dim) for n, rank in zip(now, tie_rank, strict=True)]
        now = _earliest(now, ranks)

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
    """Which of the axes marked in ``among`` have the least time."""
    least = reduce(jnp.minimum, times)
    return [a & (t == least) for a, t in zip(among, times, strict=True)]


def _walk(grid: Grid, lines: Sequence[_Line], tie_rank: Array | None = None) -> _Walk:
    """The end of one agent's line, of any length."""
    around = jnp.asarray(walls_around(grid, 1))
    ranks = None if tie_rank is None else tuple(tie_rank)

    def onward(walk: _Walk) -> _Walk:
        cells = [line.first + p for line, p in zip(lines, walk.passed, strict=True)]
        wraps = zip(cells, grid.shape, grid.periodic, strict=True)
        walls = entry(around, [c % n if wrapped else c for c, n, wrapped in wraps])
        return _cross(lines, walk, lambda step: is_set(walls, wall_bit(step, 1)), ranks)

    steps = tuple(line.steps for line in lines)
    begin = _Walk(tuple(map(jnp.zeros_like, steps)), steps)
    return jax.lax.while_loop(lambda walk: reduce(or_, map(jnp.not_equal, *walk)), onward, begin)


def _short_walk(grid: Grid, lines: Sequence[_Line], cell: Array) -> Int[Array, "agents"]:
    """Where lines end and on which axes they are stopped, in one number; negative if they are long.

    One number, because of several results each would be computed by a walk of its own. One look-up
    tells all walls that an agent may meet.
    """
    reach, dim = short_reach(grid.dim), grid.dim
    seen = entry(jnp.asarray(walls_around(grid, reach)[tuple(grid.free_cells.T)]), [cell])
    short = reduce(and_, (jnp.abs(line.steps) <= reach for line in lines))
    walked = [line._replace(steps=jnp.where(short, line.steps, 0)) for line in lines]
    goals = tuple(line.steps for line in walked)
    walk = _Walk(tuple(map(jnp.zeros_like, goals)), goals)
    for _ in range(dim * reach):

        def is_wall(step: Sequence[Any], passed: Sequence[Array] = walk.passed) -> Array:
            there = [p + s for p, s in zip(passed, step, strict=True)]
            return is_set(seen, wall_bit(there, reach))

        walk = _cross(walked, walk, is_wall)
    code, bits = jnp.where(short, 0, -1), (2 * reach).bit_length()
    for axis, (line, p, goal) in enumerate(zip(lines, *walk, strict=True)):
        code = code | ((p + reach) << (bits * axis))
        code = code | ((goal != line.steps).astype(jnp.int32) << (bits * dim + axis))
    return code


def _at_rest(
    grid: Grid,
    aim: Places,
    cells: Sequence[Array],
    stopped: Sequence[Array],
    upward: Sequence[Array],
) -> Ends:
    """Where agents come to rest whose paths ended in these cells, not wrapped, on each axis."""
    found, positions = [], []
    margin = wall_margin(grid, aim[0].dtype)
    for axis, (goal, cell, stop, up) in enumerate(zip(aim, cells, stopped, upward, strict=True)):
        lower, size, extent = grid.lower[axis], grid.cell_size[axis], grid.extent[axis]
        free = goal
        if grid.periodic[axis]:
            wrapped = jnp.mod(goal - lower, extent)
            free = lower + jnp.where(wrapped >= extent, 0.0, wrapped)
            cell = cell % grid.shape[axis]
        low = lower + cell.astype(goal.dtype) * size
        at_wall = jnp.where(up, low + size - margin, low + margin)
        # Rounding must not put a position into another cell than the path ended in.
        inside = jnp.clip(free, low + margin, low + size - margin)
        position = jnp.where(stop, at_wall, inside)
        positions.append(jnp.where(jnp.isfinite(goal), position, jnp.nan))
        found.append(cell)
    index = entry(jnp.asarray(grid.index_table), found)
    return Ends(tuple(positions), tuple(stopped), index)
