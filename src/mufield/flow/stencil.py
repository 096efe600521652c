"""Landing on large maps, where most cells are *open*: no wall or border is within their reach.

The mass that leaves an open cell lands at the offset that it aims at, so that the mass that lands
in a place is a sum over the offsets of the window; the few other cells have tables. On each axis
the share of every cell's mass that lands a given number of cells further is a *slab*. For the sum
grids are flat arrays, and are computed block by block: then slabs stay in a core's cache, and
neither the sum nor its gradient keeps anything but the distribution and where agents aim.
"""

import itertools
import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._arrays import Mass, Scalar
from .._progress import stage
from ..space.grid import Grid
from . import windows
from .landings import Tables, assemble
from .routing import Routing
from .traces import open_cells, trace_windows
from .windows import AbstractLanding, SourceMass, Std, Targets, WindowMass

BLOCK = 1 << 16
"""Cells that are computed at a time."""

MARGINS = 8
"""A block is at least this many times as long as its window's margin, which is computed twice."""

UNROLLED = 64
"""Offsets of a window whose sum is written out as one expression; over more there is a loop."""

Slabs = list[list[Float[Array, "places"]]]
"""For each axis and offset on it, the share of each cell's mass that lands so far away."""


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
        landed = windows.window_masses(ones, targets[:, None], std, self.reach)
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


