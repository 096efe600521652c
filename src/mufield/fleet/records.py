"""A fleet's records of trips: from a table to demand by step and an origin-destination matrix.

One row for each trip, as CSV (also gzipped) or Parquet:

- ``pickup_longitude``, ``pickup_latitude``, ``dropoff_longitude``, ``dropoff_latitude``: degrees.
- ``time``, or ``hour``: when it began, as the hour of the day (7.25 is a quarter past seven) or as
  a date with a time (2026-03-01T07:15:00, as clocks on the street show it).
- ``weekday`` (optional): a number, and ``monday`` says which is Monday's; with dates it is not
  needed, and 0 is Monday.
- ``fare`` (optional): what was paid.

Other columns are ignored. A file that lacks columns or was cut short is refused. Rows that cannot
be right are left out, and every omission is counted in the notes.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from ..checks import number, whole_number
from ..errors import UserError
from ..io.table_files import read_table
from ..io.tables import DATES, Table, as_datetime, as_number
from .counts import clock, destinations, mean_fares, rates_at, smoothing_kernel
from .maps import CityMap


@dataclass(frozen=True, eq=False)
class TripRecords:
    """The valid trips of a table.

    Attributes:
        pickup: Longitude and latitude of each origin.
        dropoff: Longitude and latitude of each destination.
        hour: Hour of the day when the trip began, in [0, 24).
        weekday: Number of the day as in the file, or from 0 for Monday; None if it is not known.
        fare: What was paid; None if it is not known.
        notes: What was left out, in words.
    """

    pickup: Float[np.ndarray, "trips 2"]
    dropoff: Float[np.ndarray, "trips 2"]
    hour: Float[np.ndarray, "trips"]
    weekday: Float[np.ndarray, "trips"] | None
    fare: Float[np.ndarray, "trips"] | None
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.hour)

    def city(self, **options: Any) -> CityMap:
        """A map whose free cells are those where trips begin or end.

        Options are those of `CityMap.of_traffic`, such as ``cell=500, turn=29, least=10``.
        """
        ends = np.concatenate([self.pickup, self.dropoff])
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
        return replace(self._only(chosen), notes=(*self.notes, note))

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
        """
        number(start, "start, an hour of the day,", 0.0, 24 - 1e-6)
        number(minutes, "minutes, the length of a step,", 1e-3, 24 * 60)
        number(bandwidth, "bandwidth, in kilometres,", 0.0, 1e4)
        number(prior_trips, "prior_trips", 0.0)
        if whole_number(steps, "steps") > 10_000:
            raise UserError(f"expected at most 10,000 steps, got {steps:,}; take longer ones")
        ends = [city.onto_streets(city.to_plane(*each.T)) for each in (self.pickup, self.dropoff)]
        inside = ends[0][1] & ends[1][1]
        notes = [*self.notes, *city.notes]
        if not inside.any():
            raise UserError("no trip begins and ends on the map; check its corner, size and turn")
        if not inside.all():
            notes.append(f"{int((~inside).sum()):,} of {len(self):,} trips are not on the map")
        kept = self._only(inside)
        origin, goal = (np.asarray(city.grid.index_of(points[inside])) for points, _ in ends)
        cells = city.grid.n_cells
        by_hour = np.zeros((24, cells))
        np.add.at(by_hour, (np.floor(kept.hour).astype(int), origin), 1)
        journeys = np.zeros((cells, cells))
        np.add.at(journeys, (origin, goal), 1)
        kernel = smoothing_kernel(city.grid, bandwidth)
        matrix = destinations(journeys, kernel, journeys.sum(axis=0) @ kernel, prior_trips)
        fares = None
        if kept.fare is not None:
            paid = np.bincount(origin, kept.fare, cells)
            fares = mean_fares(paid, journeys.sum(axis=1), kernel, prior_trips)
        middles = start + (np.arange(steps) + 0.5) * minutes / 60
        by_hour *= minutes / 60  # trips in a step, from here on
        demand = rates_at(by_hour, middles, smooth)
        if not demand.any():
            raise UserError(
                f"no trip begins between {clock(start)} and {clock(middles[-1])}; choose others"
            )
        notes += _clock_notes(by_hour, middles, float(demand.sum()), smooth)
        before = rates_at(by_hour, start - (np.arange(6) + 0.5) / 6, smooth).sum(axis=0)
        if not by_hour[math.floor(start - 0.5) % 24].any():
            there = "hours beside it" if before.any() else "trips of these steps"
            notes.append(
                f"no trip begins in the hour before {clock(start)}: where vehicles start is that "
                f"of the {there}"
            )
        ended = (before if before.any() else demand.sum(axis=0)) @ matrix
        return TripModel(demand, matrix, fares, ended / ended.sum(), (start, minutes), tuple(notes))

    def _only(self, chosen: Bool[np.ndarray, "trips"]) -> "TripRecords":
        names = ("pickup", "dropoff", "hour", "weekday", "fare")
        columns: dict[str, Any] = {name: getattr(self, name) for name in names}
        for name, each in columns.items():
            columns[name] = None if each is None else each[chosen]
        return replace(self, **columns)


