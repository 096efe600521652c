"""Passengers and what serving them earns: the chance and the reward of vehicles for hire.

Both are known to the learner; how vehicles move between passengers is not.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm
from jaxtyping import Array, Float, Int

from ._types import Action, Scalar, State
from .errors import UserError
from .space.grid import Grid
from .space.measure import MeanField

EMPTY = 1e-9
"""Mass below which a cell counts as empty; a vehicle there is sure to find a passenger."""

NEAR = 0.35
"""Width of the Gaussian, in kilometres, over which trips count for origins and ends nearby."""

POPULAR_TRIPS = 3.0
"""So many trips to where most people go are added to those from each cell."""


class Passengers(eqx.Module):
    r"""The chance that a vehicle finds a passenger, for `Trips`: $\min(1, d_h(k) / \mu_h(k))$.

    So as many are served as there are vehicles or passengers, whichever are fewer.

    Attributes:
        wanted: Demand in each step and cell, as a share of the fleet.
        vehicles: Size of the fleet to plan for, see `for_fleet`; None for the limit.
        seen: Step at which vehicles were counted, so that chance has no say in their numbers then;
            -1 if at none.
    """

    wanted: Float[Array, "steps cells"]
    grid: Grid = eqx.field(static=True)
    vehicles: Scalar | None
    seen: Int[Array, ""]

    def __init__(self, grid: Grid, wanted: Any, vehicles: int | None = None, seen: int = -1):
        """Checks and builds.

        Args:
            grid: The space.
            wanted: As the attribute; one row for all steps is enough if demand does not change.
            vehicles: As the attribute.
            seen: As the attribute.
        """
        demand = np.atleast_2d(np.asarray(wanted, dtype=float))
        if demand.ndim != 2 or demand.shape[1] != grid.n_cells:
            raise UserError(
                f"demand must have a row for each step and a column for each of {grid.n_cells} "
                f"free cells, got the shape {np.shape(wanted)}"
            )
        if not np.isfinite(demand).all() or (demand < 0).any():
            raise UserError("demand must be finite and not negative; it is a share of the fleet")
        self.wanted = jnp.asarray(demand, dtype=jnp.result_type(float))
        if vehicles is not None and vehicles < 1:
            raise UserError(f"a fleet must have at least one vehicle, got {vehicles}")
        self.grid = grid
        # Arrays, so that plans for fleets of all sizes share their compiled program.
        self.vehicles = None if vehicles is None else jnp.asarray(float(vehicles))
        self.seen = jnp.asarray(seen, dtype=jnp.int32)

    def for_fleet(self, vehicles: int, seen: int = -1) -> "Passengers":
        r"""The chance in a fleet of so many vehicles, where cells hold more or fewer than planned.

        A plan for the limit sends just as many vehicles as there are passengers. Of $N$ vehicles
        that follow it, as many arrive as chance has it, about $N \mu \pm \sqrt{N \mu}$, and where
        there are too few, passengers are left. With this chance, the mean of $\min(1, d / m)$ over
        a normal $m$, plans send some more. It is for plans only: agents draw their own luck.
        """
        return Passengers(self.grid, self.wanted, vehicles, seen)

    def __call__(self, state: State, mu: MeanField) -> Scalar:
        """The chance of one vehicle."""
        wanted = of_step(self.wanted, self.grid, state, mu)
        here = jnp.maximum(mu.here, EMPTY)
        sharp = jnp.minimum(1.0, wanted / here)
        if self.vehicles is None:
            return sharp
        spread = jnp.sqrt(here / self.vehicles.astype(here.dtype))
        # The mean of max(0, m - wanted), of those that find nobody.
        over = (here - wanted) / spread
        idle = (here - wanted) * norm.cdf(over) + spread * norm.pdf(over)
        return jnp.where(mu.step == self.seen, sharp, jnp.clip(1.0 - idle / here, 0.0, 1.0))

    def of_steps(self, horizon: int) -> Float[np.ndarray, "steps cells"]:
        """The demand of each step of an episode."""
        return by_step(self.wanted, horizon)


class Earnings(eqx.Module):
    """A reward: what serving passengers pays, minus the cost of driving empty.

    Attributes:
        passengers: Where passengers are.
        pay: What a passenger pays, by step and cell where the trip begins.
        cost: Cost of driving empty: for each axis, of an action of size one.
    """

    passengers: Passengers
    pay: Float[Array, "steps cells"]
    cost: Float[Array, "axes"]

    def __init__(self, passengers: Passengers, pay: Any = 1.0, cost: Any = 0.05):
        """Checks and builds; a single number is the pay everywhere, or the cost on all axes."""
        cells = passengers.grid.n_cells
        try:
            paid = np.atleast_2d(np.broadcast_to(np.asarray(pay, dtype=float), _shape(pay, cells)))
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

    def __call__(self, state: State, action: Action, mu: MeanField) -> Scalar:
        """The reward of one vehicle; a chance of the pay, and the cost if it does not find any."""
        served = self.passengers(state, mu)
        pay = of_step(self.pay, self.passengers.grid, state, mu)
        return pay * served - (1 - served) * self.driving(action)

    def driving(self, action: Float[Array, "*batch axes"]) -> Float[Array, "*batch"]:
        """The cost of driving empty."""
        return jnp.sum(self.cost.astype(action.dtype) * jnp.abs(action), axis=-1)


def of_step(table: Float[Array, "steps cells"], grid: Grid, state: State, mu: MeanField) -> Scalar:
    """The entry of an agent's cell and of the step."""
    step = jnp.minimum(mu.step, len(table) - 1)
    return table[step, grid.index_of(state)].astype(mu.mass.dtype)


