"""The networks of a deep ensemble: their prior and their loss."""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erfc
from jaxtyping import Array, Float

from .._types import Key, Scalar


class Layout(NamedTuple):
    """The sizes of a network.

    Attributes:
        parts: Indices of the features of the state, of the action, and of mu.
        width: Width of the hidden layer.
        dim: Number of outputs.
    """

    parts: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    width: int
    dim: int


class Member(eqx.Module):
    """One network: a hidden layer, a mean head, a variance head.

    The mean is linear in three things: the features themselves, the hidden layer, and its products
    with the action. Most motions are a field times the action, plus a field, and sums of units
    that see both learn products only slowly.

    In an ensemble, the first axis of all arrays is for the members.
    """

    layout: Layout = eqx.field(static=True)
    hidden_weight: Float[Array, "*members features width"]
    hidden_bias: Float[Array, "*members width"]
    mean_weight: Float[Array, "*members width dim"]
    steer_weight: Float[Array, "*members width dim actions"]
    skip_weight: Float[Array, "*members features dim"]
    mean_bias: Float[Array, "*members dim"]
    variance_weight: Float[Array, "*members width dim"]
    variance_bias: Float[Array, "*members dim"]

    def __call__(self, features: Float[Array, "... features"]) -> tuple[Array, Array]:
        """Mean and variance of the outputs."""
        hidden = jax.nn.leaky_relu(features @ self.hidden_weight + self.hidden_bias)
        action = features[..., np.asarray(self.layout.parts[1])]
        steered = jnp.einsum("...w,wda,...a->...d", hidden, self.steer_weight, action)
        straight = features @ self.skip_weight + self.mean_bias
        mean = hidden @ self.mean_weight + steered + straight
        raw = hidden @ self.variance_weight + self.variance_bias
        least = 1e-6  # variance, in units of the squared targets
        return mean, jax.nn.softplus(raw) + least


class MemberPrior(NamedTuple):
    """The distribution of networks before data.

    Attributes:
        scale: Standard deviation of the predicted mean for inputs of the order of one.
        curvature: Share of ``scale`` that is due to the hidden layer, from 0 to 1.
        steered: Share of that which multiplies the action, from 0 to 1.
        mu_share: Size of the weights of the features of mu, as a share of the others'.
    """

    scale: float
    curvature: float
    steered: float
    mu_share: float

    def deviations(self, layout: Layout) -> dict[str, np.ndarray | float]:
        """Standard deviation of each array of a network."""
        states, actions, mu = layout.parts
        own = len(states) + len(actions)
        share, even = _at_least(self.mu_share), 1 / np.sqrt(max(len(mu), 1))
        seen = np.array([1.0] * own + [share * even] * len(mu))[:, None]
        # Crowds change what actions do more often than they push.
        pushed = np.array([1.0] * own + [share**2 * even] * len(mu))[:, None]
        straight, curved = _shares(self.curvature)
        free, steered = _shares(self.steered)
        units = curved * self.scale / np.sqrt(layout.width / 2)
        return {
            "hidden_weight": seen / np.sqrt(own),
            "hidden_bias": 0.5,
            "mean_weight": free * units,
            "steer_weight": steered * units * np.sqrt(2 / len(actions)),
            "skip_weight": straight * self.scale * pushed / np.sqrt(own / 3),
            "mean_bias": 0.1 * self.scale,
            "variance_weight": 0.1 / float(np.sqrt(layout.width)),
            "variance_bias": 1.0,
        }


def _shares(share: float) -> tuple[float, float]:
    """What is left of a deviation of one, and the share; their squares add up to one."""
    return _at_least(float(np.sqrt(max(1.0 - share**2, 0.0)))), _at_least(share)


def _at_least(share: float, least: float = 1e-3) -> float:
    """A share of the prior that is not zero, because `distance_from` divides by deviations."""
    return max(share, least)


def draw_members(
    count: int, layout: Layout, prior: MemberPrior, key: Key, dtype: jnp.dtype
) -> Member:
    """Draws networks from the prior; biases of their variance heads are zero."""
    deviations = prior.deviations(layout)
    features, width, dim = sum(map(len, layout.parts)), layout.width, layout.dim
    shapes = {
        "hidden_weight": (features, width),
        "hidden_bias": (width,),
        "mean_weight": (width, dim),
        "steer_weight": (width, dim, len(layout.parts[1])),
        "skip_weight": (features, dim),
        "mean_bias": (dim,),
        "variance_weight": (width, dim),
    }
    sizes = [int(np.prod(shape)) for shape in shapes.values()]
    # One draw for all arrays: each further one would take longer to compile than the loss.
    drawn = jax.random.normal(key, (count, sum(sizes)), dtype=dtype)
    cuts = jnp.split(drawn, np.cumsum(sizes)[:-1], axis=1)
    parts = {
        name: jnp.asarray(deviations[name], dtype=dtype) * cut.reshape(count, *shape)
        for cut, (name, shape) in zip(cuts, shapes.items(), strict=True)
    }
    return Member(layout=layout, variance_bias=jnp.zeros((count, dim), dtype=dtype), **parts)


def distance_from(anchor: Member, member: Member, prior: MemberPrior) -> Scalar:
    """Minus the logarithm of the prior's density, centred at the anchor."""
    total = jnp.zeros((), dtype=member.mean_bias.dtype)
    for name, std in prior.deviations(member.layout).items():
        apart = (getattr(member, name) - getattr(anchor, name)) / jnp.asarray(std, total.dtype)
        total = total + 0.5 * jnp.sum(apart**2)
    return total


class Sample(NamedTuple):
    """A batch as one member sees it.

    Attributes:
        inputs: The features.
        targets: Scaled displacements; if a wall stopped an agent, the way up to the wall.
        side: 1 or -1 if the agent aimed farther than the target in that direction, else 0.
        weights: Weights of the entries in the loss.
    """

    inputs: Float[Array, "batch features"]
    targets: Float[Array, "batch dim"]
    side: Float[Array, "batch dim"]
    weights: Float[Array, "batch dim"]


def negative_log_likelihood(
    member: Member, sample: Sample, noise: Float[Array, "dim"] | None
) -> Scalar:
    """Heteroscedastic Gaussian loss, summed over a batch.

    If a wall stopped an agent, all that is known is that it aimed beyond the wall: the likelihood
    is the Gaussian's mass there (a Tobit model; docs/theory.md, "Walls censor").
    """
    mean, variance = member(sample.inputs)
    if noise is not None:
        variance = jnp.broadcast_to(noise**2, variance.shape)
    std = jnp.sqrt(variance)
    away = (mean - sample.targets) / std
    seen = 0.5 * away**2 + jnp.log(std)
    beyond = -log_normal_cdf(sample.side * away)
    return jnp.sum(sample.weights * jnp.where(sample.side == 0, seen, beyond))


def log_normal_cdf(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Logarithm of the standard normal distribution function.

    JAX's own has more branches, with which training takes twice as long to compile.
    """
    cut = -6.0  # below it the asymptotic series is accurate enough
    tail = x < cut
    near = jnp.log(0.5 * erfc(-jnp.where(tail, cut, x) / math.sqrt(2.0)))
    far = jnp.where(tail, x, cut)
    series = 1.0 - (1.0 - 3.0 / far**2) / far**2
    below = -0.5 * far**2 - jnp.log(-far) - 0.5 * math.log(2 * math.pi) + jnp.log(series)
    return jnp.where(tail, below, near)
