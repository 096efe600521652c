"""Where in their cells agents stand: the mass of each cell and three moments on each axis."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import Mass
from .walls import INSIDE

MOMENTS = 3
"""Moments on each axis, of the position in units of cells from the centre."""


class Spread(eqx.Module):
    """Where in their cells agents stand, in units of cells from the centres.

    Attributes:
        mass: The distribution.
        moments: Mean, variance and third central moment on each axis.
    """

    mass: Mass
    moments: Float[Array, "cells dim 3"]

    @classmethod
    def even(cls, mass: Mass, dim: int) -> "Spread":
        """Agents anywhere in their cells, with equal chances."""
        flat = jnp.asarray([0.0, 1 / 12, 0.0], dtype=mass.dtype)  # moments of a uniform position
        return cls(mass, jnp.broadcast_to(flat, (*mass.shape, dim, MOMENTS)))

    @classmethod
    def of_sums(cls, sums: Float[Array, "cells channels"]) -> "Spread":
        """From each cell's mass and its mass times the powers of the position, axis after axis."""
        mass = sums[:, 0]
        known = mass > 1e-12  # of cells with less, moments would be rounding errors
        powers = sums[:, 1:].reshape(mass.shape[0], -1, MOMENTS)
        raw = powers / jnp.where(known, mass, 1.0)[:, None, None]
        mean = jnp.clip(raw[..., 0], -0.5, 0.5)
        variance = jnp.clip(raw[..., 1] - mean**2, 0.0, 0.25)
        third = raw[..., 2] - 3 * mean * raw[..., 1] + 2 * mean**3
        found = cls(mass, jnp.stack([mean, variance, third], axis=-1))
        even = cls.even(mass, powers.shape[1]).moments
        return cls(mass, jnp.where(known[:, None, None], found.moments, even))

    @property
    def sums(self) -> Float[Array, "cells channels"]:
        """What `of_sums` takes."""
        mean, variance, third = jnp.moveaxis(self.moments, -1, 0)
        second = variance + mean**2
        raw = jnp.stack([mean, second, third + 3 * mean * second - 2 * mean**3], axis=-1)
        ones = jnp.ones_like(self.mass)[:, None]
        return self.mass[:, None] * jnp.concatenate([ones, raw.reshape(len(raw), -1)], axis=1)

    @property
    def means(self) -> Float[Array, "cells dim"]:
        """The mean position in each cell."""
        return jnp.clip(self.moments[..., 0], -INSIDE, INSIDE)

    def points(self) -> tuple[Float[Array, "cells dim 2"], Float[Array, "cells dim 2"]]:
        """Two positions on each axis and their weights, which have the same three moments."""
        mean, variance, third = jnp.moveaxis(self.moments, -1, 0)
        # Below this variance the two points would be one, at which derivatives are infinite.
        variance = jnp.maximum(variance, 1e-5)
        lean = 0.5 * third / variance
        apart = jnp.sqrt(variance + lean**2)
        places = jnp.stack([mean + lean - apart, mean + lean + apart], axis=-1)
        high = jnp.clip(0.5 * (1.0 - lean / apart), 0.0, 1.0)  # rounding may put it outside
        return jnp.clip(places, -INSIDE, INSIDE), jnp.stack([1.0 - high, high], axis=-1)
