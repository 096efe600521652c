"""Regions from scenario files, from a table of trips, and from days of which nothing was known."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from ..errors import UserError, number, whole_number
from ..io.sealed import read_json
from .network_flow import whole
from .records import TripRecords
from .regions import RegionDay, Regions


def regions_from_scenario(
    path: str | Path,
    *,
    hour: int,
    minutes: int,
    steps: int = 20,
    demand_ratio: float = 1.0,
    cost: float = 0.5,
) -> Regions:
    """Reads a scenario file of RL4AMOD (.json or .json.gz), by the rules of its simulator.

    Args:
        path: The file.
        hour: Hour of the day at the first step.
        minutes: Length of a step.
        steps: Steps at which trips are served.
        demand_ratio: Factor of the file's demand.
        cost: Of a minute of driving, with a passenger or without.
    """
    data = read_json(Path(path))
    try:
        return _by_simulator(data, hour, minutes, steps, demand_ratio, cost)
    except (KeyError, TypeError, ValueError, IndexError, ArithmeticError) as error:
        raise UserError(
            f"{path} is no scenario of RL4AMOD for the hour {hour}: expected nlat, nlon, "
            f"demand, rebTime and totalAcc with their fields; failed at {error}"
        ) from error


def _by_simulator(
    data: Any, hour: int, minutes: int, steps: int, demand_ratio: float, cost: float
) -> Regions:
    count = _checked(int(data["nlat"]) * int(data["nlon"]))
    fields = ("time_stamp", "origin", "destination", "demand", "travel_time", "price")
    trips = np.array([[row[name] for name in fields] for row in data["demand"]], dtype=float)
    time, start, end, rate, lasts, price = trips.T
    driving, ends = np.ones((count, count)), [*start, *end]
    for row in data["rebTime"]:
        if row["time_stamp"] == hour:
            driving[row["origin"], row["destination"]] = row["reb_time"]
            ends += [row["origin"], row["destination"]]
    if min(ends) < 0 or max(ends) >= count:
        raise ValueError(f"regions from {min(ends):g} to {max(ends):g} of {count}")
    parked = {row["hour"]: float(row["acc"]) for row in data["totalAcc"]}
    middle = hour + round(minutes / 2 * steps / 60)
    fleet = np.full(count, np.floor(parked[middle] / count))
    step = (time - 60 * hour) // minutes
    inside = (step >= 0) & (step < steps)
    place = tuple(each[inside].astype(int) for each in (step, start, end))
    demand, paid, taken = np.zeros((3, steps, count, count))
    for table, each in ((demand, rate), (paid, rate * price), (taken, rate * lasts)):
        np.add.at(table, place, demand_ratio * each[inside])
    asked = np.maximum(demand, 1e-12)
    travel = np.maximum(np.round(taken / asked / minutes), 1.0)
    empty = np.maximum(np.round(driving / minutes), 1.0)
    # There a vehicle that takes k steps cannot be matched before the step after the k-th.
    pay = np.where(demand > 0, paid / asked - cost * minutes * travel, 0.0)
    return Regions(demand, pay, travel + 1, empty + 1, cost * minutes * empty, fleet)


def regions_from_trips(
    records: TripRecords,
    *,
    start: float,
    steps: int,
    minutes: float,
    vehicles: Any,
    days: int = 1,
    cost: float = 0.5,
    fare: float | None = None,
) -> Regions:
    """Counts trips between zones.

    Demand and pay are by hour. How long the way between two zones takes is the mean of its
    trips, at all hours; between zones without trips it is the shortest way by others.

    Args:
        records: Of `read_trips`, with the columns ``origin`` and ``destination``.
        start: Hour of the day at the first step.
        steps: Number of steps.
        minutes: Length of a step.
        vehicles: Number of vehicles, which begin where trips end; or one number for each zone,
            in the order of the sorted names.
        days: How many days the records hold.
        cost: Of a minute of driving, with a passenger or without.
        fare: Of a minute, if the records do not say what was paid.
    """
    from scipy.sparse.csgraph import shortest_path  # slow to import

    number(minutes, "minutes, the length of a step,", 1e-3)
    lasts, paid = records.minutes, records.fare
    if fare is not None and lasts is not None:
        paid = fare * lasts
    if not records.by_zone or lasts is None or paid is None:
        raise UserError(
            "expected records with the columns origin, destination, minutes (or dropoff_time) and "
            "fare (or fare=..., of a minute); records with coordinates have `city` and `model`"
        )
    ends = np.concatenate([records.pickup, records.dropoff])
    names, codes = np.unique(ends, return_inverse=True)
    pair, count = tuple(codes.reshape(2, -1)), _checked(len(names))
    by_hour, pay = np.zeros((2, 24, count, count))
    trips, taken = np.zeros((2, count, count))
    where = (np.floor(records.hour).astype(int), *pair)
    np.add.at(by_hour, where, 1.0)
    np.add.at(pay, where, paid - cost * lasts)
    np.add.at(trips, pair, 1.0)
    np.add.at(taken, pair, lasts)
    known = np.where(trips > 0, taken / np.maximum(trips, 1), 0.0)
    travel = shortest_path(known)
    travel = np.where(np.isfinite(travel), travel, known.max())
    np.fill_diagonal(travel, np.where(np.diag(known) > 0, np.diag(known), minutes))
    lasting = np.maximum(np.ceil(travel / minutes - 1e-9), 1.0)
    hours = np.floor(start + (np.arange(whole_number(steps, "steps")) + 0.5) * minutes / 60)
    clock = hours.astype(int) % 24
    begun = trips.sum(axis=0) / trips.sum()
    fleet = np.asarray(vehicles, dtype=float)
    return Regions(
        demand=by_hour[clock] * minutes / 60 / whole_number(days, "days"),
        pay=(pay / np.maximum(by_hour, 1.0))[clock],
        trip_steps=lasting,
        drive_steps=lasting,
        drive_cost=cost * travel * (1 - np.eye(count)),
        vehicles=whole(fleet * begun[None])[0] if fleet.ndim == 0 else fleet,
        names=tuple(names.tolist()),
    )


def regions_from_days(
    days: Sequence[RegionDay],
    *,
    vehicles: Any,
    cost: float,
    pooled_steps: int = 10,
    prior_steps: float = 10.0,
    optimism: float = 0.5,
) -> Regions:
    r"""What days have shown of demand, pay and travel times, with optimism.

    The rate of trips between two regions in a block of the day, such as an hour, has a Gamma
    posterior. Its prior is worth ``prior_steps`` steps at the rate that origin and destination
    would have if they were independent, so pairs without requests borrow from others. The demand is
    the posterior's mean and ``optimism`` standard deviations.

    Travel times, pay and costs are means of what vehicles have met between two regions. Where none
    drove empty, the time is that of passengers, or of the way back, or the least seen anywhere:
    optimism in the face of ways that nobody has tried.

    Args:
        days: At least one.
        vehicles: Free vehicles at the first step, by region.
        cost: Of a step of driving, where none was met.
        pooled_steps: Length of a block.
        prior_steps: Weight of the prior.
        optimism: Standard deviations.
    """
    if not days:
        raise UserError("expected at least one day; on the first, let vehicles serve and stay")
    horizon, count = days[0].requests.shape[:2]
    asked = np.sum([day.requests for day in days], axis=0)
    steps, total = len(days) * horizon, asked.sum() + 0.5 * count
    independent = np.outer(asked.sum(axis=(0, 2)) + 0.5, asked.sum(axis=(0, 1)) + 0.5)
    prior = prior_steps * independent / total / steps
    demand = np.empty(asked.shape)
    for first in range(0, horizon, whole_number(pooled_steps, "pooled_steps")):
        block = slice(first, first + pooled_steps)
        shape = prior + asked[block].sum(axis=0)
        exposure = prior_steps + len(days) * len(asked[block])
        demand[block] = (shape + optimism * np.sqrt(shape)) / exposure

    def seen(what: str, who: str) -> Float[np.ndarray, "regions regions"]:
        """Means of a table over all vehicles that met it; NaN where none did."""
        many = np.sum([getattr(day, who).sum(axis=0) for day in days], axis=0)
        each = [getattr(day, who) * getattr(day, what) for day in days]
        sums = np.sum([table.sum(axis=0) for table in each], axis=0)
        return np.where(many > 0, sums / np.maximum(many, 1e-9), np.nan)

    trips, drives = seen("trip_steps", "served"), seen("drive_steps", "driven")
    pay, met = seen("pay", "served"), seen("drive_cost", "driven")
    least = float(np.nanmin([trips, drives, np.full_like(trips, horizon)]))
    trip_steps = _first(trips, drives, trips.T, drives.T, least).round()
    drive_steps = _first(drives, trips, drives.T, trips.T, least).round()
    fare = np.nansum(pay) / max(np.nansum(trips), 1.0)  # of a step
    pay, drive_cost = _first(pay, fare * trip_steps), _first(met, cost * drive_steps)
    return Regions(demand, pay, trip_steps, drive_steps, drive_cost, vehicles)


def _first(*tables: Any) -> np.ndarray:
    """The first of the tables that is not NaN, entry by entry."""
    found, *others = tables
    for other in others:
        found = np.where(np.isnan(found), other, found)
    return np.asarray(found)


def _checked(count: int) -> int:
    """A number of regions; raises if tables by pair would not fit into memory."""
    most = 1_000
    if not 1 <= count <= most:
        raise UserError(f"expected 1 to {most:,} regions, got {count:,}; join some of them")
    return count
