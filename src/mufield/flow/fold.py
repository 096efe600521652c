"""Mass at walls and borders: where each piece of the window around a cell comes to rest.

Agents stand at cell centres and aim at a point in a window of cells around their own. Mass that
aims through a wall lands where the rule of `mufield.space.move` lets it land. For most pairs of
a cell and a target in its window that is the same cell for all points of the target. Near the
ends of walls it is not: of the agents that aim behind the edge of a door, those who cross into
the door's row first get through and the others do not. Such pairs are *split*: their target is
cut into subcells, and the mass of each subcell is shared among the landing cells in proportion
to how many of its points lead there.
"""

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._progress import Share, stage
from ..errors import UserError
from ..space.grid import Grid
from ..space.move import trace

FAR = 1e6
"""An edge, in cells, that lies beyond any mass: outermost cells include the noise's tails."""

INSIDE = 0.4995
"""How far from the centre agents may stand, in cells: rounding must not put them into another."""

TRACES_AT_ONCE = 1 << 18
"""Lines followed in one compiled call while the tables are built."""


ENDS_AT_ONCE = 1 << 22
"""Places in windows whose cells are looked up at once."""

WORTH_CUTTING, MOST_LISTED = 1 << 20, 400_000_000
"""Entries from which on lists that are much longer than others are cut, and that are refused."""

PREPARING = "preparing windows"
FOLLOWED = 0.8
"""What building tables is called while it is shown, and the share of its time that `follow` takes;
the rest is `assemble`'s."""


