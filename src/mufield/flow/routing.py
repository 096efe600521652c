"""Sparse matrices of zeros and ones, fast forwards and backwards in compiled CPU code."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..errors import UserError


class Lists(eqx.Module):
    """For each owner the members that it sums.

    Where few owners have many members, as corners of walls do, theirs are listed apart: else
    every list would be as long as the longest.

    Attributes:
        first: Members of each owner, padded with the number of members.
        long: Owners whose lists are longer; as often as theirs are cut.
        rest: Their further members.
    """

    first: Int[Array, "owners width"]
    long: Int[Array, "long"]
    rest: Int[Array, "long further"]
    cut_from: ClassVar[int] = 1 << 20
    """Entries from which on lists that are much longer than others are cut into parts."""
    most: ClassVar[int] = 400_000_000
    """Entries of lists that are refused, because they would fill the memory."""

    @classmethod
    def build(
        cls,
        owners: Int[np.ndarray, "links"],
        members: Int[np.ndarray, "links"],
        n: int,
        pad: int,
    ) -> "Lists":
        """Lists the members of ``n`` owners; short lists are filled with ``pad``."""
        if np.any(owners[1:] < owners[:-1]):
            order = np.argsort(owners, kind="stable")
            owners, members = owners[order], members[order]
            del order
        counts = np.bincount(owners, minlength=n)
        most = max(1, int(counts.max(initial=0)))
        width = _width(counts, most)
        if n * width > cls.most:
            raise UserError(
                f"the tables of windows would have lists of {n * width:,} entries, more than "
                f"{cls.most:,}; let agents move fewer cells in a step, or take larger cells"
            )
        long = np.flatnonzero(counts > width)
        further = counts[long] - width
        cut = _cut(further, most - width)
        parts = -(-further // cut)
        # Never all lists at the longest one's length: that could take a thousand times as much.
        first = np.full((n, width), pad, dtype=np.int32)
        rest = np.full((int(parts.sum()), cut), pad, dtype=np.int32)
        place = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
        early = place < width
        first[owners[early], place[early]] = members[early]
        late, place = members[~early], place[~early] - width
        row = np.repeat(np.cumsum(parts) - parts, further)
        rest[row + place // cut, place % cut] = late
        names = np.repeat(long, parts).astype(np.int32)
        return cls(*(jnp.asarray(part) for part in (first, names, rest)))

    def __call__(self, values: Float[Array, "members *rest"]) -> Float[Array, "owners *rest"]:
        """The sum of each owner's members."""
        padded = jnp.concatenate([values, jnp.zeros_like(values[:1])])

        def take(places: Int[Array, "..."]) -> Array:
            # Bounds are not checked, nor negative numbers understood: that would take time.
            return padded.at[places].get(mode="promise_in_bounds", wrap_negative_indices=False)

        if self.first.shape[1] == 1:
            sums = take(self.first[:, 0])
        else:
            sums = jnp.sum(take(self.first), axis=1)
        if not len(self.long):
            return sums
        return sums.at[self.long].add(jnp.sum(take(self.rest), axis=1))


class Routing(eqx.Module):
    """The linear map ``y[j] = sum of x[i] over the inputs i that lead to j``.

    It is a sparse matrix of zeros and ones. Scattering is slow in compiled CPU code, and the
    gradient of a gather is a scatter. So both directions are stored as gathers: for each output
    the inputs that it sums, and for each input the outputs that it reaches.

    Attributes:
        incoming: Inputs of each output.
        outgoing: Outputs of each input.
    """

    incoming: Lists
    outgoing: Lists

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
            incoming=Lists.build(outputs, inputs, n_outputs, n_inputs),
            outgoing=Lists.build(inputs, outputs, n_inputs, n_outputs),
        )

    @property
    def transposed(self) -> "Routing":
        """The transposed matrix."""
        return Routing(incoming=self.outgoing, outgoing=self.incoming)

    def __call__(self, values: Float[Array, "inputs *rest"]) -> Float[Array, "outputs *rest"]:
        """Sums the inputs of each output."""
        return _route(values, self.incoming, self.outgoing)


@jax.custom_vjp
def _route(values: Array, incoming: Lists, outgoing: Lists) -> Array:
    return incoming(values)


def _route_forward(values: Array, incoming: Lists, outgoing: Lists) -> tuple[Array, Any]:
    return _route(values, incoming, outgoing), (incoming, outgoing)


def _route_backward(tables: Any, cotangent: Array) -> tuple[Array, None, None]:
    incoming, outgoing = tables
    return _route(cotangent, outgoing, incoming), None, None


_route.defvjp(_route_forward, _route_backward)


def _cut(further: Int[np.ndarray, "long"], most: int) -> int:
    """The length that further members are cut into, so that few long lists do not make all long.

    Short tables are not cut: their sums are faster and, as ever, in one order.
    """
    if len(further) * most < Lists.cut_from:
        return most
    widths = 1 << np.arange(3, most.bit_length())
    sizes = [int((-(-further // w)).sum()) * (w + 1) for w in widths.tolist()]
    best = int(np.argmin(sizes))
    return most if 2 * sizes[best] > len(further) * most else int(widths[best])


def _width(counts: Int[np.ndarray, "owners"], most: int) -> int:
    """The length of lists that takes the least memory if longer ones are listed apart."""
    widths = np.arange(1, most + 1)
    longer = len(counts) - np.cumsum(np.bincount(counts, minlength=most + 1))[1:]
    sizes = len(counts) * widths + longer * (most - widths)
    # Lists of one length are faster, if they take at most twice as much.
    return most if 2 * sizes.min() > len(counts) * most else int(widths[np.argmin(sizes)])
