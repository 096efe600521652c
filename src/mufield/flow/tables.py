"""Builds landings: traces the windows of a map, and turns the traces into tables."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int

from .._progress import Share, Stage, stage
from ..space.grid import Grid
from .landing import Stencil, Tables
from .routing import Routing
from .walls import Traces, split_edges, trace_windows


@lru_cache(maxsize=32)
def build_tables(grid: Grid, reach: tuple[int, ...], subcells: int, dtype: str) -> Tables:
    """The tables of all cells, for windows of ``reach`` cells to each side."""
    # The tables are constants of the grid, also when they are first needed inside a trace.
    with jax.ensure_compile_time_eval(), preparing() as now:
        every = np.arange(grid.n_cells)
        traces = trace_windows(grid, reach, subcells, every, done=now.span(0.0, 0.8))
        return assemble(traces, grid.cell_index, grid.n_cells, dtype, done=now.span(0.8, 1.0))


@lru_cache(maxsize=4)
def build_stencil(grid: Grid, reach: tuple[int, ...], subcells: int, dtype: str) -> Stencil:
    """A map split between a stencil and tables."""
    padded = np.array(grid.shape) + 2 * np.array(reach)

    def place(cells: Int[np.ndarray, "... dim"]) -> Int[np.ndarray, "..."]:
        """Places of the padded box, for cells that may be in its margins."""
        inside = tuple(np.moveaxis(cells + np.array(reach), -1, 0))
        return np.asarray(np.ravel_multi_index(inside, tuple(padded)))

    with jax.ensure_compile_time_eval(), preparing() as now:
        is_open = open_cells(grid, reach)
        near = np.flatnonzero(~is_open)
        traces = trace_windows(grid, reach, subcells, near, done=now.span(0.0, 0.8))
        ends = np.unique(place(traces.sources[:, None] + traces.offsets))
        cells = None
        if grid.walls.any():
            flat = np.flatnonzero(~grid.walls.ravel())
            cells = Routing.build(np.arange(grid.n_cells), flat, grid.n_cells, grid.walls.size)

        def number(cells: Int[np.ndarray, "... dim"]) -> Int[np.ndarray, "..."]:
            return np.asarray(np.searchsorted(ends, place(cells)))

        return Stencil(
            near=assemble(traces, number, len(ends), dtype, done=now.span(0.8, 1.0)),
            near_cells=jnp.asarray(near, dtype=jnp.int32),
            ends=jnp.asarray(ends, dtype=jnp.int32),
            open=jnp.asarray(is_open),
            cells=cells,
            shape=grid.shape,
            reach=reach,
            wrapped=grid.periodic,
        )


def preparing() -> AbstractContextManager[Stage]:
    """What is shown while tables are built; tracing takes four fifths of the time."""
    return stage("preparing windows", alone=True)


def open_cells(grid: Grid, reach: tuple[int, ...]) -> Bool[np.ndarray, "cells"]:
    """Which free cells have no wall or border within reach."""
    blocked = grid.padded_walls(reach)
    for axis, r in enumerate(reach):
        size = grid.shape[axis]
        parts = (blocked.take(range(o, o + size), axis=axis) for o in range(2 * r + 1))
        blocked = np.logical_or.reduce(list(parts))
    return np.asarray(~blocked[~grid.walls])


def assemble(
    traces: Traces,
    end_of: Callable[[Int[np.ndarray, "... dim"]], Int[np.ndarray, "..."]],
    n_ends: int,
    dtype: str,
    *,
    done: Share,
) -> Tables:
    """The tables of some cells.

    Args:
        traces: Where the mass of their windows comes to rest.
        end_of: Number of the end that a cell is, from its coordinates, which may be beyond a
            wrapped axis; negative in walls.
        n_ends: How many ends there are.
        dtype: Precision of the tables.
        done: Takes the share that is done, now and then.
    """
    sources, offsets, landing, pairs, codes, shares = traces
    n, window = landing.shape
    every_end = np.empty(landing.shape, dtype=np.int32)
    at_once = max(1, (1 << 22) // window)  # or coordinates would take more memory than tables
    for first in range(0, n, at_once):
        part = slice(first, first + at_once)
        every_end[part] = end_of(sources[part, None] + offsets)
    # Pieces: window masses first, then the shares of the split pairs. All numbers are small enough
    # for 32 bits (`mufield.flow.windows`), and there may be a hundred million.
    place = np.where(landing < 0, -1, landing + window * np.arange(n, dtype=np.int32)[:, None])
    base = (pairs - pairs % window)[:, None]
    place = np.concatenate([place.ravel(), np.where(codes < 0, -1, codes + base).ravel()])
    place, n_pieces = place.astype(np.int32, copy=False), len(place)
    pieces = np.flatnonzero(place >= 0).astype(np.int32)
    place = place[pieces]
    done(0.1)
    routing = Routing.build(pieces, every_end.ravel()[place], n_pieces, n_ends)
    done(0.4)
    landed = Routing.build(pieces, place, n_pieces, n * window)
    done(0.7)
    del pieces, place
    reachable = np.flatnonzero(every_end.ravel() >= 0).astype(np.int32)
    return Tables(
        sources=jnp.asarray(sources),
        routing=routing,
        landing=landed,
        arrival=Routing.build(reachable, every_end.ravel()[reachable], n * window, n_ends),
        split_pairs=Routing.build(pairs // window, np.arange(len(pairs)), n, len(pairs)),
        split_edges=jnp.asarray(split_edges(traces), dtype=dtype),
        split_shares=jnp.asarray(shares, dtype=dtype),
        reach=traces.reach,
    )
