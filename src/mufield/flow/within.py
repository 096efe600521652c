"""Phi for agents who stand anywhere in their cells.

The flow of the paper (App. D.2) moves the mass of a cell from its centre. Agents of a real fleet,
and of `mufield.finite`, stand anywhere in their cells, so that they drift and spread otherwise, the
more so the larger cells are beside the noise. Here every cell also carries the first three moments,
on each axis, of where in it its mass stands. Two points with weights, the Gauss quadrature, have
the same moments, and agents leave from there. Mass that a wall stopped stands at the wall.

The result is close to the limit of many agents, not equal to it: positions on different axes count
as independent within a cell, and motions as equal throughout a cell unless the policy is not.
"""

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._progress import stage
from .._types import Mass, Scalar, Step
from ..policies.base import AbstractPolicy, ActionLaw
from ..problem import Motion
from ..space.grid import Grid
from ..space.measure import MeanField
from .fold import FAR, FOLLOWED, INSIDE, PREPARING, follow, split_edges
from .phi import mixed

MOMENTS = 3
"""Moments on each axis, of the position in units of cells from the centre."""

STARTS = 3
"""Places on each axis of a cell from which lines are followed: its edges and its middle."""

LEAST_MASS = 1e-12
"""Of cells with less mass, the moments are not followed."""

LEAST_SPLIT = 1e-16
"""Of split pairs with less mass, all of it goes to one landing. The square must not underflow."""

LEAST_VARIANCE = 1e-5
"""Below it, in cells, the two points would be one, at which derivatives are infinite."""

UNROLLED = 8
"""Most moves whose windows are added up one by one."""

EVEN = 1.0 / 12.0
"""Variance of a uniform position in a cell."""


class Spread(eqx.Module):
    """Where in their cells agents stand, in units of cells from the centres.

    Attributes:
        mass: The distribution.
        moments: Mean, variance and third central moment on each axis.
    """

    mass: Mass
    moments: Float[Array, "cells dim 3"]

    @classmethod
    def even(cls, mass: Mass, dim: int) -> "Spread":
        """Agents anywhere in their cells, with equal chances."""
        flat = jnp.asarray([0.0, EVEN, 0.0], dtype=mass.dtype)
        return cls(mass, jnp.broadcast_to(flat, (*mass.shape, dim, MOMENTS)))

    @classmethod
    def of_sums(cls, sums: Float[Array, "cells channels"]) -> "Spread":
        """From each cell's mass and its mass times the powers of the position, axis after axis."""
        mass = sums[:, 0]
        known = mass > LEAST_MASS
        powers = sums[:, 1:].reshape(mass.shape[0], -1, MOMENTS)
        raw = powers / jnp.where(known, mass, 1.0)[:, None, None]
        mean = jnp.clip(raw[..., 0], -0.5, 0.5)
        variance = jnp.clip(raw[..., 1] - mean**2, 0.0, 0.25)
        third = raw[..., 2] - 3 * mean * raw[..., 1] + 2 * mean**3
        found = cls(mass, jnp.stack([mean, variance, third], axis=-1))
        even = cls.even(mass, powers.shape[1]).moments
        return cls(mass, jnp.where(known[:, None, None], found.moments, even))

    @staticmethod
    def sums_of_even(mass: Mass, dim: int) -> Float[Array, "cells channels"]:
        """The sums, as `of_sums` takes them, of agents anywhere in their cells."""
        flat = jnp.asarray([1.0, *(0.0, EVEN, 0.0) * dim], dtype=mass.dtype)
        return mass[:, None] * flat

    @property
    def means(self) -> Float[Array, "cells dim"]:
        """The mean position in each cell."""
        return jnp.clip(self.moments[..., 0], -INSIDE, INSIDE)

    def points(self) -> tuple[Float[Array, "cells dim 2"], Float[Array, "cells dim 2"]]:
        """Two positions on each axis and their weights, which have the same three moments."""
        mean, variance, third = jnp.moveaxis(self.moments, -1, 0)
        variance = jnp.maximum(variance, LEAST_VARIANCE)
        lean = 0.5 * third / variance
        apart = jnp.sqrt(variance + lean**2)
        places = jnp.stack([mean + lean - apart, mean + lean + apart], axis=-1)
        high = 0.5 * (1.0 - lean / apart)
        return jnp.clip(places, -INSIDE, INSIDE), jnp.stack([1.0 - high, high], axis=-1)


