"""Windows at walls and borders: where the mass that aims at each cell of a window comes to rest.

Agents stand at cell centres and aim at a point in a window of cells around their own. Mass that
aims through a wall lands where the rule of `mufield.space.wall_rule` lets it. For most pairs of a
cell and a target in its window that is the same cell for all points of the target. Near the ends
of walls it is not: of the agents that aim behind the edge of a door, those who cross into the
door's row first get through and the others do not. Such pairs are *split*: their target is cut
into subcells, and the mass of each subcell is shared among the landing cells in proportion to how
many of its points lead there.
"""

import itertools
import math
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._progress import Share
from ..space.grid import Grid
from ..space.wall_rule import trace

FAR = 1e6
"""An edge, in cells, that lies beyond any mass: outermost cells include the noise's tails."""

INSIDE = 0.4995
"""How far from the centre agents may stand, in cells: rounding must not put them into another."""


class Traces(NamedTuple):
    """Where the mass in the windows of some cells, the sources, comes to rest.

    Attributes:
        sources: Their coordinates.
        offsets: The offsets of a window.
        landing: Number of the offset at which mass in a source's window lands; -1 if it is split.
        pairs: The split pairs: number of the source times the window's size plus the offset's.
        codes: Numbers of the offsets at which a split pair's mass may land, right-aligned; before
            them -1.
        shares: As `Tables.split_shares`, before the subcells by place of the start if there are
            several.
    """

    sources: Int[np.ndarray, "sources dim"]
    offsets: Int[np.ndarray, "window dim"]
    landing: Int[np.ndarray, "sources window"]
    pairs: Int[np.ndarray, "pairs"]
    codes: Int[np.ndarray, "pairs landings"]
    shares: Float[np.ndarray, "pairs landings_but_last *parts"]

    @property
    def reach(self) -> tuple[int, ...]:
        """Number of cells that windows extend to each side."""
        return tuple(int(most) for most in self.offsets.max(axis=0))


def trace_windows(
    grid: Grid,
    reach: tuple[int, ...],
    subcells: int,
    cells: Int[np.ndarray, "sources"],
    starts: int = 1,
    *,
    done: Share,
) -> Traces:
    """Traces the lines from some free cells, given by their numbers, to their windows.

    Which cell an aim leads to depends only on the walls in the box between the agent's cell and
    the target cell, so each pattern of walls in such a box is traced once, however large the map.

    Args:
        grid: The space.
        reach: Number of cells that windows extend to each side.
        subcells: Subcells of a split target on each axis.
        cells: The sources.
        starts: Places on each axis of a source from which lines start: its middle, or several from
            edge to edge. Then shares have an axis for each axis's places before the subcells'.
        done: Takes the share that is done, now and then.
    """
    n, dim, sources = len(cells), grid.dim, grid.free_cells[cells]
    if dim == 1:
        subcells = 1  # On a line there is no order in which axes could cross.
    offsets = np.array(list(itertools.product(*(range(-r, r + 1) for r in reach))))
    window, window_shape = len(offsets), tuple(2 * r + 1 for r in reach)
    landing = np.tile(np.arange(window, dtype=np.int32), (n, 1))

    split_pair: list[Int[np.ndarray, "..."]] = []
    split_kind: list[Int[np.ndarray, "..."]] = []
    kinds: list[tuple[list[int], Float[np.ndarray, "landings subcells"]]] = []
    # Larger boxes take longer, and hold more patterns of walls.
    effort = np.cumsum(np.prod(np.abs(offsets) + 1, axis=1))
    traced: deque[_Group] = deque()

    def lines() -> Iterator[_Line]:
        for group in wall_groups(grid, reach, sources, offsets):
            done(float(effort[group.offset] / effort[-1]))
            if group.end is None:
                traced.append(group)
                yield sources[group.cells[0]], offsets[group.offset]
            else:
                code = np.ravel_multi_index(tuple(group.end + reach), window_shape)
                landing[group.cells, group.offset] = code

    for end in _landings(grid, lines(), subcells, starts):
        group = traced.popleft()
        landed = np.ravel_multi_index(tuple(np.moveaxis(end + reach, -1, 0)), window_shape)
        possible = np.unique(landed)
        if len(possible) == 1:
            landing[group.cells, group.offset] = possible[0]
            continue
        shares = np.stack([np.mean(landed == e, axis=1) for e in possible])
        landing[group.cells, group.offset] = -1
        split_pair.append(group.cells * window + group.offset)
        split_kind.append(np.full(len(group.cells), len(kinds)))
        kinds.append((possible.tolist(), shares))

    pairs = np.concatenate(split_pair) if kinds else np.zeros(0, dtype=int)
    kind_of = np.concatenate(split_kind) if kinds else np.zeros(0, dtype=int)
    order = np.argsort(pairs, kind="stable")
    pairs, kind_of = pairs[order], kind_of[order]
    most = max((len(codes) for codes, _ in kinds), default=2)
    kind_codes = np.full((max(1, len(kinds)), most), -1)
    parts = ((starts,) * dim if starts > 1 else ()) + (subcells,) * dim
    kind_shares = np.zeros((max(1, len(kinds)), most, math.prod(parts)))
    for i, (codes, shares) in enumerate(kinds):
        # Aligned to the right, because the last landing gets what the others leave.
        kind_codes[i, most - len(codes) :] = codes
        kind_shares[i, most - len(codes) :] = shares
    split_shares = kind_shares[kind_of, :-1].reshape(-1, most - 1, *parts)
    return Traces(sources, offsets, landing, pairs, kind_codes[kind_of], split_shares)


