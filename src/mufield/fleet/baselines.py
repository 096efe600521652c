"""What a fleet does without a plan: vehicles stay, or go where passengers are near by."""

import itertools

import jax.numpy as jnp
import numpy as np

from ..errors import UserError
from ..policies.base import Profile
from ..policies.tables import TablePolicy
from ..problem import Problem
from .passengers import Passengers, rows_at


def stay(problem: Problem) -> Profile:
    """Every vehicle takes the action nearest to zero: it waits where its last passenger left."""
    rest = jnp.asarray(problem.actions.rest, dtype=problem.initial.dtype)
    moves = jnp.broadcast_to(rest, (problem.horizon, 1, len(rest)))
    return Profile.stacked(TablePolicy.deterministic(moves), problem.horizon)


def towards_demand(problem: Problem, cells: int = 2) -> Profile:
    """A vehicle heads for a cell near by, drawn in proportion to the demand of the next step.

    It knows where passengers are, but neither how vehicles move nor where the others are: it aims
    as if the farthest action carried it by ``max_move``.

    Args:
        problem: A problem with trips of `Passengers`, and actions that are displacements.
        cells: How many cells away a vehicle looks, on each axis.
    """
    grid, actions = problem.grid, problem.actions
    chance = getattr(problem.trips, "chance", None)
    if not isinstance(chance, Passengers) or actions.dim != grid.dim:
        raise UserError(
            "to go towards demand, a problem needs trips=Trips(Passengers(...), matrix) of "
            f"mufield.fleet, and actions with an axis for each of the {grid.dim} of space"
        )
    wanted = rows_at(chance.demand, problem.steps)
    after = wanted[np.minimum(np.arange(problem.horizon) + 1, problem.horizon - 1)]
    steps = np.array(list(itertools.product(range(-cells, cells + 1), repeat=grid.dim)))
    target = np.asarray(grid.cell_index(grid.free_cells[:, None] + steps))
    weights = np.where(target >= 0, after[:, target], 0.0)
    # Where nobody waits near by, vehicles stay.
    weights[..., len(steps) // 2] += 1e-9
    weights /= weights.sum(axis=-1, keepdims=True)
    aims = steps * np.asarray(grid.cell_size) / np.asarray(problem.max_move)
    lower, upper = np.asarray(actions.lower), np.asarray(actions.upper)
    moves = np.clip(aims * np.maximum(upper, -lower), lower, upper)
    dtype = problem.initial.dtype
    table = TablePolicy.mixing(jnp.asarray(moves, dtype), jnp.asarray(weights, dtype))
    return Profile.stacked(table, problem.horizon)
