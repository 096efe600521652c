"""Sparse matrices of zeros and ones, fast forwards and backwards in compiled CPU code."""

import math
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._arrays import device_array
from ..errors import UserError


class Ellpack(eqx.Module):
    """A sparse matrix of zeros and ones in rows of equal length, the ELLPACK format.

    Each row of the matrix, an *owner*, lists its columns that are one, the *members* that it sums.
    Long lists are continued in further rows: where few owners have many members, as corners of
    walls do, else every list would be as long as the longest.

    Attributes:
        rows: Members, padded with the number of members: first a row for each owner, then others.
        owners: The owners of those other rows.
    """

    rows: Int[Array, "rows width"]
    owners: Int[Array, "further"]
    most: ClassVar[int] = 400_000_000
    """Entries of lists that are refused, because they would fill the memory."""

    @classmethod
    def build(
        cls, owners: Int[np.ndarray, "links"], members: Int[np.ndarray, "links"], n: int, pad: int
    ) -> "Ellpack":
        """Lists the members of ``n`` owners; short rows are filled with ``pad``."""
        if np.any(owners[1:] < owners[:-1]):
            order = np.argsort(owners, kind="stable")
            owners, members = owners[order], members[order]
        counts = np.bincount(owners, minlength=n)
        width = _width(counts)
        further = np.maximum(-(-counts // width) - 1, 0)
        shape = (n + int(further.sum()), width)
        if math.prod(shape) > cls.most:
            raise UserError(
                f"the tables of windows would have lists of {math.prod(shape):,} entries, more "
                f"than {cls.most:,}; let agents move fewer cells in a step, or take larger cells"
            )
        place = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
        before = n + np.cumsum(further) - further - 1
        row = np.where(place < width, owners, before[owners] + place // width)
        rows = np.full(shape, pad, dtype=np.int32)
        rows[row, place % width] = members
        more = np.repeat(np.arange(n), further)
        return cls(device_array(rows, np.int32), device_array(more, np.int32))

    def __call__(self, values: Float[Array, "members *rest"]) -> Float[Array, "owners *rest"]:
        """The sum of each owner's members."""
        padded = jnp.concatenate([values, jnp.zeros_like(values[:1])])
        rows = self.rows[:, 0] if self.rows.shape[1] == 1 else self.rows
        # Bounds are not checked, nor negative numbers understood: that would take time.
        sums = padded.at[rows].get(mode="promise_in_bounds", wrap_negative_indices=False)
        if rows.ndim == 2:
            sums = jnp.sum(sums, axis=1)
        if not len(self.owners):
            return sums
        n = len(sums) - len(self.owners)
        return sums[:n].at[self.owners].add(sums[n:])


def _width(counts: Int[np.ndarray, "owners"]) -> int:
    """The length of rows that takes the least memory.

    One row for each owner is faster, if that takes at most twice as much.
    """
    lengths, many = np.unique(np.maximum(counts, 1), return_counts=True)
    if not len(counts):
        return 1
    sizes = [width * int(np.sum(-(-lengths // width) * many)) for width in lengths.tolist()]
    return int(lengths[-1] if sizes[-1] <= 2 * min(sizes) else lengths[np.argmin(sizes)])


class Routing(eqx.Module):
    """The linear map ``y[j] = sum of x[i] over the inputs i that lead to j``.

    It is a sparse matrix of zeros and ones. Scattering is slow in compiled CPU code, and the
    gradient of a gather is a scatter. So both directions are stored as gathers: for each output
    the inputs that it sums, and for each input the outputs that it reaches.
    """

    incoming: Ellpack
    outgoing: Ellpack

    @classmethod
    def build(
        cls,
        inputs: Int[np.ndarray, "links"],
        outputs: Int[np.ndarray, "links"],
        n_inputs: int,
        n_outputs: int,
    ) -> "Routing":
        """Builds the map; link number i leads from ``inputs[i]`` to ``outputs[i]``."""
        return cls(
            incoming=Ellpack.build(outputs, inputs, n_outputs, n_inputs),
            outgoing=Ellpack.build(inputs, outputs, n_inputs, n_outputs),
        )

    @classmethod
    def to_ends(cls, ends: Int[np.ndarray, "..."], n_ends: int) -> "Routing":
        """The map from each entry of an array to the output that it names; to none if negative."""
        named = np.flatnonzero(ends.ravel() >= 0).astype(np.int32)
        return cls.build(named, ends.ravel()[named], ends.size, n_ends)

    @property
    def transposed(self) -> "Routing":
        """The transposed matrix."""
        return Routing(incoming=self.outgoing, outgoing=self.incoming)

    def __call__(self, values: Float[Array, "inputs *rest"]) -> Float[Array, "outputs *rest"]:
        """Sums the inputs of each output."""
        return _route(values, self.incoming, self.outgoing)


@jax.custom_vjp
def _route(values: Array, incoming: Ellpack, outgoing: Ellpack) -> Array:
    return incoming(values)


def _route_forward(values: Array, incoming: Ellpack, outgoing: Ellpack) -> tuple[Array, Any]:
    return _route(values, incoming, outgoing), (incoming, outgoing)


def _route_backward(tables: Any, cotangent: Array) -> tuple[Array, None, None]:
    incoming, outgoing = tables
    return _route(cotangent, outgoing, incoming), None, None


_route.defvjp(_route_forward, _route_backward)
