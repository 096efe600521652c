"""From any numbers into the action box, and back."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..problem import Box

INSIDE = 0.97
"""How near to the border, as a share of the way from the centre, `unsquash` starts actions.

Nearer, the slope of tanh almost vanishes and gradient ascent could not move them any more.
"""


def squash(box: Box, raw: Float[Array, "*batch action_dim"]) -> Float[Array, "*batch action_dim"]:
    """Maps any numbers into the box."""
    lower, upper = (jnp.asarray(b, dtype=raw.dtype) for b in (box.lower, box.upper))
    return lower + (upper - lower) * 0.5 * (jnp.tanh(raw) + 1.0)


def unsquash(
    box: Box, actions: Float[Array, "*batch action_dim"]
) -> Float[Array, "*batch action_dim"]:
    """The inverse of `squash`, with actions kept a little inside the box."""
    lower, upper = (jnp.asarray(b, dtype=actions.dtype) for b in (box.lower, box.upper))
    share = 2.0 * (actions - lower) / (upper - lower) - 1.0
    return jnp.arctanh(jnp.clip(share, -INSIDE, INSIDE))
