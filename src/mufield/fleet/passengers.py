"""The matching of vehicles and passengers, the reward of a fleet, and fleets without a plan.

Matching and reward are known to the learner; how empty vehicles move is not.
"""

import itertools
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm
from jaxtyping import Array, Float, Int

from .._arrays import Action, Mass, Masses, Scalar, Step
from ..errors import UserError, per_axis, whole_number
from ..policies.base import Profile
from ..policies.tables import TablePolicy, rest_policy
from ..problem import Problem
from ..space.grid import Grid
from ..space.measure import MeanField
from .trips import Place


class Passengers(eqx.Module):
    r"""The matching of vehicles and passengers, as a chance for `Trips`.

    A vehicle serves with probability $\min(1, d_h(k) / \mu_h(k))$, so that the served demand of a
    cell is $\min(\mu_h(k), d_h(k))$. A plan for this limit sends just as many vehicles as there
    are passengers. Of $N$ vehicles that follow it, a random number arrives, about
    $N \mu \pm \sqrt{N \mu}$; where too few do, passengers are left. For plans with $N$ vehicles,
    the chance is the mean of $\min(m, d) / \mu$ over a normal $m$ with mean $\mu$ and variance
    $\mu / N$. Such plans send some more.

    Attributes:
        demand: Demand d by step and cell, as a share of the fleet.
        vehicles: Size N of the fleet to plan for; None for the mean-field limit.
        seen: Step at which vehicles were counted, so that their numbers are not random then; -1 for
            none.
        clock: Hour of the day at the first step, and minutes of a step, for pictures; or None.
    """

    demand: Float[Array, "steps cells"]
    grid: Grid = eqx.field(static=True, repr=False)
    vehicles: Scalar | None
    seen: Int[Array, ""]
    clock: tuple[float, ...] | None = eqx.field(static=True)

    def __init__(
        self,
        grid: Grid,
        demand: Any,
        vehicles: int | None = None,
        seen: int = -1,
        *,
        clock: tuple[float, ...] | None = None,
    ):
        """Checks and builds; the last row of the demand serves all steps after it."""
        table = np.atleast_2d(np.asarray(demand, dtype=float))
        if table.ndim != 2 or table.shape[1] != grid.n_cells:
            raise UserError(
                f"demand must have a row for each step and a column for each of {grid.n_cells} "
                f"free cells, got the shape {np.shape(demand)}"
            )
        if not np.isfinite(table).all() or (table < 0).any():
            raise UserError("demand must be finite and not negative; it is a share of the fleet")
        self.demand = jnp.asarray(table, dtype=jnp.result_type(float))
        self.grid = grid
        # Arrays, so that plans for fleets of all sizes share their compiled program.
        size = None if vehicles is None else whole_number(vehicles, "the number of vehicles")
        self.vehicles = None if size is None else jnp.asarray(float(size))
        self.seen = jnp.asarray(seen, dtype=jnp.int32)
        self.clock = None if clock is None else per_axis(clock, 2, float, "clock (hour, minutes)")

    def served(self, mass: Masses) -> float:
        """Share of the demand that found a vehicle along an episode."""
        wanted = np.asarray(rows_at(self.demand, np.arange(len(mass) - 1)), dtype=float)
        found = np.minimum(np.asarray(mass[:-1], dtype=float), wanted)
        return float(found.sum() / max(wanted.sum(), 1e-12))

    def most(self, step: Step) -> Mass:
        """The most vehicles that find somebody in each cell: as many as there are passengers."""
        return rows_at(self.demand, step)

    def __call__(self, state: Place, mu: MeanField) -> Scalar:
        """The chance of one vehicle; in an empty cell it is 1 where there is demand."""
        demand = rows_at(self.demand, mu.step, self.grid.index_of(state)).astype(mu.mass.dtype)
        here = jnp.maximum(mu.here, 1e-9)
        limit = jnp.minimum(1.0, demand / here)
        if self.vehicles is None:
            return limit
        spread = jnp.sqrt(here / self.vehicles.astype(here.dtype))
        # The mean of max(0, m - demand): vehicles that find nobody.
        over = (here - demand) / spread
        idle = (here - demand) * norm.cdf(over) + spread * norm.pdf(over)
        return jnp.where(mu.step == self.seen, limit, jnp.clip(1.0 - idle / here, 0.0, 1.0))


class Earnings(eqx.Module):
    """A reward: the pay for served demand, minus the cost of driving empty.

    Attributes:
        pay: What a passenger pays, by step and cell where the trip begins.
        cost: Cost of driving empty: for each axis, of an action of size one.
    """

    passengers: Passengers = eqx.field(repr=False)
    pay: Float[Array, "steps cells"]
    cost: Float[Array, "axes"]

    def __init__(self, passengers: Passengers, pay: Any = 1.0, cost: Any = 0.05):
        """Checks and builds; a single number is the pay everywhere, or the cost on all axes."""
        cells = passengers.grid.n_cells
        try:
            shape = (*np.shape(pay)[:-1], cells)
            paid = np.atleast_2d(np.broadcast_to(np.asarray(pay, dtype=float), shape))
        except ValueError as error:
            raise UserError(
                f"pay must be a number, or have a column for each of {cells} free cells, got the "
                f"shape {np.shape(pay)}"
            ) from error
        costs = np.atleast_1d(np.asarray(cost, dtype=float))
        if not (np.isfinite(paid).all() and np.isfinite(costs).all()) or (costs < 0).any():
            raise UserError("pay and cost must be finite, and the cost not negative")
        self.passengers = passengers
        self.pay = jnp.asarray(paid, dtype=jnp.result_type(float))
        self.cost = jnp.asarray(costs, dtype=jnp.result_type(float))

    def __call__(self, state: Place, action: Action, mu: MeanField) -> Scalar:
        """The expected reward of one vehicle: pay if it serves, otherwise the cost of its move."""
        served = self.passengers(state, mu)
        pay = rows_at(self.pay, mu.step, self.passengers.grid.index_of(state))
        return pay.astype(mu.mass.dtype) * served - (1 - served) * self.driving(action)

    def driving(self, action: Float[Array, "*batch axes"]) -> Float[Array, "*batch"]:
        """The cost of driving empty."""
        return jnp.sum(self.cost.astype(action.dtype) * jnp.abs(action), axis=-1)


def rows_at(table: Float[Array, "steps cells"], steps: Any, cell: Any = slice(None)) -> Array:
    """The rows of some steps, by their numbers, or a cell's; the last serves later steps."""
    return table[jnp.minimum(jnp.asarray(steps), len(table) - 1), cell]


def stay(problem: Problem) -> Profile:
    """Every vehicle takes the action nearest to zero: it waits where its last passenger left."""
    return Profile.stationary(rest_policy(problem), problem.horizon)


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
    wanted = np.asarray(rows_at(chance.demand, problem.steps), dtype=float)
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
