"""Tables of agents' moves and of masses: what files of episodes and of logs have in common.

On a `CityMap`, ``longitude`` and ``latitude`` may stand for ``state_0`` and ``state_1``,
``next_longitude`` and ``next_latitude`` for ``next_0`` and ``next_1``. Vehicles in walls, on a
bridge or by the error of a receiver, count for the nearest free cell; rows of vehicles farther off
are left out, and counted.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int

from .._arrays import Mass
from ..errors import MASS_TOLERANCE, UserError
from ..problem import Problem
from ..space.grid import Grid
from ..space.measure import histogram
from .rows import Points, checked_positions
from .table_files import read_table
from .tables import Rows, Table, label


class ObservedMoves:
    """A table of agents' moves whose columns fit a problem.

    Attributes:
        gives_next: Whether rows say where moves ended.
        notes: What was left out, in words.
        who: Names of the agents, sorted.
        agent: For each row, the number of its agent in `who`.
        carried: Which rows are trips that carried the agent off.
    """

    def __init__(self, path: Path, problem: Problem, *, episode: bool):
        """Reads a table; raises if columns are missing or are not those of the problem.

        Rows of an ``episode`` have steps and say where moves ended; those of a log need not.
        """
        self.problem = problem
        self.table, self.notes = _with_positions(read_table(path), problem)
        columns = self.table.columns
        self.gives_next = episode or any(column in columns for column in self._names("next"))
        ends = self._names("next") if self.gives_next else []
        named = [*self._names("state"), *self._names("action"), *ends]
        self.table.require(["agent", *(["step"] if episode else []), *named])
        for name in ("state", "next", "action"):
            size = len(self._names(name))
            if f"{name}_{size}" in columns:
                what = f"expected {size} columns {name}_0, ..., got {name}_{size} as well"
                raise UserError(f"{path}: {what}; tell data of this problem only")
        paid = ["reward", *(["end_reward"] if episode and problem.pay_end else [])]
        missing = [column for column in paid if column not in columns]
        if problem.hides_reward and missing:
            why = "the problem hides its reward, so say what agents were paid"
            raise UserError(f"{path}: the column {missing[0]} is missing; {why}")
        labels = self.table.labels("agent")
        self.who = sorted(set(labels), key=by_number)
        number = {name: i for i, name in enumerate(self.who)}
        self.agent: Rows = np.array([number[name] for name in labels])
        self.carried = self._trips()

    def actions(self, rows: Rows | None = None) -> np.ndarray:
        """What agents did: all rows, or some."""
        return _numbers(self.table, self.problem, self._names("action"), rows)

    def positions(self, name: str) -> Points:
        """The columns of ``"state"`` or ``"next"``; raises if one is in a wall or off the grid."""
        return _positions(self.table, self.problem, name)

    def chosen(self, agents: Sequence[str]) -> Int[np.ndarray, "chosen"]:
        """Numbers of the agents to learn from; by default all."""
        wanted = [label(agent) for agent in agents] or self.who
        unknown = [agent for agent in wanted if agent not in self.who]
        if unknown:
            others = len(self.who) - 10
            raise UserError(
                f"{self.table.path}: there is no agent {', '.join(unknown)}; there are "
                f"{', '.join(self.who[:10])}" + (f" and {others} others" if others > 0 else "")
            )
        return np.array([self.who.index(agent) for agent in wanted])

    def _names(self, name: str) -> list[str]:
        axes = self.problem.actions.dim if name == "action" else self.problem.grid.dim
        return [f"{name}_{axis}" for axis in range(axes)]

    def _trips(self) -> Bool[np.ndarray, "rows"]:
        table, trips = self.table, self.problem.trips
        if trips is not None and "carried" not in table.columns:
            what = "expected a column carried, 1 where a trip carried the agent off, else 0"
            raise UserError(f"{table.path}: {what}, as the problem has trips; got none")
        if trips is None and "carried" in table.columns:
            what = "a column carried, but the problem has no trips; leave it out"
            raise UserError(f"{table.path}: {what}")
        return np.zeros(len(table), dtype=bool) if trips is None else table.flags("carried")


def by_number(name: str) -> tuple[bool, int, str]:
    """Orders names: numbers by their size, then the others."""
    number = name.isdecimal() and len(name) < 20  # Python refuses to read very long ones
    return (not number, int(name) if number else 0, name)


def read_positions(path: Path, problem: Problem) -> tuple[Mass, tuple[str, ...]]:
    """The distribution of agents whose positions a file has, one row for each, and notes."""
    table, notes = _with_positions(read_table(path), problem)
    places = _positions(table, problem, "state")
    return histogram(problem.grid, places).astype(problem.initial.dtype), notes


def _numbers(
    table: Table, problem: Problem, columns: Sequence[str], rows: Rows | None = None
) -> np.ndarray:
    table.require(columns)
    found = [table.numbers(column, rows) for column in columns]
    return np.stack(found, axis=-1).astype(problem.initial.dtype)


def _positions(table: Table, problem: Problem, name: str) -> Points:
    columns = [f"{name}_{axis}" for axis in range(problem.grid.dim)]
    points = _numbers(table, problem, columns)
    return checked_positions(table.where, problem.grid, points, columns)


def _with_positions(table: Table, problem: Problem) -> tuple[Table, tuple[str, ...]]:
    """The table with positions in place of coordinates, and notes on what was left out."""
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
        what = f"none of {len(table):,} rows is on the map or near it"
        raise UserError(f"{table.path}: {what}; check the order of longitude and latitude")
    names = {f"{name}_{axis}": pair[axis] for name, pair in given.items() for axis in range(2)}
    found, left = replace(table, columns=columns, shown=names), len(table) - len(kept)
    note = f"{left:,} of {len(table):,} rows were left out, because they are not on the map"
    return (found.only(kept), (note,)) if left else (found, ())


def _located(
    table: Table, problem: Problem, name: str, pair: tuple[str, str]
) -> tuple[np.ndarray, Bool[np.ndarray, "rows"]]:
    """Positions from two columns, and which of them are on the map or near it."""
    city = problem.city
    if city is None:
        raise UserError(
            f"{table.path}: the columns {pair[0]} and {pair[1]} need a map, and the problem has "
            f"none; give {name}_0, ..., or build the problem with space=CityMap(...)"
        )
    if f"{name}_0" in table.columns:
        what = f"both {pair[0]} and {name}_0 say where agents were; leave one out"
        raise UserError(f"{table.path}: {what}")
    table.require(pair)
    points = np.stack([table.numbers(column) for column in pair], axis=-1)
    for axis, most in enumerate((180.0, 89.0)):
        remedy = "check the order of longitude and latitude"
        degrees = f"degrees from -{most:g} to {most:g}"
        table.refuse(np.abs(points[:, axis]) > most, pair[axis], degrees, remedy)
    return city.onto_streets(city.to_plane(points[:, 0], points[:, 1]))


def read_mass(
    path: Path, problem: Problem, notes: list[str] | None = None
) -> Float[np.ndarray, "moments cells"]:
    """Reads the distributions mu_0, ..., mu_H from a file of masses, or of positions.

    Positions are those of all agents, one row for each agent and step. Where trips last several
    steps, those under way have no row: the population is then as large as at its largest step.
    """
    last, table, grid = problem.horizon, read_table(path), problem.grid
    places = "mass" not in table.columns and {"longitude", "state_0"} & table.columns.keys()
    if places:
        table, left_out = _with_positions(table, problem)
        if notes is not None:
            notes += left_out
    table.require(["step", *([] if places else [*cell_columns(grid), "mass"])])
    steps, names = table.integers("step"), [f"step {step}" for step in range(last + 1)]
    if steps.min() != 0 or steps.max() != last or len(np.unique(steps)) != last + 1:
        raise UserError(
            f"{path}: expected the steps 0 to {last}, as the horizon is {last}, got {steps.min()} "
            f"to {steps.max()}, {len(np.unique(steps))} of them; the distribution after the last "
            "move belongs to it"
        )
    if not places:
        return distributions(table, problem, steps, names)
    settled, agents = _positions(table, problem, "state"), np.bincount(steps)
    shares = agents / (agents.max() if _some_under_way(problem) else agents)
    found = [histogram(grid, settled[steps == step]) for step in range(last + 1)]
    return np.asarray(np.stack(found) * shares[:, None])


def _some_under_way(problem: Problem) -> bool:
    """Whether trips last several steps, so that mu sums to the share of agents that are free."""
    return problem.trips is not None and problem.trips.stages > 0


def cell_columns(grid: Grid) -> list[str]:
    """The columns of a file of masses that say which cell a row is of."""
    return [f"cell_{axis}" for axis in range(grid.dim)]


def distributions(
    table: Table, problem: Problem, moment: Int[np.ndarray, "rows"], names: Sequence[str]
) -> Float[np.ndarray, "moments cells"]:
    """The distributions of a file of masses; ``names`` are those of all moments, for errors."""
    grid, columns = problem.grid, cell_columns(problem.grid)
    cells = np.stack([table.integers(column) for column in columns], axis=-1)
    mass = table.numbers("mass")
    for axis, (column, size) in enumerate(zip(columns, grid.shape, strict=True)):
        outside = (cells[:, axis] < 0) | (cells[:, axis] >= size)
        table.refuse(outside, column, f"a cell from 0 to {size - 1}", "count cells from 0")
    index = grid.index_table[tuple(cells.T)]
    odd = (mass < 0) | ((index < 0) & (mass != 0))
    cell = tuple(cells[int(np.argmax(odd))].tolist())
    table.refuse(odd, "mass", f"0 or more, and none in walls, for the cell {cell}")
    place = np.where(index < 0, -1, moment * grid.n_cells + index)
    table.once(
        place, "mass", lambda i: f"the cell {tuple(cells[i].tolist())} has {names[moment[i]]}"
    )
    flow = np.zeros((len(names), grid.n_cells))
    flow.flat[place[index >= 0]] = mass[index >= 0]
    total, away = flow.sum(axis=1), _some_under_way(problem)
    off = np.abs(total - 1) > MASS_TOLERANCE
    if away:
        off &= (total > 1) | (total <= 0)
    if off.any():
        first = int(np.argmax(off))
        raise UserError(
            f"{table.path}: expected masses that sum to 1 at every time"
            f"{' (less, if some are under way)' * away}, got {total[first]:.6g} at "
            f"{names[first]}; divide them by their sum"
        )
    return flow if away else np.asarray(flow / total[:, None])