def split_edges(traces: Traces) -> Float[np.ndarray, "pairs dim edges"]:
    """Edges of the subcells of each split pair's target, in cells from the source's centre."""
    subcells = traces.shares.shape[-1]
    ticks = np.arange(subcells + 1) / subcells - 0.5
    edges = traces.offsets[traces.pairs % len(traces.offsets)][:, :, None] + ticks
    limit = np.array(traces.reach)[:, None] + 0.5
    return np.asarray(np.where(np.abs(edges) >= limit - 1e-9, np.sign(edges) * FAR, edges))


_Line = tuple[Int[np.ndarray, "dim"], Int[np.ndarray, "dim"]]
"""A cell, and the offset of the cell that its agents aim at."""


class _Group(NamedTuple):
    """Cells that see the same walls in the box towards one window offset.

    Attributes:
        offset: Number of the offset.
        cells: Numbers of the sources.
        end: The offset at which all lines end, if one need not follow them to know it.
    """

    offset: int
    cells: Int[np.ndarray, "members"]
    end: Int[np.ndarray, "dim"] | None


def wall_groups(
    grid: Grid,
    reach: tuple[int, ...],
    sources: Int[np.ndarray, "sources dim"],
    offsets: Int[np.ndarray, "window dim"],
) -> Iterator[_Group]:
    """Groups of sources that have walls in the box towards an offset, by the pattern they see."""
    blocked = grid.padded_walls(reach)
    cells = np.ravel_multi_index(tuple((sources + np.array(reach)).T), blocked.shape)
    steps = np.array([math.prod(blocked.shape[axis + 1 :]) for axis in range(grid.dim)])
    for o, offset in enumerate(offsets):
        sign, size = np.where(offset < 0, -1, 1), tuple(np.abs(offset) + 1)
        box = np.indices(size).reshape(grid.dim, -1).T * sign  # from the source outwards
        seen = np.stack([blocked.ravel()[cells + step] for step in box @ steps])
        near = np.flatnonzero(seen.any(axis=0))
        if len(near) == 0:
            continue
        walls = seen[:, near].T
        _, first, pattern = np.unique(
            np.packbits(walls, axis=1), axis=0, return_index=True, return_inverse=True
        )
        pattern = pattern.reshape(-1)
        order = np.argsort(pattern, kind="stable")
        room = _enclosed(walls[first].reshape(len(first), *size))
        groups = np.split(near[order], np.cumsum(np.bincount(pattern))[:-1])
        for members, far in zip(groups, room, strict=True):
            yield _Group(o, members, None if far[0] < 0 else far * sign)


