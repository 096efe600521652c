"""Landing by tables: what every wall and border does to the mass of windows.

`mufield.flow.walls` traces where windows lead; here the traces become sparse matrices of zeros and
ones, fast forwards and backwards in compiled CPU code.
"""

import math
import string
from collections.abc import Callable
from functools import lru_cache
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._arrays import device_array
from .._progress import stage
from .._types import Mass
from ..errors import UserError
from ..space.grid import Grid
from .walls import Traces, split_edges, trace_windows
from .windows import (
    AbstractLanding,
    SourceMass,
    Std,
    Targets,
    WindowMass,
    slab_masses,
    summed_over_moves,
    window_masses,
)


class Lists(eqx.Module):
    """A sparse matrix of zeros and ones in rows of equal length, the ELLPACK format.

    Each row of the matrix, an *owner*, lists its columns that are one, the *members* that it sums.
    Long lists are continued in further rows: where few owners have many members, as corners of
    walls do, else every list would be as long as the longest.

    Attributes:
        rows: Members, padded with the number of members: first a row for each owner, then others.
        owners: The owners of those other rows.
    """

    rows: Int[Array, "rows width"]
    owners: Int[Array, "further"]
    most: ClassVar[int] = 400_000_000
    """Entries of lists that are refused, because they would fill the memory."""

    @classmethod
    def build(
        cls,
        owners: Int[np.ndarray, "links"],
        members: Int[np.ndarray, "links"],
        n: int,
        pad: int,
    ) -> "Lists":
        """Lists the members of ``n`` owners; short rows are filled with ``pad``."""
        if np.any(owners[1:] < owners[:-1]):
            order = np.argsort(owners, kind="stable")
            owners, members = owners[order], members[order]
        counts = np.bincount(owners, minlength=n)
        width = _width(counts)
        further = np.maximum(-(-counts // width) - 1, 0)
        shape = (n + int(further.sum()), width)
        if math.prod(shape) > cls.most:
            raise UserError(
                f"the tables of windows would have lists of {math.prod(shape):,} entries, more "
                f"than {cls.most:,}; let agents move fewer cells in a step, or take larger cells"
            )
        place = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
        before = n + np.cumsum(further) - further - 1
        row = np.where(place < width, owners, before[owners] + place // width)
        rows = np.full(shape, pad, dtype=np.int32)
        rows[row, place % width] = members
        more = np.repeat(np.arange(n), further)
        return cls(device_array(rows, np.int32), device_array(more, np.int32))

    def __call__(self, values: Float[Array, "members *rest"]) -> Float[Array, "owners *rest"]:
        """The sum of each owner's members."""
        padded = jnp.concatenate([values, jnp.zeros_like(values[:1])])
        rows = self.rows[:, 0] if self.rows.shape[1] == 1 else self.rows
        # Bounds are not checked, nor negative numbers understood: that would take time.
        sums = padded.at[rows].get(mode="promise_in_bounds", wrap_negative_indices=False)
        if rows.ndim == 2:
            sums = jnp.sum(sums, axis=1)
        if not len(self.owners):
            return sums
        n = len(sums) - len(self.owners)
        return sums[:n].at[self.owners].add(sums[n:])


def _width(counts: Int[np.ndarray, "owners"]) -> int:
    """The length of rows that takes the least memory.

    One row for each owner is faster, if that takes at most twice as much.
    """
    lengths, many = np.unique(np.maximum(counts, 1), return_counts=True)
    if not len(counts):
        return 1
    sizes = [width * int(np.sum(-(-lengths // width) * many)) for width in lengths.tolist()]
    return int(lengths[-1] if sizes[-1] <= 2 * min(sizes) else lengths[np.argmin(sizes)])


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
    ) -> "Routing":
        """Builds the map; link number i leads from ``inputs[i]`` to ``outputs[i]``."""
        return cls(
            incoming=Lists.build(outputs, inputs, n_outputs, n_inputs),
            outgoing=Lists.build(inputs, outputs, n_inputs, n_outputs),
        )

    @classmethod
    def to_ends(cls, ends: Int[np.ndarray, "..."], n_ends: int) -> "Routing":
        """The map from each entry of an array to the output that it names; to none if negative."""
        named = np.flatnonzero(ends.ravel() >= 0).astype(np.int32)
        return cls.build(named, ends.ravel()[named], ends.size, n_ends)

    @property
    def transposed(self) -> "Routing":
        """The transposed matrix."""
        return Routing(incoming=self.outgoing, outgoing=self.incoming)

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


class Tables(AbstractLanding):
    """Tables that bring the mass of windows to rest, for some or all cells: the *sources*.

    The *pieces* of a step are the masses in the sources' windows, source after source, followed by
    the mass of each split pair in each of its possible landing cells. The *ends* are where mass
    comes to rest: the free cells, or the places of a `mufield.flow.stencil.Stencil`.

    Attributes:
        routing: From pieces to the ends where they land.
        landing: From pieces to (source, window offset) where they land.
        arrival: From (source, window offset) to the end that this is.
        split_pairs: From sources to the split pairs that are theirs.
        split_edges: Edges of the subcells of each split pair's target on each axis, measured from
            the source's centre; the window's outer edges are far away, to catch the tails.
        split_shares: Share of each subcell's mass that goes to each possible landing of its pair;
            without the last landing, which gets the rest.
    """

    routing: Routing
    landing: Routing
    arrival: Routing
    split_pairs: Routing
    split_edges: Float[Array, "pairs dim edges"]
    split_shares: Float[Array, "pairs landings_but_last *subcells"]
    reach: tuple[int, ...] = eqx.field(static=True)

    @property
    def n_pairs(self) -> int:
        """Number of split pairs."""
        return self.split_shares.shape[0]

    def __call__(self, joint: SourceMass, targets: Targets, std: Std) -> Mass:
        """See `AbstractLanding`."""
        return self.routing(self._pieces(joint, targets, std))

    def kernel(self, targets: Float[Array, "sources dim"], std: Std) -> WindowMass:
        """See `AbstractLanding`."""
        ones = jnp.ones((len(targets), 1), dtype=targets.dtype)
        return self.landing(self._pieces(ones, targets[:, None], std)).reshape(len(targets), -1)

    def arrive(self, landed: WindowMass) -> Mass:
        """See `AbstractLanding`."""
        return self.arrival(landed.reshape(-1))

    def _pieces(self, joint: SourceMass, targets: Targets, std: Std) -> Float[Array, "pieces"]:
        """The mass of a step before it comes to rest."""
        window = window_masses(joint, targets, std, self.reach).reshape(-1)
        if self.n_pairs == 0:
            return window
        return jnp.concatenate([window, self._split(joint, targets, std).reshape(-1)])

    def _split(
        self, joint: SourceMass, targets: Targets, std: Std
    ) -> Float[Array, "pairs landings"]:
        """Mass of each split pair in each of its landing cells."""
        dtype = joint.dtype
        edges, shares = self.split_edges.astype(dtype), self.split_shares.astype(dtype)
        targets, joint = self.split_pairs(targets), self.split_pairs(joint)
        per_pair = jax.vmap(jax.vmap(slab_masses, in_axes=(0, None, None)), in_axes=(0, None, 0))
        fine = [per_pair(targets[..., a], std[a], edges[:, a]) for a in range(edges.shape[1])]
        letters = string.ascii_lowercase[3 : 3 + len(fine)]
        if joint.shape[1] == 1:
            # One axis at a time: matrix-vector products compile to better code than one product.
            shared = shares
            for factor in reversed(fine):
                shared = jnp.einsum("a...b,ab->a...", shared, factor[:, 0])
            shared = shared * joint
        else:
            masses = summed_over_moves(joint, fine)
            shared = jnp.einsum(f"ac{letters},a{letters}->ac", shares, masses)
        totals = [jnp.sum(factor, axis=-1) for factor in fine]
        whole = jnp.sum(joint * math.prod(totals[1:], start=totals[0]), axis=1)
        rest = whole - jnp.sum(shared, axis=1)
        # Rounding must not make it negative; the derivative is unchanged by this correction.
        rest = rest + jax.lax.stop_gradient(jnp.maximum(rest, 0.0) - rest)
        return jnp.concatenate([shared, rest[:, None]], axis=1)


@lru_cache(maxsize=32)
def build_tables(grid: Grid, reach: tuple[int, ...], subcells: int, dtype: str) -> Tables:
    """The tables of all cells, for windows of ``reach`` cells to each side."""
    # The tables are constants of the grid, also when they are first needed inside a trace.
    with jax.ensure_compile_time_eval(), stage("preparing windows", alone=True) as now:
        every = np.arange(grid.n_cells)
        traces = trace_windows(grid, reach, subcells, every, done=now.span(0.0, 0.8))
        return assemble(traces, grid.cell_index, grid.n_cells, dtype)


def assemble(
    traces: Traces,
    end_of: Callable[[Int[np.ndarray, "... dim"]], Int[np.ndarray, "..."]],
    n_ends: int,
    dtype: str,
) -> Tables:
    """The tables of some cells.

    Args:
        traces: Where the mass of their windows comes to rest.
        end_of: Number of the end that a cell is, from its coordinates, which may be beyond a
            wrapped axis; negative in walls.
        n_ends: How many ends there are.
        dtype: Precision of the tables.
    """
    sources, offsets, landing, pairs, split, shares = traces
    n, window = landing.shape
    every_end = np.empty(landing.shape, dtype=np.int32)
    at_once = max(1, (1 << 22) // window)  # or coordinates would take more memory than tables
    for first in range(0, n, at_once):
        part = slice(first, first + at_once)
        every_end[part] = end_of(sources[part, None] + offsets)
    # Pieces: window masses first, then the shares of the split pairs. There may be a hundred
    # million, and their numbers fit into 32 bits.
    place = np.where(landing < 0, -1, landing + window * np.arange(n, dtype=np.int32)[:, None])
    base = (pairs - pairs % window)[:, None]
    place = np.concatenate([place.ravel(), np.where(split < 0, -1, split + base).ravel()])
    place = place.astype(np.int32, copy=False)
    return Tables(
        routing=Routing.to_ends(np.where(place < 0, -1, every_end.ravel()[place]), n_ends),
        landing=Routing.to_ends(place, n * window),
        arrival=Routing.to_ends(every_end, n_ends),
        split_pairs=Routing.build(pairs // window, np.arange(len(pairs)), n, len(pairs)),
        split_edges=device_array(split_edges(traces), dtype),
        split_shares=device_array(shares, dtype),
        reach=traces.reach,
    )
