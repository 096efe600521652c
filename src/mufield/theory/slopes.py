r"""Estimates of Lipschitz constants: the steepest slopes at the points that a run saw.

A function's slope at a point is no more than its Lipschitz constant, so that the greatest slope at
some points is a lower bound of it. Bounds that are computed from estimates are not proven.

The slope in mu is that in W1. Moving a little mass from cell i to cell j changes a function by the
difference of its derivatives by the two masses; over the distance of the cells, the greatest such
change is the slope (the Lipschitz constant of the linear derivative).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..errors import UserError
from ..models.data import Transitions
from ..problem import Box, Problem
from ..space.measure import MeanField
from .lattice import between_cells

POINTS = 64
"""Points at which slopes are taken."""

EMPTY = 1e-12
"""Mass of a cell that is as good as empty."""

WITHOUT_BOUND = 1e6
"""A slope in an empty cell, in units of one over a cell, from which on there is no bound."""


@dataclass(frozen=True, eq=False)
class Sites:
    """Points z = (s, a, mu).

    Attributes:
        states: The states.
        actions: The actions.
        mass: The distributions.
    """

    states: Float[np.ndarray, "sites dim"]
    actions: Float[np.ndarray, "sites action_dim"]
    mass: Float[np.ndarray, "sites cells"]


def sites_of(data: Transitions, *, points: int = POINTS, seed: int = 0) -> Sites:
    """Points of a run: where agents were and among whom; half with other actions than theirs."""
    if len(data) == 0:
        raise UserError("expected at least one transition to take slopes at, got none")
    rng = np.random.default_rng(seed)
    rows = rng.choice(len(data), size=min(points, len(data)), replace=False)
    actions = data.actions[rows]
    other = _random_actions(data.problem, rng, len(rows))
    swapped = rng.random(len(rows)) < 0.5
    return Sites(
        states=data.states[rows],
        actions=np.where(swapped[:, None], other, actions),
        mass=data.mass[data.moment[rows]],
    )


def steepest(
    problem: Problem, function: Callable[..., Any], sites: Sites, *, wrapped: bool = False
) -> float:
    """The greatest slope of ``function(state, action, mu)`` in state, action or mu at the sites.

    In the state, both the derivative and the change from cell to cell count: steps have none of
    the former.

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
        # The cell is that of the site, also while the state is varied.
        here = masses[grid.index_of(jax.lax.stop_gradient(state))]
        mu = MeanField(mass=masses, here=here, grid=grid)
        return jnp.atleast_1d(jnp.asarray(function(state, action, mu)))

    def one(site: tuple[Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        state, action, masses = site
        by_state, by_action, by_mass = jax.jacrev(of, argnums=(0, 1, 2))(state, action, masses)
        cells = jax.vmap(lambda centre: of(centre, action, masses))(centres)
        norms = [jnp.linalg.norm(each, ord=2) for each in (by_state, by_action)]
        return norms[0], norms[1], by_mass.T, cells

    found: tuple[Array, Array, Array, Array] = jax.lax.map(one, (states, actions, mass))
    return found


def _random_actions(
    problem: Problem, rng: np.random.Generator, count: int
) -> Float[np.ndarray, "count action_dim"]:
    actions = problem.actions
    if isinstance(actions, Box):
        return rng.uniform(actions.lower, actions.upper, size=(count, actions.dim))
    return np.asarray(actions.moves, dtype=float)[rng.integers(len(actions.moves), size=count)]