class Departures(eqx.Module):
    """From where in its cell each move leaves, and where it aims, in units of cells.

    On each axis a move leaves from one or two points; those of different axes are independent.

    Attributes:
        law: The moves of agents in each cell.
        displacement: Mean displacement of each move.
        places: The points.
        shares: Their weights, which sum to one.
    """

    law: ActionLaw
    displacement: Float[Array, "cells moves dim"]
    places: Float[Array, "cells #moves dim points"]
    shares: Float[Array, "cells #moves dim points"]

    @property
    def aims(self) -> Float[Array, "cells moves dim points"]:
        """Where they aim, measured from the centres of their cells."""
        return self.places + self.displacement[..., None]


def departures(
    grid: Grid, spread: Spread, policy: AbstractPolicy, motion: Motion, step: Step
) -> Departures:
    """What agents do, and from where.

    If all agents of a cell have the same law, the motion is evaluated at their mean position.
    Otherwise policy and motion are, at all pairs of the axes' points.
    """
    mass = spread.mass
    size = jnp.asarray(grid.cell_size, dtype=mass.dtype)
    centres = jnp.asarray(grid.centres, dtype=mass.dtype)
    places, shares = spread.points()
    if policy.by_cell:
        law = policy.at_cells(grid, mass)
        position = (centres + spread.means * size)[:, None]
        moved = _displacements(grid, mass, motion, position, law.actions, step)
        return Departures(law, moved / size, places[:, None], shares[:, None])
    corners = list(itertools.product((0, 1), repeat=grid.dim))
    chosen = np.array(corners)  # (points, dim): which of an axis's points
    axes = np.arange(grid.dim)
    starts, chances = places[:, axes, chosen], jnp.prod(shares[:, axes, chosen], axis=-1)
    position = centres[:, None] + starts * size

    def of_one(state: Array, here: Scalar) -> ActionLaw:
        return policy.law(state, MeanField(mass=mass, here=here, grid=grid))

    law = jax.vmap(jax.vmap(of_one, in_axes=(0, None)))(position, mass)
    moves = law.weights.shape[-1]
    joint = ActionLaw(
        actions=law.actions.reshape(len(mass), -1, law.actions.shape[-1]),
        weights=(law.weights * chances[..., None]).reshape(len(mass), -1),
    )
    position = jnp.repeat(position, moves, axis=1)
    moved = _displacements(grid, mass, motion, position, joint.actions, step)
    starts = jnp.repeat(starts, moves, axis=1)[..., None]
    return Departures(joint, moved / size, starts, jnp.ones_like(starts))


def _displacements(
    grid: Grid, mass: Mass, motion: Motion, positions: Array, actions: Array, step: Step
) -> Float[Array, "cells moves dim"]:
    """The displacement of each move from its position."""
    positions = jnp.broadcast_to(positions, (*actions.shape[:2], grid.dim))

    def one(state: Array, here: Scalar, action: Array) -> Array:
        return jnp.asarray(motion(state, action, MeanField(mass, here, grid, step)))

    aims = jax.vmap(jax.vmap(one, in_axes=(0, None, 0)))(positions, mass, actions)
    return grid.displacement(positions, aims)


