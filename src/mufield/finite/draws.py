"""Fast random numbers for many agents, and actions drawn with one number for each agent.

That number, an agent's *chance*, is uniform between 0 and 1; one for each action is many times
cheaper than one for each possible move, as in `jax.random.categorical`.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from .._arrays import Action, CellIndex, Scalar
from ..errors import distribution
from ..policies.base import ActionLaw
from ..space.move import draw_index
from ..space.walls import look_up


def random_bits(
    seed: UInt32[np.ndarray, "parts"], number: int, size: int, words: int
) -> UInt32[np.ndarray, "words agents"]:
    """Random bits for the ``size`` agents of block ``number``: ``words`` for each.

    ``seed`` identifies the step. NumPy draws them several times faster than JAX on a CPU.
    """
    sequence = np.random.SeedSequence([*seed.tolist(), number])
    stream = np.random.Generator(np.random.SFC64(sequence))
    pairs = -(-words * size // 2)  # two words at a time are drawn as fast as one
    drawn = stream.integers(2**64 - 1, size=pairs, dtype=np.uint64, endpoint=True)
    return drawn.view(np.uint32)[: words * size].reshape(words, size)


def uniform(bits: UInt32[Array, "*shape"], dtype: Any) -> Float[Array, "*shape"]:
    """Uniform numbers between 0 and 1, both excluded."""
    resolution = 23  # bits: as many as float32 resolves everywhere between 0 and 1
    steps = (bits >> (32 - resolution)).astype(dtype)
    return (steps + 0.5) * 2.0**-resolution


class CellLaws(eqx.Module):
    """The laws of all cells, from which agents draw by bisection.

    Attributes:
        cumulative: Cumulative weights of each cell's moves, which end at one; each row is padded to
            a power of two with numbers above any chance.
        actions: The cells' moves: for each axis of an action, one after the other.
        moves: Number of moves in each cell.
    """

    cumulative: Float[Array, "cells width"]
    actions: tuple[Float[Array, "cells_and_moves"], ...]
    moves: int = eqx.field(static=True)

    @classmethod
    def build(cls, law: ActionLaw, used: Bool[np.ndarray, "cells"]) -> "CellLaws":
        """Makes the tables; raises if the weights of a ``used`` cell are not a distribution."""
        weights = np.asarray(law.weights, dtype=float)
        distribution(weights[used], "the weights of a randomised policy", "normalise them")
        # In double precision and in order: a weight of zero adds exactly nothing, is never drawn.
        sums = np.cumsum(weights, axis=1)
        sums = np.divide(sums, sums[:, -1:], out=np.ones_like(sums), where=sums[:, -1:] > 0)
        moves = weights.shape[1]
        width = 1 << math.ceil(math.log2(max(2, moves)))
        cumulative = np.pad(sums, ((0, 0), (0, width - moves)), constant_values=2.0)
        actions = np.moveaxis(np.asarray(law.actions), -1, 0).reshape(law.actions.shape[-1], -1)
        table = jnp.asarray(cumulative, dtype=law.weights.dtype)
        return cls(table, tuple(map(jnp.asarray, actions)), moves)

    def find(
        self, cell: Int[Array, "*agents"], chance: Float[Array, "*agents"]
    ) -> Int[Array, "*agents"]:
        """Which of their cell's moves agents make: the first whose cumulative weight is above."""
        if self.moves == 1:
            return jnp.zeros_like(cell)
        width, table = self.cumulative.shape[1], self.cumulative.reshape(-1)
        begin = jnp.asarray(cell * width, dtype=jnp.int32)

        def halve(time: Array, place: Array) -> Array:
            step = (width >> 1) >> time
            return place + jnp.where(look_up(table, [place + (step - 1)]) <= chance, step, 0)

        # A loop, because the compiler would bisect again wherever the result is used.
        place: Array = jax.lax.fori_loop(0, width.bit_length() - 1, halve, begin)
        return place - begin

    def action(self, cell: CellIndex, choice: Int[Array, ""]) -> Action:
        """The action of an agent that makes this one of its cell's moves."""
        return jnp.stack([look_up(axis, [cell * self.moves + choice]) for axis in self.actions])


def drawn(law: ActionLaw, chance: Scalar) -> Action:
    """The action of one agent, given its law and its chance."""
    if law.actions.shape[0] == 1:
        return law.actions[0]
    return law.actions[draw_index(law.weights, chance)]
