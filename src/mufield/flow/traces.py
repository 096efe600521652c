"""Windows at walls and borders: where the mass that aims at each cell of a window comes to rest.

Agents stand at cell centres and aim at a point in a window of cells around their own. Mass that
aims through a wall lands where the rule of `mufield.space.walls` lets it. For most pairs of a
cell and a target in its window that is the same cell for all points of the target. Near the ends
of walls it is not: of the agents that aim behind the edge of a door, those who cross into the
door's row first get through and the others do not. Such pairs are *split*: their target is cut
into subcells, and the mass of each subcell is shared among the landing cells in proportion to how
many of its points lead there.
"""

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._arrays import device_array
from .._progress import Share
from ..space.grid import Grid
from ..space.walls import trace

FAR = 1e6
"""An edge, in cells, that lies beyond any mass: outermost cells include the noise's tails."""

LINES = 1 << 16
"""Lines that one compiled call traces: as many as fit into a core's cache."""


class Traces(NamedTuple):
    """Where the mass in the windows of some cells, the sources, comes to rest.

    Attributes:
        sources: Their coordinates.
        landing: Number of the offset at which mass in a source's window lands; -1 if it is split.
        pairs: The split pairs: number of the source times the window's size plus the offset's.
        split_landings: Numbers of the offsets at which a split pair's mass may land; then -1.
        shares: As `Tables.split_shares`.
    """

    sources: Int[np.ndarray, "sources dim"]
    offsets: Int[np.ndarray, "window dim"]
    landing: Int[np.ndarray, "sources window"]
    pairs: Int[np.ndarray, "pairs"]
    split_landings: Int[np.ndarray, "pairs landings"]
    shares: Float[np.ndarray, "pairs landings *subcells"]

    @property
    def reach(self) -> tuple[int, ...]:
        """Number of cells that windows extend to each side."""
        return tuple(int(most) for most in self.offsets.max(axis=0))


