"""Lipschitz constants of functions on a grid: tables between cells, policies, steepest slopes.

Flows on a grid look at the centres of cells only, so a constant between cell centres is a bound
for them. A slope at some points is a lower bound of a function's Lipschitz constant: bounds that
are computed from such estimates are not proven.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import _types
from ..errors import UserError
from ..models.data import Transitions
from ..policies.base import Profile
from ..problem import Problem
from ..space.grid import Grid
from ..space.measure import mean_field_at
from ..space.transport import ground_distance
from .bounds import Constant, Source

ROWS = 64
"""Rows of pairs that are compared at once, for the memory's sake."""

POINTS = 64
"""Points of a run at which slopes are taken."""

EMPTY = 1e-12
"""Mass of a cell that is as good as empty."""

WITHOUT_BOUND = 1e6
"""A slope in an empty cell, in units of one over a cell, from which on there is no bound."""


def between_cells(
    grid: Grid,
    table: Float[np.ndarray, "cells *size"],
    *,
    order: int = 2,
    wrapped: bool = False,
) -> float:
    """Greatest change of a table's rows between two cells, over the cells' distance.

    Of functions of mu that average the rows over mu, this is the Lipschitz constant in W1
    (Kantorovich).

    Args:
        grid: The space.
        table: One row for each free cell.
        order: Of the norm in which rows are compared.
        wrapped: Whether rows are points of the space, compared the shorter way round.
    """
    rows = np.asarray(table, dtype=float).reshape(grid.n_cells, -1)
    distance = ground_distance(grid, "straight")
    found = 0.0
    for start in range(0, grid.n_cells, ROWS):
        some = rows[start : start + ROWS, None]
        between = grid.displacement(some, rows[None]) if wrapped else rows[None] - some
        apart = np.linalg.norm(between, order, axis=-1)
        over = distance[start : start + ROWS]
        found = max(found, float(np.max(apart[over > 0] / over[over > 0], initial=0.0)))
    return found


def policy_slope(problem: Problem, profile: Profile, mass: _types.Masses) -> Constant:
    """L_pi: greatest change of the action between two cells over their distance, along a flow.

    Of a randomised policy it is the change of the action's law in W1: exact on one axis of
    actions, and otherwise the change of the mean action, which is no more than it. How a policy
    changes with mu is not looked at, so that for one that sees mu the constant is an estimate.
    """
    actions, weights = (np.asarray(x, dtype=float) for x in _laws(problem.grid, profile, mass))
    blind = not profile.sees_mu
    source: Source = "bound" if blind else "estimate"
    note = "between cell centres" if blind else "the policy's slope in mu does not count"
    moves, axes = actions.shape[2:]
    if moves > 1 and axes == 1 and np.all(actions == actions[:, :1]):
        tables = [_cumulative(a[0, :, 0], w) for a, w in zip(actions, weights, strict=True)]
        return Constant(
            max(between_cells(problem.grid, table, order=1) for table in tables), source, note
        )
    means = np.einsum("hkm,hkma->hka", weights, actions)
    value = max(between_cells(problem.grid, table) for table in means)
    if moves > 1:
        return Constant(value, "estimate", "of the mean action; the law may change faster")
    return Constant(value, source, note)


@dataclass(frozen=True, eq=False)
class Sites:
    """Points z = (s, a, mu) at which slopes are taken."""

    states: Float[np.ndarray, "sites dim"]
    actions: Float[np.ndarray, "sites action_dim"]
    mass: Float[np.ndarray, "sites cells"]


def sites_of(data: Transitions) -> Sites:
    """Points of a run: where agents were and among whom; half with other actions than theirs."""
    if len(data) == 0:
        raise UserError("expected at least one transition to take slopes at, got none")
    rng = np.random.default_rng(0)
    rows = rng.choice(len(data), size=min(POINTS, len(data)), replace=False)
    other = np.asarray(data.problem.actions.sample(jax.random.key(0), (len(rows),)), dtype=float)
    swapped = rng.random(len(rows)) < 0.5
    return Sites(
        states=data.states[rows],
        actions=np.where(swapped[:, None], other, data.actions[rows]),
        mass=data.mass[data.moment[rows]],
    )


