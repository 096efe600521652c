"""Lipschitz constants of functions on a grid: tables between cells, policies, steepest slopes.

Flows on a grid evaluate functions at cell centres only, so the greatest slope between centres is a
bound for them. The greatest slope at some points is only an estimate, which may be too small.
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
from ..space.transport import cell_distances
from .bounds import Constant, Source


def between_cells(
    grid: Grid, table: Float[np.ndarray, "cells *size"], *, order: int = 2, wrapped: bool = False
) -> float:
    """Lipschitz constant of a table with one row for each cell, between cell centres.

    It is also the constant in W1 of the function that averages the rows over mu (Kantorovich).
    ``order`` is that of the norm; ``wrapped`` rows are points of the space, with periodic axes.
    """
    rows = np.asarray(table, dtype=float).reshape(grid.n_cells, -1)
    distance = cell_distances(grid)
    found = 0.0
    at_once = 64  # cells are compared with all others, to save memory
    for start in range(0, grid.n_cells, at_once):
        some = rows[start : start + at_once, None]
        between = grid.displacement(some, rows[None]) if wrapped else rows[None] - some
        apart = np.linalg.norm(between, order, axis=-1)
        over = distance[start : start + at_once]
        found = max(found, float(np.max(apart[over > 0] / over[over > 0], initial=0.0)))
    return found


def policy_slope(problem: Problem, profile: Profile, mass: _types.Masses) -> Constant:
    """L_pi: Lipschitz constant of a policy between cell centres, along a flow.

    For randomised policies it is that of the action's law in W1, if actions have one axis; else
    that of the mean action, an estimate that may be too small. Changes with mu are ignored, so
    for a policy that sees mu the constant is an estimate too.
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
    """Points z = (s, a, mu) at which slopes are computed."""

    states: Float[np.ndarray, "sites dim"]
    actions: Float[np.ndarray, "sites action_dim"]
    mass: Float[np.ndarray, "sites cells"]


def sites_of(data: Transitions) -> Sites:
    """States and distributions of a run, half of them with random actions instead of its own."""
    if len(data) == 0:
        raise UserError("expected at least one transition to take slopes at, got none")
    rng = np.random.default_rng(0)
    # Points of a run at which slopes are computed.
    points = 64
    rows = rng.choice(len(data), size=min(points, len(data)), replace=False)
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

    In the state it is the derivative or the change from cell to cell, which sees jumps. In mu it is
    the slope in W1: moving a little mass from one cell to another changes a function by the
    difference of its derivatives by the two masses. ``wrapped`` as of `between_cells`.
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
    """Whether a function's slope in mu is unbounded beside an empty cell, as that of -log mu is."""
    grid = problem.grid
    if grid.n_cells == 1:
        return False
    mass = np.full(grid.n_cells, 1.0 / (grid.n_cells - 1))
    mass[0] = 1e-12  # as good as empty
    rest = np.asarray(problem.actions.rest, dtype=float)
    empty = Sites(grid.centres[:1], rest[None], mass[None])
    # A change per cell from which on a slope counts as unbounded.
    without_bound = 1e6
    return steepest(problem, function, empty) * min(grid.cell_size) > without_bound


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
    """What the policy does: actions and their weights for all steps and cells."""
    laws = profile.laws(grid, mass[:-1])
    return laws.actions, laws.weights


def _cumulative(
    actions: Float[np.ndarray, "moves"], weights: Float[np.ndarray, "cells moves"]
) -> Float[np.ndarray, "cells gaps"]:
    """Rows whose distance in the 1-norm is W1 of two cells' laws: scaled cumulative weights."""
    order = np.argsort(actions, kind="stable")
    gaps = np.diff(actions[order])
    return np.asarray(np.cumsum(weights[:, order], axis=1)[:, :-1] * gaps)
