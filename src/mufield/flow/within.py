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
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._types import Mass, Scalar, Step
from ..policies.base import AbstractPolicy, ActionLaw
from ..problem import Motion
from ..space.grid import Grid
from ..space.measure import MeanField
from .fold import FAR, TRACES_AT_ONCE, Routing, even_points, trace_many, wall_groups
from .phi import mixed

MOMENTS = 3
"""Moments on each axis, of the position in units of cells from the centre."""

STARTS = 3
"""Places on each axis of a cell from which lines are followed: its edges and its middle."""

SUBCELLS = 2
"""Subcells on each axis of the targets that lie behind the end of a wall."""

SAMPLES = 2
"""Lines to each subcell, on each axis."""

INSIDE = 0.4995
"""How far from the centre agents may stand, in cells: rounding must not put them into another."""

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
    a split pair has shares for each place of the start and subcell of the target. *Channels* are
    the mass and, axis after axis, the mass times the powers of the position.

    Attributes:
        routing: From pieces to the free cells where they land: first the windows, cell after cell,
            then each split pair's possible landings.
        passing: Which channels of a piece are as if there were no walls: 1 or 0.
        at_wall: The others, for each unit of mass: powers of where the wall is.
        split_pairs: From free cells to the split pairs of which they are the source.
        split_pieces: From the windows' entries to the split pairs that they are.
        split_edges: Edges of the subcells of each split pair's target on each axis, in cells from
            the source's centre.
        split_shares: Share of the mass, by place of the start and subcell of the target on each
            axis, that goes to each possible landing; without the last, which gets the rest.
        reach: Number of cells that windows extend to each side, on each axis.
    """

    routing: Routing
    passing: Float[Array, "pieces channels"]
    at_wall: Float[Array, "pieces channels"]
    split_pairs: Routing
    split_pieces: Routing
    split_edges: Float[Array, "pairs dim edges"]
    split_shares: Float[Array, "pairs landings_but_last *parts"]
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
        if self.split_shares.shape[0]:
            split = self._split(pieces, weights, leaving, noise_std)
            pieces = jnp.concatenate([pieces, split])
        return self.routing(pieces * self.passing + pieces[:, :1] * self.at_wall)

    def _split(
        self, pieces: Array, weights: Array, leaving: Departures, noise_std: Array
    ) -> Float[Array, "pieces channels"]:
        """The pieces of split pairs: their windows' entries, shared among the landings."""
        near = _hats(leaving.places) * leaving.shares[..., None]
        # One gather for all three.
        needed = (leaving.aims, near, weights)
        joined = self.split_pairs(
            jnp.concatenate([part.reshape(len(weights), -1) for part in needed], axis=1)
        )
        cuts = np.cumsum([part[0].size for part in needed])[:-1].tolist()
        aim, near, weights = (
            part.reshape(-1, *like.shape[1:])
            for part, like in zip(jnp.split(joined, cuts, axis=1), needed, strict=True)
        )
        z = (self.split_edges[:, None, :, None] - aim[..., None]) / noise_std[:, None, None]
        between = jnp.diff(0.5 * jax.lax.erf(z / math.sqrt(2.0)))
        # By pair, move, axis, place of the start and subcell.
        points = range(aim.shape[3])
        parts = sum(near[..., p, :, None] * between[..., p, None, :] for p in points)
        parts = jnp.reshape(parts, (*aim.shape[:3], -1))
        fine = [parts[:, :, axis] for axis in range(aim.shape[2])]
        first, whole = _shared(self.split_shares, weights, fine)
        # The mass of a far target may round to zero in all of its parts.
        known = whole > LEAST_SPLIT
        first = jnp.where(known[:, None], first / jnp.where(known, whole, 1.0)[:, None], 0.0)
        last = jnp.maximum(1.0 - jnp.sum(first, axis=1, keepdims=True), 0.0)
        shares = jnp.concatenate([first, last], axis=1)
        split = shares[..., None] * self.split_pieces(pieces)[:, None]
        return split.reshape(-1, pieces.shape[1])


def _shared(
    shares: Float[Array, "pairs landings_but_last *parts"], weights: Array, fine: list[Array]
) -> tuple[Float[Array, "pairs landings_but_last"], Float[Array, "pairs"]]:
    """Mass of each pair in its landings but the last, and in all of them together."""
    if weights.shape[1] > UNROLLED:
        joint = mixed(weights, fine)
        letters = "defgh"[: len(fine)]
        first = jnp.einsum(f"ac{letters},a{letters}->ac", shares, joint)
        return first, jnp.sum(joint.reshape(len(joint), -1), axis=1)
    landed: Any = 0.0
    whole: Any = 0.0
    for m in range(weights.shape[1]):
        found, total = shares, weights[:, m]
        # One axis at a time: matrix-vector products compile to better code than one product.
        for factor in reversed(fine):
            found = jnp.einsum("a...b,ab->a...", found, factor[:, m])
            total = total * jnp.sum(factor[:, m], axis=-1)
        landed, whole = landed + found * weights[:, m, None], whole + total
    return landed, whole


