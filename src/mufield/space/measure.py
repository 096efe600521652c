"""Distributions over the free cells of a grid, and the Wasserstein-1 distance between two.

A distribution is a vector ``mass`` with one entry for each free cell. Its density is mass
divided by the cell's volume; on unit cells the two agree.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from .._arrays import Action, Key, Mass, Scalar, State, States, Step, device_array, map_in_parts
from ..errors import UserError, distribution, explained, finite, is_a, non_negative, numbers
from .grid import Grid


class MeanField(eqx.Module):
    """The population as one agent sees it: what ``f``, ``r`` and ``pi`` get as ``mu``.

    Attributes:
        mass: Mass of every free cell.
        here: Mass of the cell that the agent is in, the paper's mu(s). Faster than a look-up:
            evaluated for all cells at once, it is the mass vector itself.
        step: Number h of the step, from 0; H at the end, if that is paid.
        shock: Value of the present shock, if the problem has `mufield.Shocks`.
        shock_number: Its number among the values.
    """

    mass: Mass
    here: Scalar
    grid: Grid = eqx.field(static=True)
    step: Step = 0
    shock: Any = None
    shock_number: Int[Array, ""] | None = None

    @property
    def density_here(self) -> Scalar:
        """Density at the agent: mass divided by the cell's volume."""
        return self.here / self.grid.cell_volume

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"mu has no {name}; it has mass, here, density_here, at, step, shock, grid"
        )

    def __getitem__(self, index: Any) -> NoReturn:
        raise UserError("mu is no array; take mu.mass, of all cells, or mu.here, of the own one")

    def at(self, point: State, outside: float = 0.0) -> Scalar:
        """Mass of the cell that holds a point; ``outside`` in walls and off the grid."""
        index = self.grid.index_of(point)
        return jnp.where(index < 0, outside, self.mass[index])


def mean_field_at(grid: Grid, mass: Mass, state: State, step: Step = 0) -> MeanField:
    """The mean field that an agent at ``state`` sees; in a wall or off the grid ``here`` is 0."""
    index = grid.index_of(state)
    here = jnp.where(index < 0, 0.0, mass[index])
    return MeanField(mass=mass, here=here, grid=grid, step=step)


def at_all_cells(
    grid: Grid,
    mass: Mass,
    function: Callable[[State, Action, MeanField], Any],
    actions: Float[Array, "cells moves action_dim"],
    step: Step = 0,
    *,
    at_once: int | None = None,
) -> Any:
    """Evaluates a function of one agent at every cell centre, for each of that cell's actions.

    Arrays of the result have the axes cells and moves before their own. With ``at_once`` so many
    actions are computed at a time, and gradients keep nothing: models take much memory for each.
    """
    centres = jnp.asarray(grid.centres, dtype=mass.dtype)

    def one(state: State, here: Scalar, action: Action) -> Any:
        found = function(state, action, MeanField(mass=mass, here=here, grid=grid, step=step))
        return jax.tree.map(jnp.asarray, found)

    if at_once is None:
        return jax.vmap(jax.vmap(one, in_axes=(None, None, 0)))(centres, mass, actions)
    in_all_cells = jax.checkpoint(lambda actions: jax.vmap(one)(centres, mass, actions))
    found = map_in_parts(in_all_cells, jnp.swapaxes(actions, 0, 1), at_once)
    return jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), found)


def log_mass(mass: Float[Array, "..."], floor: float = 1e-25) -> Float[Array, "..."]:
    """Log max(mass, floor), finite in empty cells; the entropy computed with it is concave."""
    return jnp.log(jnp.maximum(mass, floor))


def entropy(mass: Float[Array, "*batch cells"]) -> Float[Array, "*batch"]:
    """Shannon entropy of the masses in nats; ``log(n_cells)`` for the uniform distribution."""
    return jnp.sum(-mass * log_mass(mass), axis=-1)


def uniform(grid: Grid) -> Mass:
    """The same mass in every free cell."""
    check_grid(grid)
    return device_array(np.full(grid.n_cells, 1.0 / grid.n_cells))


def point_mass(grid: Grid, *cell: Any) -> Mass:
    """All mass in the cell with these coordinates, or in a node by its number or name."""
    check_grid(grid)
    mass = np.zeros(grid.n_cells)
    mass[grid.index_at(*cell)] = 1.0
    return device_array(mass)


def check_grid(grid: Any) -> Grid:
    """Returns ``grid`` if it is a `Grid`."""
    return is_a(grid, Grid, "the space", "make it with Grid.box or Grid.from_map")


def from_density(grid: Grid, values: ArrayLike | Callable[[State], Any]) -> Mass:
    """The distribution whose mass is proportional to a density at the cell centres.

    Args:
        grid: The space.
        values: Non-negative numbers, one for each free cell, or a function of one state that
            returns such a number. They need not sum to one.
    """
    check_grid(grid)
    name = "the density"
    if callable(values):
        states = jax.vmap(grid.told)(jnp.asarray(grid.centres, dtype=jnp.result_type(float)))
        what = f"a function of one state, here of shape {(grid.dim,)}, that returns a number"
        with explained(f"{name} must be {what}", "(state)"):
            values = jax.vmap(values)(states)
    given = _per_cell(grid, values, name).astype(float)
    if not given.sum() > 0:
        raise UserError(f"{name} must not be zero everywhere; make it positive in some cell")
    return device_array(given / given.sum())


