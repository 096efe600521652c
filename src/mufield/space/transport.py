"""The Wasserstein-1 distance between distributions on a grid (Sec. 3 and App. A of the paper).

It is computed by cumulative sums on the line and the circle, by linear programming on other grids.
"""

import numpy as np
from jaxtyping import ArrayLike, Float

from .grid import Grid
from .measure import check_mass
from .nodes import Nodes


def wasserstein(grid: Grid, mu: ArrayLike, nu: ArrayLike, *, most_cells: int = 1000) -> float:
    r"""W1 between two distributions over the free cells: the least mass times distance moved.

    The distance between two cells is the Euclidean one of their centres, the shorter way around
    periodic axes. Nodes have no distances: any two are 1 apart, and W1 is the total variation.

    The result is exact on lines, and on grids of up to ``most_cells`` free cells, which take
    seconds. Larger ones are pooled to at most a quarter as many square blocks, and all
    excess of a block is put to one place in it. By the triangle inequality the result is then off
    by at most $\sum_k |\mu_k - \nu_k|$ times the diagonal of a block.
    """
    given = (check_mass(grid, mu, "mu"), check_mass(grid, nu, "nu"))
    one, other = (np.asarray(mass, dtype=float) for mass in given)
    excess = one / one.sum() - other / other.sum()
    if isinstance(grid, Nodes):
        return 0.5 * float(np.abs(excess).sum())
    if grid.dim == 1:
        # The area under the cumulative excess; on the circle after subtracting its median, which
        # is the best amount to send around the other way.
        carried = np.cumsum(grid.to_array(excess, 0.0))
        carried = carried - np.median(carried) if grid.periodic[0] else carried
        return float(np.sum(np.abs(carried)) * grid.cell_size[0])
    if grid.n_cells > most_cells:
        return _pooled(grid, excess, most_cells // 4)
    return _least_cost(excess, distances(grid, grid.centres))


def _pooled(grid: Grid, excess: Float[np.ndarray, "cells"], most_blocks: int) -> float:
    """W1 after the excess of each block of cells is put to one place."""
    present = np.flatnonzero(excess)
    if not len(present):
        return 0.0
    cells, places, amount = grid.free_cells[present], grid.centres[present], excess[present]
    for side in range(2, max(grid.shape) + 1):
        block = np.unique(cells // side, axis=0, return_inverse=True)[1].reshape(-1)
        if block.max() < most_blocks:
            break
    weight = np.bincount(block, np.abs(amount))
    # The middle of the block's excess, which it is cheap to put all of it to.
    middles = np.stack([np.bincount(block, np.abs(amount) * x) / weight for x in places.T], axis=1)
    return _least_cost(np.bincount(block, amount), distances(grid, middles))


def _least_cost(
    excess: Float[np.ndarray, "places"], distance: Float[np.ndarray, "places places"]
) -> float:
    """The least mass times distance that takes all excess to where there is too little."""
    moved = 0.5 * float(np.abs(excess).sum())
    if moved <= 1e-15:  # equal up to rounding
        return 0.0
    # The program's tolerances are absolute, so masses are scaled to the order of one; cells with
    # less than 1e-9 of the moved mass are below them.
    excess = excess / moved
    surplus, deficit = np.flatnonzero(excess > 1e-9), np.flatnonzero(excess < -1e-9)
    supply, demand = excess[surplus], -excess[deficit]
    balance = np.concatenate([supply / supply.sum(), demand / demand.sum()])
    from scipy.optimize import linprog  # slow to import
    from scipy.sparse import eye_array, kron, vstack

    leaving = kron(eye_array(len(supply)), np.ones((1, len(demand))))
    arriving = kron(np.ones((1, len(supply))), eye_array(len(demand)))
    # One balance equation follows from the others; dropping it keeps rounding harmless.
    solution = linprog(
        distance[np.ix_(surplus, deficit)].ravel(),
        A_eq=vstack([leaving, arriving]).tocsr()[:-1],
        b_eq=balance[:-1],
        bounds=(0, None),
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    if solution.status != 0:
        raise RuntimeError(f"the transport problem was not solved: {solution.message}")
    return moved * float(solution.fun)


def distances(
    grid: Grid, places: Float[np.ndarray, "places dim"]
) -> Float[np.ndarray, "places places"]:
    """Distances between places, the shorter way around periodic axes."""
    return np.asarray(np.linalg.norm(grid.displacement(places[:, None], places[None]), axis=-1))