def _windows(
    weights: Float[Array, "cells moves"], powers: list[Array], reach: tuple[int, ...]
) -> Float[Array, "pieces channels"]:
    """The channels of all windows' entries, mixed over the moves."""
    dim, most = len(reach), max(reach)
    # Windows may be narrower on some axes than the slabs, which have the width of the widest.
    own = [slice(most - r, most + r + 1) for r in reach]
    orders = [
        (0,) * dim,
        *(
            tuple(k * (a == b) for b in range(dim))
            for a in range(dim)
            for k in range(1, MOMENTS + 1)
        ),
    ]
    if weights.shape[1] > UNROLLED:
        channels = [
            mixed(weights, [powers[k][:, :, a, own[a]] for a, k in enumerate(order)])
            for order in orders
        ]
        return jnp.stack(channels, axis=-1).reshape(-1, len(orders))
    # Channels last from the start: to move them there would take as long as to compute them.
    factors = [
        jnp.stack([powers[order[a]][:, :, a, own[a]] for order in orders], axis=-1)
        for a in range(dim)
    ]
    total: Any = 0.0
    for m in range(weights.shape[1]):
        product = weights[:, m, None, None] * factors[0][:, m]
        for factor in factors[1:]:
            product = product[..., None, :] * jnp.expand_dims(
                factor[:, m], tuple(range(1, product.ndim - 1))
            )
        total = total + product
    return jnp.reshape(total, (-1, len(orders)))


def _hats(places: Float[Array, "*batch points"]) -> Float[Array, "*batch points starts"]:
    """How near positions are to each of the `STARTS`: weights that sum to one."""
    along = (places[..., None] + 0.5) * (STARTS - 1)
    return jnp.maximum(0.0, 1.0 - jnp.abs(along - jnp.arange(STARTS, dtype=places.dtype)))


def _slabs(
    leaving: Departures, noise_std: Float[Array, "dim"], reach: tuple[int, ...]
) -> list[Float[Array, "cells moves dim slabs"]]:
    r"""Mass of each slab of the window on each axis, and its mass times powers of the position.

    With $I_k$ the integral over a slab of $x^k$ times the normal density of mean $y$, all measured
    from the slab's middle, $I_{k+1} = y I_k + k \sigma^2 I_{k-1} - \sigma^2 [x^k n(x)]$ at the
    edges.
    """
    aims, dtype = leaving.aims[..., None], leaving.aims.dtype
    most = max(reach)
    middles = np.arange(-most, most + 1)
    edges = np.tile(np.arange(2 * most + 2) - (most + 0.5), (len(reach), 1))
    # The outermost slabs include the tails, so that no mass is lost.
    limit = np.array(reach)[:, None] + 0.5
    edges = np.where(np.abs(edges) >= limit, np.sign(edges) * FAR, edges)
    std = noise_std[:, None, None]
    z = (jnp.asarray(edges[:, None], dtype=dtype) - aims) / std
    normal = jnp.exp(-0.5 * z**2) * (std / math.sqrt(2.0 * math.pi))
    low, high = normal[..., :-1], normal[..., 1:]
    y = aims - jnp.asarray(middles, dtype=dtype)
    mass = jnp.maximum(0.5 * jnp.diff(jax.lax.erf(z / math.sqrt(2.0))), 0.0)
    found = [mass, y * mass - (high - low)]
    for k in range(1, MOMENTS):
        ends = 0.5**k * (high - (-1) ** k * low)
        found.append(y * found[k] + k * std**2 * found[k - 1] - ends)
    shares = leaving.shares[..., None]

    def mean(each: Array) -> Array:
        parts = [shares[..., p, :] * each[..., p, :] for p in range(each.shape[3])]
        return sum(parts[1:], start=parts[0])

    return [mean(each) for each in found]


class _Kind(NamedTuple):
    """Landings of the split pairs of one pattern of walls, and their shares."""

    codes: list[int]
    shares: Float[np.ndarray, "landings parts"]


@lru_cache(maxsize=32)
def build_within(grid: Grid, reach: tuple[int, ...], dtype: str) -> Within:
    """Builds the tables for windows of ``reach`` cells to each side."""
    with jax.ensure_compile_time_eval():
        return _build_within(grid, reach, dtype)


