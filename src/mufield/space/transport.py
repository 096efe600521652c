"""The Wasserstein-1 distance between distributions on a grid (Sec. 3 and App. A of the paper).

`wasserstein` is exact: by cumulative sums on the line and the circle, by linear programming on
other grids. The program starts with arcs between near cells and adds arcs until the dual prices
prove that no other arc can help, so that a thousand cells take seconds rather than minutes.
`approximate_wasserstein` serves grids of any size, and says how far off it may be.
"""

import itertools
from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from ..errors import UserError
from .grid import Grid
from .measure import check_mass
from .move import trace

NEAREST_ARCS = 8
"""Number of arcs from each cell to its nearest counterparts with which the program starts."""

HAIR = 1e-4
"""How far outside a wall's corner, in cells, lines of sight start, so that they pass the wall."""

MOST_CELLS = 4000
"""Above this the linear program would take minutes and gigabytes; it refuses instead."""

MOST_BLOCKS = 1000
"""Larger grids are pooled to at most so many blocks of cells for an approximation."""

ROUNDING = 1e-15
"""Distributions that differ by less mass than this are equal up to rounding."""

NOTHING = 1e-9
"""Cells with less than this share of the moved mass are below the program's tolerance."""


def wasserstein(grid: Grid, mu: ArrayLike, nu: ArrayLike, metric: str = "straight") -> float:
    """W1 between two distributions over the free cells: the least mass times distance moved.

    Args:
        grid: The space.
        mu: Mass of each free cell.
        nu: The other distribution.
        metric: Distance between the centres of two cells. ``"straight"`` is Euclidean, the
            shorter way around periodic axes; ``"walls"`` is the shortest way that avoids walls.
    """
    if metric not in ("straight", "walls"):
        raise UserError(f"metric must be 'straight' or 'walls', got {metric!r}")
    excess = _excess(grid, mu, nu)
    if grid.dim == 1 and (metric == "straight" or not grid.walls.any()):
        return _one_dimensional(grid, excess)
    if grid.n_cells > MOST_CELLS:
        raise UserError(
            f"the exact distance is for grids of up to {MOST_CELLS} free cells, this one has "
            f"{grid.n_cells}; use approximate_wasserstein, which says how far off it may be"
        )
    return _planar(excess, ground_distance(grid, metric))


class Distance(NamedTuple):
    """A distance that may be off by ``error``, 0 if it is exact."""

    value: float
    error: float


