"""The networks of a deep ensemble: their prior and their loss."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._types import Key, Scalar

SMALLEST_VARIANCE = 1e-6
"""Floor of the learned variance, in units of the squared target scale."""


class Member(eqx.Module):
    """One network: a hidden layer, a mean head and a variance head.

    All arrays of an ensemble carry a leading axis for the members.
    """

    hidden_weight: Float[Array, "*members features width"]
    hidden_bias: Float[Array, "*members width"]
    mean_weight: Float[Array, "*members width dim"]
    mean_bias: Float[Array, "*members dim"]
    variance_weight: Float[Array, "*members width dim"]
    variance_bias: Float[Array, "*members dim"]

    def __call__(self, features: Float[Array, "... features"]) -> tuple[Array, Array]:
        """Mean and variance of the scaled displacement."""
        hidden = jax.nn.leaky_relu(features @ self.hidden_weight + self.hidden_bias)
        mean = hidden @ self.mean_weight + self.mean_bias
        raw = hidden @ self.variance_weight + self.variance_bias
        return mean, jax.nn.softplus(raw) + SMALLEST_VARIANCE


def prior_spread(features: int, width: int, scale: float) -> dict[str, float]:
    """Standard deviation of each part of a network before data.

    Chosen so that the mean's spread is of the order of ``scale`` for inputs of the order of one.
    """
    return {
        "hidden_weight": 1 / float(np.sqrt(features)),
        "hidden_bias": 0.5,
        "mean_weight": scale / float(np.sqrt(width / 2)),
        "mean_bias": 0.1 * scale,
        "variance_weight": 0.1 / float(np.sqrt(width)),
        "variance_bias": 1.0,
    }


def draw_members(
    count: int, features: int, width: int, dim: int, scale: float, key: Key, dtype: jnp.dtype
) -> Member:
    """Networks drawn from the prior; their variance heads start level."""
    spread = prior_spread(features, width, scale)
    shapes = {
        "hidden_weight": (features, width),
        "hidden_bias": (width,),
        "mean_weight": (width, dim),
        "mean_bias": (dim,),
        "variance_weight": (width, dim),
    }
    sizes = [int(np.prod(shape)) for shape in shapes.values()]
    # One draw for all parts: every further one would take longer to compile than the loss.
    drawn = jax.random.normal(key, (count, sum(sizes)), dtype=dtype)
    cuts = jnp.split(drawn, np.cumsum(sizes)[:-1], axis=1)
    parts = {
        name: spread[name] * cut.reshape(count, *shape)
        for cut, (name, shape) in zip(cuts, shapes.items(), strict=True)
    }
    return Member(**parts, variance_bias=jnp.zeros((count, dim), dtype=dtype))


def distance_from(anchor: Member, member: Member, scale: float) -> Scalar:
    """Minus the logarithm of the prior's density, centred at the anchor."""
    features, width = member.hidden_weight.shape
    spread = prior_spread(features, width, scale)
    total = jnp.zeros((), dtype=member.mean_bias.dtype)
    for name, std in spread.items():
        apart = (getattr(member, name) - getattr(anchor, name)) / std
        total = total + 0.5 * jnp.sum(apart**2)
    return total


class Sample(NamedTuple):
    """A batch as one member sees it."""

    inputs: Float[Array, "batch features"]
    targets: Float[Array, "batch dim"]
    weights: Float[Array, "batch dim"]


def negative_log_likelihood(
    member: Member, sample: Sample, noise: Float[Array, "dim"] | None
) -> Scalar:
    """Heteroscedastic Gaussian loss, summed over a batch; masked entries weigh nothing."""
    mean, variance = member(sample.inputs)
    if noise is not None:
        variance = jnp.broadcast_to(noise**2, variance.shape)
    each = 0.5 * ((sample.targets - mean) ** 2 / variance + jnp.log(variance))
    return jnp.sum(sample.weights * each)


def adversarial_inputs(
    member: Member, sample: Sample, noise: Float[Array, "dim"] | None, size: Scalar | float
) -> Float[Array, "batch features"]:
    """Inputs moved a little in the direction that raises the loss (fast gradient sign)."""

    def loss(inputs: Array) -> Scalar:
        return negative_log_likelihood(member, sample._replace(inputs=inputs), noise)

    # The inputs' range is [-1, 1], so a share of the range is twice as much.
    return sample.inputs + 2 * size * jnp.sign(jax.grad(loss)(sample.inputs))