def _build_within(grid: Grid, reach: tuple[int, ...], dtype: str) -> Within:
    n, dim = grid.n_cells, grid.dim
    offsets = np.array(list(itertools.product(*(range(-r, r + 1) for r in reach))))
    window, shape = len(offsets), tuple(2 * r + 1 for r in reach)
    landing = np.tile(np.arange(window), (n, 1))
    groups = list(wall_groups(grid, reach, grid.free_cells, offsets))
    pairs_of: list[Int[np.ndarray, "members"]] = []
    kinds: list[_Kind] = []
    firsts = [(grid.free_cells[group.cells[0]], offsets[group.offset]) for group in groups]
    for group, ends in zip(groups, _landings(grid, firsts), strict=True):
        landed = np.ravel_multi_index(tuple(np.moveaxis(ends + reach, -1, 0)), shape)
        codes = np.unique(landed)
        if len(codes) == 1:
            landing[group.cells, group.offset] = codes[0]
            continue
        landing[group.cells, group.offset] = -1
        pairs_of.append(group.cells * window + group.offset)
        kinds.append(_Kind(codes.tolist(), np.stack([(landed == c).mean(axis=1) for c in codes])))

    pairs = np.concatenate(pairs_of) if kinds else np.zeros(0, dtype=int)
    kind_of = np.repeat(np.arange(len(kinds)), [len(each) for each in pairs_of])
    most = max((len(kind.codes) for kind in kinds), default=2)
    parts = STARTS * SUBCELLS
    kind_codes = np.full((len(kinds), most), -1)
    kind_shares = np.zeros((len(kinds), most, parts**dim))
    for number, kind in enumerate(kinds):
        # Aligned to the right, because the last landing gets what the others leave.
        kind_codes[number, most - len(kind.codes) :] = kind.codes
        kind_shares[number, most - len(kind.codes) :] = kind.shares
    codes, shares = kind_codes[kind_of], kind_shares[kind_of]

    source = np.concatenate([np.repeat(np.arange(n), window), np.repeat(pairs // window, most)])
    target = np.concatenate([np.tile(np.arange(window), n), np.repeat(pairs % window, most)])
    code = np.concatenate([landing.ravel(), codes.ravel()])
    used = np.flatnonzero(code >= 0)
    ends = grid.cell_index(grid.free_cells[source[used]] + offsets[code[used]])
    ticks = np.arange(SUBCELLS + 1) / SUBCELLS - 0.5
    side = 0.5 * np.sign(offsets[target] - offsets[code])[:, :, None]
    at_wall = (side ** np.arange(1, MOMENTS + 1)).reshape(len(code), -1)
    passing = np.repeat(side[..., 0] == 0, MOMENTS, axis=1)
    return Within(
        routing=Routing.build(used, ends, len(code), n),
        passing=jnp.asarray(np.pad(passing, ((0, 0), (1, 0)), constant_values=True), dtype=dtype),
        at_wall=jnp.asarray(np.pad(at_wall, ((0, 0), (1, 0))), dtype=dtype),
        split_pairs=Routing.build(pairs // window, np.arange(len(pairs)), n, len(pairs)),
        split_pieces=Routing.build(pairs, np.arange(len(pairs)), n * window, len(pairs)),
        split_edges=jnp.asarray(offsets[pairs % window][:, :, None] + ticks, dtype=dtype),
        split_shares=jnp.asarray(shares[:, :-1].reshape(-1, most - 1, *(parts,) * dim), dtype),
        reach=reach,
    )


def _landings(
    grid: Grid, pairs: list[tuple[Int[np.ndarray, "dim"], Int[np.ndarray, "dim"]]]
) -> Iterator[Int[np.ndarray, "parts lines dim"]]:
    """Offsets at which lines end that lead from places of a cell to points of its target.

    Parts are pairs of a place and a subcell, axis by axis, as `Within.split_shares` has them.
    """
    dim = grid.dim
    ticks = np.linspace(-INSIDE, INSIDE, STARTS) + 0.5
    places = np.stack(np.meshgrid(*(ticks,) * dim, indexing="ij"), axis=-1).reshape(-1, dim)
    points = even_points(dim, SUBCELLS, SAMPLES if dim < 3 else 1)
    each = (len(places), *points.shape[:2])
    batch = max(1, TRACES_AT_ONCE // math.prod(each))
    axes = [i for axis in range(dim) for i in (axis, dim + axis)]
    for first in range(0, len(pairs), batch):
        cells, offsets = (
            np.array(part) for part in zip(*pairs[first : first + batch], strict=True)
        )
        shape = (len(cells), *each, dim)
        start = np.broadcast_to((cells[:, None] + places)[:, :, None, None], shape)
        aim = np.broadcast_to((cells + offsets)[:, None, None, None] + points, shape)
        ends = trace_many(grid, start.reshape(-1, dim), aim.reshape(-1, dim))
        for end in np.moveaxis(ends.reshape(-1, *shape), 0, 3):
            # By place, subcell, order of crossing, line: every order counts like one more line.
            lines = end.reshape(*(STARTS,) * dim, *(SUBCELLS,) * dim, -1, dim)
            by_axis = lines.transpose(*axes, 2 * dim, 2 * dim + 1)
            yield by_axis.reshape((STARTS * SUBCELLS) ** dim, -1, dim)
