"""Phi far from walls: a stencil, without tables.

The mass that leaves a cell without walls in its window lands at the offset that it aims at. So the
next distribution is a sum over the offsets of the window of arrays over the whole grid, each
shifted by its offset. On each axis such an array is a *slab*: the share of every cell's mass that
lands a given number of cells further.

Grids are flat arrays here, and are computed block by block: then slabs stay in a core's cache, and
neither the sum nor its gradient keeps anything but the distribution and where agents aim.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

BLOCK = 1 << 16
"""Cells that are computed at a time."""

MARGINS = 8
"""A block is at least this many times as long as its window's margin."""

UNROLLED = 64
"""Offsets of a window whose sum is written out as one expression; over more there is a loop."""

Slabs = Sequence[Sequence[Float[Array, "places"]]]
"""For each axis and offset on it, the share of each cell's mass that lands so far away."""


class Window:
    """Offsets of a window in flat arrays over a grid.

    Attributes:
        reach: Number of cells that the window extends to each side, on each axis.
        strides: Distance in a flat array of neighbours on each axis.
        size: Length of a flat array.
        margin: Distance of the farthest offset.
        block: Length of a block.
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


@partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def spread(
    mass: Float[Array, "places"],
    aims: Any,
    settings: Any,
    slabs_of: Callable[[Any, Any], Slabs],
    shape: tuple[int, ...],
    reach: tuple[int, ...],
) -> Float[Array, "places"]:
    r"""The mass that lands in each place of a grid without walls.

    $$y_j = \sum_o m_{j-o} \prod_a s_{a, o_a}(x_{j-o})$$

    Args:
        mass: Mass of the places, flat. Where the window of a place leaves the grid on any axis,
            it must be zero, for a flat array knows no ends of rows.
        aims: Flat arrays, from which the slabs are computed.
        settings: What slabs depend on besides; the same everywhere.
        slabs_of: The slabs of all axes, from aims and settings.
        shape: The grid's shape.
        reach: Number of cells that windows extend to each side, on each axis.
    """
    window = Window(shape, reach)

    def block(parts: Any) -> Array:
        mass, aims = parts
        slabs = _stored(slabs_of, aims, settings)

        def landed(axis: int, carried: Array, shift: Any) -> Array:
            if axis == len(slabs):
                return window.moved(carried, -shift)
            return window.sum(
                slabs, axis, lambda further, slab: landed(axis + 1, carried * slab, shift + further)
            )

        return landed(0, mass, 0)

    after: Array = window.joined(window.blocks(block, ((mass, aims), window.margin)))
    return after


def _stored(slabs_of: Callable[[Any, Any], Slabs], aims: Any, settings: Any) -> Slabs:
    """The slabs, from a loop over two halves of the places.

    Results of a loop are stored. Without it, the compiler would compute a slab again for each
    offset at which it is used.
    """
    length = len(jax.tree.leaves(aims)[0])
    half = -(-length // 2)

    def halved(x: Array) -> Array:
        return jnp.pad(x, (0, 2 * half - length)).reshape(2, half)

    found = jax.lax.map(lambda part: slabs_of(part, settings), jax.tree.map(halved, aims))
    slabs: Slabs = jax.tree.map(lambda x: x.reshape(-1)[:length], found)
    return slabs


def _spread_forward(
    mass: Array, aims: Any, settings: Any, slabs_of: Any, shape: Any, reach: Any
) -> tuple[Array, Any]:
    return spread(mass, aims, settings, slabs_of, shape, reach), (mass, aims, settings)


def _spread_backward(slabs_of: Any, shape: Any, reach: Any, saved: Any, cotangent: Array) -> Any:
    mass, aims, settings = saved
    window = Window(shape, reach)

    def block(values: Array, inputs: Any) -> Any:
        def worth(mass: Array, aims: Any, settings: Any) -> Array:
            """The sum of the mass times the value of where it lands."""
            slabs = slabs_of(aims, settings)

            def expected(axis: int, shift: Any) -> Array:
                if axis == len(slabs):
                    return window.moved(values, shift)
                return window.sum(
                    slabs, axis, lambda further, slab: slab * expected(axis + 1, shift + further)
                )

            return jnp.sum(mass * expected(0, 0))

        return jax.grad(worth, (0, 1, 2))(*inputs, settings)

    found = window.blocks(block, (cotangent, window.margin), ((mass, aims), 0))
    by_mass, by_aims, by_settings = found
    total = jax.tree.map(lambda x: jnp.sum(x, axis=0), by_settings)
    return *window.joined((by_mass, by_aims)), total


spread.defvjp(_spread_forward, _spread_backward)