def by_step(table: Float[Array, "steps cells"], horizon: int) -> Float[np.ndarray, "steps cells"]:
    """The rows of the steps of an episode; the last row serves all steps after it."""
    return np.asarray(table, dtype=float)[np.minimum(np.arange(horizon), len(table) - 1)]


def nearness(grid: Grid, width: float) -> Float[np.ndarray, "cells cells"]:
    """To which cells a trip counts that begins or ends in one: a Gaussian, or only its own if 0."""
    if width == 0:
        return np.eye(grid.n_cells)
    apart = np.sum(np.square(grid.centres[:, None] - grid.centres), axis=-1)
    weights = np.exp(-0.5 * apart / width**2)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def at_hours(
    by_hour: Float[np.ndarray, "hours cells"], hours: Sequence[float] | np.ndarray
) -> Float[np.ndarray, "times cells"]:
    """Trips in an hour around times of the day, from counts by the hour.

    Counts are smoothed over three hours, and linear between the middles of the hours.
    """
    hourly = (np.roll(by_hour, 1, 0) + 2 * by_hour + np.roll(by_hour, -1, 0)) / 4
    place = (np.asarray(hours) - 0.5) % 24
    low = np.floor(place).astype(int)
    share = (place - low)[:, None]
    return np.asarray((1 - share) * hourly[low % 24] + share * hourly[(low + 1) % 24])


def destinations(
    counts: Float[np.ndarray, "*parts cells cells"],
    near: Float[np.ndarray, "cells cells"],
    added: float,
    usual: Float[np.ndarray, "*origins cells"],
) -> Float[np.ndarray, "*parts cells cells"]:
    """Probability of each destination, from counts of trips.

    Trips count for origins and ends nearby, and to those from each cell so many are ``added`` as
    are ``usual``. Where there is no trip at all, agents land where they are.
    """
    found = near.T @ counts @ near + added * usual / usual.sum(axis=-1, keepdims=True)
    total = found.sum(axis=-1, keepdims=True)
    return np.where(total > EMPTY, found / np.maximum(total, EMPTY), np.eye(len(near)))


def mean_fares(
    paid: Float[np.ndarray, "*parts cells"],
    trips: Float[np.ndarray, "*parts cells"],
    near: Float[np.ndarray, "cells cells"],
    added: float,
) -> Float[np.ndarray, "*parts cells"]:
    """The mean fare of trips from nearby and of a few ``added`` ones of the whole city.

    From what was ``paid`` in each cell for so many ``trips``.
    """
    everywhere = paid.sum() / trips.sum()
    return np.asarray((paid @ near + added * everywhere) / np.maximum(trips @ near + added, EMPTY))


def _shape(pay: Any, cells: int) -> tuple[int, ...]:
    return (*np.shape(pay)[:-1], cells)