def steepest(
    problem: Problem, function: Callable[..., Any], sites: Sites, *, wrapped: bool = False
) -> float:
    """The greatest slope of ``function(state, action, mu)`` in state, action or mu at the sites.

    In the state, both the derivative and the change from cell to cell count: steps have none of
    the former. The slope in mu is that in W1: moving a little mass from one cell to another
    changes a function by the difference of its derivatives by the two masses.

    Args:
        problem: The problem.
        function: Of one agent, with any number of outputs.
        sites: Where it is looked at.
        wrapped: Whether it returns points of the space, compared the shorter way round.
    """
    grid, dtype = problem.grid, problem.initial.dtype
    places = (sites.states, sites.actions, sites.mass)
    found = _slopes(problem, function, *(jnp.asarray(x, dtype) for x in places))
    by_state, by_action, by_mass, cells = (np.asarray(x, dtype=float) for x in found)
    slopes = [float(np.max(by_state)), float(np.max(by_action))]
    slopes += [between_cells(grid, each, wrapped=wrapped) for each in cells]
    if np.any(by_mass):
        slopes += [between_cells(grid, each) for each in by_mass]
    return max(slopes)


def unbounded_in_empty_cells(problem: Problem, function: Callable[..., Any]) -> bool:
    """Whether a function of mu is steeper than any useful constant beside an empty cell.

    Rewards with the logarithm of mu are: they are not Lipschitz in W1, and the paper's bounds do
    not cover them, though the paper's experiments use them.
    """
    grid = problem.grid
    if grid.n_cells == 1:
        return False
    mass = np.full(grid.n_cells, 1.0 / (grid.n_cells - 1))
    mass[0] = EMPTY
    rest = np.asarray(problem.actions.rest, dtype=float)
    empty = Sites(grid.centres[:1], rest[None], mass[None])
    return steepest(problem, function, empty) * min(grid.cell_size) > WITHOUT_BOUND


@eqx.filter_jit
def _slopes(
    problem: Problem, function: Callable[..., Any], states: Array, actions: Array, mass: Array
) -> tuple[Array, Array, Array, Array]:
    """Norms of derivatives by state and action, derivatives by the masses, values at all cells."""
    grid = problem.grid
    centres = jnp.asarray(grid.centres, dtype=mass.dtype)

    def of(state: Array, action: Array, masses: Array) -> Array:
        mu = mean_field_at(grid, masses, state)
        return jnp.atleast_1d(jnp.asarray(function(state, action, mu)))

    def one(site: tuple[Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        state, action, masses = site
        by_state, by_action, by_mass = jax.jacrev(of, argnums=(0, 1, 2))(state, action, masses)
        cells = jax.vmap(lambda centre: of(centre, action, masses))(centres)
        norms = [jnp.linalg.norm(each, ord=2) for each in (by_state, by_action)]
        return norms[0], norms[1], by_mass.T, cells

    found: tuple[Array, Array, Array, Array] = jax.lax.map(one, (states, actions, mass))
    return found


@eqx.filter_jit
def _laws(grid: Grid, profile: Profile, mass: _types.Masses) -> tuple[Array, Array]:
    """Actions and weights of all steps and cells."""

    def step(_: None, inputs: tuple[Any, Array]) -> tuple[None, tuple[Array, Array]]:
        part, now = inputs
        law = profile.join(part).at_cells(grid, now)
        return None, (law.actions, law.weights)

    return jax.lax.scan(step, None, (profile.per_step, mass[:-1]), length=profile.horizon)[1]


def _cumulative(
    actions: Float[np.ndarray, "moves"], weights: Float[np.ndarray, "cells moves"]
) -> Float[np.ndarray, "cells gaps"]:
    """Cumulative weights times the gaps: rows whose sum of differences is W1 of the laws."""
    order = np.argsort(actions, kind="stable")
    gaps = np.diff(actions[order])
    return np.asarray(np.cumsum(weights[:, order], axis=1)[:, :-1] * gaps)
