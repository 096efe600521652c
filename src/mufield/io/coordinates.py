"""Files that say in longitude and latitude where vehicles were, for problems on a `CityMap`.

``longitude`` and ``latitude`` stand for ``state_0`` and ``state_1``, ``next_longitude`` and
``next_latitude`` for ``next_0`` and ``next_1``. Vehicles in walls, on a bridge or by the error of a
receiver, count for the nearest free cell; rows of vehicles farther off are left out, and counted.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from ..errors import UserError
from ..problem import Problem
from .tables import Table, read_table


def read_plane(path: Path, problem: Problem) -> tuple[Table, tuple[str, ...]]:
    """Reads a table; coordinates in it become positions on the problem's map.

    Also returns notes in words on what was left out.
    """
    table = read_table(path)
    # Columns that may stand in for those of positions.
    pairs = {"state": ("longitude", "latitude"), "next": ("next_longitude", "next_latitude")}
    given = {name: pair for name, pair in pairs.items() if set(pair) & table.columns.keys()}
    if not given:
        return table, ()
    columns, near = dict(table.columns), np.ones(len(table), dtype=bool)
    for name, pair in given.items():
        places, known = _located(table, problem, name, pair)
        near &= known
        columns |= {f"{name}_{axis}": places[:, axis].tolist() for axis in range(2)}
    kept = np.flatnonzero(near)
    if len(kept) == 0:
        raise UserError(
            f"{path}: none of {len(table):,} rows is on the map or near it; check the order of "
            "longitude and latitude"
        )
    names = {f"{name}_{axis}": pair[axis] for name, pair in given.items() for axis in range(2)}
    found = replace(table, columns=columns, shown=names)
    if near.all():
        return found, ()
    left = len(table) - len(kept)
    note = f"{left:,} of {len(table):,} rows were left out, because they are not on the map"
    return found.only(kept), (note,)


def _located(
    table: Table, problem: Problem, name: str, pair: tuple[str, str]
) -> tuple[np.ndarray, Bool[np.ndarray, "rows"]]:
    """Positions from two columns, and which of them are on the map or near it."""
    city = problem.city
    if city is None:
        raise UserError(
            f"{table.path}: the columns {pair[0]} and {pair[1]} need a map, and the problem has "
            f"none; give {name}_0, ..., or build the problem with grid=CityMap(...)"
        )
    if f"{name}_0" in table.columns:
        raise UserError(
            f"{table.path}: both {pair[0]} and {name}_0 say where agents were; leave one out"
        )
    table.require(pair)
    points = np.stack([table.numbers(column) for column in pair], axis=-1)
    for axis, most in enumerate((180.0, 89.0)):
        wrong = np.abs(points[:, axis]) > most
        if wrong.any():
            row = int(np.argmax(wrong))
            raise UserError(
                f"{table.where(row, pair[axis])}: expected degrees from -{most:g} to {most:g}, got "
                f"{points[row, axis]:g}; check the order of longitude and latitude"
            )
    return city.onto_streets(city.to_plane(points[:, 0], points[:, 1]))
