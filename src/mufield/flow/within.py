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

from .._types import Mass, Scalar, Step
from ..errors import UserError
from ..policies.base import AbstractPolicy, ActionLaw
from ..problem import Motion, Problem, Reward
from ..space.grid import Grid
from ..space.measure import MeanField
from .phi import AbstractPhi, Departure, Joint
from .slabs import mixed
from .spread import MOMENTS, Spread
from .tables import preparing
from .walls import FAR, split_edges, trace_windows
from .windows import WindowSettings, check_windows

STARTS = 3
"""Places on each axis of a cell from which lines are traced: its edges and its middle."""


class Starts(eqx.Module):
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


class WithinCells(AbstractPhi):
    """Phi for agents who stand anywhere in their cells; a population is a `Spread`.

    Tables for walls and borders are as `mufield.flow.landing` has them for agents at cell centres.
    But which way a line goes round the end of a wall depends on where in its cell it starts, so
    that a split pair has shares for each place of the start, and its target is not cut. *Channels*
    are the mass and, axis after axis, the mass times the powers of the position. Rows of channels
    are scattered: of rows that is faster than what `mufield.flow.routing` does.

    Attributes:
        noise_std: Standard deviation of the Gaussian noise on each axis.
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
        grid: The space.
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

    @property
    def centred(self) -> bool:
        """False."""
        return False

    @property
    def floats_kept(self) -> int:
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
        return Spread.of_sums(population.sums + Spread.even(mass, self.grid.dim).sums)

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
            return Departure(law, moved, Starts(moved / size, places[:, None], shares[:, None]))
        starts, chances = _corners(places, shares)

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
        return Departure(joint, moved, Starts(moved / size, alone, jnp.ones_like(alone)))

    def earn(self, population: Spread, leaving: Departure, reward: Reward, step: Step) -> Scalar:
        """The reward where agents stand: at the two points of each axis, which have the moments."""
        mass, law, starts = population.mass, leaving.law, leaving.targets
        if starts is not None and starts.places.shape[-1] == 1:
            states = self._position(starts.places[..., 0])
            paid = _at(self.grid, mass, reward, states, law.actions, step)
            return jnp.sum(mass[:, None] * law.weights * paid)
        corners, chances = _corners(*population.points())

        def of_corner(place: Array, chance: Array) -> Scalar:
            paid = _at(self.grid, mass, reward, self._position(place)[:, None], law.actions, step)
            return jnp.sum((mass * chance)[:, None] * law.weights * paid)

        return jnp.sum(jax.vmap(of_corner, in_axes=1)(corners, chances))

    def push(self, joint: Joint, targets: Starts, seen: Mass, step: Step) -> Spread:
        """See `AbstractPhi`."""
        std = self.noise_std / jnp.asarray(self.grid.cell_size, dtype=self.noise_std.dtype)
        powers = _slabs(targets, std, self.reach)
        pieces = _windows(joint, powers, self.reach)
        if len(self.split_pieces):
            shares = self._shares(joint, targets, std)
            split = shares[..., None] * _rows(pieces, self.split_pieces)[:, None]
            pieces = jnp.concatenate([pieces, split.reshape(-1, pieces.shape[1])])
        landed = pieces * self.passing + pieces[:, :1] * self.at_wall
        empty = jnp.zeros((len(joint) + 1, pieces.shape[1]), dtype=pieces.dtype)
        return Spread.of_sums(empty.at[self.ends].add(landed, mode="promise_in_bounds")[:-1])

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
        self, weights: Array, leaving: Starts, noise_std: Array
    ) -> Float[Array, "pairs landings"]:
        """How much of each split pair's mass goes to each of its landings."""
        near = _hats(leaving.places) * leaving.shares[..., None]
        # One gather for all three; pairs come last, because loops over them compile to much better
        # code than loops over a few edges.
        needed = [each.reshape(len(weights), -1) for each in (leaving.targets, near, weights)]
        joined = _rows(jnp.concatenate(needed, axis=1), self.split_cells).T
        cuts = np.cumsum([each.shape[1] for each in needed])[:-1].tolist()
        aims, near, weights = jnp.split(joined, cuts)
        moves, dim, points = leaving.targets.shape[1:]
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
        # The mass of a far target may round to zero in all of its parts, and then goes to one
        # landing; the square must not underflow either.
        known = whole > 1e-16
        first = jnp.sum(self.split_shares * joint, axis=1)
        first = jnp.where(known, first / jnp.where(known, whole, 1.0), 0.0)
        last = jnp.maximum(1.0 - _total(first), 0.0)
        return jnp.concatenate([first, last[None]]).T


