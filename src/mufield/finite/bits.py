"""Random numbers of many agents, from bits that the host draws."""

import math
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, UInt32

RESOLUTION = 23
"""Bits of a uniform number: as many as float32 can tell apart everywhere from 0 to 1."""


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
