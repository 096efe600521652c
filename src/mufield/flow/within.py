"""Phi for agents who stand anywhere in their cells.

The flow of the paper (App. D.2) moves the mass of a cell from its centre. Agents of a real fleet,
and of `mufield.finite`, stand anywhere in their cells, so that they drift and spread otherwise, the
more so the larger cells are beside the noise. Here every cell also carries the first three moments,
on each axis, of where in it its mass stands. Two points with weights, the Gauss quadrature, have
the same moments, and agents leave from there. Mass that a wall stopped stands at the wall.

The result is close to the limit of many agents, not equal to it: positions on different axes count
as independent within a cell, and motions as equal throughout a cell unless the policy is not.
"""

import math
from functools import lru_cache
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._progress import stage
from .._types import Mass, Scalar, Step
from ..interfaces import AbstractTrips
from ..policies.base import AbstractPolicy, ActionLaw
from ..problem import Motion, Reward
from ..space.grid import Grid
from ..space.measure import MeanField
from .moments import (
    MOMENTS,
    PLACES,
    Origins,
    Spread,
    corners,
    hat_weights,
    slab_moments,
    sum_of_few,
    window_moments,
)
from .phi import AbstractPhi, Departure, Joint
from .traces import split_edges, trace_windows


class WithinCells(AbstractPhi):
    """Phi for agents who stand anywhere in their cells; a population is a `Spread`.

    Tables for walls and borders are as in `mufield.flow.landings`. But which way a line goes round
    the end of a wall depends on where in its cell it starts, so that a split pair has shares for
    each place of the start, and its target is not cut. Rows of channels (see `Spread`) are
    scattered, which of rows is faster than a `Routing`.

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
    """

    noise_std: Float[Array, "dim"]
    ends: Int[Array, "pieces"]
    passing: Float[Array, "pieces channels"]
    at_wall: Float[Array, "pieces channels"]
    split_cells: Int[Array, "pairs"]
    split_pieces: Int[Array, "pairs"]
    split_edges: Float[Array, "dim 2 pairs"]
    split_shares: Float[Array, "landings_but_last starts pairs"]
    reach: tuple[int, ...] = eqx.field(static=True)
    grid: Grid = eqx.field(static=True)
    trips: AbstractTrips | None
    centred: ClassVar[bool] = False

    @property
    def residual_size(self) -> int:
        """So many that steps are always computed again, which is faster than to keep all."""
        return 1 << 40

    def start(self, mass: Mass) -> Spread:
        """Agents anywhere in their cells, with equal chances."""
        return Spread.even(mass, self.grid.dim)

    def mass(self, population: Spread) -> Mass:
        """See `AbstractPhi`."""
        return population.mass

    def add(self, population: Spread, mass: Mass) -> Spread:
        """See `AbstractPhi`."""
        return Spread(population.sums + Spread.even(mass, self.grid.dim).sums)

    def depart(
        self, population: Spread, policy: AbstractPolicy, motion: Motion, step: Step
    ) -> Departure:
        """See `AbstractPhi`.

        If all agents of a cell have the same law, the motion is evaluated at their mean position.
        Otherwise policy and motion are, at all pairs of the axes' points.
        """
        mass, size = population.mass, jnp.asarray(self.grid.cell_size, population.mass.dtype)
        places, shares = population.points()
        if policy.by_cell:
            law = policy.at_cells(self.grid, mass, step)
            position = self._position(population.means[:, None])
            moved = self._moved(mass, motion, position, law.actions, step)
            return Departure(law, moved, Origins(moved / size, places[:, None], shares[:, None]))
        starts, chances = corners(places, shares)

        def of_one(state: Array, here: Scalar) -> ActionLaw:
            return policy.law(state, MeanField(mass, here, self.grid, step))

        law = jax.vmap(jax.vmap(of_one, in_axes=(0, None)))(self._position(starts), mass)
        moves = law.weights.shape[-1]
        joint = ActionLaw(
            actions=law.actions.reshape(len(mass), -1, law.actions.shape[-1]),
            weights=(law.weights * chances[..., None]).reshape(len(mass), -1),
        )
        starts = jnp.repeat(starts, moves, axis=1)
        moved = self._moved(mass, motion, self._position(starts), joint.actions, step)
        alone = starts[..., None]
        return Departure(joint, moved, Origins(moved / size, alone, jnp.ones_like(alone)))

    def earn(
        self,
        population: Spread,
        law: ActionLaw,
        targets: Origins | None,
        reward: Reward,
        step: Step,
    ) -> Scalar:
        """The reward where agents stand: at the two points of each axis, which have the moments."""
        mass = population.mass
        if targets is not None and targets.places.shape[-1] == 1:
            states = self._position(targets.places[..., 0])
            paid = _at(self.grid, mass, reward, states, law.actions, step)
            return jnp.sum(mass[:, None] * law.weights * paid)
        places, chances = corners(*population.points())

        def of_corner(place: Array, chance: Array) -> Scalar:
            paid = _at(self.grid, mass, reward, self._position(place)[:, None], law.actions, step)
            return jnp.sum((mass * chance)[:, None] * law.weights * paid)

        return jnp.sum(jax.vmap(of_corner, in_axes=1)(places, chances))

    def move(self, joint: Joint, targets: Origins, seen: Mass, step: Step) -> Spread:
        """See `AbstractPhi`."""
        std = self.noise_std / jnp.asarray(self.grid.cell_size, dtype=self.noise_std.dtype)
        powers = slab_moments(targets, std, self.reach)
        pieces = window_moments(joint, powers, self.reach)
        if len(self.split_pieces):
            shares = self._shares(joint, targets, std)
            split = shares[..., None] * _rows(pieces, self.split_pieces)[:, None]
            pieces = jnp.concatenate([pieces, split.reshape(-1, pieces.shape[1])])
        landed = pieces * self.passing + pieces[:, :1] * self.at_wall
        empty = jnp.zeros((len(joint) + 1, pieces.shape[1]), dtype=pieces.dtype)
        return Spread(empty.at[self.ends].add(landed, mode="promise_in_bounds")[:-1])

    def _position(self, places: Float[Array, "cells *points dim"]) -> Array:
        """Positions in space, from those in units of cells from the centres."""
        grid, dtype = self.grid, places.dtype
        centres = jnp.asarray(grid.centres, dtype).reshape(-1, *(1,) * (places.ndim - 2), grid.dim)
        return centres + places * jnp.asarray(grid.cell_size, dtype)

    def _moved(
        self, mass: Mass, motion: Motion, positions: Array, actions: Array, step: Step
    ) -> Float[Array, "cells moves dim"]:
        """The displacement of each move from its position."""
        return self.grid.displacement(
            positions, _at(self.grid, mass, motion, positions, actions, step)
        )

    def _shares(
        self, weights: Array, leaving: Origins, noise_std: Array
    ) -> Float[Array, "pairs landings"]:
        """How much of each split pair's mass goes to each of its landings."""
        near = hat_weights(leaving.places) * leaving.shares[..., None]
        # One gather for all three; pairs come last, because loops over them compile to much better
        # code than loops over a few edges.
        needed = [each.reshape(len(weights), -1) for each in (leaving.targets, near, weights)]
        joined = _rows(jnp.concatenate(needed, axis=1), self.split_cells).T
        cuts = np.cumsum([each.shape[1] for each in needed])[:-1].tolist()
        aims, near, weights = jnp.split(joined, cuts)
        moves, dim, points = leaving.targets.shape[1:]
        aims = aims.reshape(moves, dim, points, -1).transpose(1, 2, 0, 3)
        near = near.reshape(-1, dim, points, PLACES, near.shape[1]).transpose(1, 3, 2, 0, 4)
        std = noise_std[:, None, None, None, None]
        z = (self.split_edges[:, :, None, None] - aims[:, None]) / std
        below = 0.5 * jax.lax.erf(z / math.sqrt(2.0))
        between = below[:, 1:] - below[:, :-1]
        # By axis, place of the start, move and pair.
        parts = sum_of_few([near[:, :, p] * between[:, :, p] for p in range(points)])
        joint, whole = weights * parts[0], weights * sum_of_few(parts[0])
        for part in parts[1:]:
            joint = (joint[:, None] * part).reshape(-1, *weights.shape)
            whole = whole * sum_of_few(part)
        joint, whole = (x[..., 0, :] if moves == 1 else jnp.sum(x, axis=-2) for x in (joint, whole))
        # The mass of a far target may round to zero in all of its parts, and then goes to one
        # landing; the square must not underflow either.
        known = whole > 1e-16
        first = jnp.sum(self.split_shares * joint, axis=1)
        first = jnp.where(known, first / jnp.where(known, whole, 1.0), 0.0)
        last = jnp.maximum(1.0 - sum_of_few(first), 0.0)
        return jnp.concatenate([first, last[None]]).T