def _at(
    grid: Grid, mass: Mass, function: Any, positions: Array, actions: Array, step: Step
) -> Float[Array, "cells moves *result"]:
    """A function of one agent for each move of each cell, at positions that may differ by move."""
    positions = jnp.broadcast_to(positions, (*actions.shape[:2], grid.dim))

    def one(state: Array, here: Scalar, action: Array) -> Array:
        return jnp.asarray(function(state, action, MeanField(mass, here, grid, step)))

    return jax.vmap(jax.vmap(one, in_axes=(0, None, 0)))(positions, mass, actions)


def _corners(places: Array, shares: Array) -> tuple[Array, Array]:
    """All combinations of the axes' points, (cells, corners, dim), and their probabilities."""
    axes = np.arange(places.shape[1])
    chosen = np.array(list(itertools.product((0, 1), repeat=len(axes))))
    return places[:, axes, chosen], jnp.prod(shares[:, axes, chosen], axis=-1)


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
    if weights.shape[1] > 8:
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
    leaving: Starts, noise_std: Float[Array, "dim"], reach: tuple[int, ...]
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
    return [_total([shares[:, p] * each[:, p] for p in points]) for each in found]


def build_within(problem: Problem) -> WithinCells:
    """The transition of a problem's grid, noise and farthest moves."""
    spread, grid = problem.noise_std, problem.grid
    if not all(spread):
        raise UserError(
            f"within_cells=True needs noise on every axis, got {problem.noise}; give a small one, "
            "such as a tenth of a cell"
        )
    cells = zip(problem.max_move, spread, grid.cell_size, strict=True)
    # From the edge of a cell three deviations beyond the farthest move are within reach.
    far = [math.ceil((move + 3.0 * std) / size - 1e-9) for move, std, size in cells]
    sizes = zip(far, grid.shape, grid.periodic, strict=True)
    reach = tuple(wide if wraps else min(wide, max(1, n - 1)) for wide, n, wraps in sizes)
    check_windows(problem, reach, WindowSettings(), stencil=False)
    return _build(grid, reach, spread, problem.initial.dtype.name)


@lru_cache(maxsize=32)
def _build(
    grid: Grid, reach: tuple[int, ...], spread: tuple[float, ...], dtype: str
) -> WithinCells:
    with jax.ensure_compile_time_eval(), preparing() as now:
        cells = np.arange(grid.n_cells)
        traces = trace_windows(grid, reach, 1, cells, STARTS, done=now.span(0.0, 0.8))
        n, window = traces.landing.shape
        pairs, most = traces.pairs, traces.codes.shape[1]
        source = np.concatenate([np.repeat(np.arange(n), window), np.repeat(pairs // window, most)])
        target = np.concatenate([np.tile(np.arange(window), n), np.repeat(pairs % window, most)])
        code = np.concatenate([traces.landing.ravel(), traces.codes.ravel()])
        ends = grid.cell_index(traces.sources[source] + traces.offsets[code])
        side = 0.5 * np.sign(traces.offsets[target] - traces.offsets[code])[:, :, None]
        at_wall = (side ** np.arange(1, MOMENTS + 1)).reshape(len(code), -1)
        passing = np.repeat(side[..., 0] == 0, MOMENTS, axis=1)
        shares = traces.shares.reshape(len(pairs), most - 1, STARTS**grid.dim)
        mass = ((0, 0), (1, 0))
        return WithinCells(
            noise_std=jnp.asarray(spread, dtype=dtype),
            ends=jnp.asarray(np.where(code >= 0, ends, n), dtype=jnp.int32),
            passing=jnp.asarray(np.pad(passing, mass, constant_values=True), dtype=dtype),
            at_wall=jnp.asarray(np.pad(at_wall, mass), dtype=dtype),
            split_cells=jnp.asarray(pairs // window, dtype=jnp.int32),
            split_pieces=jnp.asarray(pairs, dtype=jnp.int32),
            split_edges=jnp.asarray(split_edges(traces).transpose(1, 2, 0), dtype=dtype),
            split_shares=jnp.asarray(shares.transpose(1, 2, 0), dtype=dtype),
            reach=reach,
            grid=grid,
        )