class Within(eqx.Module):
    """Tables for walls and borders, as `mufield.flow.fold` has them for agents at cell centres.

    Which way a line goes round the end of a wall depends on where in its cell it starts, so that
    a split pair has shares for each place of the start, but its target is not cut. *Channels* are
    the mass and, axis after axis, the mass times the powers of the position. Rows of channels are
    scattered: of rows that is faster than what `mufield.flow.fold.Routing` does.

    Attributes:
        ends: The free cell where each piece lands: first the windows, cell after cell, then each
            split pair's possible landings; one more than there are where nothing lands.
        passing: Which channels of a piece are as if there were no walls: 1 or 0.
        at_wall: The others, for each unit of mass: powers of where the wall is.
        split_cells: The source of each split pair.
        split_pieces: Which of the windows' entries each split pair is.
        split_edges: Edges of each split pair's target on each axis, in cells from the source's
            centre.
        split_shares: Share of the mass, by place of the start, that goes to each possible landing;
            without the last, which gets the rest.
        reach: Number of cells that windows extend to each side, on each axis.
    """

    ends: Int[Array, "pieces"]
    passing: Float[Array, "pieces channels"]
    at_wall: Float[Array, "pieces channels"]
    split_cells: Int[Array, "pairs"]
    split_pieces: Int[Array, "pairs"]
    split_edges: Float[Array, "dim 2 pairs"]
    split_shares: Float[Array, "landings_but_last starts pairs"]
    reach: tuple[int, ...] = eqx.field(static=True)

    def land(
        self, mass: Mass, leaving: Departures, noise_std: Float[Array, "dim"]
    ) -> Float[Array, "cells channels"]:
        """Each cell's channels after a step.

        ``mass`` are those who move, ``noise_std`` is in units of cells.
        """
        weights = leaving.law.weights * mass[:, None]
        powers = _slabs(leaving, noise_std, self.reach)
        pieces = _windows(weights, powers, self.reach)
        if len(self.split_pieces):
            shares = self._shares(weights, leaving, noise_std)
            split = shares[..., None] * _rows(pieces, self.split_pieces)[:, None]
            pieces = jnp.concatenate([pieces, split.reshape(-1, pieces.shape[1])])
        landed = pieces * self.passing + pieces[:, :1] * self.at_wall
        empty = jnp.zeros((len(mass) + 1, pieces.shape[1]), dtype=pieces.dtype)
        return empty.at[self.ends].add(landed, mode="promise_in_bounds")[:-1]

    def _shares(
        self, weights: Array, leaving: Departures, noise_std: Array
    ) -> Float[Array, "pairs landings"]:
        """How much of each split pair's mass goes to each of its landings."""
        near = _hats(leaving.places) * leaving.shares[..., None]
        # One gather for all three; pairs come last, because loops over them compile to much better
        # code than loops over a few edges.
        needed = [each.reshape(len(weights), -1) for each in (leaving.aims, near, weights)]
        joined = _rows(jnp.concatenate(needed, axis=1), self.split_cells).T
        cuts = np.cumsum([each.shape[1] for each in needed])[:-1].tolist()
        aims, near, weights = jnp.split(joined, cuts)
        moves, dim, points = leaving.aims.shape[1:]
        aims = aims.reshape(moves, dim, points, -1).transpose(1, 2, 0, 3)
        near = near.reshape(-1, dim, points, STARTS, near.shape[1]).transpose(1, 3, 2, 0, 4)
        std = noise_std[:, None, None, None, None]
        z = (self.split_edges[:, :, None, None] - aims[:, None]) / std
        below = 0.5 * jax.lax.erf(z / math.sqrt(2.0))
        between = below[:, 1:] - below[:, :-1]
        # By axis, place of the start, move and pair.
        parts = _total([near[:, :, p] * between[:, :, p] for p in range(points)])
        joint, whole = weights * parts[0], weights * _total(parts[0])
        for part in parts[1:]:
            joint = (joint[:, None] * part).reshape(-1, *weights.shape)
            whole = whole * _total(part)
        joint, whole = (x[..., 0, :] if moves == 1 else jnp.sum(x, axis=-2) for x in (joint, whole))
        # The mass of a far target may round to zero in all of its parts.
        known = whole > LEAST_SPLIT
        first = jnp.sum(self.split_shares * joint, axis=1)
        first = jnp.where(known, first / jnp.where(known, whole, 1.0), 0.0)
        last = jnp.maximum(1.0 - _total(first), 0.0)
        return jnp.concatenate([first, last[None]]).T


def _total(parts: Sequence[Array] | Array) -> Array:
    """The sum of a few arrays: one by one it compiles to better code than a reduction."""
    return sum(parts[1:], start=parts[0])


def _rows(values: Float[Array, "rows *rest"], numbers: Int[Array, "some"]) -> Array:
    return values.at[numbers].get(mode="promise_in_bounds", wrap_negative_indices=False)