class Lists(eqx.Module):
    """For each owner the members that it sums.

    Where few owners have many members, as corners of walls do, theirs are listed apart: else
    every list would be as long as the longest.

    Attributes:
        first: Members of each owner, padded with the number of members.
        long: Owners whose lists are longer; as often as theirs are cut.
        rest: Their further members.
    """

    first: Int[Array, "*devices owners width"]
    long: Int[Array, "*devices long"]
    rest: Int[Array, "*devices long further"]

    @classmethod
    def build(
        cls,
        owners: Int[np.ndarray, "links"],
        members: Int[np.ndarray, "links"],
        n: int,
        pad: int,
        even: bool = False,
    ) -> "Lists":
        """Lists the members of ``n`` owners; if ``even``, in lists that all have one length."""
        if np.any(owners[1:] < owners[:-1]):
            order = np.argsort(owners, kind="stable")
            owners, members = owners[order], members[order]
            del order
        counts = np.bincount(owners, minlength=n)
        most = max(1, int(counts.max(initial=0)))
        width = most if even else _width(counts, most)
        if n * width > MOST_LISTED:
            raise UserError(
                f"the tables of windows would have lists of {n * width:,} entries, more than "
                f"{MOST_LISTED:,}; let agents move fewer cells in a step, or take larger cells"
            )
        long = np.flatnonzero(counts > width)
        further = counts[long] - width
        cut = _cut(further, most - width)
        parts = -(-further // cut)
        # Never all lists at the longest one's length: that could take a thousand times as much.
        first = np.full((n, width), pad, dtype=np.int32)
        rest = np.full((int(parts.sum()), cut), pad, dtype=np.int32)
        place = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
        early = place < width
        first[owners[early], place[early]] = members[early]
        late, place = members[~early], place[~early] - width
        row = np.repeat(np.cumsum(parts) - parts, further)
        rest[row + place // cut, place % cut] = late
        names = np.repeat(long, parts).astype(np.int32)
        return cls(*(jnp.asarray(part) for part in (first, names, rest)))

    def __call__(self, values: Float[Array, "members *rest"]) -> Float[Array, "owners *rest"]:
        """The sum of each owner's members."""
        padded = jnp.concatenate([values, jnp.zeros_like(values[:1])])

        def take(places: Int[Array, "..."]) -> Array:
            # Bounds are not checked, nor negative numbers understood: that would take time.
            return padded.at[places].get(mode="promise_in_bounds", wrap_negative_indices=False)

        if self.first.shape[1] == 1:
            sums = take(self.first[:, 0])
        else:
            sums = jnp.sum(take(self.first), axis=1)
        if not len(self.long):
            return sums
        return sums.at[self.long].add(jnp.sum(take(self.rest), axis=1))


class Routing(eqx.Module):
    """The linear map ``y[j] = sum of x[i] over the inputs i that lead to j``.

    It is a sparse matrix of zeros and ones. Scattering is slow in compiled CPU code, and the
    gradient of a gather is a scatter. So both directions are stored as gathers: for each output
    the inputs that it sums, and for each input the outputs that it reaches.

    Attributes:
        incoming: Inputs of each output.
        outgoing: Outputs of each input.
    """

    incoming: Lists
    outgoing: Lists

    @classmethod
    def build(
        cls,
        inputs: Int[np.ndarray, "links"],
        outputs: Int[np.ndarray, "links"],
        n_inputs: int,
        n_outputs: int,
        even: bool = False,
    ) -> "Routing":
        """Builds the map; link number i leads from ``inputs[i]`` to ``outputs[i]``.

        If ``even``, in lists that all have one length, as `stacked` needs them.
        """
        return cls(
            incoming=Lists.build(outputs, inputs, n_outputs, n_inputs, even),
            outgoing=Lists.build(inputs, outputs, n_inputs, n_outputs, even),
        )

    @classmethod
    def stacked(cls, maps: Sequence["Routing"]) -> "Routing":
        """Maps between as many inputs and outputs each, one after the other on a further axis."""

        def stack(lists: list[Lists], pad: int) -> Lists:
            width = max(each.first.shape[1] for each in lists)
            rows = [np.asarray(each.first) for each in lists]
            wide = [np.pad(x, ((0, 0), (0, width - x.shape[1])), constant_values=pad) for x in rows]
            none = (np.stack([x] * len(lists)) for x in (lists[0].long, lists[0].rest))
            return Lists(*(jnp.asarray(x) for x in (np.stack(wide), *none)))

        inputs, outputs = len(maps[0].outgoing.first), len(maps[0].incoming.first)
        return cls(
            incoming=stack([each.incoming for each in maps], pad=inputs),
            outgoing=stack([each.outgoing for each in maps], pad=outputs),
        )

    def __call__(self, values: Float[Array, "inputs *rest"]) -> Float[Array, "outputs *rest"]:
        """Sums the inputs of each output."""
        return _route(values, self.incoming, self.outgoing)


@jax.custom_vjp
def _route(values: Array, incoming: Lists, outgoing: Lists) -> Array:
    return incoming(values)


def _route_forward(values: Array, incoming: Lists, outgoing: Lists) -> tuple[Array, Any]:
    return _route(values, incoming, outgoing), (incoming, outgoing)


def _route_backward(tables: Any, cotangent: Array) -> tuple[Array, None, None]:
    incoming, outgoing = tables
    return _route(cotangent, outgoing, incoming), None, None


_route.defvjp(_route_forward, _route_backward)


def _cut(further: Int[np.ndarray, "long"], most: int) -> int:
    """The length that further members are cut into, so that few long lists do not make all long.

    Short tables are not cut: their sums are faster and, as ever, in one order.
    """
    if len(further) * most < WORTH_CUTTING:
        return most
    widths = 1 << np.arange(3, most.bit_length())
    sizes = [int((-(-further // w)).sum()) * (w + 1) for w in widths.tolist()]
    best = int(np.argmin(sizes))
    return most if 2 * sizes[best] > len(further) * most else int(widths[best])


def _width(counts: Int[np.ndarray, "owners"], most: int) -> int:
    """The length of lists that takes the least memory if longer ones are listed apart."""
    widths = np.arange(1, most + 1)
    longer = len(counts) - np.cumsum(np.bincount(counts, minlength=most + 1))[1:]
    sizes = len(counts) * widths + longer * (most - widths)
    # Lists of one length are faster, if they take at most twice as much.
    return most if 2 * sizes.min() > len(counts) * most else int(widths[np.argmin(sizes)])


class Fold(eqx.Module):
    """Tables that bring the mass of windows to rest, for some or all cells: the *sources*.

    The *pieces* of a flow step are the masses in the sources' windows, source after source,
    followed by the mass of each split pair in each of its possible landing cells. The *ends* are
    where mass comes to rest: the free cells, unless `mufield.flow.ground` says otherwise.

    Attributes:
        sources: Coordinates of the sources.
        routing: From pieces to the ends where they land.
        landing: From pieces to (source, window offset) where they land.
        arrival: From (source, window offset) to the end that this is.
        split_pairs: From sources to the split pairs that are theirs.
        split_edges: Edges of the subcells of each split pair's target on each axis, in cells
            from the source's centre; the window's outer edges are `FAR` away, to catch the tails.
        split_shares: Share of each subcell's mass that goes to each possible landing of its pair;
            without the last landing, which gets the rest.
        reach: Number of cells that windows extend to each side, on each axis.
        subcells: Subcells of a split target on each axis.
    """

    sources: Int[Array, "sources dim"]
    routing: Routing
    landing: Routing
    arrival: Routing
    split_pairs: Routing
    split_edges: Float[Array, "pairs dim edges"]
    split_shares: Float[Array, "pairs landings_but_last *subcells"]
    reach: tuple[int, ...] = eqx.field(static=True)
    subcells: int = eqx.field(static=True)

    @property
    def window(self) -> tuple[int, ...]:
        """Cells of the window on each axis."""
        return tuple(2 * r + 1 for r in self.reach)

    @property
    def n_pairs(self) -> int:
        """Number of split pairs."""
        return self.split_shares.shape[0]


@lru_cache(maxsize=32)
def build_fold(grid: Grid, reach: tuple[int, ...], subcells: int, dtype: str) -> Fold:
    """Builds the tables of all cells, for windows of ``reach`` cells to each side."""
    # The tables are constants of the grid, also when they are first needed inside a trace.
    with jax.ensure_compile_time_eval(), stage(PREPARING, alone=True) as now:
        every = np.arange(grid.n_cells)
        ways = follow(grid, reach, subcells, every, done=now.span(0.0, FOLLOWED))
        cells = (grid.cell_index, grid.n_cells)
        return assemble(ways, *cells, dtype, done=now.span(FOLLOWED, 1.0))


class Ways(NamedTuple):
    """Where the mass in the windows of some cells, the sources, comes to rest.

    Attributes:
        sources: Their coordinates.
        offsets: The offsets of a window.
        landing: Number of the offset at which mass in a source's window lands; -1 if it is split.
        pairs: The split pairs: number of the source times the window's size plus the offset's.
        codes: Numbers of the offsets at which a split pair's mass may land, right-aligned; before
            them -1.
        shares: As `Fold.split_shares`, before the subcells by place of the start if there are
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


def follow(
    grid: Grid,
    reach: tuple[int, ...],
    subcells: int,
    cells: Int[np.ndarray, "sources"],
    starts: int = 1,
    *,
    done: Share,
) -> Ways:
    """Follows the lines from some free cells, given by their numbers, to their windows.

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
    # Larger boxes take longer, and are seen in more ways.
    effort = np.cumsum(np.prod(np.abs(offsets) + 1, axis=1))
    followed: deque[_Group] = deque()

    def lines() -> Iterator[_Line]:
        for group in wall_groups(grid, reach, sources, offsets):
            done(float(effort[group.offset] / effort[-1]))
            if group.end is None:
                followed.append(group)
                yield sources[group.cells[0]], offsets[group.offset]
            else:
                code = np.ravel_multi_index(tuple(group.end + reach), window_shape)
                landing[group.cells, group.offset] = code

    for end in _landings(grid, lines(), subcells, starts):
        group = followed.popleft()
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
    return Ways(sources, offsets, landing, pairs, kind_codes[kind_of], split_shares)


def assemble(
    ways: Ways,
    end_of: Callable[[Int[np.ndarray, "... dim"]], Int[np.ndarray, "..."]],
    n_ends: int,
    dtype: str,
    even: bool = False,
    *,
    done: Share,
) -> Fold:
    """The tables of some cells.

    Args:
        ways: Where the mass of their windows comes to rest.
        end_of: Number of the end that a cell is, from its coordinates, which may be beyond a
            wrapped axis; negative in walls.
        n_ends: How many ends there are.
        dtype: Precision of the tables.
        even: As of `Routing.build`.
        done: Takes the share that is done, now and then.
    """
    sources, offsets, landing, pairs, codes, shares = ways
    n, window = landing.shape
    every_end = np.empty(landing.shape, dtype=np.int32)
    at_once = max(1, ENDS_AT_ONCE // window)
    for first in range(0, n, at_once):
        part = slice(first, first + at_once)
        every_end[part] = end_of(sources[part, None] + offsets)
    # Pieces: window masses first, then the shares of the split pairs. All numbers are small enough
    # for 32 bits (`mufield.flow.flow`), and there may be a hundred million.
    place = np.where(landing < 0, -1, landing + window * np.arange(n, dtype=np.int32)[:, None])
    base = (pairs - pairs % window)[:, None]
    place = np.concatenate([place.ravel(), np.where(codes < 0, -1, codes + base).ravel()])
    place, n_pieces = place.astype(np.int32, copy=False), len(place)
    pieces = np.flatnonzero(place >= 0).astype(np.int32)
    place = place[pieces]
    done(0.1)
    routing = Routing.build(pieces, every_end.ravel()[place], n_pieces, n_ends, even)
    done(0.4)
    landed = Routing.build(pieces, place, n_pieces, n * window, even)
    done(0.7)
    del pieces, place
    reachable = np.flatnonzero(every_end.ravel() >= 0).astype(np.int32)
    arrival = Routing.build(reachable, every_end.ravel()[reachable], n * window, n_ends, even)
    return Fold(
        sources=jnp.asarray(sources),
        routing=routing,
        landing=landed,
        arrival=arrival,
        split_pairs=Routing.build(pairs // window, np.arange(len(pairs)), n, len(pairs), even),
        split_edges=jnp.asarray(split_edges(ways), dtype=dtype),
        split_shares=jnp.asarray(shares, dtype=dtype),
        reach=ways.reach,
        subcells=shares.shape[-1],
    )


def split_edges(ways: Ways) -> Float[np.ndarray, "pairs dim edges"]:
    """Edges of the subcells of each split pair's target, in cells from the source's centre."""
    subcells = ways.shares.shape[-1]
    ticks = np.arange(subcells + 1) / subcells - 0.5
    edges = ways.offsets[ways.pairs % len(ways.offsets)][:, :, None] + ticks
    limit = np.array(ways.reach)[:, None] + 0.5
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
        room = _rooms(walls[first].reshape(len(first), *size))
        groups = np.split(near[order], np.cumsum(np.bincount(pattern))[:-1])
        for members, far in zip(groups, room, strict=True):
            yield _Group(o, members, None if far[0] < 0 else far * sign)


def _rooms(walls: Bool[np.ndarray, "boxes *size"]) -> Int[np.ndarray, "boxes dim"]:
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
    batch = max(1, TRACES_AT_ONCE // (len(places) * many.shape[0] * many.shape[1]))
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
    ends = _trace_compiled(grid, orders, jnp.asarray(start), jnp.asarray(aim))
    return np.asarray(ends)[:, :count]


@eqx.filter_jit
def _trace_compiled(
    grid: Grid, orders: Int[Array, "orders dim"], starts: Array, aims: Array
) -> Int[Array, "orders lines dim"]:
    def one(start: Array, aim: Array, order: Array) -> Array:
        path = trace(grid, start, aim, order)
        return path.cell - path.start

    along = jax.vmap(one, in_axes=(0, 0, None))
    return jax.vmap(along, in_axes=(None, None, 0))(starts, aims, orders)