def check_mass(grid: Grid, mass: Any, name: str = "mu") -> Mass:
    """``mass`` as a distribution over the free cells; raises if it is none."""
    values = numbers(mass, name)
    if values.shape == grid.shape and values.shape != (grid.n_cells,):
        in_walls = float(np.sum(values[grid.walls]))
        if in_walls != 0:
            raise UserError(f"{name} puts mass {in_walls:g} inside walls; move it to free cells")
        values = grid.from_array(values)
    values = _per_cell(grid, values, name)
    return device_array(values / distribution(values, name))


def _per_cell(grid: Grid, given: Any, name: str) -> Float[np.ndarray, "cells"]:
    """Finite, non-negative numbers, one for each free cell; raises for others."""
    values = numbers(given, name)
    if values.shape != (grid.n_cells,):
        raise UserError(
            f"{name} must have one entry for each of the {grid.n_cells} free cells (or the "
            f"grid's shape {grid.shape}), got the shape {values.shape}"
        )
    for check in (finite, non_negative):
        check(values, name, place=lambda index: f"in {grid.place(index[0])}")
    return values.astype(np.result_type(values, np.float32))


class Placed(NamedTuple):
    """Agents' cells and positions."""

    cell: Int[Array, "agents"]
    position: States


def place_agents(grid: Grid, mass: Mass, key: Key, count: int, *, centred: bool) -> Placed:
    """Draws agents: each gets a cell by its mass, then a uniform position in it or its centre."""
    cell_key, place_key = jax.random.split(key)
    chances = jax.random.uniform(cell_key, (count,), dtype=mass.dtype)
    # The inverse of the cumulative mass; empty cells repeat the sum before exactly: never drawn.
    sums = jax.lax.cummax(jnp.where(mass > 0, jnp.cumsum(mass), 0.0))
    total = sums[-1]
    below = jnp.minimum(chances * total, jnp.nextafter(total, jnp.zeros_like(total)))
    cell = jnp.searchsorted(sums, below, side="right")
    if centred:
        return Placed(cell, jnp.asarray(grid.centres, dtype=mass.dtype)[cell])
    shares = jax.random.uniform(place_key, (count, grid.dim), dtype=mass.dtype)
    return Placed(cell, inside_cell(grid, cell, shares))


def inside_cell(
    grid: Grid, cell: Int[Array, "*agents"], shares: Float[Array, "*agents dim"]
) -> Float[Array, "*agents dim"]:
    """Positions at these shares of the edges of their cells, from the lower corner."""
    # Not on an edge, where rounding could put the position into the next cell.
    apart = jnp.clip(shares, 1e-4, 1.0 - 1e-4) - 0.5
    centre = jnp.asarray(grid.centres, dtype=shares.dtype)[cell]
    return centre + apart * jnp.asarray(grid.cell_size, dtype=shares.dtype)


def sample(grid: Grid, mass: Mass, key: Key, count: int, *, centred: bool = False) -> States:
    """Positions drawn from a distribution: uniform within each cell, or the cells' centres."""
    return place_agents(grid, mass, key, count, centred=centred).position


def histogram(grid: Grid, positions: ArrayLike) -> Mass:
    """The distribution of observed positions (agents, dim): how a real fleet becomes a ``mu``."""
    positions = numbers(positions, "positions").astype(float)
    if positions.ndim != 2 or positions.shape[1] != grid.dim or len(positions) == 0:
        raise UserError(f"positions must be (agents >= 1, {grid.dim}), got {positions.shape}")
    # In double precision whatever JAX's default: rounding must not move an agent into a wall.
    index = grid.index_of(positions)
    if np.any(index < 0):
        row = int(np.argmin(index))
        raise UserError(
            f"{int(np.sum(index < 0))} of {len(index)} positions are in a wall or outside the "
            f"box from {grid.lower} to {grid.upper}; the first is row {row}: {positions[row]}"
        )
    counts = np.bincount(index, minlength=grid.n_cells)
    return jnp.asarray(counts / len(index), dtype=jnp.result_type(float))


def wasserstein(grid: Grid, mu: ArrayLike, nu: ArrayLike, *, most_cells: int = 1000) -> float:
    r"""W1 (Sec. 3 and App. A of the paper): the least mass times distance that turns mu into nu.

    The distance between two cells is the Euclidean one of their centres, the shorter way around
    periodic axes. Nodes have no distances: any two are 1 apart, and W1 is the total variation.

    The result is exact on lines, and on grids of up to ``most_cells`` free cells, which take
    seconds. Larger ones are pooled to at most a quarter as many square blocks, and all
    excess of a block is put to one place in it. By the triangle inequality the result is then off
    by at most $\sum_k |\mu_k - \nu_k|$ times the diagonal of a block.
    """
    both = check_mass(grid, mu, "mu"), check_mass(grid, nu, "nu")
    one, other = (np.asarray(mass, dtype=float) for mass in both)
    excess = one / one.sum() - other / other.sum()
    if grid.nodes is not None:
        return 0.5 * float(np.abs(excess).sum())
    if grid.dim == 1:
        # The area under the cumulative excess; on the circle its median is sent the other way.
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
    solution = linprog(
        distance[np.ix_(surplus, deficit)].ravel(),
        A_eq=vstack([leaving, arriving]).tocsr()[:-1],  # the last one follows from the others
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
