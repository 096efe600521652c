"""Which cells are open, and where the others land: how a large map is split between two ways.

A cell is *open* if no wall or border is within reach of it. Open cells land by a stencil
(`mufield.flow.stencil`), the others, which are few on large maps, by tables (`mufield.flow.fold`).
Both add to the *room*: the box with a margin of the window's reach around it, as one flat array.
What ended up in the margins belongs to the other side of a wrapped axis, or to a neighbouring
part if the map is split over several devices (`mufield.flow.sharded`).
"""

import itertools
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._progress import stage
from .._types import Mass
from ..space.grid import Grid
from .fold import FOLLOWED, PREPARING, Fold, Routing, Ways, assemble, follow
from .stencil import UNROLLED


class Ground(eqx.Module):
    """A map, or one part of it, whose open cells go by a stencil.

    Attributes:
        cells: From the entries of a distribution to the cells of the box; None if it has one for
            every cell of the box.
        open: Which entries are of open cells.
        near: The entries that go by tables.
        ends: Places of the room where their mass comes to rest.
        shape: Cells of the box on each axis.
        reach: Number of cells that windows extend to each side, on each axis.
        wrapped: Which axes wrap around within the box.
    """

    cells: Routing | None
    open: Bool[Array, "*devices cells"]
    near: Int[Array, "*devices near"]
    ends: Int[Array, "*devices ends"]
    shape: tuple[int, ...] = eqx.field(static=True)
    reach: tuple[int, ...] = eqx.field(static=True)
    wrapped: tuple[bool, ...] = eqx.field(static=True)

    @property
    def room(self) -> tuple[int, ...]:
        """Shape of the room."""
        return tuple(n + 2 * r for n, r in zip(self.shape, self.reach, strict=True))

    def enter(self, values: Float[Array, "cells *rest"]) -> Float[Array, "places *rest"]:
        """Values of the cells in the room, zero in walls and margins."""
        box = values if self.cells is None else self.cells(values)
        rest = values.shape[1:]
        margins = [(r, r) for r in self.reach] + [(0, 0)] * len(rest)
        return jnp.pad(box.reshape(*self.shape, *rest), margins).reshape(-1, *rest)

    def leave(self, room: Float[Array, "places"]) -> Mass:
        """The distribution of mass in the room; what is in margins goes round wrapped axes."""
        box = room.reshape(self.room)
        for axis, (size, reach, wrapped) in enumerate(
            zip(self.shape, self.reach, self.wrapped, strict=True)
        ):
            box = _wrap(box, axis, size, reach if wrapped else 0, reach)
        return self.only_cells(box)

    def only_cells(self, box: Float[Array, "..."]) -> Mass:
        """The entries of a distribution, from the cells of the box."""
        flat = box.reshape(-1)
        if self.cells is None:
            return flat
        return Routing(incoming=self.cells.outgoing, outgoing=self.cells.incoming)(flat)

    def arrive(self, landed: Float[Array, "cells window"]) -> Mass:
        """The next distribution, from the mass that lands at each offset of the cells' windows."""
        inside = self.enter(landed).reshape(*self.room, -1)
        # From the room to one more margin around it, so that every shift is a slice.
        wide = jnp.pad(inside, [(r, r) for r in self.reach] + [(0, 0)])
        offsets = list(itertools.product(*(range(2 * r + 1) for r in self.reach)))

        def shifted(start: Sequence[int | Array], number: int | Array) -> Array:
            corner = (*start, number)
            return jax.lax.dynamic_slice(wide, corner, (*self.room, 1))[..., 0]

        starts = [tuple(2 * r - o for o, r in zip(at, self.reach, strict=True)) for at in offsets]
        if len(offsets) <= UNROLLED:
            total = sum(
                (shifted(at, k) for k, at in enumerate(starts[1:], 1)), shifted(starts[0], 0)
            )
        else:
            numbers = (jnp.asarray(starts), jnp.arange(len(starts)))
            total = jax.lax.scan(
                lambda t, at: (t + shifted(tuple(at[0]), at[1]), None),
                jnp.zeros(self.room, dtype=landed.dtype),
                numbers,
            )[0]
        return self.leave(total.reshape(-1))