def _hats(places: Float[Array, "*batch points"]) -> Float[Array, "*batch points starts"]:
    """How near positions are to each of the `STARTS`: weights that sum to one."""
    along = (places[..., None] + 0.5) * (STARTS - 1)
    return jnp.maximum(0.0, 1.0 - jnp.abs(along - jnp.arange(STARTS, dtype=places.dtype)))


def _windows(
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
    if weights.shape[1] > UNROLLED:
        # One contraction over the moves for each axis: few large ones are faster than many small.
        blocks = []
        for axis in range(dim):
            chosen = range(min(axis, 1), MOMENTS + 1)  # the mass comes with the first axis
            factors = [factor(a, 0) for a in range(dim)]
            factors[axis] = jnp.concatenate([factor(axis, k) for k in chosen], axis=-1)
            shape = [2 * r + 1 for r in reach]
            shape.insert(axis, len(chosen))
            block = mixed(weights, factors).reshape(-1, *shape)
            blocks.append(jnp.moveaxis(block, 1 + axis, -1))
        return jnp.concatenate(blocks, axis=-1).reshape(-1, len(orders))
    # Channels last from the start: to move them there would take as long as to compute them.
    factors = [jnp.stack([factor(a, order[a]) for order in orders], axis=-1) for a in range(dim)]
    total: Any = 0.0
    for m in range(weights.shape[1]):
        product = weights[:, m, None, None] * factors[0][:, m]
        for further in factors[1:]:
            product = product[..., None, :] * jnp.expand_dims(
                further[:, m], tuple(range(1, product.ndim - 1))
            )
        total = total + product
    return jnp.reshape(total, (-1, len(orders)))


def _slabs(
    leaving: Departures, noise_std: Float[Array, "dim"], reach: tuple[int, ...]
) -> list[Float[Array, "dim slabs moves cells"]]:
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
    aims, shares = (x.transpose(2, 3, 1, 0)[:, :, None] for x in (leaving.aims, leaving.shares))
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
    return [_total([shares[:, p] * each[:, p] for p in points]) for each in found]


@lru_cache(maxsize=32)
def build_within(grid: Grid, reach: tuple[int, ...], dtype: str) -> Within:
    """Builds the tables for windows of ``reach`` cells to each side."""
    with jax.ensure_compile_time_eval(), stage(PREPARING, alone=True) as now:
        cells = np.arange(grid.n_cells)
        ways = follow(grid, reach, 1, cells, STARTS, done=now.span(0.0, FOLLOWED))
        n, window = ways.landing.shape
        pairs, most = ways.pairs, ways.codes.shape[1]
        source = np.concatenate([np.repeat(np.arange(n), window), np.repeat(pairs // window, most)])
        target = np.concatenate([np.tile(np.arange(window), n), np.repeat(pairs % window, most)])
        code = np.concatenate([ways.landing.ravel(), ways.codes.ravel()])
        ends = grid.cell_index(ways.sources[source] + ways.offsets[code])
        side = 0.5 * np.sign(ways.offsets[target] - ways.offsets[code])[:, :, None]
        at_wall = (side ** np.arange(1, MOMENTS + 1)).reshape(len(code), -1)
        passing = np.repeat(side[..., 0] == 0, MOMENTS, axis=1)
        shares = ways.shares.reshape(len(pairs), most - 1, STARTS**grid.dim)
        mass = ((0, 0), (1, 0))
        return Within(
            ends=jnp.asarray(np.where(code >= 0, ends, n), dtype=jnp.int32),
            passing=jnp.asarray(np.pad(passing, mass, constant_values=True), dtype=dtype),
            at_wall=jnp.asarray(np.pad(at_wall, mass), dtype=dtype),
            split_cells=jnp.asarray(pairs // window, dtype=jnp.int32),
            split_pieces=jnp.asarray(pairs, dtype=jnp.int32),
            split_edges=jnp.asarray(split_edges(ways).transpose(1, 2, 0), dtype=dtype),
            split_shares=jnp.asarray(shares.transpose(1, 2, 0), dtype=dtype),
            reach=reach,
        )
