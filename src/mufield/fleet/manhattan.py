"""Manhattan's taxis: demand and trips counted from public records, and an invented motion.

Where passengers wait, where they go and what they pay comes from 55,679 trips of New York's taxis
(public records of the city's Taxi and Limousine Commission, as sampled in a public tutorial
repository under the Apache License 2.0; `tools/make_manhattan.py`). How far an empty vehicle gets
in ten minutes is **invented**: the records do not say it.
"""

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .._arrays import Action, State
from ..actions import Box
from ..errors import UserError, number, whole_number
from ..io.sealed import read_sealed
from ..problem import Problem
from ..space.grid import Grid
from ..space.measure import MeanField
from ..systems import SimulatedSystem
from .counts import destinations, mean_fares, rates_at, smoothing_kernel, trip_minutes
from .maps import CityMap
from .passengers import Earnings, Passengers
from .trips import Trips

DATA = Path(__file__).with_name("manhattan.safetensors")
"""The counts; `tools/make_manhattan.py` writes them."""

KIND = "table of trips"
"""What the file of counts says that it is."""

PART_STARTS = (0, 6, 10, 16, 20)
"""First hours of the parts of the day: each has its own origin-destination matrix."""

STEPS_PER_HOUR = 6
DAYS = ("weekday", "weekend")


class TripTable(NamedTuple):
    """Numbers of trips, origin-destination matrices and mean fares in dollars, of a week."""

    city: CityMap
    pickups: Float[np.ndarray, "days hours cells"]
    journeys: Float[np.ndarray, "days parts cells cells"]
    fares: Float[np.ndarray, "days parts cells"]


class Traffic(eqx.Module):
    """The invented motion: s + v(s, hour, mu(s)) a, with another speed on each axis.

    Avenues, along the second axis, are faster than streets. A slowdown is the share of the speed
    that is lost at its centre or peak; away from there it falls off as a Gaussian.

    Attributes:
        start: Hour of the day at the first step.
        rush_slowdown: That of rush hours.
        congestion: Speeds are divided by one plus this times the share of the fleet in the cell.
        speeds: Kilometres per step along streets and along avenues, if nothing slows down.
        midtown: Centre of the midtown slowdown, and its standard deviation, in kilometres.
        midtown_slowdown: That of midtown.
        rush_hours: Hours of the day at which traffic is slowest.
        rush_width: Standard deviation of the rush-hour slowdown, in hours.
    """

    start: float = eqx.field(static=True)
    rush_slowdown: float = eqx.field(static=True, default=0.2)
    congestion: float = eqx.field(static=True, default=10.0)
    speeds: tuple[float, float] = eqx.field(static=True, default=(0.75, 1.0))
    midtown: tuple[float, float, float] = eqx.field(static=True, default=(2.9, 7.4, 1.3))
    midtown_slowdown: float = eqx.field(static=True, default=0.4)
    rush_hours: tuple[float, ...] = eqx.field(static=True, default=(8.5, 17.5))
    rush_width: float = eqx.field(static=True, default=1.3)

    def __call__(self, state: State, action: Action, mu: MeanField) -> State:
        """Where a vehicle gets in ten minutes."""
        hour = self.start + (jnp.asarray(mu.step) + 0.5) / STEPS_PER_HOUR
        # The shorter way round the clock.
        apart = jnp.stack([(hour - peak + 12) % 24 - 12 for peak in self.rush_hours])
        rush = self.rush_slowdown * jnp.sum(jnp.exp(-0.5 * jnp.square(apart / self.rush_width)))
        *centre, width = self.midtown
        away = jnp.sum(jnp.square(state - jnp.array(centre)))
        midtown = self.midtown_slowdown * jnp.exp(-0.5 * away / width**2)
        slowed = (1 - midtown) * (1 - rush) / (1 + self.congestion * mu.here)
        return state + slowed.astype(state.dtype) * jnp.array(self.speeds) * action


