"""Grids from longitude and latitude: a city's streets as free cells, everything else as walls.

Over a few kilometres the earth is flat: a degree of longitude is as long everywhere as at the
map's origin. States are in kilometres, along the axes of a map that may be turned, because streets
seldom run north.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from .._types import Mass
from ..errors import UserError
from ..interfaces import AbstractMap
from ..space.grid import Grid
from ..space.measure import histogram

Plane = Float[np.ndarray, "points 2"]


@dataclass(frozen=True)
class CityMap(AbstractMap):
    """A grid on the earth.

    Attributes:
        longitude: Longitude of the map's origin, in degrees.
        latitude: Its latitude.
        turn: By how many degrees the map's second axis is turned from north towards east.
        grid: The grid, in kilometres from the origin along the turned axes.
        left_out: How many of the points that made the map are outside of it.
    """

    longitude: float
    latitude: float
    turn: float
    grid: Grid
    left_out: int = 0

    @classmethod
    def of_traffic(
        cls,
        longitude: Any,
        latitude: Any,
        *,
        cell: float,
        turn: float = 0.0,
        origin: tuple[float, float] | None = None,
        size: tuple[float, float] | None = None,
        least: int = 1,
    ) -> "CityMap":
        """A map whose free cells are those with traffic.

        Args:
            longitude: Of points where vehicles were seen, in degrees.
            latitude: Likewise.
            cell: Edge of a cell, in metres.
            turn: As the attribute; for Manhattan's avenues 29 degrees.
            origin: Longitude and latitude of the map's corner, from which both axes grow; by
                default such that all points fit.
            size: Width and height in metres, along the turned axes; by default such that all
                points fit. Points outside are left out, and counted.
            least: A cell with fewer points is a wall.
        """
        if not (math.isfinite(cell) and cell > 0):
            raise UserError(f"the edge of a cell must be positive, in metres, got {cell}")
        if least < 1:
            raise UserError(f"a free cell needs at least one point, got least = {least}")
        where = _checked(longitude, latitude)
        start = np.mean(where, axis=0) if origin is None else np.asarray(origin, dtype=float)
        points = _to_plane(where, start, turn)
        if origin is None:
            corner = points.min(axis=0)
            start = _to_earth(corner[None], start, turn)[0]
            points = _to_plane(where, start, turn)
        extent = points.max(axis=0) if size is None else np.asarray(size, dtype=float) / 1000
        edge = cell / 1000
        shape = np.maximum(np.ceil(np.round(extent / edge, 6)).astype(int), 1)
        flat = 400.0  # km; larger maps show that the earth is round
        if not np.all(extent > 0) or np.any(extent > flat):
            raise UserError(
                f"a map must be larger than 0 and smaller than {flat:g} km on both axes, "
                f"got {extent[0]:.6g} by {extent[1]:.6g} km; check the coordinates, their order "
                "and the size, which is in metres"
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
        grid = Grid.box(
            0.0, tuple((shape * edge).tolist()), tuple(shape.tolist()), walls=counts < least
        )
        outside = int(len(points) - inside.sum())
        return cls(float(start[0]), float(start[1]), float(turn), grid, outside)

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
        nearest = np.zeros(len(lost), dtype=int)
        apart = np.zeros(len(lost))
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
    return np.stack(columns, axis=-1)


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