def approximate_wasserstein(grid: Grid, mu: ArrayLike, nu: ArrayLike) -> Distance:
    """W1 between two distributions, straight, on grids of any size.

    It is exact up to `MOST_CELLS` free cells and on lines. Larger grids are pooled: all excess of
    a block of cells is put to one place in it. By the triangle inequality the distance changes by
    no more than that takes, which is the ``error``.
    """
    if grid.dim == 1 or grid.n_cells <= MOST_CELLS:
        return Distance(wasserstein(grid, mu, nu), 0.0)
    excess = _excess(grid, mu, nu)
    present = np.flatnonzero(excess)
    if not len(present):
        return Distance(0.0, 0.0)
    cells, places = grid.free_cells[present], np.asarray(grid.centres)[present]
    for side in range(2, max(grid.shape) + 1):
        inverse = np.unique(cells // side, axis=0, return_inverse=True)[1].reshape(-1)
        if inverse.max() < MOST_BLOCKS:
            break
    amount = excess[present]
    weight = np.bincount(inverse, np.abs(amount))
    # The middle of the block's excess, which it is cheap to put all of it to.
    middles = np.stack([np.bincount(inverse, np.abs(amount) * x) / weight for x in places.T], 1)
    carried = np.abs(amount) @ np.linalg.norm(places - middles[inverse], axis=-1)
    between = np.linalg.norm(grid.displacement(middles[:, None], middles[None]), axis=-1)
    return Distance(_planar(np.bincount(inverse, amount), between), float(carried))


def _excess(grid: Grid, mu: ArrayLike, nu: ArrayLike) -> Float[np.ndarray, "cells"]:
    """What ``mu`` has more than ``nu`` in each cell; it sums to 0."""
    one = np.asarray(check_mass(grid, mu, "mu"), dtype=float)
    other = np.asarray(check_mass(grid, nu, "nu"), dtype=float)
    excess: Float[np.ndarray, "cells"] = one / one.sum() - other / other.sum()
    return excess


def _planar(
    excess: Float[np.ndarray, "places"], distance: Float[np.ndarray, "places places"]
) -> float:
    """The least mass times distance that takes all excess to where there is too little."""
    moved = 0.5 * float(np.abs(excess).sum())
    if moved <= ROUNDING:
        return 0.0
    # The program's tolerances are absolute, so masses are scaled to the order of one.
    excess = excess / moved
    surplus, deficit = np.flatnonzero(excess > NOTHING), np.flatnonzero(excess < -NOTHING)
    # The largest comes last: its equation is left out, so that it takes up all rounding.
    deficit = deficit[np.argsort(-excess[deficit], kind="stable")]
    cost = distance[np.ix_(surplus, deficit)]
    if not np.all(np.isfinite(cost)):
        raise UserError(
            "some cells cannot reach each other around the walls, so the distance is infinite; "
            "use metric='straight'"
        )
    supply, demand = excess[surplus], -excess[deficit]
    return moved * _transport(supply / supply.sum(), demand / demand.sum(), cost)


@lru_cache(maxsize=8)
def ground_distance(grid: Grid, metric: str) -> Float[np.ndarray, "cells cells"]:
    """Distances between the centres of all free cells; infinite where there is no way.

    The shortest way around walls consists of straight legs between outer corners of walls. In
    three dimensions only the midpoints of a wall cell's edges count as corners, so that the
    distance is an upper bound.
    """
    between = grid.displacement(grid.centres[:, None], grid.centres[None])
    straight: Float[np.ndarray, "cells cells"] = np.linalg.norm(between, axis=-1)
    if metric == "straight" or not grid.walls.any():
        return straight
    from scipy.sparse.csgraph import floyd_warshall

    corners, nudged = _outer_corners(grid)
    size = np.asarray(grid.cell_size)
    centres = grid.free_cells + 0.5
    nodes = np.concatenate([centres, corners])
    legs = np.full((len(nodes), len(nodes)), np.inf)
    turns = [(-1, 0, 1) if periodic else (0,) for periodic in grid.periodic]
    for turn in itertools.product(*turns):
        # Around a periodic axis the longer way may be the open one.
        shift = np.asarray(turn) * np.asarray(grid.shape)
        seen = _visible(grid, np.concatenate([centres, nudged]), shift)
        length = np.linalg.norm((nodes[None] + shift - nodes[:, None]) * size, axis=-1)
        legs = np.minimum(legs, np.where(seen, length, np.inf))
    # Sight is mutual, but ties at corners may be decided differently in the two directions.
    legs = np.minimum(legs, legs.T)
    shortest: Float[np.ndarray, "nodes nodes"] = floyd_warshall(legs, directed=False)
    return shortest[: grid.n_cells, : grid.n_cells]


def _outer_corners(
    grid: Grid,
) -> tuple[Float[np.ndarray, "corners dim"], Float[np.ndarray, "corners dim"]]:
    """Corners that a shortest way can bend around, in cells: where they are, and a `HAIR` outside.

    In the plane of two axes these are the wall cells' corners whose three other cells are free.
    """
    blocked = grid.padded_walls(1)
    corners, nudged = [np.zeros((0, grid.dim))], [np.zeros((0, grid.dim))]
    walls = np.argwhere(grid.walls)
    for one, two in itertools.combinations(range(grid.dim), 2):
        for sides in itertools.product((-1, 1), repeat=2):
            first, second = np.zeros((2, grid.dim), dtype=int)
            first[one], second[two] = sides
            around = [blocked[tuple((walls + 1 + d).T)] for d in (first, second, first + second)]
            found = walls[~np.any(around, axis=0)]
            outward = first + second
            corners.append(found + 0.5 + 0.5 * outward)
            nudged.append(found + 0.5 + (0.5 + HAIR) * outward)
    return np.concatenate(corners), np.concatenate(nudged)


def _visible(
    grid: Grid, nodes: Float[np.ndarray, "nodes dim"], shift: Int[np.ndarray, "dim"]
) -> Bool[np.ndarray, "nodes nodes"]:
    """Which nodes (rows) see which shifted nodes (columns); what stops agents stops sight."""
    points = jnp.asarray(nodes)

    def visible_from(origin: Array) -> Array:
        aims = points + jnp.asarray(shift, dtype=points.dtype)
        return jax.vmap(lambda aim: ~jnp.any(trace(grid, origin, aim).stopped))(aims)

    return np.asarray(jax.jit(lambda: jax.lax.map(visible_from, points, batch_size=64))())


def _one_dimensional(grid: Grid, excess: Float[np.ndarray, "cells"]) -> float:
    """The area under the cumulative excess; on the circle after subtracting its median, which is
    the best amount to send around the other way.
    """
    line = np.zeros(grid.shape[0])
    line[grid.free_cells[:, 0]] = excess
    carried = np.cumsum(line)
    if grid.periodic[0]:
        carried = carried - np.median(carried)
    return float(np.sum(np.abs(carried)) * grid.cell_size[0])


def _transport(
    supply: Float[np.ndarray, "sources"],
    demand: Float[np.ndarray, "sinks"],
    cost: Float[np.ndarray, "sources sinks"],
) -> float:
    """Least cost of transport by linear programming, with arcs added while they reduce the cost."""
    # SciPy is slow to import, and only needed here.
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    m, n = cost.shape
    used = np.zeros((m, n), dtype=bool)
    nearest_sinks = np.argsort(cost, axis=1, kind="stable")[:, :NEAREST_ARCS]
    nearest_sources = np.argsort(cost, axis=0, kind="stable")[:NEAREST_ARCS]
    used[np.arange(m)[:, None], nearest_sinks] = True
    used[nearest_sources, np.arange(n)[None, :]] = True
    # The arcs of one feasible plan, first come first served, so that a solution exists.
    supplied, demanded = np.cumsum(supply), np.cumsum(demand)
    ends = np.sort(np.concatenate([[0.0], supplied, demanded]))
    middles = 0.5 * (ends[1:] + ends[:-1])
    first = np.minimum(np.searchsorted(supplied, middles), m - 1)
    used[first, np.minimum(np.searchsorted(demanded, middles), n - 1)] = True
    used[:, -1] = True  # takes up rounding
    balance = np.concatenate([supply, demand])
    tolerance = 1e-9 * max(1.0, float(cost.max()))
    while True:
        rows, columns = np.nonzero(used)
        arcs = np.arange(len(rows))
        ones = np.ones(2 * len(rows))
        incidence = coo_array(
            (ones, (np.concatenate([rows, m + columns]), np.concatenate([arcs, arcs]))),
            shape=(m + n, len(rows)),
        )
        # One balance equation follows from the others; dropping it keeps rounding harmless.
        solution = linprog(
            cost[rows, columns],
            A_eq=incidence.tocsr()[:-1],
            b_eq=balance[:-1],
            bounds=(0, None),
            method="highs",
            options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
        )
        if solution.status != 0:
            raise RuntimeError(f"the transport problem was not solved: {solution.message}")
        prices = np.append(solution.eqlin.marginals, 0.0)
        gain = prices[:m, None] + prices[None, m:] - cost
        missing = (gain > tolerance) & ~used
        if not missing.any():
            return float(solution.fun)
        # The most profitable missing arcs of each source, rather than all of them at once.
        ranked = np.where(missing, gain, -np.inf)
        best = np.argpartition(ranked, -min(4, n), axis=1)[:, -min(4, n) :]
        chosen = np.zeros_like(used)
        np.put_along_axis(chosen, best, True, axis=1)
        used |= chosen & missing
