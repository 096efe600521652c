"""A fleet's records of trips, from a file.

One row for each trip, as CSV (also gzipped) or Parquet:

- ``pickup_longitude``, ``pickup_latitude``, ``dropoff_longitude``, ``dropoff_latitude``: degrees.
- ``time``, or ``hour``: when it began, as the hour of the day (7.25 is a quarter past seven) or as
  a date with a time (2026-03-01T07:15:00, as clocks on the street show it).
- ``weekday`` (optional): a number, and ``monday`` says which is Monday's; with dates it is not
  needed, and 0 is Monday.
- ``fare`` (optional): what was paid.
- ``minutes`` (optional): how long it took.

Other columns are ignored. A file that lacks columns or was cut short is refused. Rows that cannot
be right are left out, and every omission is counted in the notes.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Float

from ..checks import whole_number
from ..errors import UserError
from ..io.table_files import read_table
from ..io.tables import DATES, Table, as_datetime, as_number
from .records import TripRecords


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
    known = (*ends, *times, "weekday", "fare", "minutes")
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
    minutes = found.get("minutes")
    if minutes is not None:
        reasons["the minutes are missing, no number or not above 0"] = ~(minutes > 0)
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
    everything = TripRecords(places[:, :2], places[:, 2:], hour, days, fare, tuple(notes), minutes)
    return everything._only(good)


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
