"""Makes the data of the environment `manhattan` from a table of taxi trips.

    python tools/make_manhattan.py nyc_taxi_trips.csv.gz

The table has the columns weekday (1 is Sunday, 7 Saturday), hour, pickup_lon, pickup_lat,
dropoff_lon, dropoff_lat and fare_usd. It holds 65,900 trips of New York's taxis: public records of
the city's Taxi and Limousine Commission, as sampled in a public tutorial repository under the
Apache License 2.0. What is written are counts by cell, hour and part of the day, and mean fares.

With ``--check`` nothing is written: how well do some ways of smoothing predict the destinations
of a fifth of the trips, which is left out?
"""

import argparse
import csv
import gzip
from pathlib import Path

import numpy as np

from mufield.fleet.counts import smoothing_kernel
from mufield.fleet.manhattan import DATA, KIND, PART_STARTS, journeys
from mufield.fleet.maps import CityMap
from mufield.io.sealed import write_sealed

ABOUT = (
    "Taxi trips of New York, counted by cells of 500 m: public records of the city's Taxi and "
    "Limousine Commission, as sampled in a public tutorial repository under the Apache License 2.0"
)
COLUMNS = (
    "weekday", "hour", "pickup_lon", "pickup_lat", "dropoff_lon", "dropoff_lat", "fare_usd",
)  # fmt: skip
TURN, CELL, SIZE, LEAST = 29.0, 500.0, (6000.0, 14000.0), 30
CORNER = (-74.05400043, 40.70914716)
"""Longitude and latitude of the map's corner: 3 km left of and 0.5 km below (-74.02, 40.70)."""


def main() -> None:
    """Reads the table, counts, writes."""
    parser = argparse.ArgumentParser(description="Makes the data of the environment manhattan.")
    parser.add_argument("trips", type=Path, help="table of trips, CSV, may be gzipped")
    parser.add_argument("--out", type=Path, default=DATA)
    parser.add_argument("--check", action="store_true", help="judge ways of smoothing")
    args = parser.parse_args()
    rows = read(args.trips)
    print(f"{len(rows):,} trips")
    where = {"cell": CELL, "turn": TURN, "origin": CORNER, "size": SIZE, "islands": "keep"}
    plane = CityMap.of_traffic(*rows[:, 2:4].T, **where)
    ends = [plane.to_plane(*rows[:, i : i + 2].T) for i in (2, 4)]
    inside = np.all([(p >= 0) & (p < np.array(SIZE) / 1000) for p in ends], axis=(0, 2))
    rows = rows[inside]
    city = CityMap.of_traffic(
        np.concatenate([rows[:, 2], rows[:, 4]]),
        np.concatenate([rows[:, 3], rows[:, 5]]),
        least=LEAST,
        **where,
    )
    start, end = (city.grid.index_of(p[inside]) for p in ends)
    kept = (start >= 0) & (end >= 0)
    print(f"{inside.sum():,} inside, {kept.sum():,} of them between {city.grid.n_cells} cells")
    start, end, fare = start[kept], end[kept], rows[kept, 6]
    weekend = np.isin(rows[kept, 0], (1, 7)).astype(int)
    hour = rows[kept, 1].astype(int)
    part = np.searchsorted(PART_STARTS, hour, side="right") - 1
    cells = city.grid.n_cells
    if args.check:
        check(city, np.stack([weekend, part, start, end]))
        return
    pickups = np.zeros((2, 24, cells), dtype=np.uint16)
    np.add.at(pickups, (weekend, hour, start), 1)
    counts = np.zeros((2, len(PART_STARTS), cells, cells), dtype=int)
    np.add.at(counts, (weekend, part, start, end), 1)
    paid = np.zeros((2, len(PART_STARTS), cells))
    np.add.at(paid, (weekend, part, start), fare)
    day, when, origin, destination = np.nonzero(counts)
    document = {
        "about": ABOUT, "longitude": CORNER[0], "latitude": CORNER[1], "turn": TURN, "cell": CELL,
        "trips": int(kept.sum()),
    }  # fmt: skip
    arrays = {
        "free": ~city.grid.walls,
        "pickups": pickups,
        "part": (day * len(PART_STARTS) + when).astype(np.uint8),
        "origin": origin.astype(np.uint8),
        "destination": destination.astype(np.uint8),
        "count": counts[day, when, origin, destination].astype(np.uint8),
        "paid": paid.astype(np.float32),
    }
    assert cells <= 256
    assert counts.max() < 256
    write_sealed(args.out, document, arrays, kind=KIND)
    print(f"{args.out}: {args.out.stat().st_size:,} bytes")


def read(path: Path) -> np.ndarray:
    """The rows of the table as numbers; raises if one is no number or a column is missing."""
    unpack = gzip.open if path.suffix == ".gz" else open
    with unpack(path, "rt") as file:
        return np.array([[float(row[name]) for name in COLUMNS] for row in csv.DictReader(file)])


def check(city: CityMap, trips: np.ndarray) -> None:
    """Prints the mean log-likelihood of destinations that were left out."""
    left_out = np.random.default_rng(0).integers(0, 5, trips.shape[1]) == 0
    counts = np.zeros((2, len(PART_STARTS), city.grid.n_cells, city.grid.n_cells))
    np.add.at(counts, tuple(trips[:, ~left_out]), 1)
    for width in (0.25, 0.35, 0.5):
        for prior in (10.0, 30.0, 100.0):
            found = journeys(counts, smoothing_kernel(city.grid, width), prior)
            score = np.log(found[tuple(trips[:, left_out])]).mean()
            print(f"{width} km, {prior:g} trips: {score:.4f}")


if __name__ == "__main__":
    main()