class Surveyed(NamedTuple):
    """A map's ground and the tables of the cells that are not open."""

    ground: Ground
    fold: Fold


def open_cells(grid: Grid, reach: tuple[int, ...]) -> Bool[np.ndarray, "cells"]:
    """Which free cells have no wall or border within reach."""
    blocked = grid.padded_walls(reach)
    for axis, r in enumerate(reach):
        size = grid.shape[axis]
        parts = (blocked.take(range(o, o + size), axis=axis) for o in range(2 * r + 1))
        blocked = np.logical_or.reduce(list(parts))
    return np.asarray(~blocked[~grid.walls])


@lru_cache(maxsize=4)
def survey(grid: Grid, reach: tuple[int, ...], subcells: int, dtype: str) -> Surveyed:
    """Splits a map between a stencil and tables."""
    with jax.ensure_compile_time_eval(), stage(PREPARING, alone=True) as now:
        is_open = open_cells(grid, reach)
        near = np.flatnonzero(~is_open)
        part = Part((0,) * grid.dim, grid.shape, reach)
        ways = follow(grid, reach, subcells, near, done=now.span(0.0, FOLLOWED))
        ends = part.ends(ways)
        cells = None
        if grid.walls.any():
            flat = np.flatnonzero(~grid.walls.ravel())
            cells = Routing.build(np.arange(grid.n_cells), flat, grid.n_cells, grid.walls.size)
        ground = Ground(
            cells=cells,
            open=jnp.asarray(is_open),
            near=jnp.asarray(near, dtype=jnp.int32),
            ends=jnp.asarray(ends, dtype=jnp.int32),
            shape=grid.shape,
            reach=reach,
            wrapped=grid.periodic,
        )
        numbers, done = partial(part.number, ends), now.span(FOLLOWED, 1.0)
        return Surveyed(ground, assemble(ways, numbers, len(ends), dtype, done=done))


class Part(NamedTuple):
    """A box of cells within a map."""

    origin: tuple[int, ...]
    shape: tuple[int, ...]
    reach: tuple[int, ...]

    def place(self, cells: Int[np.ndarray, "... dim"]) -> Int[np.ndarray, "..."]:
        """Places in the room of cells, which may be in its margins; -1 elsewhere."""
        room = np.array(self.shape) + 2 * np.array(self.reach)
        inside = cells - self.origin + self.reach
        fits = ((inside >= 0) & (inside < room)).all(axis=-1)
        flat = np.ravel_multi_index(tuple(np.moveaxis(inside, -1, 0)), tuple(room), mode="clip")
        return np.where(fits, flat, -1)

    def ends(self, ways: Ways) -> Int[np.ndarray, "ends"]:
        """The places of the room where mass may come to rest."""
        return np.unique(self.place(ways.sources[:, None] + ways.offsets))

    def number(
        self, ends: Int[np.ndarray, "ends"], cells: Int[np.ndarray, "... dim"]
    ) -> Int[np.ndarray, "..."]:
        """The numbers among ``ends`` of the places of cells, which must be among them."""
        return np.asarray(np.searchsorted(ends, self.place(cells)))


def _wrap(box: Array, axis: int, size: int, reach: int, margin: int) -> Array:
    """The box without its margins on an axis; up to ``reach`` cells of them go round it."""
    inside = jax.lax.slice_in_dim(box, margin, margin + size, axis=axis)
    for turn in range(1, -(-reach // size) + 1):
        for first in (margin - turn * size, margin + turn * size):
            low, high = max(first, 0), min(first + size, size + 2 * margin)
            widths = [(0, 0)] * box.ndim
            widths[axis] = (low - first, first + size - high)
            part = jax.lax.slice_in_dim(box, low, high, axis=axis)
            inside = inside + jnp.pad(part, widths)
    return inside
