"""What a real fleet would write between ask and tell."""

import csv


def rows_of(episode):
    """An episode as a fleet would log it: one row for each agent and step."""
    rows = []
    for agent in range(episode.states.shape[0]):
        for step in range(episode.states.shape[1]):
            row = {"agent": agent, "step": step}
            for name, values in (
                ("state", episode.states),
                ("action", episode.actions),
                ("next", episode.next_states),
            ):
                row |= {f"{name}_{i}": float(v) for i, v in enumerate(values[agent, step])}
            rows.append(row)
    return rows


def mass_rows(grid, mass):
    return [
        {"step": step, "mass": float(share)} | {f"cell_{i}": int(c) for i, c in enumerate(cell)}
        for step, now in enumerate(mass)
        for cell, share in zip(grid.free_cells, now, strict=True)
        if share > 0
    ]


def write(path, rows):
    if path.suffix == ".parquet":
        from pyarrow import Table, parquet

        parquet.write_table(Table.from_pylist(rows), path)
        return path
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def region_scenario():
    """A file of RL4AMOD: trips from 0 to 1 at 8:00 and 8:07; driving takes eight minutes."""
    trip = {"origin": 0, "destination": 1, "demand": 0.5, "travel_time": 9, "price": 20.0}
    return {
        "nlat": 2, "nlon": 1,
        "demand": [{**trip, "time_stamp": 480}, {**trip, "time_stamp": 487, "price": 30.0}],
        "rebTime": [{"time_stamp": 8, "origin": 0, "destination": 1, "reb_time": 8.0}],
        "totalAcc": [{"hour": 8, "acc": 11}],
    }  # fmt: skip
