"""A fleet's records of trips: demand by step, an origin-destination matrix and durations."""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Shaped

from ..errors import UserError, number, whole_number
from .counts import destinations, mean_fares, rates_at, smoothing_kernel, time_of_day, trip_minutes
from .maps import CityMap


@dataclass(frozen=True, eq=False)
class TripRecords:
    """The valid trips of a table.

    Attributes:
        pickup: Longitude and latitude of each origin, or names of zones.
        dropoff: The same of each destination.
        hour: Hour of the day when the trip began, in [0, 24).
        weekday: Number of the day as in the file, or from 0 for Monday; None if it is not known.
        fare: What was paid; None if it is not known.
        notes: What was left out, in words.
        minutes: How long each trip took; None if it is not known.
    """

    pickup: Float[np.ndarray, "trips 2"] | Shaped[np.ndarray, "trips"]
    dropoff: Float[np.ndarray, "trips 2"] | Shaped[np.ndarray, "trips"]
    hour: Float[np.ndarray, "trips"]
    weekday: Float[np.ndarray, "trips"] | None
    fare: Float[np.ndarray, "trips"] | None
    notes: tuple[str, ...]
    minutes: Float[np.ndarray, "trips"] | None = None

    def __len__(self) -> int:
        return len(self.hour)

    @property
    def by_zone(self) -> bool:
        """Whether zones say where trips begin and end, instead of coordinates."""
        return self.pickup.ndim == 1

    def city(self, **options: Any) -> CityMap:
        """A map whose free cells are those where trips begin or end.

        Options are those of `CityMap.of_traffic`, such as ``cell=500, turn=29, least=10``.
        """
        ends = np.concatenate(self._coordinates())
        return CityMap.of_traffic(ends[:, 0], ends[:, 1], **options)

    def on(self, days: Collection[float]) -> "TripRecords":
        """The trips of some weekdays, by their numbers; raises if there is none."""
        if self.weekday is None:
            raise UserError(
                "the records do not say on which day trips were; give a column weekday, or dates "
                "in the column time"
            )
        chosen = np.isin(self.weekday, list(days))
        if not chosen.any():
            there = ", ".join(f"{day:g}" for day in np.unique(self.weekday))
            raise UserError(f"no trip is on one of the days {list(days)}; there are {there}")
        if chosen.all():
            return self
        note = f"{int((~chosen).sum()):,} of {len(self):,} trips are on other days"
        return replace(self.only(chosen), notes=(*self.notes, note))

    def model(
        self,
        city: CityMap,
        *,
        start: float,
        steps: int,
        minutes: float = 10.0,
        bandwidth: float = 0.35,
        prior_trips: float = 3.0,
        smooth: bool = True,
        speed: float | None = None,
    ) -> "TripModel":
        """Demand by step and the origin-destination matrix, on a map.

        Args:
            city: The map.
            start: Hour of the day at the first step, such as 7.5.
            steps: Number of steps.
            minutes: Length of a step.
            bandwidth: Standard deviation, in kilometres, of the Gaussian kernel that smooths
                counts over origins and destinations.
            prior_trips: Pseudo-counts that are added to the trips from each cell, with the
                destinations of the whole city. With 0 and no trip from a cell or near it, agents
                there land where they are.
            smooth: Whether counts are smoothed over neighbouring hours and interpolated; otherwise
                all steps of an hour have the hour's rate.
            speed: Of trips along the map's axes, in km/h, if the records do not say how long trips
                took. With neither, all trips take one step.
        """
        number(start, "start, an hour of the day,", 0.0, 24 - 1e-6)
        number(minutes, "minutes, the length of a step,", 1e-3, 24 * 60)
        number(bandwidth, "bandwidth, in kilometres,", 0.0, 1e4)
        number(prior_trips, "prior_trips", 0.0)
        if whole_number(steps, "steps") > 10_000:
            raise UserError(f"expected at most 10,000 steps, got {steps:,}; take longer ones")
        ends = [city.onto_streets(city.to_plane(*each.T)) for each in self._coordinates()]
        inside = ends[0][1] & ends[1][1]
        notes = [*self.notes, *city.notes]
        if not inside.any():
            raise UserError("no trip begins and ends on the map; check its corner, size and turn")
        if not inside.all():
            notes.append(f"{int((~inside).sum()):,} of {len(self):,} trips are not on the map")
        kept = self.only(inside)
        origin, goal = (np.asarray(city.grid.index_of(points[inside])) for points, _ in ends)
        cells = city.grid.n_cells
        by_hour = np.zeros((24, cells))
        np.add.at(by_hour, (np.floor(kept.hour).astype(int), origin), 1)
        journeys = np.zeros((cells, cells))
        np.add.at(journeys, (origin, goal), 1)
        kernel = smoothing_kernel(city.grid, bandwidth)
        matrix = destinations(journeys, kernel, journeys.sum(axis=0) @ kernel, prior_trips)
        fares = known = durations = None
        if kept.fare is not None:
            paid = np.bincount(origin, kept.fare, cells)
            fares = mean_fares(paid, journeys.sum(axis=1), kernel, prior_trips)
        if kept.minutes is not None:
            known = np.bincount(origin * cells + goal, kept.minutes, cells**2)
            known = known.reshape(cells, cells)
        if known is not None or speed is not None:
            apart = trip_minutes(city.grid, journeys, kernel, speed, known, prior_trips)
            durations = np.maximum(apart / minutes, 1.0)
        middles = start + (np.arange(steps) + 0.5) * minutes / 60
        by_hour *= minutes / 60  # trips in a step, from here on
        demand = rates_at(by_hour, middles, smooth)
        if not demand.any():
            raise UserError(
                f"no trip begins between {time_of_day(start)} and {time_of_day(middles[-1])}; "
                "choose others"
            )
        notes += _clock_notes(by_hour, middles, float(demand.sum()), smooth)
        before = rates_at(by_hour, start - (np.arange(6) + 0.5) / 6, smooth).sum(axis=0)
        if not by_hour[math.floor(start - 0.5) % 24].any():
            there = "hours beside it" if before.any() else "trips of these steps"
            notes.append(
                f"no trip begins in the hour before {time_of_day(start)}: where vehicles start is "
                f"that of the {there}"
            )
        ended = (before if before.any() else demand.sum(axis=0)) @ matrix
        return TripModel(
            demand, matrix, fares, ended / ended.sum(), (start, minutes), durations, tuple(notes)
        )

    def _coordinates(self) -> tuple[np.ndarray, np.ndarray]:
        if self.by_zone:
            raise UserError("zones have no coordinates; use mf.fleet.regions_from_trips(records)")
        return self.pickup, self.dropoff

    def only(self, chosen: Bool[np.ndarray, "trips"]) -> "TripRecords":
        """Some of the trips."""
        names = ("pickup", "dropoff", "hour", "weekday", "fare", "minutes")
        known = [name for name in names if getattr(self, name) is not None]
        return replace(self, **{name: getattr(self, name)[chosen] for name in known})


