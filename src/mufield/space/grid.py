"""Regular grids over a box: cells, centres, walls, wrapped axes, and maps as drawings."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..errors import PerAxis, UserError, bounds, numbers, per_axis, whole_number

if TYPE_CHECKING:
    from .nodes import Nodes

Points = TypeVar("Points", Array, np.ndarray)
"""Arrays of JAX or of NumPy; methods return the same kind as they are given."""


@dataclass(frozen=True, eq=False, repr=False)
class Grid:
    """A box of one to three dimensions, cut into equal cells; some cells may be walls.

    `Grid.box` or `Grid.from_map` builds one. It is hashable, so compiled functions treat it as a
    constant. Vectors over the space (distributions, values) have one entry for every *free* cell,
    in row-major order: ``grid.free_cells[k]`` are the coordinates of entry ``k``.
    """

    lower: tuple[float, ...]
    upper: tuple[float, ...]
    shape: tuple[int, ...]
    periodic: tuple[bool, ...]
    walls: np.ndarray = field(repr=False)

    def __post_init__(self) -> None:
        bounds(self.lower, self.upper, "the grid")
        walls = np.array(self.walls, dtype=bool)
        if walls.shape != self.shape:
            raise UserError(f"the wall mask must have the shape {self.shape}, got {walls.shape}")
        if walls.all():
            raise UserError("the map has no free cell: every cell is a wall; draw some as '.'")
        walls.setflags(write=False)
        object.__setattr__(self, "walls", walls)

    @classmethod
    def box(
        cls,
        lower: PerAxis,
        upper: PerAxis,
        shape: int | Sequence[int],
        *,
        periodic: bool | Sequence[bool] = False,
        walls: np.ndarray | None = None,
    ) -> "Grid":
        """Cuts the box from ``lower`` to ``upper`` into cells.

        Args:
            lower: Lower corner; a single number is used for every axis.
            upper: Upper corner, likewise.
            shape: Number of cells on each axis; a single number makes a one-dimensional grid.
            periodic: Which axes wrap around.
            walls: Mask of the shape ``shape``, true where no agent can be.
        """
        cells = numbers(shape, "shape", "give one whole number of cells for each axis")
        sizes = tuple(whole_number(n, "each entry of shape") for n in np.atleast_1d(cells).tolist())
        dim = len(sizes)
        if not 1 <= dim <= 3:
            raise UserError(f"a grid has 1 to 3 dimensions, got {dim} in the shape {sizes}")
        mask = np.zeros(sizes) if walls is None else numbers(walls, "walls", "give a mask")
        return cls(
            lower=per_axis(lower, dim, float, "lower"),
            upper=per_axis(upper, dim, float, "upper"),
            shape=sizes,
            periodic=per_axis(periodic, dim, bool, "periodic"),
            walls=mask,
        )

    @classmethod
    def from_map(
        cls,
        drawing: str | Sequence[str],
        *,
        cell_size: PerAxis = 1.0,
        lower: PerAxis = 0.0,
        periodic: bool | Sequence[bool] = False,
    ) -> "Grid":
        """Builds a grid from a drawing in which ``#`` is a wall and ``.`` is free.

        x is to the right and y upwards, so the *last* line is y = 0. A single line is a
        one-dimensional map; a sequence of drawings is a stack of floors, the first at z = 0.
        """
        walls = _walls(drawing)
        low = per_axis(lower, walls.ndim, float, "lower")
        size = per_axis(cell_size, walls.ndim, float, "cell_size")
        high = tuple(lo + s * n for lo, s, n in zip(low, size, walls.shape, strict=True))
        return cls.box(low, high, walls.shape, periodic=periodic, walls=walls)

    @cached_property
    def _identity(self) -> tuple[object, ...]:
        return (self.lower, self.upper, self.shape, self.periodic, self.walls.tobytes())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Grid) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __repr__(self) -> str:
        return f"Grid({self.describe()})"

    def describe(self) -> str:
        """The space in words, for error messages."""
        shape = " x ".join(map(str, self.shape))
        round_ = [str(axis) for axis, periodic in enumerate(self.periodic) if periodic]
        more = f", periodic on axis {' and '.join(round_)}" if round_ else ""
        return f"{shape} cells from {self.lower} to {self.upper}, {self.n_cells} of them free{more}"

    @property
    def nodes(self) -> "Nodes | None":
        """The space itself if it is a finite set of nodes, else None."""
        return None

    @property
    def dim(self) -> int:
        """Number of axes (the paper's p)."""
        return len(self.shape)

    @cached_property
    def cell_size(self) -> tuple[float, ...]:
        """Edge lengths of a cell."""
        return tuple(edge / n for edge, n in zip(self.extent, self.shape, strict=True))

    @property
    def cell_volume(self) -> float:
        """Length, area or volume of a cell; density is mass divided by it."""
        return math.prod(self.cell_size)

    @cached_property
    def extent(self) -> tuple[float, ...]:
        """Edge lengths of the box."""
        return tuple(high - low for low, high in zip(self.lower, self.upper, strict=True))

    @cached_property
    def free_cells(self) -> Int[np.ndarray, "cells dim"]:
        """Coordinates of the free cells, in the order of every vector over the space."""
        return np.argwhere(~self.walls).astype(np.int32)

    @property
    def n_cells(self) -> int:
        """Number of free cells."""
        return len(self.free_cells)

    @cached_property
    def centres(self) -> Float[np.ndarray, "cells dim"]:
        """Centres of the free cells."""
        return np.asarray(self.lower + (self.free_cells + 0.5) * self.cell_size)

    @cached_property
    def index_table(self) -> Int[np.ndarray, "..."]:
        """Free-cell index of each cell of the box, -1 where there is a wall."""
        table = np.full(self.shape, -1, dtype=np.int32)
        table[tuple(self.free_cells.T)] = np.arange(self.n_cells, dtype=np.int32)
        return table

    @cached_property
    def neighbours(self) -> Int[np.ndarray, "cells directions"]:
        """Index of each cell itself, then of those below and above it by axis; -1 if blocked."""
        axes = np.eye(self.dim, dtype=int)
        steps = np.concatenate([0 * axes[:1], *np.stack([-axes, axes], axis=1)])
        return self.cell_index(self.free_cells[:, None] + steps)

    def in_cells(self, points: Float[Points, "*batch dim"]) -> Float[Points, "*batch dim"]:
        """Points measured in cells from the lower corner."""
        lower, size = (np.asarray(x, dtype=points.dtype) for x in (self.lower, self.cell_size))
        return (points - lower) / size

    def index_of(self, points: Float[Points, "*batch dim"]) -> Int[Points, "*batch"]:
        """Free-cell index of the cell that holds each point; -1 in a wall or outside the box.

        Cells contain their lower edges; the upper border of a bounded axis belongs to its last
        cell. Periodic axes wrap. Points in NumPy are looked up in NumPy, in their own precision.
        """
        xp = _library(points)
        place = self.in_cells(points)
        finite = xp.isfinite(place)
        if xp is np:  # casts saturate in JAX, but in NumPy they may end up anywhere
            finite = finite & (np.abs(place) < 2**30)
        cell = xp.floor(xp.where(finite, place, -1.0)).astype(xp.int32)
        shape = xp.asarray(self.shape, dtype=xp.int32)
        on_border = ~xp.asarray(self.periodic) & (place == shape)
        index = self.cell_index(xp.where(on_border, shape - 1, cell))
        return xp.where(xp.all(finite, axis=-1), index, -1)

    def cell_index(self, cell: Int[Points, "*batch dim"]) -> Int[Points, "*batch"]:
        """Free-cell index of cells given by coordinates; -1 in a wall or outside the box."""
        xp = _library(cell)
        shape = xp.asarray(self.shape, dtype=cell.dtype)
        cell = xp.where(xp.asarray(self.periodic), cell % shape, cell)
        inside = xp.all((cell >= 0) & (cell < shape), axis=-1)
        known = xp.where(inside[..., None], cell, 0)
        index = xp.asarray(self.index_table)[tuple(xp.moveaxis(known, -1, 0))]
        return xp.where(inside, index, -1)

    def index_at(self, *cell: int) -> int:
        """Free-cell index of the cell with these coordinates; raises if it is a wall."""
        kinds = {np.asarray(each).dtype.kind for each in cell}
        inside = len(cell) == self.dim and kinds <= {"i", "u"}
        if not (inside and all(0 <= c < n for c, n in zip(cell, self.shape, strict=True))):
            raise UserError(f"expected whole coordinates within the shape {self.shape}, got {cell}")
        index = int(self.index_table[cell])
        if index < 0:
            raise UserError(f"cell {cell} is a wall; choose a free cell")
        return index

    def displacement(
        self, start: Float[Points, "*#batch dim"], end: Float[Points, "*#batch dim"]
    ) -> Float[Points, "... dim"]:
        """``end - start``, taken the shorter way round on periodic axes."""
        difference = end - start
        extent = np.asarray(self.extent, dtype=difference.dtype)
        wrapped = difference - extent * (difference / extent).round()
        return _library(difference).where(np.array(self.periodic), wrapped, difference)

    def place(self, cell: int) -> str:
        """A free cell in words, for error messages."""
        return f"cell {tuple(self.free_cells[cell].tolist())}"

    @property
    def target_size(self) -> int:
        """How many numbers a motion returns for one agent: as many as there are axes."""
        return self.dim

    def lift(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A user's motion or reward as a function of states and actions, which it is already."""
        return function

    def told(self, state: Array) -> Array:
        """A state as users' functions get it."""
        return state

    def cut(self, state: Array, end: Array, max_move: tuple[float, ...]) -> Array:
        """A motion's result, cut to the farthest move on each axis."""
        farthest = jnp.asarray(max_move, dtype=state.dtype)
        return state + jnp.clip(end - state, -farthest, farthest)

    def band_share(self, removed: Array) -> Array:
        """Share of the band to use where one more observation removes so much of the variance."""
        return removed

    def in_band(
        self, state: Array, mean: Array, half: Array, eta: Array, max_move: tuple[float, ...]
    ) -> Array:
        """The point ``mean + half * eta`` of a model's band that a control eta picks, `cut`."""
        return self.cut(state, mean + half * eta, max_move)

    def targets(self, start: Array, ends: Array) -> Float[Array, "... dim"]:
        """What Phi and noise need of a motion's results: displacements from where agents stand."""
        return self.displacement(start, ends)

    def possible(
        self, targets: Float[Array, "*moves dim"], max_move: tuple[float, ...]
    ) -> Bool[Array, "*moves"]:
        """Which `targets` are no farther than ``max_move``, up to rounding."""
        farthest = np.asarray(max_move, dtype=targets.dtype) * (1 + 1e-4)
        return jnp.all(jnp.abs(targets) <= farthest, axis=-1)

    def controls(self, points: int) -> Float[np.ndarray, "controls dim"]:
        """Values of the hallucinated control eta in [-1, 1]^p, ``points`` on each axis.

        Two are the corners and the centre, the middle of the confidence band.
        """
        ticks = [np.linspace(-1.0, 1.0, points) if points > 1 else np.zeros(1)] * self.dim
        etas = np.stack(np.meshgrid(*ticks, indexing="ij"), axis=-1).reshape(-1, self.dim)
        return np.concatenate([np.zeros((1, self.dim)), etas]) if points == 2 else etas

    def padded_walls(self, margin: int | Sequence[int]) -> Bool[np.ndarray, "..."]:
        """The wall mask with more cells around: walls, on periodic axes the opposite side."""
        sizes = np.broadcast_to(margin, (self.dim,))
        repeated, added = (np.where(np.equal(self.periodic, on), sizes, 0) for on in (True, False))
        around = np.pad(self.walls, np.stack([repeated] * 2, axis=1), mode="wrap")
        return np.pad(around, np.stack([added] * 2, axis=1), constant_values=True)

    def to_array(self, values: Any, fill: float = math.nan) -> Float[np.ndarray, "..."]:
        """Vectors over the free cells as arrays over the box, with ``fill`` in walls."""
        values = np.asarray(values)
        full = np.full((*values.shape[:-1], *self.shape), fill, dtype=values.dtype)
        full[(..., *self.free_cells.T)] = values
        return full

    def from_array(self, array: Any) -> Float[np.ndarray, "*batch cells"]:
        """The inverse of `to_array`: the values in the free cells."""
        array = np.asarray(array)
        if array.shape[array.ndim - self.dim :] != self.shape:
            raise UserError(f"the last axes must have the shape {self.shape}, got {array.shape}")
        return np.asarray(array[(..., *self.free_cells.T)])


def _library(array: Array | np.ndarray) -> Any:
    return np if isinstance(array, np.ndarray) else jnp


def _walls(drawing: str | Sequence[str]) -> Bool[np.ndarray, "..."]:
    """The wall mask of a drawing or a stack of them, with axes (x,), (x, y) or (x, y, z)."""
    if isinstance(drawing, str):
        return _floor(drawing)
    if not isinstance(drawing, Sequence) or not drawing:
        raise UserError(
            "a map must be a drawing of '#' and '.', or a list of drawings, one for each floor; "
            f"got {drawing!r}; use Grid.box(..., walls=mask) for arrays"
        )
    floors = [np.atleast_2d(_floor(each).T).T for each in drawing]
    if len({floor.shape for floor in floors}) > 1:
        raise UserError("all floors of a map must have the same width and depth; pad them with '#'")
    return np.stack(floors, axis=-1)


def _floor(drawing: str) -> Bool[np.ndarray, "..."]:
    lines = [line.strip() for line in drawing.strip().splitlines()]
    if not lines:
        raise UserError("the map is empty: draw at least one line of '#' and '.'")
    for number, line in enumerate(lines, start=1):
        if len(line) != len(lines[0]) or set(line) - {"#", "."}:
            raise UserError(
                f"line {number} of the map is {line!r}; draw '#' for a wall and '.' for a free "
                f"cell, in all lines as many as in the first, which has {len(lines[0])}"
            )
    # Drawn top to bottom; stored with y growing upwards.
    walls = np.array([[character == "#" for character in line] for line in lines[::-1]]).T
    return walls[:, 0] if walls.shape[1] == 1 else walls
