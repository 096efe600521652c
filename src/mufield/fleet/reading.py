"""A fleet's records of trips, from a file.

One row for each trip, as CSV (also gzipped) or Parquet:

- ``pickup_longitude``, ``pickup_latitude``, ``dropoff_longitude``, ``dropoff_latitude``: degrees;
  or ``origin`` and ``destination``: names of zones.
- ``time``, or ``hour``: when it began, as the hour of the day (7.25 is a quarter past seven), as a
  date with a time (2026-03-01T07:15:00, as clocks on the street show it), or in Unix seconds.
- ``weekday`` (optional): a number, and ``monday`` says which is Monday's; with dates it is not
  needed, and 0 is Monday.
- ``fare`` (optional): what was paid.
- ``minutes`` (optional): how long it took; or ``dropoff_time``: when it ended, written as ``time``.

Other columns are ignored. A file that lacks columns or was cut short is refused. Rows that cannot
be right are left out, and every omission is counted in the notes.
"""

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
from jaxtyping import Float

from ..errors import UserError, whole_number
from ..io.table_files import read_table
from ..io.tables import DATES, Table, as_datetime, as_number, label
from .records import TripRecords


def read_trips(
    path: str | Path,
    columns: Mapping[str, str] | None = None,
    *,
    monday: int | None = None,
    date_format: str | None = None,
    zone: str | None = None,
) -> TripRecords:
    """Reads records of trips; counts the rows that are left out, at most half of them.

    Args:
        path: A .csv (commas, semicolons or tabs), .tsv or .parquet file; .gz of text, too.
        columns: What the file calls the columns, such as ``{"pickup_longitude": "lon_0"}``; the
            others have the names that the module's text says.
        monday: What the column ``weekday`` calls Monday: 1, or 2 if 1 is Sunday. Then 0 is Monday
            in the records, as it is with dates. By default numbers are the file's own.
        date_format: How dates are written, as `datetime.strptime` takes it, such as
            ``"%d/%m/%Y %H:%M"``; not needed for ISO 8601, and for dates with AM or PM.
        zone: Time zone of the city, such as ``"Europe/Paris"``: Unix seconds (or milliseconds) and
            dates with a zone of their own become its clock's.
    """
    degrees = ("pickup_longitude", "pickup_latitude", "dropoff_longitude", "dropoff_latitude")
    zones, times = ("origin", "destination"), ("time", "hour")
    table, called = read_table(Path(path)), dict(columns or {})
    known = (*degrees, *zones, *times, "dropoff_time", "weekday", "fare", "minutes")
    unknown = sorted(called.keys() - set(known))
    if unknown:
        raise UserError(f"no column {', '.join(unknown)} is used; there are {', '.join(known)}")
    names = {name: called.get(name, name) for name in known}
    clocks = [names[name] for name in times if names[name] in table.columns]
    absent = [names[name] for name in called if names[name] not in table.columns]
    by_zone = all(names[name] in table.columns for name in zones)
    ends = zones if by_zone else degrees
    table.require([*(names[name] for name in ends), *absent])
    if len(clocks) != 1:
        raise UserError(
            f"{path}: expected a column {names['time']} or {names['hour']}, one of them, got "
            f"{', '.join(table.columns)}; say when trips began"
        )
    there = [name for name in ("weekday", "fare", "minutes") if names[name] in table.columns]
    found = {name: _numbers(table, names[name]) for name in there}
    begun, zoned = _minutes(table, clocks[0], date_format, zone)
    clock = _numbers(table, clocks[0])
    hour = np.where((clock >= 0) & (clock < 24), clock, begun / 60 % 24)
    if names["dropoff_time"] in table.columns and "minutes" not in found:
        ended, _ = _minutes(table, names["dropoff_time"], date_format, zone)
        found["minutes"] = ended - begun
    # 1970 began with a Thursday.
    day = found.get("weekday", (begun // (24 * 60) + 3) % 7)
    fare, minutes = found.get("fare"), found.get("minutes")
    if monday is not None and "weekday" in found:
        day = (day - whole_number(monday, "monday", 0)) % 7
    dated = not np.isnan(day).all()
    if by_zone:
        places = np.array([[label(each) for each in table.columns[names[end]]] for end in ends]).T
        reasons = {"a zone is missing": (places == "").any(axis=1)}
    else:
        places = np.stack([_numbers(table, names[name]) for name in ends], axis=-1)
        on_earth = (np.abs(places) <= np.array([180.0, 89.0] * 2)).all(axis=1)
        nowhere = (places.reshape(-1, 2, 2) == 0).all(axis=-1).any(axis=-1)
        unread = np.isnan(places).any(axis=1)
        reasons = {
            "a coordinate is missing or no number (decimals need a point)": unread,
            "a coordinate is none of the earth, or 0, 0": ~on_earth | nowhere,
        }
    reasons |= {
        f"the time is none of these; an hour from 0 to below 24 such as 7.25, {DATES}, one that "
        "date_format reads, or Unix seconds if zone is given": np.isnan(hour),
        "the weekday is missing or no number": np.isnan(day) & dated,
    }
    if fare is not None:
        reasons["the fare is missing, no number or negative"] = ~(fare >= 0)
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
    if good.mean() < 0.5:  # the columns are probably not what they seem
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
    if zoned and zone is None:
        notes.append("times have a zone, whose clock counts; zone='Europe/Paris' makes it a city's")
    starts, stops = places.T if by_zone else (places[:, :2], places[:, 2:])
    days = day if dated else None
    return TripRecords(starts, stops, hour, days, fare, tuple(notes), minutes).only(good)


def _numbers(table: Table, column: str) -> Float[np.ndarray, "rows"]:
    """A column of numbers; NaN where there is none."""
    found = np.array([as_number(value) for value in table.columns[column]])
    return np.where(np.isfinite(found), found, np.nan)


def _minutes(
    table: Table, column: str, date_format: str | None, zone: str | None
) -> tuple[Float[np.ndarray, "rows"], bool]:
    """Minutes since 1970 on the clock; NaN where there is no date. And whether dates have zones."""
    try:
        city = None if zone is None else ZoneInfo(zone)
    except (KeyError, ValueError, OSError) as error:
        raise UserError(f"expected a time zone such as Europe/Paris, got {zone!r}") from error
    found, zoned = np.full(len(table), np.nan), False
    for row, value in enumerate(table.columns[column]):
        when = _date(value, date_format, city)
        if when is not None:
            zoned |= when.tzinfo is not None
            since = when.replace(tzinfo=None) - datetime(1970, 1, 1)
            found[row] = since.total_seconds() / 60
    return found, zoned


def _date(value: Any, date_format: str | None, city: ZoneInfo | None) -> datetime | None:
    """The date and time that one value says, on the city's clock if there is one."""
    number, when = as_number(value), None
    if date_format is not None:
        with suppress(ValueError):
            when = datetime.strptime(str(value).strip(), date_format)
    elif np.isnan(number):
        when = as_datetime(value)
    elif city is not None:
        seconds = number if number < 1e11 else number / 1000  # milliseconds
        when = datetime.fromtimestamp(seconds, UTC) if 1e8 <= seconds < 1e11 else None
    return when if when is None or when.tzinfo is None or city is None else when.astimezone(city)
