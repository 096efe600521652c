"""Known transitions that are no moves: passengers carry vehicles off, lifts and ferries run.

At every step an agent is taken with a probability that may depend on mu and the step, and then
lands, instead of making its own move, in a cell that a known matrix says.
"""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ._types import CellIndex, Mass, Scalar, State, Step
from .errors import UserError, in_words
from .space.grid import Grid
from .space.measure import MASS_TOLERANCE, MeanField, at_all_cells

DENSE_SHARE = 0.1
"""A sparse matrix with more entries than this share is kept as a dense one, which is faster."""


class Trips(eqx.Module):
    """Who is taken, and where to.

    Attributes:
        chance: Probability that one agent is taken in a step, ``(state, mu) -> number``. A vehicle
            finds a passenger with ``jnp.minimum(1, demand[mu.step, cell] / mu.here)``.
        matrix: Probability of landing in each cell (columns) of an agent that was taken in each
            cell (rows): one matrix, or one for each step; or None if it is sparse.
        rows: Row of each entry of a sparse matrix, sorted.
        columns: Column of each entry.
        entries: The entries.
        cells: Number of cells.
    """

    chance: Callable[[State, MeanField], Any]
    cells: int = eqx.field(static=True)
    matrix: Float[Array, "*steps cells cells"] | None
    rows: Int[Array, "entries"] | None
    columns: Int[Array, "entries"] | None
    entries: Float[Array, "entries"] | None

    def __init__(self, chance: Any, matrix: Any):
        """Checks and builds trips.

        Args:
            chance: As the attribute.
            matrix: An array, or a sparse matrix of SciPy.
        """
        if not callable(chance):
            raise UserError(
                "the chance of a trip must be a function (state, mu) -> number of one agent, got "
                f"{type(chance).__name__}"
            )
        self.chance = chance
        self.matrix = self.rows = self.columns = self.entries = None
        sparse = hasattr(matrix, "tocsr")
        if sparse and matrix.nnz > DENSE_SHARE * matrix.shape[0] * matrix.shape[1]:
            matrix, sparse = matrix.toarray(), False
        values = np.asarray(matrix.tocsr().data if sparse else matrix, dtype=float)
        shape = matrix.shape if sparse else values.shape
        if len(shape) not in (2, 3) or shape[-1] != shape[-2]:
            raise UserError(
                "the matrix of trips must have a row and a column for each cell, or several such "
                f"matrices, one for each step; got the shape {shape}"
            )
        if not np.isfinite(values).all() or (values < 0).any():
            raise UserError("the matrix of trips must hold finite numbers that are not negative")
        sums = np.asarray(matrix.sum(axis=-1)).reshape(shape[:-1]) if sparse else values.sum(-1)
        if np.abs(sums - 1).max() > MASS_TOLERANCE:
            worst = np.unravel_index(int(np.argmax(np.abs(sums - 1))), sums.shape)
            raise UserError(
                f"each row of the matrix of trips must sum to 1, but row {int(worst[-1])} sums to "
                f"{sums[worst]:.6g}; divide rows by their sums, and where no trip begins let "
                "agents land where they are"
            )
        self.cells = int(shape[-1])
        dtype = jnp.result_type(float)
        if not sparse:
            self.matrix = jnp.asarray(values / sums[..., None], dtype=dtype)
            return
        lines = matrix.tocsr()
        counts = np.diff(lines.indptr)
        self.rows = jnp.asarray(np.repeat(np.arange(len(counts)), counts), dtype=jnp.int32)
        self.columns = jnp.asarray(lines.indices, dtype=jnp.int32)
        self.entries = jnp.asarray(lines.data / np.repeat(sums, counts), dtype=dtype)

    def chances(self, grid: Grid, mass: Mass, step: Step) -> Float[Array, "cells ..."]:
        """The chance in each cell."""
        rest = jnp.zeros((grid.n_cells, 1, 1), dtype=mass.dtype)
        found = at_all_cells(grid, mass, self.at, rest, step)
        return found[:, 0].astype(mass.dtype)

    def at(self, state: State, action: Array, mu: MeanField) -> Array:
        """The chance of one agent, as a function of a motion's arguments."""
        return jnp.asarray(self.chance(state, mu))

    def land(self, taken: Mass, step: Step) -> Mass:
        """Where the agents land that were taken in each cell."""
        if self.matrix is not None:
            return taken @ self._now(step).astype(taken.dtype)
        assert self.entries is not None
        moved = taken[self.rows] * self.entries.astype(taken.dtype)
        return jnp.zeros_like(taken).at[self.columns].add(moved)

    def landings(self, step: Step) -> "Landings":
        """The matrix of a step, made ready to draw from."""
        if self.matrix is None:
            assert self.rows is not None
            assert self.columns is not None
            assert self.entries is not None
            every = jnp.arange(self.cells, dtype=self.rows.dtype)
            first = jnp.searchsorted(self.rows, every)
            after = jnp.searchsorted(self.rows, every, side="right")
            sums = jnp.cumsum(self.entries)
            before = jnp.where(first > 0, sums[first - 1], 0.0)
            return Landings(sums - before[self.rows], first, after, self.columns)
        cells = jnp.arange(self.cells, dtype=jnp.int32)
        sums = jnp.cumsum(self._now(step), axis=1).reshape(-1)
        first = self.cells * cells
        return Landings(sums, first, first + self.cells, jnp.tile(cells, self.cells))

    def _now(self, step: Step) -> Float[Array, "cells cells"]:
        assert self.matrix is not None
        return self.matrix if self.matrix.ndim == 2 else self.matrix[step]