class TripModel(NamedTuple):
    """Demand, destinations and fares on a map.

    Attributes:
        demand: Trips that begin in each step and cell, in all the records; smooth over the hours.
        matrix: The origin-destination matrix for `Trips`: probability of each destination
            (columns) of a trip from each cell (rows).
        fares: Mean fare of trips from each cell; None if the records have none.
        ended: Distribution of the destinations of the hour before: where vehicles start.
        clock: Hour of the day at the first step, and minutes of a step, for `Passengers`.
        notes: What was left out, in words.
    """

    demand: Float[np.ndarray, "steps cells"]
    matrix: Float[np.ndarray, "cells cells"]
    fares: Float[np.ndarray, "cells"] | None
    ended: Float[np.ndarray, "cells"]
    clock: tuple[float, float]
    notes: tuple[str, ...]

    def demand_per_vehicle(self, load: float) -> Float[np.ndarray, "steps cells"]:
        """Demand as a share of the fleet, for `Passengers`: ``load`` per step on average.

        With a fleet of N vehicles and records of D days the load is
        ``demand.sum() / (D * N * steps)``, if the records hold all trips.
        """
        if number(load, "the load", 0.0) == 0:
            raise UserError("the load must be positive, got 0")
        return np.asarray(load * len(self.demand) * self.demand / self.demand.sum())


def read_trips(
    path: str | Path,
    columns: Mapping[str, str] | None = None,
    *,
    monday: int | None = None,
    max_left_out: float = 0.5,
) -> TripRecords:
    """Reads records of trips; counts the rows that are left out.

    Args:
        path: A .csv, .csv.gz or .parquet file.
        columns: What the file calls the columns, such as ``{"pickup_longitude": "lon_0"}``; the
            others have the names that the module's text says.
        monday: What the column ``weekday`` calls Monday: 1, or 2 if 1 is Sunday. Then 0 is Monday
            in the records, as it is with dates. By default numbers are the file's own.
        max_left_out: Largest share of rows that may be left out. If there are more, the columns
            are probably not what they seem, and the file is refused.
    """
    ends = ("pickup_longitude", "pickup_latitude", "dropoff_longitude", "dropoff_latitude")
    times = ("time", "hour")
    table, called = read_table(Path(path)), dict(columns or {})
    known = (*ends, *times, "weekday", "fare")
    unknown = sorted(called.keys() - set(known))
    if unknown:
        raise UserError(f"no column {', '.join(unknown)} is used; there are {', '.join(known)}")
    names = {name: called.get(name, name) for name in known}
    clocks = [names[name] for name in times if names[name] in table.columns]
    absent = [names[name] for name in called if names[name] not in table.columns]
    table.require([*(names[name] for name in ends), *absent])
    if len(clocks) != 1:
        raise UserError(
            f"{path}: expected a column {names['time']} or {names['hour']}, one of them, got "
            f"{', '.join(table.columns)}; say when trips began"
        )
    there = {name: column for name, column in names.items() if column in table.columns}
    found = {name: _numbers(table, column) for name, column in there.items()}
    places = np.stack([found[name] for name in ends], axis=-1)
    hour, date = _clock(table, clocks[0])
    day, fare = found.get("weekday", date), found.get("fare")
    if monday is not None and "weekday" in found:
        day = (day - whole_number(monday, "monday", 0)) % 7
    dated = not np.isnan(day).all()
    degrees = np.abs(places) <= np.array([180.0, 89.0] * 2)
    nowhere = (places.reshape(-1, 2, 2) == 0).all(axis=-1).any(axis=-1)
    on_clock = (hour >= 0) & (hour < 24)
    reasons = {
        "a coordinate is missing or no number": np.isnan(places).any(axis=1),
        "a coordinate is none of the earth, or 0, 0": ~degrees.all(axis=1) | nowhere,
        f"the time is neither an hour of the day such as 7.25 nor {DATES}": np.isnan(hour),
        "the hour is not from 0 to below 24 (in place of Unix seconds write dates)": ~on_clock,
        "the weekday is missing or no number": np.isnan(day) & dated,
    }
    if fare is not None:
        reasons["the fare is missing, no number or negative"] = ~(fare >= 0)
    good, notes = np.ones(len(table), dtype=bool), []
    for reason, bad in reasons.items():
        new = bad & good
        if new.any():
            first = int(np.argmax(new)) + table.first_row
            notes.append(
                f"{int(new.sum()):,} of {len(table):,} trips were left out, because {reason}: "
                f"first in {table.word} {first}"
            )
        good &= ~bad
    if good.mean() < 1 - max_left_out:
        raise UserError(
            f"{table.path}: only {int(good.sum()):,} of {len(table):,} trips can be right: "
            f"{'; '.join(notes)}; check the columns, their order and units"
        )
    if "weekday" in found and monday is None and good.any():
        low, high = day[good].min(), day[good].max()
        notes.append(
            f"weekdays have the file's own numbers, {low:g} to {high:g}, of which it does not say "
            "which is Monday; monday=... does, and then 0 is Monday"
        )
    days = day if dated else None
    everything = TripRecords(places[:, :2], places[:, 2:], hour, days, fare, tuple(notes))
    return everything._only(good)


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


def _numbers(table: Table, column: str) -> Float[np.ndarray, "rows"]:
    """A column of numbers; NaN where there is none."""
    found = np.array([as_number(value) for value in table.columns[column]])
    return np.where(np.isfinite(found), found, np.nan)


def _clock(table: Table, column: str) -> tuple[np.ndarray, np.ndarray]:
    """Hour of the day and weekday of each row; NaN where they are not known."""
    hours, days = _numbers(table, column), np.full(len(table), np.nan)
    for row in np.flatnonzero(np.isnan(hours)).tolist():
        when = as_datetime(table.columns[column][row])
        if when is not None:
            hours[row] = when.hour + when.minute / 60 + when.second / 3600
            days[row] = when.weekday()
    return hours, days