class _Window:
    """Offsets of a window in flat arrays over a grid.

    Attributes:
        reach: Number of cells that the window extends to each side, on each axis.
        strides: Distance in a flat array of neighbours on each axis.
        margin: Distance of the farthest offset.
    """

    def __init__(self, shape: tuple[int, ...], reach: tuple[int, ...]):
        self.reach = reach
        self.strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        self.size = math.prod(shape)
        self.margin = sum(r * s for r, s in zip(reach, self.strides, strict=True))
        self.block = min(self.size, max(BLOCK, MARGINS * self.margin))

    def blocks(self, function: Callable[..., Any], *arrays: tuple[Any, int]) -> Any:
        """Applies a function to the blocks of flat arrays; returns all results, stacked.

        Each of ``arrays`` is a pytree of them, and how many more places the function needs on both
        sides of the block; beyond the arrays' ends they are zero.
        """
        count = -(-self.size // self.block)
        spare = count * self.block - self.size

        def padded(tree: Any, more: int) -> Any:
            return jax.tree.map(lambda x: jnp.pad(x, (more, more + spare)), tree)

        whole = [(padded(tree, more), self.block + 2 * more) for tree, more in arrays]

        def at(start: Any) -> Any:
            def part(x: Array, length: int) -> Array:
                return jax.lax.dynamic_slice(x, (start,), (length,))

            return function(*(jax.tree.map(partial(part, length=n), tree) for tree, n in whole))

        if count == 1:
            return jax.tree.map(lambda x: x[None], function(*(tree for tree, _ in whole)))
        return jax.lax.map(at, jnp.arange(count, dtype=jnp.int32) * self.block)

    def joined(self, blocks: Any) -> Any:
        """Flat arrays again, from stacked blocks of them."""
        return jax.tree.map(lambda x: x.reshape(-1)[: self.size], blocks)

    def slabs(self, displacement: list[Array], noise_std: Std) -> Slabs:
        """The slabs of all axes; separate arrays compile to much better code than one array."""

        def of_axis(displacement: Float[Array, "places"], std: Scalar, far: int) -> list[Array]:
            edges = [k - far + 0.5 for k in range(2 * far)]
            inner = [windows.mass_below(edge - displacement, std) for edge in edges]
            sums = [jnp.zeros_like(displacement), *inner, jnp.ones_like(displacement)]
            return [jnp.maximum(high - low, 0.0) for low, high in itertools.pairwise(sums)]

        return [of_axis(d, noise_std[a], self.reach[a]) for a, d in enumerate(displacement)]

    def sum(self, slabs: Slabs, axis: int, term: Callable[[Any, Array], Array]) -> Array:
        """Sum over the offsets on an axis of ``term(shift, slab)``."""
        shifts = [(i - self.reach[axis]) * self.strides[axis] for i in range(len(slabs[axis]))]
        if math.prod(len(further) for further in slabs[axis:]) <= UNROLLED:
            terms = [term(shift, slab) for shift, slab in zip(shifts, slabs[axis], strict=True)]
            return sum(terms[1:], terms[0])

        def add(total: Array, inputs: tuple[Array, Array]) -> tuple[Array, None]:
            return total + term(*inputs), None

        first = term(shifts[0], slabs[axis][0])
        rest = (jnp.asarray(shifts[1:], dtype=jnp.int32), jnp.stack(slabs[axis][1:]))
        return jax.lax.scan(jax.checkpoint(add), first, rest)[0]

    def moved(self, wide: Array, shift: Any) -> Array:
        """The block that begins ``shift`` places after the one in the middle of ``wide``."""
        start = self.margin + shift
        if isinstance(start, int):
            return wide[start : start + self.block]
        return jax.lax.dynamic_slice(wide, (start,), (self.block,))


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def stencil_sum(
    mass: Float[Array, "places"],
    displacement: list[Float[Array, "places"]],
    noise_std: Std,
    shape: tuple[int, ...],
    reach: tuple[int, ...],
) -> Float[Array, "places"]:
    r"""The mass that lands in each place of a grid without walls.

    $$y_j = \sum_o m_{j-o} \prod_a s_{a, o_a}(x_{j-o})$$

    Args:
        mass: Mass of the places, flat. Where the window of a place leaves the grid on any axis,
            it must be zero, for a flat array knows no ends of rows.
        displacement: How far the mass of each place aims, on each axis.
        noise_std: Standard deviation of the noise on each axis.
        shape: The grid's shape.
        reach: Number of cells that windows extend to each side, on each axis.
    """
    window = _Window(shape, reach)

    def block(parts: Any) -> Array:
        mass, displacement = parts
        # The slabs come from a loop over two halves of the places, because results of a loop are
        # stored: else the compiler would compute a slab again for each offset at which it is used.
        length = len(mass)
        half = -(-length // 2)
        halves = [jnp.pad(d, (0, 2 * half - length)).reshape(2, half) for d in displacement]
        found = jax.lax.map(lambda part: window.slabs(part, noise_std), halves)
        slabs: Slabs = jax.tree.map(lambda x: x.reshape(-1)[:length], found)

        def landed(axis: int, carried: Array, shift: Any) -> Array:
            if axis == len(slabs):
                return window.moved(carried, -shift)
            return window.sum(
                slabs, axis, lambda further, slab: landed(axis + 1, carried * slab, shift + further)
            )

        return landed(0, mass, 0)

    return window.joined(window.blocks(block, ((mass, displacement), window.margin)))


def _sum_forward(
    mass: Array, displacement: Any, noise_std: Std, shape: Any, reach: Any
) -> tuple[Array, Any]:
    return stencil_sum(mass, displacement, noise_std, shape, reach), (mass, displacement, noise_std)


def _sum_backward(shape: Any, reach: Any, saved: Any, cotangent: Array) -> Any:
    mass, displacement, noise_std = saved
    window = _Window(shape, reach)

    def block(values: Array, inputs: Any) -> Any:
        def worth(mass: Array, displacement: Any, noise_std: Std) -> Array:
            """The sum of the mass times the value of where it lands."""
            slabs = window.slabs(displacement, noise_std)

            def expected(axis: int, shift: Any) -> Array:
                if axis == len(slabs):
                    return window.moved(values, shift)
                return window.sum(
                    slabs, axis, lambda further, slab: slab * expected(axis + 1, shift + further)
                )

            return jnp.sum(mass * expected(0, 0))

        return jax.grad(worth, (0, 1, 2))(*inputs, noise_std)

    found = window.blocks(block, (cotangent, window.margin), ((mass, displacement), 0))
    by_mass, by_displacement, by_noise = found
    return *window.joined((by_mass, by_displacement)), jnp.sum(by_noise, axis=0)


stencil_sum.defvjp(_sum_forward, _sum_backward)
