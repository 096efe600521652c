"""Manhattan's taxis: demand and trips counted from public records, and an invented motion.

Where passengers wait, where they go and what they pay comes from 55,679 trips of New York's taxis
(public records of the city's Taxi and Limousine Commission, as sampled in a public tutorial
repository under the Apache License 2.0; `tools/make_manhattan.py`). How far an empty vehicle gets
in ten minutes is **invented**: the records do not say it.
"""

import math
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .._files import read_sealed
from .._types import Action, Scalar, State
from ..errors import UserError
from ..passengers import (
    NEAR,
    POPULAR_TRIPS,
    Earnings,
    Passengers,
    at_hours,
    destinations,
    mean_fares,
    nearness,
)
from ..problem import Box, Problem
from ..space.grid import Grid
from ..space.maps import CityMap
from ..space.measure import MeanField
from ..systems import SimulatedSystem
from ..trips import Trips
from .motions import bump

DATA = Path(__file__).with_name("manhattan.safetensors")
KIND = "table of trips"

PART_STARTS = (0, 6, 10, 16, 20)
"""First hours of the parts of the day: in each, trips have other destinations."""

STEPS_PER_HOUR = 6
REWARDS = ("served", "fares")
DAYS = ("weekday", "weekend")

PRIOR_TRIPS = 30.0
"""To the trips of a part of the day so many are added of the whole week. Of some values, this and
the width `NEAR` predict those trips best that were left out (`tools/make_manhattan.py --check`)."""

AVENUES, STREETS = 1.0, 0.75
"""Kilometres in ten minutes along avenues and along streets, where nothing slows a vehicle down."""
MIDTOWN = (2.9, 7.4)
MIDTOWN_SLOWS, MIDTOWN_WIDTH = 0.4, 1.3
RUSH_SLOWS, RUSH_HOURS, RUSH_WIDTH = 0.2, (8.5, 17.5), 1.3
CROWDS_SLOW = 10.0
NOISE = 0.125


class TripTable(NamedTuple):
    """What is known of trips.

    Attributes:
        city: The map.
        pickups: Trips by day, hour and cell where they begin.
        journeys: Probability of each destination by day, part of the day and origin.
        fares: Mean fare in dollars, by day, part of the day and origin.
    """

    city: CityMap
    pickups: Float[np.ndarray, "days hours cells"]
    journeys: Float[np.ndarray, "days parts cells cells"]
    fares: Float[np.ndarray, "days parts cells"]


class Traffic(eqx.Module):
    """The invented motion: s + v(s, hour, mu(s)) a, with another speed on each axis.

    Avenues, along the second axis, are faster than streets; midtown is slow, and so are rush hours
    on weekdays and crowds of empty vehicles.

    Attributes:
        start: Hour of the day at the first step.
        rush: By how much rush hours slow down.
        crowds: How much crowds of vehicles slow down.
    """

    start: float = eqx.field(static=True)
    rush: float = eqx.field(static=True)
    crowds: float = eqx.field(static=True)

    def __call__(self, state: State, action: Action, mu: MeanField) -> State:
        """Where a vehicle gets in ten minutes."""
        hour = self.start + (mu.step + 0.5) / STEPS_PER_HOUR
        midtown = MIDTOWN_SLOWS * bump(state, *MIDTOWN, MIDTOWN_WIDTH)
        slowed = (1 - midtown) * (1 - self.rush * _rush(hour)) / (1 + self.crowds * mu.here)
        return state + slowed.astype(state.dtype) * jnp.array([STREETS, AVENUES]) * action


def _rush(hour: Any) -> Scalar:
    """How much of a rush hour it is, from 0 to 1."""
    # The shorter way round the clock.
    apart = [(hour - peak + 12) % 24 - 12 for peak in RUSH_HOURS]
    return jnp.sum(jnp.exp(-0.5 * jnp.square(jnp.stack(apart) / RUSH_WIDTH)))


