"""Landing on large maps, where most cells are *open*: no wall or border is within their reach.

The mass that leaves an open cell lands at the offset that it aims at, which
`mufield.flow.stencil_sum` sums; the few other cells have tables.
"""

import itertools
from functools import lru_cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._progress import stage
from .._types import Mass
from ..space.grid import Grid
from .landings import Tables, assemble
from .routing import Routing
from .stencil_sum import stencil_sum
from .traces import open_cells, trace_windows
from .windows import AbstractLanding, SourceMass, Std, Targets, WindowMass, window_masses


class Stencil(AbstractLanding):
    """Open cells land by a stencil, the others, which are few on large maps, by tables.

    Both add to the *padded box*: the box with a margin of the window's reach around it, as one flat
    array. What ends up in the margins belongs to the other side of a wrapped axis.

    Attributes:
        near: The landing of the cells that are not open; its ends are places of the padded box.
        near_cells: Their numbers.
        ends: The places where their mass may come to rest.
        cells: From cells to those of the box; None if there are no walls.
        shape: Cells of the box on each axis.
    """

    near: Tables
    near_cells: Int[Array, "near"]
    ends: Int[Array, "ends"]
    open: Bool[Array, "cells"]
    cells: Routing | None
    shape: tuple[int, ...] = eqx.field(static=True)
    reach: tuple[int, ...] = eqx.field(static=True)
    wrapped: tuple[bool, ...] = eqx.field(static=True)

    @property
    def padded(self) -> tuple[int, ...]:
        """Shape of the padded box."""
        return tuple(n + 2 * r for n, r in zip(self.shape, self.reach, strict=True))

    def __call__(self, joint: SourceMass, targets: Targets, std: Std) -> Mass:
        """See `AbstractLanding`."""
        far = jnp.where(self.open[:, None], joint, 0.0)

        def one(mass: Mass, displacement: Float[Array, "cells dim"]) -> Float[Array, "places"]:
            moved = [self._pad(column) for column in displacement.T]
            return stencil_sum(self._pad(mass), moved, std, self.padded, self.reach)

        box = one(far[:, 0], targets[:, 0])
        if joint.shape[1] > 1:
            later = (far[:, 1:].T, jnp.moveaxis(targets[:, 1:], 1, 0))
            add = jax.checkpoint(lambda total, move: (total + one(*move), None))
            box = jax.lax.scan(add, box, later)[0]
        if len(self.near_cells):
            near = self.near(joint[self.near_cells], targets[self.near_cells], std)
            box = box.at[self.ends].add(near)
        return self._crop(box)

    def kernel(self, targets: Float[Array, "sources dim"], std: Std) -> WindowMass:
        """See `AbstractLanding`."""
        ones = jnp.ones((len(targets), 1), dtype=targets.dtype)
        landed = window_masses(ones, targets[:, None], std, self.reach)
        if not len(self.near_cells):
            return landed
        return landed.at[self.near_cells].set(self.near.kernel(targets[self.near_cells], std))

    def arrive(self, landed: WindowMass) -> Mass:
        """See `AbstractLanding`."""
        inside = self._pad(landed).reshape(*self.padded, -1)
        # From the padded box to one more margin around it, so that every shift is a slice.
        wide = jnp.pad(inside, [(r, r) for r in self.reach] + [(0, 0)])
        offsets = np.array(list(itertools.product(*(range(2 * r + 1) for r in self.reach))))
        corners = 2 * np.array(self.reach) - offsets
        starts = np.concatenate([corners, np.arange(len(corners))[:, None]], axis=1)

        def add(total: Array, start: Int[Array, "axes"]) -> tuple[Array, None]:
            shifted = jax.lax.dynamic_slice(wide, tuple(start), (*self.padded, 1))
            return total + shifted[..., 0], None

        total = jnp.zeros(self.padded, dtype=landed.dtype)
        return self._crop(jax.lax.scan(add, total, jnp.asarray(starts))[0].reshape(-1))

    def _pad(self, values: Float[Array, "cells *rest"]) -> Float[Array, "places *rest"]:
        """Values of the cells in the padded box, zero in walls and margins."""
        box = values if self.cells is None else self.cells(values)
        rest = values.shape[1:]
        margins = [(r, r) for r in self.reach] + [(0, 0)] * len(rest)
        return jnp.pad(box.reshape(*self.shape, *rest), margins).reshape(-1, *rest)

    def _crop(self, places: Float[Array, "places"]) -> Mass:
        """The distribution of mass in the padded box; margins go round wrapped axes."""
        box = places.reshape(self.padded)
        axes = zip(self.shape, self.reach, self.wrapped, strict=True)
        for axis, (size, reach, wrapped) in enumerate(axes):
            box = _wrap(box, axis, size, reach if wrapped else 0, reach)
        flat = box.reshape(-1)
        return flat if self.cells is None else self.cells.transposed(flat)


def _wrap(box: Array, axis: int, size: int, reach: int, margin: int) -> Array:
    """The box without its margins on an axis; up to ``reach`` cells of them go round it."""
    # Part by part: to pad the box to whole turns and sum them would take a third longer.
    inside = jax.lax.slice_in_dim(box, margin, margin + size, axis=axis)
    for turn in range(1, -(-reach // size) + 1):
        for first in (margin - turn * size, margin + turn * size):
            low, high = max(first, 0), min(first + size, size + 2 * margin)
            widths = [(0, 0)] * box.ndim
            widths[axis] = (low - first, first + size - high)
            part = jax.lax.slice_in_dim(box, low, high, axis=axis)
            inside = inside + jnp.pad(part, widths)
    return inside


@lru_cache(maxsize=4)
def build_stencil(grid: Grid, reach: tuple[int, ...], subcells: int, dtype: str) -> Stencil:
    """A map split between a stencil and tables."""
    padded = np.array(grid.shape) + 2 * np.array(reach)

    def place(cells: Int[np.ndarray, "... dim"]) -> Int[np.ndarray, "..."]:
        """Places of the padded box, for cells that may be in its margins."""
        inside = tuple(np.moveaxis(cells + np.array(reach), -1, 0))
        return np.asarray(np.ravel_multi_index(inside, tuple(padded)))

    with jax.ensure_compile_time_eval(), stage("preparing windows", alone=True) as now:
        is_open = open_cells(grid, reach)
        near = np.flatnonzero(~is_open)
        traces = trace_windows(grid, reach, subcells, near, done=now.span(0.0, 0.8))
        ends = np.unique(place(traces.sources[:, None] + traces.offsets))
        cells = None
        if grid.walls.any():
            cells = Routing.to_ends(np.flatnonzero(~grid.walls.ravel()), grid.walls.size)

        return Stencil(
            near=assemble(traces, lambda x: np.searchsorted(ends, place(x)), len(ends), dtype),
            near_cells=jnp.asarray(near, dtype=jnp.int32),
            ends=jnp.asarray(ends, dtype=jnp.int32),
            open=jnp.asarray(is_open),
            cells=cells,
            shape=grid.shape,
            reach=reach,
            wrapped=grid.periodic,
        )
