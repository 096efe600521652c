"""Landings: where mass comes to rest that leaves the centres of cells.

`Tables` is for Gaussian noise: `mufield.flow.traces` says where windows lead at walls,
and here the traces become sparse matrices. `Noiseless` is for motions without such noise, and
`ToSuccessors` for nodes. On large open maps `mufield.flow.stencil` is faster.
"""

import itertools
import math
import string
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._arrays import Mass, device_array
from .._progress import stage
from ..space.grid import Grid
from ..space.move import NeighbourNoise, Noise
from ..space.walls import trace
from . import windows
from .routing import Routing
from .traces import Traces, split_edges, trace_windows
from .windows import AbstractLanding, SourceMass, Std, Targets, WindowMass, slab_masses

if TYPE_CHECKING:
    from ..space.nodes import Nodes


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
        split_shares: Share of each subcell's mass that goes to each possible landing of its pair.
    """

    routing: Routing
    landing: Routing
    arrival: Routing
    split_pairs: Routing
    split_edges: Float[Array, "pairs dim edges"]
    split_shares: Float[Array, "pairs landings *subcells"]
    reach: tuple[int, ...] = eqx.field(static=True)

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
        window = windows.window_masses(joint, targets, std, self.reach).reshape(-1)
        if not len(self.split_shares):
            return window
        return jnp.concatenate([window, self._split(joint, targets, std).reshape(-1)])

    def _split(
        self, joint: SourceMass, targets: Targets, std: Std
    ) -> Float[Array, "pairs landings"]:
        dtype = joint.dtype
        edges, shares = self.split_edges.astype(dtype), self.split_shares.astype(dtype)
        targets, joint = self.split_pairs(targets), self.split_pairs(joint)
        by_axis = [edges[:, axis] for axis in range(edges.shape[1])]
        if joint.shape[1] == 1:
            fine = [slab_masses(targets[..., a], std[a], ends) for a, ends in enumerate(by_axis)]
            # One axis at a time: matrix-vector products compile to better code than one product.
            shared = shares
            for factor in reversed(fine):
                shared = jnp.einsum("a...b,ab->a...", shared, factor)
            return shared * joint
        masses = windows.slab_products(joint, targets, std, by_axis)
        letters = string.ascii_lowercase[2 : 1 + masses.ndim]
        return jnp.einsum(f"az{letters},a{letters}->az", shares, masses)


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


class Noiseless(AbstractLanding):
    """Mass lands where an agent of its cell would; by targets the derivative is zero.

    In the discrete rooms it is then pushed to neighbouring cells with some probability.

    Attributes:
        arrival: From (cell, window offset) to the cell that this is.
        neighbours: From (cell, direction) to the cell there; None without such noise.
        weights: Probability of each direction in each cell.
    """

    arrival: Routing
    neighbours: Routing | None
    weights: Float[Array, "cells directions"] | None
    grid: Grid = eqx.field(static=True)
    reach: tuple[int, ...] = eqx.field(static=True)

    def kernel(self, targets: Float[Array, "sources dim"], std: Std) -> WindowMass:
        """See `AbstractLanding`."""
        reach = jnp.asarray(self.reach, dtype=jnp.int32)
        centres = jnp.asarray(self.grid.free_cells, dtype=targets.dtype) + 0.5

        def offset(centre: Array, displacement: Array) -> Array:
            path = trace(self.grid, centre, centre + displacement)
            place = jnp.clip(path.cell - path.start, -reach, reach) + reach
            return jnp.ravel_multi_index(tuple(place), self.window, mode="clip")

        offsets = jax.vmap(offset)(centres, targets)
        return jax.nn.one_hot(offsets, math.prod(self.window), dtype=targets.dtype)

    def arrive(self, landed: WindowMass) -> Mass:
        """See `AbstractLanding`."""
        mass = self.arrival(landed.reshape(-1))
        if self.neighbours is None or self.weights is None:
            return mass
        return self.neighbours((mass[:, None] * self.weights.astype(mass.dtype)).reshape(-1))


@lru_cache(maxsize=32)
def build_noiseless(grid: Grid, reach: tuple[int, ...], noise: Noise) -> Noiseless:
    """The landing of a grid, for windows of ``reach`` cells to each side."""
    with jax.ensure_compile_time_eval():
        offsets = np.array(list(itertools.product(*(range(-r, r + 1) for r in reach))))
        ends = grid.cell_index(grid.free_cells[:, None] + offsets)
        neighbours = weights = None
        if isinstance(noise, NeighbourNoise):
            neighbours = Routing.to_ends(grid.neighbours, grid.n_cells)
            weights = jnp.asarray(noise.weights(grid), dtype=jnp.result_type(float))
        arrival = Routing.to_ends(ends, grid.n_cells)
        return Noiseless(
            arrival=arrival, neighbours=neighbours, weights=weights, grid=grid, reach=reach
        )


class ToSuccessors(AbstractLanding):
    r"""Mass goes to the successors of nodes: $\mu'(j) = \sum_{k,m} J(k, m) P(j \mid k, m)$.

    A window is the list of a node's successors, or all nodes. Work and memory are linear in the
    number of entries of all windows.

    Attributes:
        arrival: From (node, successor) to the node that this is; None if windows are all nodes.
    """

    cheap: ClassVar[bool] = True
    arrival: Routing | None
    reach: tuple[int, ...] = eqx.field(static=True)

    @property
    def window(self) -> tuple[int, ...]:
        """Number of successors."""
        return self.reach

    def kernel(self, targets: Float[Array, "sources slots"], std: Std) -> WindowMass:
        """See `AbstractLanding`; targets are probabilities."""
        return targets

    def arrive(self, landed: WindowMass) -> Mass:
        """See `AbstractLanding`."""
        if self.arrival is None:
            return jnp.sum(landed, axis=0)
        return self.arrival(landed.reshape(-1))


@lru_cache(maxsize=32)
def build_successors(nodes: "Nodes") -> ToSuccessors:
    """The landing of nodes."""
    with jax.ensure_compile_time_eval():
        listed = nodes.successors
        arrival = None if listed is None else Routing.to_ends(listed, nodes.n_cells)
        return ToSuccessors(arrival=arrival, reach=(nodes.target_size,))
