"""Arrays from NumPy, without a compiled program for each shape."""

from typing import Any

import jax
import numpy as np
from jaxtyping import Array


def device_array(values: Any, dtype: Any = float) -> Array:
    """``jnp.asarray`` of numbers that are no tracers, which compiles nothing.

    That compiles a program for each shape and dtype: half of all programs of a new process that
    learns. ``values`` must not be changed afterwards: they may share their memory with the array.
    """
    array: Array = jax.device_put(np.asarray(values, dtype=dtype))
    return array
