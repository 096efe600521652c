"""The networks of a deep ensemble: their prior and their loss."""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.scipy.special import erfc
from jaxtyping import Array, Float

from .._arrays import Key, Scalar
from .features import Rows

Weights = Float[Array | np.ndarray, "..."]

LEAST_SHARE = 1e-3
"""No share of the prior is zero, because its density is in units of deviations."""


class Member(eqx.Module):
    """One network: a hidden layer, a mean head, a variance head.

    The mean is linear in three things: the features themselves, the hidden layer h(z), and the
    products h(z) a with the action, because most motions are a field times the action, plus a
    field, and sums of units that see both learn products only slowly.

    In an ensemble, the first axis of all arrays is for the members.

    Attributes:
        action: Indices of the action's features.
    """

    action: tuple[int, ...] = eqx.field(static=True)
    hidden_weight: Weights  # features, width
    hidden_bias: Weights  # width
    mean_weight: Weights  # width, outputs
    bilinear_weight: Weights  # width, outputs, action
    skip_weight: Weights  # features, outputs
    mean_bias: Weights  # outputs
    variance_weight: Weights  # width, outputs
    variance_bias: Weights  # outputs

    def __call__(self, features: Float[Array, "... features"]) -> tuple[Array, Array]:
        """Mean and variance of the outputs."""
        hidden = jax.nn.leaky_relu(features @ self.hidden_weight + self.hidden_bias)
        action = features[..., np.asarray(self.action)]
        products = jnp.einsum("...w,wda,...a->...d", hidden, self.bilinear_weight, action)
        straight = features @ self.skip_weight + self.mean_bias
        mean = hidden @ self.mean_weight + products + straight
        raw = hidden @ self.variance_weight + self.variance_bias
        least = 1e-6  # variance, in units of the squared targets
        return mean, jax.nn.softplus(raw) + least


class MemberPrior(NamedTuple):
    """The distribution of networks before data: independent normal weights.

    Attributes:
        parts: Indices of the features of the state, of the action, and of mu.
        scale: `DeepEnsemble.prior_scale`; others as there.
    """

    parts: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    width: int
    outputs: int
    scale: float
    curvature: float
    bilinear: float
    mu_share: float

    def deviations(self) -> Member:
        """Standard deviation of each weight, as a network of deviations."""
        (states, actions, mu), width, outputs = self.parts, self.width, self.outputs
        own = len(states) + len(actions)
        features = own + len(mu)
        share, even = max(self.mu_share, LEAST_SHARE), 1 / np.sqrt(max(len(mu), 1))
        seen = np.array([1.0] * own + [share * even] * len(mu))[:, None]
        # Crowds change what actions do more often than they push.
        pushed = np.array([1.0] * own + [share**2 * even] * len(mu))[:, None]
        straight, curved = _shares(self.curvature)
        skip = straight * self.scale * pushed / np.sqrt(own / 3)
        free, bilinear = _shares(self.bilinear)
        unit = curved * self.scale / np.sqrt(width / 2)
        by_action = bilinear * unit * np.sqrt(2 / len(actions))
        return Member(
            action=actions,
            hidden_weight=np.broadcast_to(seen / np.sqrt(own), (features, width)),
            hidden_bias=np.full(width, 0.5),
            mean_weight=np.full((width, outputs), free * unit),
            bilinear_weight=np.full((width, outputs, len(actions)), by_action),
            skip_weight=np.broadcast_to(skip, (features, outputs)),
            mean_bias=np.full(outputs, 0.1 * self.scale),
            variance_weight=np.full((width, outputs), 0.1 / float(np.sqrt(width))),
            variance_bias=np.ones(outputs),
        )

    def draw(self, count: int, key: Key, dtype: jnp.dtype) -> Member:
        """Draws networks; the biases of their variance heads, the last weights, are zero."""
        deviations = jax.tree.map(lambda std: jnp.asarray(std, dtype), self.deviations())
        flat, as_member = ravel_pytree(deviations)
        # One draw for all arrays: each further one would take longer to compile than the loss.
        drawn = jax.random.normal(key, (count, flat.size - self.outputs), dtype=dtype)
        return jax.vmap(as_member)(flat * jnp.pad(drawn, ((0, 0), (0, self.outputs))))

    def negative_log_density(self, anchor: Member, member: Member) -> Scalar:
        """Of a member under the prior centred at its anchor, up to a constant."""

        def of_weights(start: Array, end: Array, std: np.ndarray) -> Scalar:
            return 0.5 * jnp.sum(((end - start) / jnp.asarray(std, end.dtype)) ** 2)

        each = jax.tree.map(of_weights, anchor, member, self.deviations())
        return jnp.sum(jnp.stack(jax.tree.leaves(each)))


def _shares(share: float) -> tuple[float, float]:
    """What is left of a deviation of one, and the share; their squares add up to one."""
    return max(float(np.sqrt(max(1.0 - share**2, 0.0))), LEAST_SHARE), max(share, LEAST_SHARE)


def negative_log_likelihood(
    member: Member, rows: Rows, noise: Float[Array, "outputs"] | None
) -> Scalar:
    """Heteroscedastic Gaussian loss, summed over the rows; ``noise`` is None if it is learned.

    If a wall stopped an agent, all that is known is that it aimed beyond the wall: the likelihood
    is the Gaussian's mass there (a Tobit model; docs/theory.md, "Walls censor").
    """
    mean, variance = member(rows.inputs)
    if noise is not None:
        variance = jnp.broadcast_to(noise**2, variance.shape)
    std = jnp.sqrt(variance)
    away = (mean - rows.targets) / std
    seen = 0.5 * away**2 + jnp.log(std)
    beyond = -log_normal_cdf(rows.side * away)
    return jnp.sum(rows.weight * jnp.where(rows.side == 0, seen, beyond))


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
