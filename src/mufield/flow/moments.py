"""Where in their cells agents stand: moments of positions, in cells and in the windows around them.

All lengths are in units of cells, and positions are measured from the centres of cells.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._types import Mass
from .traces import FAR, INSIDE
from .windows import summed_over_moves

MOMENTS = 3
"""Moments of the position that are followed on each axis: two weighted points match three."""

EVEN = (0.0, 1 / 12, 0.0)
"""Those of agents anywhere in their cell, with equal chances."""

PLACES = 3
"""Places on each axis of a cell from which lines are traced: its edges and its middle."""


class Spread(eqx.Module):
    """Where in their cells agents stand.

    Attributes:
        sums: The mass of each cell and, axis after axis, its mass times the first three powers of
            the position: the *channels*. Populations are added by adding them.
    """

    sums: Float[Array, "cells channels"]

    @classmethod
    def even(cls, mass: Mass, dim: int) -> "Spread":
        """Agents anywhere in their cells, with equal chances."""
        return cls(mass[:, None] * jnp.asarray([1.0, *EVEN * dim], dtype=mass.dtype))

    @property
    def mass(self) -> Mass:
        """The distribution."""
        return self.sums[:, 0]

    @property
    def moments(self) -> Float[Array, "cells dim 3"]:
        """Mean, variance and third central moment of the position on each axis."""
        mass = self.mass
        known = mass > 1e-12  # of cells with less, moments would be rounding errors
        powers = self.sums[:, 1:].reshape(len(mass), -1, MOMENTS)
        raw = powers / jnp.where(known, mass, 1.0)[:, None, None]
        mean = jnp.clip(raw[..., 0], -0.5, 0.5)
        variance = jnp.clip(raw[..., 1] - mean**2, 0.0, 0.25)
        third = raw[..., 2] - 3 * mean * raw[..., 1] + 2 * mean**3
        found = jnp.stack([mean, variance, third], axis=-1)
        return jnp.where(known[:, None, None], found, jnp.asarray(EVEN, dtype=mass.dtype))

    @property
    def means(self) -> Float[Array, "cells dim"]:
        """The mean position in each cell."""
        return jnp.clip(self.moments[..., 0], -INSIDE, INSIDE)

    def points(self) -> tuple[Float[Array, "cells dim 2"], Float[Array, "cells dim 2"]]:
        """Two positions on each axis and their weights, which have the same three moments."""
        mean, variance, third = jnp.moveaxis(self.moments, -1, 0)
        # Below this variance the two points would be one, at which derivatives are infinite.
        variance = jnp.maximum(variance, 1e-5)
        lean = 0.5 * third / variance
        apart = jnp.sqrt(variance + lean**2)
        places = jnp.stack([mean + lean - apart, mean + lean + apart], axis=-1)
        high = jnp.clip(0.5 * (1.0 - lean / apart), 0.0, 1.0)  # rounding may put it outside
        return jnp.clip(places, -INSIDE, INSIDE), jnp.stack([1.0 - high, high], axis=-1)


class Origins(eqx.Module):
    """From where in its cell each move leaves, and where it aims, in units of cells.

    On each axis a move leaves from one or two points; those of different axes are independent.

    Attributes:
        displacement: Mean displacement of each move.
        places: The points.
        shares: Their weights, which sum to one.
    """

    displacement: Float[Array, "cells moves dim"]
    places: Float[Array, "cells #moves dim points"]
    shares: Float[Array, "cells #moves dim points"]

    @property
    def targets(self) -> Float[Array, "cells moves dim points"]:
        """Where they aim, measured from the centres of their cells."""
        return self.places + self.displacement[..., None]


def corners(places: Array, shares: Array) -> tuple[Array, Array]:
    """All combinations of the axes' points, (cells, corners, dim), and their probabilities."""
    axes = np.arange(places.shape[1])
    chosen = np.array(list(itertools.product((0, 1), repeat=len(axes))))
    return places[:, axes, chosen], jnp.prod(shares[:, axes, chosen], axis=-1)


def sum_of_few(parts: Sequence[Array] | Array) -> Array:
    """The sum of a few arrays: one by one it compiles to better code than a reduction."""
    return sum(parts[1:], start=parts[0])


def hat_weights(places: Float[Array, "*batch points"]) -> Float[Array, "*batch points starts"]:
    """How near positions are to each of the `PLACES`: weights that sum to one."""
    along = (places[..., None] + 0.5) * (PLACES - 1)
    return jnp.maximum(0.0, 1.0 - jnp.abs(along - jnp.arange(PLACES, dtype=places.dtype)))