def manhattan(
    *,
    horizon: int = 12,
    load: float = 0.6,
    start: float = 7.0,
    day: str = "weekday",
    reward: str = "served",
    cost: float = 0.05,
    congestion: float = 10.0,
    noise_std: float = 0.125,
    speed: float | None = None,
) -> SimulatedSystem:
    """A fleet of taxis on 185 cells of 500 m, in steps of ten minutes.

    Episodes start with vehicles where the trips of the hour before ended. Only the motion of empty
    vehicles is unknown to the learner, and it is invented: see `Traffic`.

    Args:
        horizon: Number of steps.
        load: Demand in a step as a share of the fleet, in the mean over the episode.
        start: Hour of the day at the first step, such as 7.5 for half past seven.
        day: ``"weekday"`` or ``"weekend"``.
        reward: ``"served"`` pays one for each passenger, so that J is the number of passengers of a
            vehicle; ``"fares"`` pays the mean fare, in dollars, of the trips from that cell.
        cost: Cost of driving empty at full speed for a step, on one axis: a share of a mean fare.
        congestion: Speeds are divided by one plus this times the share of the fleet in the cell.
        noise_std: Standard deviation of the noise, in kilometres.
        speed: Speed of trips along streets and avenues, in km/h: with it, trips last as long as
            that takes. The records do not say how long they took. By default all take one step.
    """
    for name, given, there in (("day", day, DAYS), ("reward", reward, ("served", "fares"))):
        if given not in there:
            raise UserError(f"{name} must be one of {', '.join(there)}, got {given!r}")
    number(load, "the load", 1e-9)
    number(start, "start, an hour of the day,", 0.0, 24 - 1e-6)
    number(congestion, "congestion", 0.0)
    horizon = whole_number(horizon, "the horizon")
    table, which = trip_table(), DAYS.index(day)
    grid = table.city.grid
    hours = start + (np.arange(horizon) + 0.5) / STEPS_PER_HOUR
    rates = rates_at(table.pickups[which], hours)
    parts = _parts(hours)
    demand = load * horizon * rates / rates.sum()
    passengers = Passengers(grid, demand, clock=(start, 60 / STEPS_PER_HOUR))
    before = start - (np.arange(STEPS_PER_HOUR) + 0.5) / STEPS_PER_HOUR
    earlier = rates_at(table.pickups[which], before)
    ended = np.einsum("hk,hkj->j", earlier, table.journeys[which, _parts(before)])
    durations = None
    if speed is not None:
        lasts = trip_minutes(grid, np.zeros(0), np.zeros(0), speed)
        durations = np.maximum(lasts * STEPS_PER_HOUR / 60, 1.0)
    fares = table.fares[which, parts]
    usual = float(np.sum(rates * fares) / rates.sum()) if reward == "fares" else 1.0
    traffic = Traffic(float(start), 0.2 if day == "weekday" else 0.0, float(congestion))
    problem = Problem(
        space=table.city,
        actions=Box(-1.0, 1.0, dim=2),
        reward=Earnings(passengers, fares if reward == "fares" else 1.0, cost * usual),
        horizon=horizon,
        initial=ended / ended.sum(),
        noise=noise_std,
        max_move=traffic.speeds,
        trips=Trips(passengers, table.journeys[which, parts], durations),
    )
    return SimulatedSystem(problem, traffic)


@lru_cache(maxsize=1)
def trip_table() -> TripTable:
    """The counts that ship with mufield, smoothed."""
    document, arrays = read_sealed(DATA, KIND)
    shape, edge = arrays["free"].shape, document["cell"] / 1000
    grid = Grid.box(0.0, tuple(n * edge for n in shape), shape, walls=~arrays["free"])
    city = CityMap(document["longitude"], document["latitude"], document["turn"], grid)
    days, cells = len(DAYS), grid.n_cells
    flat = np.zeros((days * len(PART_STARTS), cells, cells))
    flat[arrays["part"], arrays["origin"], arrays["destination"]] = arrays["count"]
    counts = flat.reshape(days, -1, cells, cells)
    kernel = smoothing_kernel(grid)
    fares = mean_fares(arrays["paid"], counts.sum(axis=-1), kernel)
    return TripTable(city, arrays["pickups"].astype(float), journeys(counts, kernel), fares)


def journeys(
    counts: Float[np.ndarray, "days parts cells cells"],
    kernel: Float[np.ndarray, "cells cells"],
    prior_trips: float = 30.0,
) -> Float[np.ndarray, "days parts cells cells"]:
    """Origin-destination matrices by day and part of the day, from counts of trips.

    To the trips of each part ``prior_trips`` pseudo-counts of the whole week are added; the default
    predicts left-out trips best of the values that ``tools/make_manhattan.py --check`` tries.
    """
    week = counts.sum(axis=(0, 1))
    usual = destinations(week, kernel, week.sum(axis=0) + 1)
    return destinations(counts, kernel, usual, prior_trips)


def _parts(hours: Float[np.ndarray, "steps"]) -> np.ndarray:
    return np.searchsorted(PART_STARTS, hours % 24, side="right") - 1
