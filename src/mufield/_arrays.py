"""Array aliases and axis letters, used in every signature; and functions of arrays.

Axes: ``cells`` are the free cells of a grid in their indexing order, ``dim`` the axes of the
state space (the paper's p), ``action_dim`` those of the action space (q), ``moves`` the points
of a randomised policy's support, ``steps`` the decisions h = 0..H-1, ``agents`` tracked agents.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PRNGKeyArray

Key = PRNGKeyArray
Scalar = Float[Array, ""]
State = Float[Array, "dim"]
States = Float[Array, "agents dim"]
Action = Float[Array, "action_dim"]
Mass = Float[Array, "cells"]
Masses = Float[Array, "steps_and_end cells"]
Stopped = Bool[Array, "dim"]
CellIndex = Int[Array, ""]
Target = Float[Array, "target"]
"""What a motion returns: where an agent aims, or on nodes the probabilities of its successors."""
Step = Int[ArrayLike, ""]

Margins = Float[Array, "*paths steps margins"]
"""How far inside its constraints the population is after each move, as a share of each limit.

With shocks the first axis is that of their paths."""


def device_array(values: Any, dtype: Any = float) -> Array:
    """``jnp.asarray`` of numbers that are no tracers, which compiles nothing.

    That compiles a program for each shape and dtype: half of all programs of a new process that
    learns. ``values`` must not be changed afterwards: they may share their memory with the array.
    """
    return jax.device_put(np.asarray(values, dtype=dtype))


def stacked(*trees: Any) -> Any:
    """Trees of one structure as one, whose arrays have one more axis, the first."""

    def one(*leaves: Any) -> Any:
        return jnp.stack(leaves) if isinstance(leaves[0], Array) else leaves[0]

    return jax.tree.map(one, *trees)


def entry(tree: Any, index: Any) -> Any:
    """One of the trees that `stacked` put together."""
    return jax.tree.map(lambda leaf: leaf[index] if isinstance(leaf, Array) else leaf, tree)


def as_key(key: PRNGKeyArray | int) -> PRNGKeyArray:
    """A key of random numbers; a whole number is the seed of one."""
    return jax.random.key(key) if isinstance(key, int | np.integer) else key


def map_in_parts(function: Callable[[Any], Any], values: Any, most: int) -> Any:
    """``function`` of each entry along the first axis, at most so many of them at once.

    All parts are equally long, with repeated entries at the end: `jax.lax.map` compiles the
    function a second time for a remainder.
    """
    length = len(jax.tree.leaves(values)[0])
    parts = max(1, -(-length // most))
    size = -(-length // parts)

    def parted(leaf: Array) -> Array:
        repeated = jnp.broadcast_to(leaf[-1:], (parts * size - length, *leaf.shape[1:]))
        return jnp.concatenate([leaf, repeated]).reshape(parts, size, *leaf.shape[1:])

    found = jax.lax.map(jax.vmap(function), jax.tree.map(parted, values))
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:length], found)