def window_moments(
    weights: Float[Array, "cells moves"], powers: list[Array], reach: tuple[int, ...]
) -> Float[Array, "pieces channels"]:
    """The channels of all windows' entries, mixed over the moves."""
    dim, most = len(reach), max(reach)
    # Windows may be narrower on some axes than the slabs, which have the width of the widest.
    own = [slice(most - r, most + r + 1) for r in reach]

    def factor(axis: int, power: int) -> Float[Array, "cells moves slabs"]:
        return powers[power][axis, own[axis]].T

    orders = [
        (0,) * dim,
        *(
            tuple(k * (a == b) for b in range(dim))
            for a in range(dim)
            for k in range(1, MOMENTS + 1)
        ),
    ]
    if weights.shape[1] > 8:
        # One contraction over the moves for each axis: few large ones are faster than many small.
        blocks = []
        for axis in range(dim):
            chosen = range(min(axis, 1), MOMENTS + 1)  # the mass comes with the first axis
            factors = [factor(a, 0) for a in range(dim)]
            factors[axis] = jnp.concatenate([factor(axis, k) for k in chosen], axis=-1)
            shape = [2 * r + 1 for r in reach]
            shape.insert(axis, len(chosen))
            block = summed_over_moves(weights, factors).reshape(-1, *shape)
            blocks.append(jnp.moveaxis(block, 1 + axis, -1))
        return jnp.concatenate(blocks, axis=-1).reshape(-1, len(orders))
    # Channels last from the start: to move them there would take as long as to compute them.
    factors = [jnp.stack([factor(a, order[a]) for order in orders], axis=-1) for a in range(dim)]
    summed: Any = 0.0
    for m in range(weights.shape[1]):
        product = weights[:, m, None, None] * factors[0][:, m]
        for further in factors[1:]:
            product = product[..., None, :] * jnp.expand_dims(
                further[:, m], tuple(range(1, product.ndim - 1))
            )
        summed = summed + product
    return jnp.reshape(summed, (-1, len(orders)))


def slab_moments(
    leaving: Origins, noise_std: Float[Array, "dim"], reach: tuple[int, ...]
) -> list[Float[Array, "dim _ moves cells"]]:
    r"""Mass of each slab of the window on each axis, and its mass times powers of the position.

    With $I_k$ the integral over a slab of $x^k$ times the normal density of mean $y$, all measured
    from the slab's middle, $I_{k+1} = y I_k + k \sigma^2 I_{k-1} - \sigma^2 [x^k n(x)]$ at the
    edges.
    """
    most = max(reach)
    middles = np.arange(-most, most + 1)
    edges = np.tile(np.arange(2 * most + 2) - (most + 0.5), (len(reach), 1))
    # The outermost slabs include the tails, so that no mass is lost.
    limit = np.array(reach)[:, None] + 0.5
    edges = np.where(np.abs(edges) >= limit, np.sign(edges) * FAR, edges)
    # By axis, point, slab, move and cell: loops over cells compile to much better code than over
    # a few slabs.
    aims, shares = (x.transpose(2, 3, 1, 0)[:, :, None] for x in (leaving.targets, leaving.shares))
    std = noise_std[:, None, None, None, None]
    inner = edges[:, None, 1:-1, None, None]
    z = (jnp.asarray(inner, dtype=aims.dtype) - aims) / std
    # Kept, or the compiler would compute them again for every power.
    below, normal = jax.lax.optimization_barrier(
        (0.5 * jax.lax.erf(z / math.sqrt(2.0)), jnp.exp(-0.5 * z**2))
    )
    # The outermost edges lie beyond all mass.
    outer, no = (0, 0), (0.0, 0.0)
    below = jnp.pad(
        below, (outer, outer, (1, 1), outer, outer), constant_values=(no, no, (-0.5, 0.5), no, no)
    )
    normal = jnp.pad(normal, (outer, outer, (1, 1), outer, outer))
    normal = normal * (std / math.sqrt(2.0 * math.pi))
    low, high = normal[:, :, :-1], normal[:, :, 1:]
    y = aims - jnp.asarray(middles[:, None, None], dtype=aims.dtype)
    mass = jnp.maximum(below[:, :, 1:] - below[:, :, :-1], 0.0)
    found = [mass, y * mass - (high - low)]
    for k in range(1, MOMENTS):
        ends = 0.5**k * (high - (-1) ** k * low)
        found.append(y * found[k] + k * std**2 * found[k - 1] - ends)
    points = range(aims.shape[1])
    return [sum_of_few([shares[:, p] * each[:, p] for p in points]) for each in found]
