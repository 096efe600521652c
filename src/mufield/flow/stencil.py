"""Phi far from walls: a stencil, without tables.

The mass that leaves a cell without walls in its window lands at the offset that it aims at. So the
next distribution is a sum over the offsets of the window of arrays over the whole grid, each
shifted by its offset. On each axis such an array is a *slab*: the share of every cell's mass that
lands a given number of cells further. There are as many slabs as the window is wide on each axis,
and that is all that is kept; neither the sum nor its gradient keeps anything of the size of all
windows.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

UNROLLED = 64
"""Offsets of a window whose sum is written out as one expression; over more there is a loop."""

Slabs = Sequence[Sequence[Float[Array, "places"]]]
"""For each axis and offset on it, the share of each cell's mass that lands so far away."""


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def spread(
    mass: Float[Array, "places"], slabs: Slabs, shape: tuple[int, ...]
) -> Float[Array, "places"]:
    r"""The mass that lands in each place of a grid without walls.

    $$y_j = \sum_o m_{j-o} \prod_a s_{a, o_a, j-o}$$

    Args:
        mass: Mass of the cells, flat. Where the window of a cell leaves the grid on any axis, the
            mass must be zero, for a flat array knows no ends of rows.
        slabs: Its shares, for the axes in turn.
        shape: The grid's shape.
    """
    window = _Window(slabs, shape)
    # Without the barrier slabs would be computed again for every offset.
    padded = jax.lax.optimization_barrier([[window.pad(s) for s in axis] for axis in slabs])
    source, stacks = jax.lax.optimization_barrier((window.pad(mass), window.stacks(padded)))

    def add(total: Array, outer: tuple[Any, ...]) -> Array:
        shift, base = window.shift(outer), math.prod(window.at(stacks, outer), start=source)
        for inner in window.inner():
            here = window.shift(inner, window.outer) + shift
            term = window.moved(base, -here)
            for axis, i in enumerate(inner, start=window.outer):
                term = term * window.moved(padded[axis][i], -here)
            total = total + term
        return total

    return window.over_outer(add, window.zero(mass))


def _spread_forward(mass: Array, slabs: Slabs, shape: tuple[int, ...]) -> tuple[Array, Any]:
    return spread(mass, slabs, shape), (mass, slabs)


def _spread_backward(shape: tuple[int, ...], saved: Any, cotangent: Array) -> Any:
    mass, slabs = saved
    window = _Window(slabs, shape)
    padded = jax.lax.optimization_barrier(window.pad(cotangent))
    zero, stacks = window.zero(mass), window.stacks(slabs)

    def add(total: Any, outer: tuple[Any, ...]) -> Any:
        by_mass, by_outer, by_inner = total
        shift, factors = window.shift(outer), window.at(stacks, outer)
        carried = math.prod(factors, start=mass)
        whole = zero
        by_inner = [list(axis) for axis in by_inner]
        gained = [[zero] * len(axis) for axis in by_inner]
        for inner in window.inner():
            value = window.moved(padded, window.shift(inner, window.outer) + shift)
            own = [slabs[window.outer + a][i] for a, i in enumerate(inner)]
            for a, i in enumerate(inner):
                gained[a][i] = gained[a][i] + math.prod(own[:a] + own[a + 1 :], start=value)
            if not inner:
                whole = value
        if gained:  # The first axis' sums serve the total as well.
            whole = sum((g * s for g, s in zip(gained[0], slabs[window.outer], strict=True)), zero)
        by_inner = [
            [old + carried * new for old, new in zip(axis, more, strict=True)]
            for axis, more in zip(by_inner, gained, strict=True)
        ]
        by_outer = [
            axis.at[i].add(math.prod(factors[:a] + factors[a + 1 :], start=mass * whole))
            for a, (axis, i) in enumerate(zip(by_outer, outer, strict=True))
        ]
        return by_mass + math.prod(factors, start=whole), by_outer, by_inner

    outer_zero = [jnp.stack([zero] * len(axis)) for axis in slabs[: window.outer]]
    inner_zero = [[zero] * len(axis) for axis in slabs[window.outer :]]
    by_mass, by_outer, by_inner = window.over_outer(add, (zero, outer_zero, inner_zero))
    by_slab = [list(axis) for axis in by_outer] + by_inner
    like = jax.tree.structure(slabs)
    return by_mass, jax.tree.unflatten(like, jax.tree.leaves(by_slab))


spread.defvjp(_spread_forward, _spread_backward)


class _Window:
    """Offsets of a window in flat arrays over a grid.

    Sums over the offsets of the last axes are written out, those over the first ``outer`` axes are
    a loop, so that wide windows do not make long programs.
    """

    def __init__(self, slabs: Slabs, shape: tuple[int, ...]):
        self.widths = [len(axis) for axis in slabs]
        self.reach = [width // 2 for width in self.widths]
        self.strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        self.size = math.prod(shape)
        self.margin = sum(r * s for r, s in zip(self.reach, self.strides, strict=True))
        self.outer = 0
        while math.prod(self.widths[self.outer :]) > UNROLLED:
            self.outer += 1

    def pad(self, array: Array) -> Array:
        """The array with room for the farthest shift at both ends."""
        return jnp.pad(array, self.margin)

    def moved(self, padded: Array, shift: Any) -> Array:
        """The part of a padded array that begins ``shift`` places after the unpadded one."""
        start = self.margin + shift
        if isinstance(start, int):
            return padded[start : start + self.size]
        return jax.lax.dynamic_slice(padded, (start,), (self.size,))

    def shift(self, numbers: Sequence[Any], first: int = 0) -> Any:
        """The distance in a flat array of an offset's numbers, for the axes from ``first`` on."""
        axes = range(first, first + len(numbers))
        return sum((n - self.reach[a]) * self.strides[a] for n, a in zip(numbers, axes, strict=True))

    def inner(self) -> Iterator[tuple[int, ...]]:
        """The numbers of the offsets on the last axes."""
        return itertools.product(*(range(width) for width in self.widths[self.outer :]))

    def stacks(self, slabs: Slabs) -> list[Array]:
        """The slabs of the first axes, one array for each."""
        return [jnp.stack(axis) for axis in slabs[: self.outer]]

    def at(self, stacks: list[Array], outer: tuple[Any, ...]) -> list[Array]:
        """The slabs of the first axes for an offset of theirs."""
        return [stack[i] for stack, i in zip(stacks, outer, strict=True)]

    def zero(self, mass: Array) -> Array:
        """Where sums begin; in a loop on several devices, zeros must be known to be each one's."""
        return 0 * mass if self.outer else jnp.zeros_like(mass)

    def over_outer(self, add: Any, start: Any) -> Any:
        """Adds up over the offsets on the first axes."""
        if not self.outer:
            return add(start, ())
        numbers = jnp.indices(self.widths[: self.outer], dtype=jnp.int32).reshape(self.outer, -1)
        return jax.lax.scan(lambda total, at: (add(total, tuple(at)), None), start, numbers.T)[0]
