"""Known transitions that are no moves: passengers carry vehicles off, lifts and ferries run.

At every step an agent in cell k is carried off with probability p(k, mu, step). It then lands in a
cell drawn from row k of a known origin-destination matrix P, instead of making its own move.
"""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._types import CellIndex, Mass, Masses, Scalar, State, Step
from ..checks import distribution
from ..errors import UserError, in_words
from ..interfaces import AbstractTrips
from ..space.grid import Grid
from ..space.measure import MeanField, at_all_cells, inside_cell
from ..space.move import Move
from ..space.nodes import Nodes, node_number
from .passengers import Passengers


class RowSampler(eqx.Module):
    """Draws columns of a stochastic matrix by inverting each row's distribution function.

    Attributes:
        sums: Cumulative sums of the entries within each row, row after row.
        starts: Index of each row's first entry, and the number of entries.
        columns: Column of each entry.
    """

    sums: Float[Array, "entries"]
    starts: Int[Array, "cells_and_end"]
    columns: Int[Array, "entries"]

    def draw(self, cell: CellIndex, uniform: Scalar) -> CellIndex:
        """A column of row ``cell``, from a uniform number in [0, 1)."""
        low, high = self.starts[cell], self.starts[cell + 1] - 1
        target = uniform * self.sums[high]

        # Bisection, because jnp.searchsorted would copy the row for every agent.
        def halve(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = ends
            middle = (low + high) // 2
            right = self.sums[middle] <= target
            low = jnp.where(right, jnp.minimum(middle + 1, high), low)
            return low, jnp.where(right, high, middle)

        halvings = math.ceil(math.log2(max(2, len(self.sums)))) + 1
        return self.columns[jax.lax.fori_loop(0, halvings, halve, (low, high))[0]]


class SparseMatrix(eqx.Module):
    """A sparse stochastic matrix: row, column and value of each entry, in the order of rows."""

    rows: Int[Array, "entries"]
    entries: Float[Array, "entries"]
    sampler: RowSampler
    shape: tuple[int, int] = eqx.field(static=True)

    @classmethod
    def of(cls, matrix: Any, dtype: Any) -> "SparseMatrix":
        """From a CSR matrix of SciPy whose rows sum to 1."""
        counts, first = np.diff(matrix.indptr), matrix.indptr[:-1]
        rows = np.repeat(np.arange(len(counts)), counts)
        # In 64 bits, and kept as sums within the row: in 32 bits, sums over all rows would round
        # the probabilities of the last rows by several per cent.
        total = np.cumsum(matrix.data, dtype=np.float64)
        sums = total - (total[first] - matrix.data[first])[rows]
        whole = [jnp.asarray(x, dtype=jnp.int32) for x in (rows, matrix.indptr, matrix.indices)]
        sampler = RowSampler(jnp.asarray(sums, dtype=dtype), *whole[1:])
        return cls(whole[0], jnp.asarray(matrix.data, dtype=dtype), sampler, matrix.shape)


class Trips(AbstractTrips):
    """Probabilities of being carried off, and the origin-destination matrix.

    Attributes:
        chance: Probability that one agent is carried off in a step, ``(state, mu) -> number``. A
            vehicle finds a passenger with ``jnp.minimum(1, demand[mu.step, cell] / mu.here)``.
        matrix: Probability of each destination (columns) from each origin (rows): one matrix, or
            one for each step of the whole episode.
    """

    chance: Callable[[State, MeanField], Any]
    matrix: Float[Array, "*steps cells cells"] | SparseMatrix

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
        sparse = matrix.tocsr() if hasattr(matrix, "tocsr") else None
        if sparse is not None and sparse.nnz > 0.1 * math.prod(sparse.shape):
            matrix, sparse = sparse.toarray(), None  # which is then faster
        values = np.asarray(matrix if sparse is None else sparse.data, dtype=float)
        shape = values.shape if sparse is None else sparse.shape
        if len(shape) not in (2, 3) or shape[-1] != shape[-2]:
            raise UserError(
                "the matrix of trips must have a row and a column for each cell, or several such "
                f"matrices, one for each step; got the shape {shape}"
            )
        sums = distribution(
            values,
            "each row of the matrix of trips",
            "divide rows by their sums, and where no trip begins let agents land where they are",
            sums=None if sparse is None else np.asarray(sparse.sum(axis=1)).reshape(-1),
        )
        dtype = jnp.result_type(float)
        if sparse is None:
            self.matrix = jnp.asarray(values / sums[..., None], dtype=dtype)
        else:
            scaled = sparse.copy()
            scaled.data = values / np.repeat(sums, np.diff(sparse.indptr))
            self.matrix = SparseMatrix.of(scaled, dtype)

    def chances(self, grid: Grid, mass: Mass, step: Step) -> Float[Array, "cells ..."]:
        """The chance in each cell."""
        rest = jnp.zeros((grid.n_cells, 1, 1), dtype=mass.dtype)
        found = at_all_cells(grid, mass, self.chance_at, rest, step)
        return found[:, 0].astype(mass.dtype)

    def chance_at(self, state: State, action: Array, mu: MeanField) -> Array:
        """The chance of one agent, as a function of a motion's arguments."""
        nodes = isinstance(mu.grid, Nodes)
        return jnp.asarray(self.chance(node_number(state) if nodes else state, mu))

    def served(self, mass: Masses) -> float | None:
        """See `Passengers.served`; None for another chance."""
        return self.chance.served(mass) if isinstance(self.chance, Passengers) else None

    def land(self, taken: Mass, step: Step) -> Mass:
        """The distribution of destinations of the agents that were taken in each cell."""
        if isinstance(self.matrix, SparseMatrix):
            moved = taken[self.matrix.rows] * self.matrix.entries.astype(taken.dtype)
            return jnp.zeros_like(taken).at[self.matrix.sampler.columns].add(moved)
        return taken @ self._at_step(step).astype(taken.dtype)

    def worth(self, values: Float[Array, "stages cells"], step: Step) -> Mass:
        """Expected value of being taken in each cell, from the value of each cell one step later.

        It is the transpose of `land`.
        """
        here = jnp.zeros_like(values[0])
        found: Mass = jax.vjp(lambda taken: self.land(taken, step), here)[1](values[0])[0]
        return found

    def most(self, step: Step) -> Mass:
        """The greatest mass that can be taken in each cell: with `Passengers`, their number."""
        if isinstance(self.chance, Passengers):
            return self.chance.demand[jnp.minimum(step, len(self.chance.demand) - 1)]
        return jnp.ones(self.matrix.shape[-1])

    def sampler(self, step: Step) -> RowSampler:
        """The matrix of a step, prepared for drawing destinations."""
        if isinstance(self.matrix, SparseMatrix):
            return self.matrix.sampler
        size = self.matrix.shape[-1]
        sums = jnp.cumsum(self._at_step(step), axis=1).reshape(-1)
        starts = size * jnp.arange(size + 1, dtype=jnp.int32)
        return RowSampler(sums, starts, jnp.tile(jnp.arange(size, dtype=jnp.int32), size))

    def carry(
        self,
        grid: Grid,
        mass: Mass,
        step: Step,
        cell: CellIndex,
        moved: Move,
        uniforms: Float[Array, "draws"],
        *,
        centred: bool,
    ) -> tuple[Move, Bool[Array, ""]]:
        """Where one agent of a cell comes to rest, and whether a trip carried it there.

        ``moved`` is its own move. ``uniforms`` are numbers in [0, 1): one for whether it is carried
        off, one for the destination, and one for each axis of the position in that cell, unless
        agents are ``centred``.
        """
        taken = uniforms[0] < self.chances(grid, mass, step)[cell]
        index = self.sampler(step).draw(cell, uniforms[1])
        shares = jnp.full_like(uniforms[2:], 0.5) if centred else uniforms[2:]
        ends = Move(
            position=jnp.where(taken, inside_cell(grid, index, shares), moved.position),
            stopped=moved.stopped & ~taken,
            index=jnp.where(taken, index, moved.index),
        )
        return ends, taken

    def wrong_chance(self, grid: Grid, mass: Mass, step: Any) -> str:
        """Names the cell whose chance is farthest outside [0, 1]; empty if all are inside.

        The rounding of a chance of 1, up to 1e-6, counts as inside.
        """
        chances = _chances(self, grid, mass, jnp.asarray(step, dtype=jnp.int32))
        above = jnp.where(chances > 1 + 1e-6, chances - 1, 0.0)
        outside = jnp.where(jnp.isnan(chances), jnp.inf, jnp.maximum(above, -chances))
        cell = int(jnp.argmax(outside))
        if not outside[cell] > 0:
            return ""
        return (
            f"the chance of a trip must be from 0 to 1, got {float(chances[cell])} in cell {cell}, "
            f"for the state {grid.centres[cell]}, at step {int(step)}; where mu.here may be 0, "
            "divide by jnp.maximum(mu.here, 1e-9), and bound the result with "
            "jnp.clip(chance, 0, 1)"
        )

    def check(self, grid: Grid, initial: Mass, horizon: int) -> None:
        """Raises if the matrix does not fit the grid, or a chance is no probability.

        Chances are tried for the initial and the uniform distribution, at three steps.
        """
        cells = grid.n_cells
        if self.matrix.shape not in ((cells, cells), (horizon, cells, cells)):
            raise UserError(
                f"the matrix of trips must have the shape {(cells, cells)}, a row and a column for "
                f"each free cell, or {(horizon, cells, cells)} with one for each step; got "
                f"{self.matrix.shape}"
            )
        try:
            found = _chances(self, grid, initial, jnp.asarray(0, dtype=jnp.int32))
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
        for step in sorted({0, horizon // 2, horizon - 1}):
            for mass in (initial, jnp.full_like(initial, 1.0 / cells)):
                if why := self.wrong_chance(grid, mass, step):
                    raise UserError(why)

    def _at_step(self, step: Step) -> Float[Array, "cells cells"]:
        assert not isinstance(self.matrix, SparseMatrix)
        return self.matrix if self.matrix.ndim == 2 else self.matrix[step]


# Compiled once for the module, so that equal trips share the program.
_chances = eqx.filter_jit(Trips.chances)
