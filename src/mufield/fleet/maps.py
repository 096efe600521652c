"""Grids from longitude and latitude: a city's streets as free cells, everything else as walls.

Over a few kilometres the earth is flat: a degree of longitude is as long everywhere as at the
map's origin. States are in kilometres, along the axes of a map that may be turned, because streets
seldom run north.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from .._arrays import Mass
from ..errors import UserError, number, per_axis, whole_number
from ..space.grid import Grid
from ..space.measure import histogram

Plane = Float[np.ndarray, "points 2"]


@dataclass(frozen=True)
class CityMap:
    """A grid on the earth.

    Attributes:
        longitude: Longitude of the map's origin, in degrees.
        latitude: Its latitude.
        turn: By how many degrees the map's second axis is turned from north towards east.
        grid: The grid, in kilometres from the origin along the turned axes.
        notes: What was left out of the map or added to it, in words.
    """

    longitude: float
    latitude: float
    turn: float
    grid: Grid = field(repr=False)
    notes: tuple[str, ...] = field(default=(), compare=False, repr=False)

    @classmethod
    def of_traffic(
        cls,
        longitude: Any,
        latitude: Any,
        *,
        cell: Any,
        turn: float = 0.0,
        origin: Any = None,
        size: Any = None,
        least: Any = 1,
        islands: str = "drop",
    ) -> "CityMap":
        """A map whose free cells are those with traffic.

        Args:
            longitude: Of points where vehicles were seen, in degrees.
            latitude: Likewise.
            cell: Edge of a cell, in metres.
            turn: As the attribute; for Manhattan's avenues 29 degrees.
            origin: Longitude and latitude of the map's corner, from which both axes grow; by
                default such that all free cells fit.
            size: Width and height in metres, along the turned axes; by default such that all
                free cells fit. Points outside are left out, and counted.
            least: A cell with fewer points is a wall.
            islands: What becomes of free cells that no vehicle can drive to from where most points
                are. ``"drop"`` makes them walls; ``"join"`` frees the cells of a short line to the
                others; ``"keep"`` leaves them, and then only trips lead there and away.
        """
        number(cell, "the edge of a cell, in metres,", 1e-3)
        number(turn, "turn, in degrees,", -360.0, 360.0)
        whole_number(least, "least, the points that make a cell free,")
        if islands not in ("drop", "join", "keep"):
            raise UserError(f"islands must be drop, join or keep, got {islands!r}")
        where = _checked(longitude, latitude)
        start = np.mean(where, axis=0)
        if origin is not None:
            start = np.array(per_axis(origin, 2, float, "origin, longitude and latitude,"))
            _checked(*start)
        points = _to_plane(where, start, turn)
        if origin is None:
            start = _to_earth(points.min(axis=0)[None], start, turn)[0]
            points = _to_plane(where, start, turn)
        extent = points.max(axis=0)
        if size is not None:
            extent = np.array(per_axis(size, 2, float, "size, in metres,")) / 1000
        edge, flat = cell / 1000, 400.0  # km; larger maps show that the earth is round
        if not np.all(extent > 0) or np.any(extent > flat):
            raise UserError(
                f"a map must be larger than 0 and smaller than {flat:g} km on both axes, "
                f"got {extent[0]:.6g} by {extent[1]:.6g} km; check the coordinates, their order "
                "and the size, which is in metres"
            )
        shape = np.maximum(np.ceil(np.round(extent / edge, 6)).astype(int), 1)
        if (cells := int(np.prod(shape))) > 4_000_000:
            raise UserError(
                f"a map of {extent[0]:.4g} by {extent[1]:.4g} km would have {cells:,} cells of "
                f"{cell:g} m, more than 4,000,000; take larger cells, such as 500 m, or give "
                "origin and size, if a few points are far from the others"
            )
        place = np.floor(points / edge + 1e-9).astype(int)
        # The farthest points stand on the border.
        place = np.where(np.isclose(points, shape * edge), shape - 1, place)
        inside = np.all((place >= 0) & (place < shape), axis=1)
        counts = np.zeros(shape, dtype=int)
        np.add.at(counts, tuple(place[inside].T), 1)
        if not (counts >= least).any():
            raise UserError(
                f"no cell of the map has {least} points or more; {int(inside.sum()):,} of "
                f"{len(points):,} are inside; take larger cells, or check origin and turn"
            )
        free, notes = connected(counts, counts >= least, islands)
        if not inside.all():
            notes.insert(0, f"{int((~inside).sum()):,} of {len(points):,} points are off the map")
        if origin is None and size is None:
            # A stray point must not make the map wider than the city.
            used = np.argwhere(free)
            low, high = used.min(axis=0), used.max(axis=0) + 1
            free, shape = free[low[0] : high[0], low[1] : high[1]], high - low
            start = _to_earth((low * edge)[None], start, turn)[0]
        upper = tuple((shape * edge).tolist())
        grid = Grid.box(0.0, upper, tuple(shape.tolist()), walls=~free)
        middle = _to_earth(np.array([upper]) / 2, start, turn)[0]
        notes.append(
            f"the map's {grid.n_cells:,} cells are on {upper[0]:.4g} by {upper[1]:.4g} km around "
            f"longitude {middle[0]:.4g}, latitude {middle[1]:.4g}; if the city is not there, "
            "longitude and latitude may be exchanged"
        )
        return cls(float(start[0]), float(start[1]), float(turn), grid, tuple(notes))

    def to_plane(self, longitude: Any, latitude: Any) -> Plane:
        """States of the grid, in kilometres, from longitude and latitude."""
        return _to_plane(_checked(longitude, latitude), self._origin, self.turn)

    def to_earth(self, states: Any) -> Float[np.ndarray, "points 2"]:
        """Longitude and latitude of states, such as the places where moves of a policy lead."""
        points = np.asarray(states, dtype=float)
        if points.ndim != 2 or points.shape[1] != 2:
            raise UserError(f"states must have the shape (points, 2), got {points.shape}")
        return _to_earth(points, self._origin, self.turn)

    def histogram(self, longitude: Any, latitude: Any) -> tuple[Mass, int]:
        """The distribution of a fleet's positions, and how many were left out.

        Vehicles in walls, on a bridge for example, count for the nearest free cell if its centre is
        at most two cells away; those farther off are left out.
        """
        points, near = self.onto_streets(self.to_plane(longitude, latitude))
        if not near.any():
            raise UserError(
                f"none of {len(points):,} positions is on the map or near it; check the order of "
                "longitude and latitude"
            )
        return histogram(self.grid, points[near]), int((~near).sum())

    def onto_streets(self, states: Any) -> tuple[Plane, Bool[np.ndarray, "points"]]:
        """States in free cells, and which of them were there or near.

        A state in a wall is moved to the nearest free cell, just inside, if that cell's centre is
        at most two cells away.
        """
        points, size = np.array(states, dtype=float), np.asarray(self.grid.cell_size)
        lost = np.flatnonzero(np.asarray(self.grid.index_of(points)) < 0)
        nearest, apart = np.zeros(len(lost), dtype=int), np.zeros(len(lost))
        for first in range(0, len(lost), 10_000):  # all at once would take too much memory
            some = slice(first, first + 10_000)
            far = np.linalg.norm(points[lost[some], None] - self.grid.centres, axis=-1)
            nearest[some], apart[some] = far.argmin(axis=1), far.min(axis=1)
        near = apart <= 2 * size.max()
        centres = self.grid.centres[nearest[near]]
        inside = (0.5 - 1e-4) * size  # so near to the edge that it still counts as the wall's
        points[lost[near]] = np.clip(points[lost[near]], centres - inside, centres + inside)
        kept = np.ones(len(points), dtype=bool)
        kept[lost[~near]] = False
        return points, kept

    @property
    def _origin(self) -> np.ndarray:
        return np.array([self.longitude, self.latitude])


def _checked(longitude: Any, latitude: Any) -> Float[np.ndarray, "points 2"]:
    """Coordinates in two columns; raises if one is missing or impossible."""
    try:
        columns = [np.atleast_1d(np.asarray(each, dtype=float)) for each in (longitude, latitude)]
    except (TypeError, ValueError) as error:
        raise UserError(f"longitude and latitude must be numbers: {error}") from error
    if columns[0].shape != columns[1].shape or columns[0].ndim != 1 or not len(columns[0]):
        raise UserError(
            "expected as many longitudes as latitudes, at least one, got the shapes "
            f"{columns[0].shape} and {columns[1].shape}"
        )
    for name, values, most in zip(("longitude", "latitude"), columns, (180.0, 89.0), strict=True):
        wrong = ~(np.abs(values) <= most)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise UserError(
                f"{name} must be between -{most:g} and {most:g} degrees, got {values[row]} in row "
                f"{row}; leave the row out, or check the order of longitude and latitude"
            )
    middle = float(np.median(columns[1]))
    if middle < -60:
        raise UserError(
            f"the latitudes, about {middle:.4g}, are those of Antarctica, and the longitudes are "
            f"about {np.median(columns[0]):.4g}; longitude and latitude seem to be exchanged"
        )
    return np.stack(columns, axis=-1)


def connected(
    counts: Int[np.ndarray, "x y"], free: Bool[np.ndarray, "x y"], islands: str
) -> tuple[Bool[np.ndarray, "x y"], list[str]]:
    """The free cells once islands are dropped, joined or kept, and notes; see `of_traffic`.

    Cells that share an edge are connected. The main part is the one with the most points.
    """
    from scipy import ndimage  # slow to import

    labels, parts = ndimage.label(free)
    if parts == 1:
        return free, []
    main = labels == 1 + np.argmax(ndimage.sum_labels(counts, labels, np.arange(1, parts + 1)))
    off = int(free.sum() - main.sum())
    lost, points = int(counts[free & ~main].sum()), int(counts[free].sum())
    what = (
        f"{off:,} of {int(free.sum()):,} free cells, with {lost:,} of {points:,} points, are "
        f"{parts - 1:,} island{'s' * (parts > 2)} that no vehicle can drive to"
    )
    if islands == "keep":
        return free, [f"{what}: only trips lead there and away"]
    if islands == "drop" and 2 * lost > points:
        raise UserError(
            f"{what}; what is left would be no map of these points: take larger cells, "
            "islands='join' or islands='keep'"
        )
    if islands == "drop":
        return main, [f"{what}: they were left out; islands='join' connects them"]
    joined = free.copy()
    while parts > 1:
        far, nearest = ndimage.distance_transform_edt(~main, return_indices=True)
        ends = np.array(ndimage.minimum_position(far, labels, np.arange(1, parts + 1)))
        apart = far[tuple(ends.T)]
        # The nearer half at a time, so that far islands can join near ones.
        for end in ends[(apart > 0) & (apart <= np.median(apart[apart > 0]))]:
            joined[tuple(_cells_between(end, nearest[:, end[0], end[1]]).T)] = True
        labels, parts = ndimage.label(joined)
        main = labels == labels[tuple(np.argwhere(main)[0])]
    added = int(joined.sum() - free.sum())
    return joined, [f"{what}: {added:,} cells without traffic were made free to join them"]


def _cells_between(start: np.ndarray, end: np.ndarray) -> Int[np.ndarray, "cells 2"]:
    """The cells along the straight line to ``end``, each beside the one before."""
    apart = end - start
    when = np.concatenate([(np.arange(n) + 0.5) / n for n in np.abs(apart)])
    axes = np.repeat([0, 1], np.abs(apart))[np.argsort(when, kind="stable")]
    steps = (np.sign(apart) * np.eye(2, dtype=int))[axes]
    return np.asarray(start + np.cumsum(steps, axis=0))


def _to_plane(where: np.ndarray, origin: np.ndarray, turn: float) -> Plane:
    return np.asarray((where - origin) @ _kilometres(origin, turn))


def _to_earth(points: np.ndarray, origin: np.ndarray, turn: float) -> np.ndarray:
    return np.asarray(origin + points @ np.linalg.inv(_kilometres(origin, turn)))


def _kilometres(origin: np.ndarray, turn: float) -> Float[np.ndarray, "2 2"]:
    """From degrees of longitude and latitude to kilometres along the map's axes."""
    degree = math.pi / 180 * 6371.0088  # along a great circle
    lengths = degree * np.array([[math.cos(math.radians(origin[1]))], [1.0]])
    cos, sin = math.cos(math.radians(turn)), math.sin(math.radians(turn))
    return np.asarray(lengths * np.array([[cos, sin], [-sin, cos]]))
