"""Random numbers of many agents, and actions drawn from one of them each.

Bits come from the host, where they are cheaper; one number for an action is many times cheaper
than one for each move.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from .._types import Action, CellIndex, Scalar
from ..policies.base import ActionLaw
from ..systems import check_weights

RESOLUTION = 23
"""Bits of a uniform number: as many as float32 can tell apart everywhere from 0 to 1."""

BEYOND = 2.0
"""Fills rows of cumulative weights up; no chance reaches it."""


def random_bits(
    seed: UInt32[np.ndarray, "parts"], number: int, size: int, words: int
) -> UInt32[np.ndarray, "agents drawn"]:
    """Bits of a block's agents at one step; a few more than asked for may come.

    From NumPy, because JAX takes several times longer to draw them on a processor.

    Args:
        seed: What identifies the step.
        number: Number of the block.
        size: How many agents the block has.
        words: How many words each agent needs.
    """
    sequence = np.random.SeedSequence([*seed.tolist(), number])
    stream = np.random.Generator(np.random.SFC64(sequence))
    pairs = -(-words // 2)  # two words at a time are drawn as fast as one
    drawn = stream.integers(2**64 - 1, size=(size, pairs), dtype=np.uint64, endpoint=True)
    return drawn.view(np.uint32)


def uniform(bits: UInt32[Array, "*shape"], dtype: Any) -> Float[Array, "*shape"]:
    """Evenly from 0 to 1; neither of the two is ever reached."""
    steps = (bits >> (32 - RESOLUTION)).astype(dtype)
    return (steps + 0.5) * 2.0**-RESOLUTION


def normal(bits: UInt32[Array, "*shape"], dtype: Any) -> Float[Array, "*shape"]:
    """Standard normal numbers."""
    return math.sqrt(2.0) * jax.lax.erf_inv(2.0 * uniform(bits, dtype) - 1.0)


class CellLaws(eqx.Module):
    """The laws of all cells as tables.

    Attributes:
        cumulative: Cumulative weights of each cell's moves, as `cumulated` makes them.
        actions: The moves.
    """

    cumulative: Float[Array, "cells width"]
    actions: Float[Array, "cells moves action_dim"]

    @classmethod
    def build(cls, law: ActionLaw, used: Bool[np.ndarray, "cells"]) -> "CellLaws":
        """Makes the tables; raises if weights in a ``used`` cell are no distribution."""
        weights = np.asarray(law.weights, dtype=float)
        error = float(np.abs(weights[used].sum(axis=1) - 1.0).max())
        check_weights(error, float(weights[used].min()))
        return cls(jnp.asarray(cumulated(weights), dtype=law.weights.dtype), law.actions)

    def draw(self, cell: CellIndex, chance: Scalar) -> Action:
        """The action of an agent in a cell, given a number from 0 to 1."""
        if self.actions.shape[1] == 1:
            return self.actions[cell, 0]
        return self.actions[cell, find(self.cumulative, cell, chance)]


def cumulated(weights: Float[np.ndarray, "rows moves"]) -> Float[np.ndarray, "rows width"]:
    """Cumulative weights that end at one, rows filled up to a power of two."""
    # Summed one after the other in double precision: a weight of zero adds nothing, so that no
    # chance finds it.
    sums = np.cumsum(weights, axis=1)
    sums = np.divide(sums, sums[:, -1:], out=np.ones_like(sums), where=sums[:, -1:] > 0)
    width = 1 << math.ceil(math.log2(max(2, weights.shape[1])))
    return np.pad(sums, ((0, 0), (0, width - weights.shape[1])), constant_values=BEYOND)


def find(
    cumulative: Float[Array, "rows width"], row: CellIndex | int, chance: Scalar
) -> Int[Array, ""]:
    """The first entry of a row of `cumulated` above ``chance``, by halving."""
    width = cumulative.shape[1]
    table = cumulative.reshape(-1)
    begin = jnp.asarray(row * width, dtype=jnp.int32)
    place, step = begin, width // 2
    while step:
        # Places are always in the table; checks of them would take most of the time.
        entry = table.at[place + (step - 1)].get(
            mode="promise_in_bounds", wrap_negative_indices=False
        )
        place = place + jnp.where(entry <= chance, step, 0)
        step //= 2
    return place - begin


def drawn(law: ActionLaw, chance: Scalar) -> Action:
    """The action of one agent's law, given a number from 0 to 1."""
    if law.actions.shape[0] == 1:
        return law.actions[0]
    sums = jnp.cumsum(law.weights)
    # A weight of zero must not be found, however the sums are rounded.
    above = (sums > chance * sums[-1]) & (law.weights > 0)
    return law.actions[jnp.argmax(above)]