def _at(
    grid: Grid, mass: Mass, function: Any, positions: Array, actions: Array, step: Step
) -> Float[Array, "cells moves *result"]:
    """A function of one agent for each move of each cell, at positions that may differ by move."""
    positions = jnp.broadcast_to(positions, (*actions.shape[:2], grid.dim))

    def one(state: Array, here: Scalar, action: Array) -> Array:
        return jnp.asarray(function(state, action, MeanField(mass, here, grid, step)))

    return jax.vmap(jax.vmap(one, in_axes=(0, None, 0)))(positions, mass, actions)


def _rows(values: Float[Array, "rows *rest"], numbers: Int[Array, "some"]) -> Array:
    return values.at[numbers].get(mode="promise_in_bounds", wrap_negative_indices=False)


@lru_cache(maxsize=32)
def build_within(
    grid: Grid, reach: tuple[int, ...], noise_std: tuple[float, ...], dtype: str
) -> WithinCells:
    """The transition for windows of ``reach`` cells to each side."""
    with jax.ensure_compile_time_eval(), stage("preparing windows", alone=True) as now:
        cells = np.arange(grid.n_cells)
        traces = trace_windows(grid, reach, 1, cells, PLACES, done=now.span(0.0, 0.8))
        n, window = traces.landing.shape
        pairs, most = traces.pairs, traces.split_landings.shape[1]
        source = np.concatenate([np.repeat(np.arange(n), window), np.repeat(pairs // window, most)])
        target = np.concatenate([np.tile(np.arange(window), n), np.repeat(pairs % window, most)])
        code = np.concatenate([traces.landing.ravel(), traces.split_landings.ravel()])
        ends = grid.cell_index(traces.sources[source] + traces.offsets[code])
        side = 0.5 * np.sign(traces.offsets[target] - traces.offsets[code])[:, :, None]
        at_wall = (side ** np.arange(1, MOMENTS + 1)).reshape(len(code), -1)
        passing = np.repeat(side[..., 0] == 0, MOMENTS, axis=1)
        shares = traces.shares.reshape(len(pairs), most - 1, PLACES**grid.dim)
        mass = ((0, 0), (1, 0))
        return WithinCells(
            noise_std=jnp.asarray(noise_std, dtype=dtype),
            ends=jnp.asarray(np.where(code >= 0, ends, n), dtype=jnp.int32),
            passing=jnp.asarray(np.pad(passing, mass, constant_values=True), dtype=dtype),
            at_wall=jnp.asarray(np.pad(at_wall, mass), dtype=dtype),
            split_cells=jnp.asarray(pairs // window, dtype=jnp.int32),
            split_pieces=jnp.asarray(pairs, dtype=jnp.int32),
            split_edges=jnp.asarray(split_edges(traces).transpose(1, 2, 0), dtype=dtype),
            split_shares=jnp.asarray(shares.transpose(1, 2, 0), dtype=dtype),
            reach=reach,
            grid=grid,
            trips=None,
        )