def manhattan(
    *,
    horizon: int = 12,
    load: float = 0.6,
    start: float = 7.0,
    day: str = "weekday",
    reward: str = "served",
    cost: float = 0.05,
    crowds: float = CROWDS_SLOW,
    noise_std: float = NOISE,
) -> SimulatedSystem:
    """A fleet of taxis on 185 cells of 500 m, in steps of ten minutes.

    A vehicle finds a passenger with the probability min(1, demand / mu), and is then where the
    trip ends; the others drive, or stay. Episodes start with vehicles where the trips of the hour
    before ended. Only the motion of empty vehicles is unknown to the learner, and it is invented:
    see `Traffic`. Demand, destinations and fares are counted from public records.

    Args:
        horizon: Number of steps.
        load: Demand in a step as a share of the fleet, in the mean over the episode.
        start: Hour of the day at the first step, such as 7.5 for half past seven.
        day: ``"weekday"`` or ``"weekend"``.
        reward: ``"served"`` pays one for each passenger, so that J is the number of passengers of a
            vehicle; ``"fares"`` pays the mean fare, in dollars, of the trips from that cell.
        cost: Cost of driving empty at full speed for a step, on one axis: a share of a mean fare.
        crowds: Speeds are divided by one plus this times the share of the fleet in the cell.
        noise_std: Standard deviation of the noise, in kilometres.
    """
    for name, given, there in (("day", day, DAYS), ("reward", reward, REWARDS)):
        if given not in there:
            raise UserError(f"{name} must be one of {', '.join(there)}, got {given!r}")
    if not (0 < load < math.inf and 0 <= start < 24 and 0 <= crowds < math.inf):
        raise UserError(
            "load must be positive, start an hour from 0 to 24 and crowds not negative, got "
            f"{load}, {start} and {crowds}"
        )
    if isinstance(horizon, bool) or not isinstance(horizon, int | np.integer) or horizon < 1:
        raise UserError(f"the horizon must be a whole number of at least 1, got {horizon!r}")
    table, which = trip_table(), DAYS.index(day)
    grid = table.city.grid
    hours = start + (np.arange(horizon) + 0.5) / STEPS_PER_HOUR
    rates = at_hours(table.pickups[which], hours)
    parts = _parts(hours)
    passengers = Passengers(grid, load * horizon * rates / rates.sum())
    before = start - (np.arange(STEPS_PER_HOUR) + 0.5) / STEPS_PER_HOUR
    ended = np.einsum(
        "hk,hkj->j", at_hours(table.pickups[which], before), table.journeys[which, _parts(before)]
    )
    fares = table.fares[which, parts]
    usual = float(np.sum(rates * fares) / rates.sum()) if reward == "fares" else 1.0
    problem = Problem(
        grid=table.city,
        actions=Box(-1.0, 1.0, dim=2),
        reward=Earnings(passengers, fares if reward == "fares" else 1.0, cost * usual),
        horizon=int(horizon),
        initial=ended / ended.sum(),
        noise=noise_std,
        max_move=(STREETS, AVENUES),
        trips=Trips(passengers, table.journeys[which, parts]),
    )
    rush = RUSH_SLOWS if day == "weekday" else 0.0
    return SimulatedSystem(problem, Traffic(float(start), rush, float(crowds)))


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
    near = nearness(grid, NEAR)
    return TripTable(
        city=city,
        pickups=arrays["pickups"].astype(float),
        journeys=journeys(counts, near, PRIOR_TRIPS),
        fares=mean_fares(arrays["paid"], counts.sum(axis=-1), near, POPULAR_TRIPS),
    )


def journeys(
    counts: Float[np.ndarray, "days parts cells cells"],
    near: Float[np.ndarray, "cells cells"],
    prior_trips: float,
) -> Float[np.ndarray, "days parts cells cells"]:
    """Probability of each destination by part of the day, from counts of trips."""
    week = counts.sum(axis=(0, 1))
    usual = destinations(week, near, POPULAR_TRIPS, week.sum(axis=0) + 1)
    return destinations(counts, near, prior_trips, usual)


def _parts(hours: Float[np.ndarray, "steps"]) -> np.ndarray:
    """The part of the day of each time."""
    return np.searchsorted(PART_STARTS, hours % 24, side="right") - 1
