"""The population's distributions from a file."""

from pathlib import Path

import numpy as np
from jaxtyping import Float

from ..errors import UserError
from ..problem import Problem
from ..space.measure import MASS_TOLERANCE
from .table_file import read_table


def read_mass(path: Path, problem: Problem) -> Float[np.ndarray, "moments cells"]:
    """Reads mu_0, ..., mu_H: columns ``step``, ``cell_0``, ``cell_1``, ... and ``mass``."""
    grid, last = problem.grid, problem.horizon
    table = read_table(path)
    names = [f"cell_{axis}" for axis in range(grid.dim)]
    table.require(["step", *names, "mass"])
    steps = table.integers("step")
    cells = np.stack([table.integers(name) for name in names], axis=-1)
    mass = table.numbers("mass")
    if steps.min() != 0 or steps.max() != last:
        raise UserError(
            f"{path}: expected the steps 0 to {last}, as the horizon is {last}, got {steps.min()} "
            f"to {steps.max()}; the distribution after the last move belongs to it"
        )
    outside = (cells < 0) | (cells >= np.asarray(grid.shape))
    if outside.any():
        row, axis = (int(i) for i in np.argwhere(outside)[0])
        raise UserError(
            f"{table.where(row, names[axis])}: expected a cell from 0 to {grid.shape[axis] - 1}, "
            f"got {cells[row, axis]}; count cells from 0"
        )
    index = grid.index_table[tuple(cells.T)]
    odd = (mass < 0) | ((index < 0) & (mass != 0))
    if odd.any():
        row = int(np.argmax(odd))
        raise UserError(
            f"{table.where(row, 'mass')}: expected 0 or more, and none in walls, got {mass[row]} "
            f"in the {'wall' if index[row] < 0 else 'cell'} {tuple(cells[row].tolist())}; repair it"
        )
    free = index >= 0
    place = steps[free] * grid.n_cells + index[free]
    twice = np.bincount(place) > 1
    if twice.any():
        row = int(np.flatnonzero(free)[np.flatnonzero(place == int(np.argmax(twice)))[1]])
        raise UserError(
            f"{table.where(row, 'mass')}: the cell {tuple(cells[row].tolist())} has step "
            f"{steps[row]} more than once; leave one out"
        )
    flow = np.zeros((last + 1, grid.n_cells))
    flow.flat[place] = mass[free]
    total = flow.sum(axis=1)
    off = np.abs(total - 1) > MASS_TOLERANCE
    if off.any():
        step = int(np.argmax(off))
        raise UserError(
            f"{path}: expected masses that sum to 1 at every step, got {total[step]:.6g} at step "
            f"{step}; divide them by their sum"
        )
    return np.asarray(flow / total[:, None])