def trace_windows(
    grid: Grid,
    reach: tuple[int, ...],
    subcells: int,
    cells: Int[np.ndarray, "sources"],
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
        done: Takes the share that is done, now and then.
    """
    n, dim, sources = len(cells), grid.dim, grid.free_cells[cells]
    if dim == 1:
        subcells = 1  # On a line there is no order in which axes could cross.
    offsets = np.array(list(itertools.product(*(range(-r, r + 1) for r in reach))))
    window, window_shape = len(offsets), tuple(2 * r + 1 for r in reach)
    landing = np.tile(np.arange(window, dtype=np.int32), (n, 1))

    split_pair: list[Int[np.ndarray, "..."]] = [np.zeros(0, dtype=int)]
    split_kind: list[Int[np.ndarray, "..."]] = [np.zeros(0, dtype=int)]
    kinds: list[tuple[list[int], Float[np.ndarray, "landings subcells"]]] = []
    # Larger boxes take longer, and hold more patterns of walls.
    effort = np.cumsum(np.prod(np.abs(offsets) + 1, axis=1))
    points = _points(dim, subcells)
    at_once = max(1, LINES // (points.shape[0] * points.shape[1]))
    groups = _wall_groups(grid, reach, sources, offsets)
    while some := list(itertools.islice(groups, at_once)):
        done(float(effort[some[-1][0]] / effort[-1]))
        first = sources[[alike[0] for _, alike in some]][:, None, None]
        aimed = first + offsets[[offset for offset, _ in some]][:, None, None]
        rests = _trace(grid, first + 0.5, aimed + points)
        numbers = np.ravel_multi_index(tuple(np.moveaxis(rests + reach, -1, 0)), window_shape)
        for (offset, alike), landed in zip(some, numbers, strict=True):
            possible = np.unique(landed)
            if len(possible) == 1:
                landing[alike, offset] = possible[0]
                continue
            shares = np.stack([np.mean(landed == e, axis=1) for e in possible])
            landing[alike, offset] = -1
            split_pair.append(alike * window + offset)
            split_kind.append(np.full(len(alike), len(kinds)))
            kinds.append((possible.tolist(), shares))

    pairs, kind_of = np.concatenate(split_pair), np.concatenate(split_kind)
    order = np.argsort(pairs, kind="stable")
    pairs, kind_of = pairs[order], kind_of[order]
    most = max((len(codes) for codes, _ in kinds), default=2)
    kind_codes = np.full((max(1, len(kinds)), most), -1)
    kind_shares = np.zeros((max(1, len(kinds)), most, subcells**dim))
    for i, (codes, shares) in enumerate(kinds):
        kind_codes[i, : len(codes)] = codes
        kind_shares[i, : len(codes)] = shares
    split_shares = kind_shares[kind_of].reshape(-1, most, *(subcells,) * dim)
    return Traces(sources, offsets, landing, pairs, kind_codes[kind_of], split_shares)


def open_cells(grid: Grid, reach: tuple[int, ...]) -> Bool[np.ndarray, "cells"]:
    """Which free cells have no wall or border within reach."""
    blocked = grid.padded_walls(reach)
    for axis, r in enumerate(reach):
        size = grid.shape[axis]
        parts = (blocked.take(range(o, o + size), axis=axis) for o in range(2 * r + 1))
        blocked = np.logical_or.reduce(list(parts))
    return np.asarray(~blocked[~grid.walls])


def split_edges(traces: Traces) -> Float[np.ndarray, "pairs dim edges"]:
    """Edges of the subcells of each split pair's target, in cells from the source's centre."""
    subcells = traces.shares.shape[-1]
    ticks = np.arange(subcells + 1) / subcells - 0.5
    edges = traces.offsets[traces.pairs % len(traces.offsets)][:, :, None] + ticks
    limit = np.array(traces.reach)[:, None] + 0.5
    return np.asarray(np.where(np.abs(edges) >= limit - 1e-9, np.sign(edges) * FAR, edges))


def _wall_groups(
    grid: Grid,
    reach: tuple[int, ...],
    sources: Int[np.ndarray, "sources dim"],
    offsets: Int[np.ndarray, "window dim"],
) -> Iterator[tuple[int, Int[np.ndarray, "alike"]]]:
    """Numbers of an offset and of sources that see the same walls in the box towards it."""
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
        walls = np.packbits(seen[:, near].T, axis=1)
        pattern = np.unique(walls, axis=0, return_inverse=True)[1].reshape(-1)
        order = np.argsort(pattern, kind="stable")
        for cells_alike in np.split(near[order], np.cumsum(np.bincount(pattern))[:-1]):
            yield o, cells_alike


def _points(dim: int, subcells: int) -> Float[np.ndarray, "subcells points dim"]:
    """Where lines end in a target that is cut into subcells."""
    # In three dimensions the average over the orders of crossing makes up for fewer points.
    samples = 2 if dim < 3 else 1
    ticks = (np.arange(subcells * samples) + 0.5) / (subcells * samples)
    points = np.stack(np.meshgrid(*(ticks,) * dim, indexing="ij"), axis=-1)
    points = points.reshape(*(subcells, samples) * dim, dim)
    points = points.transpose(*range(0, 2 * dim, 2), *range(1, 2 * dim, 2), 2 * dim)
    return points.reshape(subcells**dim, samples**dim, dim)


def _trace(
    grid: Grid,
    starts: Float[np.ndarray, "groups 1 1 dim"],
    ends: Float[np.ndarray, "groups subcells points dim"],
) -> Int[np.ndarray, "groups subcells lines dim"]:
    lines = np.broadcast_arrays(starts, ends)
    shape, dim = lines[0].shape, grid.dim
    flat = [x.reshape(-1, dim) for x in lines]
    count = len(flat[0])
    # Padded, so that one program is compiled for all calls.
    pad = ((0, -count % LINES), (0, 0))
    start, end = (device_array(np.pad(x, pad, mode="edge")) for x in flat)
    orders = device_array(list(itertools.permutations(range(dim))), np.int32)
    rests = np.asarray(_compiled_trace(grid, orders, start, end))[:, :count]
    # Every order in which a corner may be crossed counts like one more line.
    by_order = np.moveaxis(rests.reshape(-1, *shape), 0, 2)
    return by_order.reshape(*shape[:2], -1, dim)


@eqx.filter_jit
def _compiled_trace(
    grid: Grid, orders: Int[Array, "orders dim"], starts: Array, ends: Array
) -> Int[Array, "orders lines dim"]:
    def one(start: Array, end: Array, order: Array) -> Array:
        path = trace(grid, start, end, order)
        return path.cell - path.start

    along = jax.vmap(one, in_axes=(0, 0, None))
    return jax.vmap(along, in_axes=(None, None, 0))(starts, ends, orders)
