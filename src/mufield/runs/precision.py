"""The number format of a run."""

import jax
import jax.numpy as jnp

from ..errors import UserError
from .config import RunConfig


def current_precision() -> str:
    """The number format that JAX computes in."""
    return str(jnp.result_type(float))


def set_precision(precision: str) -> None:
    """Makes JAX compute in a number format; for programs only, a library must not."""
    if precision != current_precision():
        jax.config.update("jax_enable_x64", precision == "float64")


def check_precision(config: RunConfig) -> None:
    """Raises if JAX computes in another number format than the run."""
    if config.precision != current_precision():
        raise UserError(
            f"the run computes in {config.precision}, but JAX is set to {current_precision()}; "
            "call jax.config.update('jax_enable_x64', "
            f"{config.precision == 'float64'}) at the start"
        )
