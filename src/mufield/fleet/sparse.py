"""Stochastic matrices: sparse ones, and draws from the rows of any."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._types import CellIndex, Scalar


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

    def draw(self, cell: CellIndex, uniform: Scalar) -> Int[Array, ""]:
        """Number of an entry of row ``cell``, from a uniform number in [0, 1)."""
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
        entry: Array = jax.lax.fori_loop(0, halvings, halve, (low, high))[0]
        return entry


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