class TripModel(NamedTuple):
    """Demand, destinations and fares on a map.

    Attributes:
        demand: Trips that begin in each step and cell, in all the records; smooth over the hours.
        matrix: The origin-destination matrix for `Trips`: probability of each destination
            (columns) of a trip from each cell (rows).
        fares: Mean fare of trips from each cell; None if the records have none.
        ended: Distribution of the destinations of the hour before: where vehicles start.
        clock: Hour of the day at the first step, and minutes of a step, for `Passengers`.
        durations: Steps that trips take from each cell to each other, for `Trips`; or None.
        notes: What was left out, in words.
    """

    demand: Float[np.ndarray, "steps cells"]
    matrix: Float[np.ndarray, "cells cells"]
    fares: Float[np.ndarray, "cells"] | None
    ended: Float[np.ndarray, "cells"]
    clock: tuple[float, float]
    durations: Float[np.ndarray, "cells cells"] | None
    notes: tuple[str, ...]

    def demand_per_vehicle(self, load: float) -> Float[np.ndarray, "steps cells"]:
        """Demand as a share of the fleet, for `Passengers`: ``load`` per step on average.

        With a fleet of N vehicles and records of D days the load is
        ``demand.sum() / (D * N * steps)``, if the records hold all trips.
        """
        if number(load, "the load", 0.0) == 0:
            raise UserError("the load must be positive, got 0")
        return np.asarray(load * len(self.demand) * self.demand / self.demand.sum())


def _clock_notes(
    by_hour: Float[np.ndarray, "hours cells"], hours: np.ndarray, demand: float, smooth: bool
) -> list[str]:
    """What smoothing over the hours changed, and which of the steps' hours have no records."""
    counts, notes = by_hour.sum(axis=1), []
    counted = float(rates_at(by_hour, hours, smooth=False).sum())
    if smooth and abs(demand - counted) > 0.1 * counted:
        notes.append(
            f"at the rates of the records {counted:,.0f} trips begin in these steps, the demand is "
            f"{demand:,.0f}: it is smoothed over neighbouring hours, unless smooth=False"
        )
    during = np.unique(np.floor(hours).astype(int) % 24)
    empty = [f"{hour}:00" for hour in during[counts[during] == 0]]
    if empty:
        so = "their demand is that of the hours beside them" if smooth else "they have no demand"
        notes.append(f"no trip begins in the hours from {', '.join(empty)}: {so}")
    return notes