def _enclosed(walls: Bool[np.ndarray, "boxes *size"]) -> Int[np.ndarray, "boxes dim"]:
    """How far lines get from the first cell of each box, if walls enclose a box around that cell.

    Then lines within it never cross a wall, and stop on each axis where it ends, on whatever way:
    at borders, and in rooms. Where it is not so, -1.
    """
    count, size = len(walls), walls.shape[1:]
    dim = len(size)
    far = np.empty((count, dim), dtype=int)
    for axis in range(dim):
        line = walls[(slice(None), *(slice(None) if i == axis else 0 for i in range(dim)))]
        far[:, axis] = np.where(line.any(axis=1), line.argmax(axis=1), size[axis]) - 1

    def along(axis: int, last: bool) -> Bool[np.ndarray, "..."]:
        """Which places on an axis are within the box, or the first beyond it."""
        ticks, end = np.arange(size[axis]), far[:, axis, None]
        found = ticks == end + 1 if last else ticks <= end
        return found.reshape(count, *(size[axis] if i == axis else 1 for i in range(dim)))

    def whole(beyond: int) -> Bool[np.ndarray, "boxes *size"]:
        """The box, or its face beyond an axis."""
        found = np.ones(walls.shape, dtype=bool)
        for axis in range(dim):
            found &= along(axis, axis == beyond)
        return found

    odd = walls & whole(-1)
    for axis in range(dim):
        odd |= ~walls & whole(axis)
    far[odd.reshape(count, -1).any(axis=1)] = -1
    return far


def _landings(
    grid: Grid,
    pairs: Iterator[_Line],
    subcells: int,
    starts: int,
) -> Iterator[Int[np.ndarray, "parts lines dim"]]:
    """The offsets at which lines end that lead from places of a cell to points of its target.

    Parts are pairs of a place and a subcell.
    """
    dim = grid.dim
    # In three dimensions the average over the orders of crossing makes up for fewer points.
    many = even_points(dim, subcells, 2 if dim < 3 else 1)
    ticks = (np.linspace(-INSIDE, INSIDE, starts) if starts > 1 else np.zeros(1)) + 0.5
    places = np.stack(np.meshgrid(*(ticks,) * dim, indexing="ij"), axis=-1).reshape(-1, 1, 1, dim)
    at_once = 1 << 18  # lines of one compiled call; more would not fit into a core's cache
    batch = max(1, at_once // (len(places) * many.shape[0] * many.shape[1]))
    while some := list(itertools.islice(pairs, batch)):
        lines = [
            np.broadcast_arrays(cell + places, cell + offset + many[None]) for cell, offset in some
        ]
        begin, aim = (
            np.concatenate([line[side].reshape(-1, dim) for line in lines]) for side in (0, 1)
        )
        sizes = np.cumsum([line[0].size // dim for line in lines])[:-1]
        for end, line in zip(
            np.split(trace_many(grid, begin, aim), sizes, axis=1), lines, strict=True
        ):
            # Every order of crossing counts like one more line.
            by_order = end.reshape(-1, *line[0].shape)
            parts = line[0].shape[0] * line[0].shape[1]
            yield np.moveaxis(by_order, 0, 2).reshape(parts, -1, dim)


@lru_cache
def even_points(dim: int, subcells: int, samples: int) -> Float[np.ndarray, "subcells points dim"]:
    """Points spread evenly over a unit cell, grouped by the subcell they are in."""
    ticks = (np.arange(subcells * samples) + 0.5) / (subcells * samples)
    points = np.stack(np.meshgrid(*(ticks,) * dim, indexing="ij"), axis=-1)
    points = points.reshape(*(subcells, samples) * dim, dim)
    points = points.transpose(*range(0, 2 * dim, 2), *range(1, 2 * dim, 2), 2 * dim)
    return points.reshape(subcells**dim, samples**dim, dim)


def trace_many(
    grid: Grid, starts: Float[np.ndarray, "lines dim"], aims: Float[np.ndarray, "lines dim"]
) -> Int[np.ndarray, "orders lines dim"]:
    """Offsets at which lines end, for every order in which a corner may be crossed."""
    orders = jnp.asarray(list(itertools.permutations(range(grid.dim))), dtype=jnp.int32)
    count = len(starts)
    # Padded to a power of four, so that few sizes are compiled.
    size = 1024
    while size < count:
        size *= 4
    pad = ((0, size - count), (0, 0))
    start, aim = np.pad(starts, pad, mode="edge"), np.pad(aims, pad, mode="edge")
    ends = _ends(grid, orders, jnp.asarray(start), jnp.asarray(aim))
    return np.asarray(ends)[:, :count]


@eqx.filter_jit
def _ends(
    grid: Grid, orders: Int[Array, "orders dim"], starts: Array, aims: Array
) -> Int[Array, "orders lines dim"]:
    def one(start: Array, aim: Array, order: Array) -> Array:
        path = trace(grid, start, aim, order)
        return path.cell - path.start

    along = jax.vmap(one, in_axes=(0, 0, None))
    return jax.vmap(along, in_axes=(None, None, 0))(starts, aims, orders)