class Landings(eqx.Module):
    """Where agents land that are taken in each cell, as sums of probabilities along its row.

    Attributes:
        sums: For all rows, one after the other, the sums.
        first: Place of each row's first sum.
        after: Place after its last.
        columns: The cell that each sum belongs to.
    """

    sums: Float[Array, "entries"]
    first: Int[Array, "cells"]
    after: Int[Array, "cells"]
    columns: Int[Array, "entries"]

    def draw(self, cell: CellIndex, chance: Scalar) -> CellIndex:
        """A cell, from a number between 0 and 1; by halving, so that no row is copied."""
        low, high = self.first[cell], self.after[cell] - 1
        target = chance * self.sums[high]

        def halve(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = ends
            middle = (low + high) // 2
            right = self.sums[middle] <= target
            return jnp.where(right, jnp.minimum(middle + 1, high), low), jnp.where(
                right, high, middle
            )

        halvings = math.ceil(math.log2(max(2, len(self.sums)))) + 1
        place = jax.lax.fori_loop(0, halvings, halve, (low, high))[0]
        return self.columns[place]


class Ride(eqx.Module):
    """One agent's trip.

    Attributes:
        taken: Whether it is taken.
        position: Where it would land, anywhere in its cell.
        index: That cell.
    """

    taken: Bool[Array, ""]
    position: State
    index: CellIndex

    @classmethod
    def of(
        cls,
        grid: Grid,
        landings: Landings,
        cell: CellIndex,
        chance: Scalar,
        luck: Float[Array, "draws"],
    ) -> "Ride":
        """The trip of an agent that is taken with this chance.

        ``luck`` are numbers between 0 and 1: whether, where to, and one for each axis of the place
        in the cell.
        """
        index = landings.draw(cell, luck[1])
        centre = jnp.asarray(grid.centres, dtype=luck.dtype)[index]
        # Not on an edge, where rounding could put the position into the next cell.
        apart = jnp.clip(luck[2:], 1e-4, 1.0 - 1e-4) - 0.5
        return cls(
            taken=luck[0] < chance,
            position=centre + apart * jnp.asarray(grid.cell_size, dtype=luck.dtype),
            index=index,
        )


def check_trips(trips: Trips, grid: Grid, initial: Mass, horizon: int) -> None:
    """Raises if the matrix does not fit the grid, or a chance is no probability."""
    cells = grid.n_cells
    shape = (trips.cells, trips.cells) if trips.matrix is None else trips.matrix.shape
    if shape not in ((cells, cells), (horizon, cells, cells)):
        raise UserError(
            f"the matrix of trips must have the shape {(cells, cells)}, a row and a column for "
            f"each free cell, or {(horizon, cells, cells)} with one for each step; got {shape}"
        )
    for step in sorted({0, horizon // 2, horizon - 1}):
        for mass in (initial, jnp.full_like(initial, 1.0 / cells)):
            try:
                found = np.asarray(trips.chances(grid, mass, jnp.asarray(step)), dtype=float)
            except Exception as error:
                raise UserError(
                    f"the chance of a trip could not be evaluated for a state of shape "
                    f"{(grid.dim,)} and mu: {in_words(error, '(state, mu)')}"
                ) from error
            if found.shape != (cells,):
                raise UserError(
                    f"the chance of a trip must be one number for one agent, got the shape "
                    f"{found.shape[1:]}"
                )
            wrong = ~((found >= 0) & (found <= 1 + 1e-6))
            if wrong.any():
                cell = int(np.argmax(wrong))
                raise UserError(
                    f"the chance of a trip must be from 0 to 1, got {found[cell]} for the state "
                    f"{grid.centres[cell]} at step {step}; where mu.here may be 0, divide by "
                    "jnp.maximum(mu.here, 1e-9)"
                )
