"""The sum behind landing on large maps: arrays over the whole grid, shifted and added up.

The mass that lands in a place is a sum over the offsets of the window. On each axis the share of
every cell's mass that lands a given number of cells further is a *slab*.

Grids are flat arrays here, and are computed block by block: then slabs stay in a core's cache, and
neither the sum nor its gradient keeps anything but the distribution and where agents aim.
"""

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import Scalar
from .windows import Std, mass_below

BLOCK = 1 << 16
"""Cells that are computed at a time."""

MARGINS = 8
"""A block is at least this many times as long as its window's margin, which is computed twice."""

UNROLLED = 64
"""Offsets of a window whose sum is written out as one expression; over more there is a loop."""

Slabs = list[list[Float[Array, "places"]]]
"""For each axis and offset on it, the share of each cell's mass that lands so far away."""


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
            inner = [mass_below(edge - displacement, std) for edge in edges]
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
