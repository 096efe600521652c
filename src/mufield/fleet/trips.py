"""Known transitions that are no moves: passengers carry vehicles off, lifts and ferries run.

At every step an agent in cell k is carried off with probability p(k, mu, step). It then lands in a
cell drawn from row k of a known origin-destination matrix P, instead of making its own move: one
step later, or after as many steps as the trip takes. Until then it is *under way*: it neither acts
nor counts in mu, whose sum is the share of agents that are free.
"""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._arrays import CellIndex, Mass, Masses, Scalar, State, Step
from ..errors import UserError, distribution, explained
from ..space.grid import Grid
from ..space.measure import MeanField, at_all_cells, inside_cell
from ..space.move import Move

Place = State | Int[Array, ""]
"""Where an agent is; on nodes it is the number of its node."""


class Trips(eqx.Module):
    """Probabilities of being carried off, and the origin-destination matrix.

    Attributes:
        chance: Probability that one agent is carried off in a step, ``(state, mu) -> number``. A
            vehicle finds a passenger with ``jnp.minimum(1, demand[mu.step, cell] / mu.here)``.
        matrix: Probability of each destination (columns) from each origin (rows): one matrix, or
            one for each step of the whole episode. Of a sparse matrix, its entries, row by row.
        entries: Of a sparse matrix, where its entries are; else None.
        durations: Steps that a trip takes, for each entry of the matrix; None if all take one.
        away: Agents under way at the start, by step from the next one on when they arrive, and by
            the cell where they do.
    """

    chance: Callable[[State, MeanField], Any]
    matrix: Float[Array, "*steps cells destinations"] | Float[Array, "entries"]
    entries: "Entries | None"
    durations: Float[Array, "..."] | None
    away: Float[Array, "stages cells"]

    def __init__(self, chance: Any, matrix: Any, durations: Any = None):
        """Checks and builds trips.

        Args:
            chance: As the attribute.
            matrix: An array, or a sparse matrix of SciPy, kept sparse if at most a tenth is filled.
            durations: Steps that trips take from each origin (rows) to each destination, the same
                at all steps or, as the matrix, with one table for each; at least 1. Of trips that
                take 1.3 steps, 70% take one step and 30% two. By default all take one.
        """
        if not callable(chance):
            raise UserError(
                "the chance of a trip must be a function (state, mu) -> number of one agent, got "
                f"{type(chance).__name__}"
            )
        self.chance = chance
        shape, sums, sparse = np.shape(matrix), None, hasattr(matrix, "tocsr")
        if sparse:
            matrix = matrix.tocsr()
            sparse = matrix.nnz <= 0.1 * math.prod(shape)
            sums = np.asarray(matrix.sum(axis=1)).reshape(-1) if sparse else None
            matrix = matrix if sparse else matrix.toarray()
        values = np.asarray(matrix.data if sparse else matrix, dtype=float)
        if len(shape) not in (2, 3) or shape[-1] != shape[-2]:
            raise UserError(
                "the matrix of trips must have a row and a column for each cell, or several such "
                f"matrices, one for each step; got the shape {shape}"
            )
        sums = distribution(
            values,
            "each row of the matrix of trips",
            "divide rows by their sums, and where no trip begins let agents land where they are",
            sums=sums,
        )
        dtype, self.entries = jnp.result_type(float), None
        values = values / (np.repeat(sums, np.diff(matrix.indptr)) if sparse else sums[..., None])
        self.matrix = jnp.asarray(values, dtype=dtype)
        if sparse:
            self.entries = Entries.of(values, matrix)
        stages, self.durations = 0, None
        if durations is not None:
            lasts = np.asarray(durations, dtype=float)
            if lasts.shape not in (shape, shape[-2:]):
                raise UserError(
                    f"durations of trips must have the shape {shape[-2:]} of the matrix, or be one "
                    f"such table for each step; got the shape {lasts.shape}"
                )
            if not (np.abs(lasts - 500.5) <= 499.5).all():
                raise UserError(
                    "durations of trips are numbers of steps, from 1 to 1,000; got values from "
                    f"{lasts.min():g} to {lasts.max():g}; divide minutes by the length of a step"
                )
            stages = math.ceil(lasts.max() - 1e-9) - 1
            lasts = lasts if self.entries is None else lasts[tuple(self.entries.places)]
            self.durations = jnp.asarray(lasts, dtype=dtype) if stages else None
        self.away = jnp.zeros((stages, shape[-1]), dtype=dtype)

    @property
    def stages(self) -> int:
        """Steps of the longest trip beyond its first one; 0 if all take one step."""
        return self.away.shape[0]

    def chances(self, grid: Grid, mass: Mass, step: Step) -> Float[Array, "cells ..."]:
        """The chance in each cell."""
        rest = jnp.zeros((grid.n_cells, 1, 1), dtype=mass.dtype)
        found = at_all_cells(grid, mass, self.chance_at, rest, step)
        return found[:, 0].astype(mass.dtype)

    def chance_at(self, state: Place, action: Array, mu: MeanField) -> Array:
        """The chance of one agent, as a function of a motion's arguments."""
        return jnp.asarray(self.chance(mu.grid.told(state), mu))

    def served(self, mass: Masses) -> float | None:
        """See `Passengers.served`; None for a chance that has no such method."""
        served = getattr(self.chance, "served", None)
        return None if served is None else float(served(mass))

    def ends(self, taken: Mass, step: Step) -> Float[Array, "stages_and_one cells"]:
        """Where agents arrive that were taken in each cell: one step later, and so on."""
        return jnp.stack([self._landed(taken, step, 1 + more) for more in range(1 + self.stages)])

    def _landed(self, taken: Mass, step: Step, after: int) -> Mass:
        """Where agents arrive whose trips take ``after`` steps."""
        matrix = _at_step(self.matrix, step)
        if self.durations is not None:  # of trips that take 1.3 steps, 70% take one
            lasts = _at_step(self.durations, step)
            matrix = matrix * jnp.maximum(1 - jnp.abs(lasts - after), 0.0)
        if self.entries is None:
            return taken @ matrix.astype(taken.dtype)
        origins, goals = self.entries.places
        return jnp.zeros_like(taken).at[goals].add(taken[origins] * matrix.astype(taken.dtype))

    def worth(self, values: Float[Array, "stages_and_one cells"], step: Step) -> Mass:
        """Expected value of being taken in each cell, from that of cells one step later and so on.

        It is the transpose of `ends`.
        """
        return jax.vjp(lambda taken: self.ends(taken, step), values[0])[1](values)[0]

    def most(self, step: Step) -> Mass:
        """The greatest mass that can be taken in each cell: see `Passengers.most`, by default 1."""
        most = getattr(self.chance, "most", None)
        return jnp.ones(self.away.shape[-1]) if most is None else most(step)

    def draw(self, cell: CellIndex, uniform: Scalar, step: Step) -> tuple[CellIndex, CellIndex]:
        """Where a trip from a cell ends, and the number of its entry; ``uniform`` is in [0, 1).

        Entries are counted row by row.
        """
        if self.entries is None:
            table = jnp.cumsum(_at_step(self.matrix, step), axis=1)
            width = table.shape[1]
            sums, first, last = table.reshape(-1), cell * width, cell * width + width - 1
        else:
            sums, width = self.entries.sums, self.away.shape[-1]
            first, last = self.entries.begins[cell], self.entries.begins[cell + 1] - 1
        target = uniform * sums[last]

        # Bisection, because jnp.searchsorted would copy the row for every agent.
        def halve(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = ends
            middle = (low + high) // 2
            right = sums[middle] <= target
            low = jnp.where(right, jnp.minimum(middle + 1, high), low)
            return low, jnp.where(right, high, middle)

        ends = (jnp.asarray(first, jnp.int32), jnp.asarray(last, jnp.int32))
        entry: Array = jax.lax.fori_loop(0, width.bit_length() + 1, halve, ends)[0]
        return (entry - first if self.entries is None else self.entries.places[1, entry]), entry

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
    ) -> tuple[Move, Bool[Array, ""], Int[Array, ""]]:
        """Where one agent of a cell comes to rest, whether a trip carried it there, and when.

        That is the number of steps after which it is free again: 1 if it moved by itself.
        ``moved`` is its own move. ``uniforms`` are numbers in [0, 1): one for whether it is carried
        off, one for the destination, and one for each axis of the position in that cell, unless
        agents are ``centred``.
        """
        chance = self.chances(grid, mass, step)[cell]
        taken = uniforms[0] < chance
        index, entry = self.draw(cell, uniforms[1], step)
        shares = jnp.full_like(uniforms[2:], 0.5) if centred else uniforms[2:]
        ends = Move(
            position=jnp.where(taken, inside_cell(grid, index, shares), moved.position),
            stopped=moved.stopped & ~taken,
            index=jnp.where(taken, index, moved.index),
        )
        lasts = jnp.ones((), dtype=jnp.int32)
        if self.durations is not None:
            steps = _at_step(self.durations, step).reshape(-1)[entry]
            # Of the uniform number it is known that it is below the chance: a new one is left.
            again = uniforms[0] / jnp.maximum(chance, 1e-9)
            rounded = jnp.floor(steps) + (again < steps - jnp.floor(steps))
            lasts = jnp.where(taken, rounded.astype(jnp.int32), lasts)
        return ends, taken, lasts

    @staticmethod
    def outside(chances: Mass) -> Mass:
        """How far each chance is outside [0, 1]; zero for the rounding of 1, infinite for NaN."""
        above = jnp.where(chances > 1 + 1e-6, chances - 1, 0.0)
        return jnp.where(jnp.isnan(chances), jnp.inf, jnp.maximum(above, -chances))

    def wrong_chance(self, grid: Grid, mass: Mass, step: Any) -> str:
        """Names the cell whose chance is farthest `outside` [0, 1]; empty if all are inside."""
        chances = _chances(self, grid, mass, jnp.asarray(step, dtype=jnp.int32))
        outside = self.outside(chances)
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
        shape = self.matrix.shape if self.entries is None else 2 * (self.away.shape[-1],)
        if shape not in ((cells, cells), (horizon, cells, cells)):
            raise UserError(
                f"the matrix of trips must have the shape {(cells, cells)}, a row and a column for "
                f"each free cell, or {(horizon, cells, cells)} with one for each step; got {shape}"
            )
        given = f"a state of shape {(grid.dim,)} and mu"
        with explained(f"the chance of a trip could not be evaluated for {given}", "(state, mu)"):
            found = _chances(self, grid, initial, jnp.asarray(0, dtype=jnp.int32))
        if found.shape != (cells,):
            raise UserError(f"the chance of a trip must be one number, got {found.shape[1:]}")
        for step in sorted({0, horizon // 2, horizon - 1}):
            for mass in (initial, jnp.full_like(initial, 1.0 / cells)):
                if why := self.wrong_chance(grid, mass, step):
                    raise UserError(why)


def _at_step(table: Any, step: Step) -> Float[Array, "..."]:
    return table if table.ndim < 3 else table[step]


class Entries(eqx.Module):
    """Where the entries of a sparse matrix are, row by row, so that rows may be of any length.

    Attributes:
        places: Origin and destination of each entry.
        begins: Number of each row's first entry, and the number of entries.
        sums: Sums of each row up to and with each entry, to draw from.
    """

    places: Int[Array, "2 entries"]
    begins: Int[Array, "cells_and_one"]
    sums: Float[Array, "entries"]

    @classmethod
    def of(cls, values: Float[np.ndarray, "entries"], matrix: Any) -> "Entries":
        """The entries of a CSR matrix whose ``values`` were made distributions."""
        counts, sums = np.diff(matrix.indptr), np.cumsum(values)
        before = np.repeat(np.append(0.0, sums)[matrix.indptr[:-1]], counts)
        origins = np.repeat(np.arange(len(counts)), counts)
        places = jnp.asarray(np.stack([origins, matrix.indices]), dtype=jnp.int32)
        begins = jnp.asarray(matrix.indptr, dtype=jnp.int32)
        return cls(places, begins, jnp.asarray(sums - before, dtype=jnp.result_type(float)))


# Compiled once for the module, so that equal trips share the program.
_chances = eqx.filter_jit(Trips.chances)
