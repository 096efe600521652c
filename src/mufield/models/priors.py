"""Kernels on (s, a, mu): what is known of a motion or a reward before the first data."""

import jax.numpy as jnp
from jaxtyping import ArrayLike

from .features import FeatureMap
from .kernels import AbstractKernel, Linear, Product, Select, SquaredExponential, Sum

DEFAULT_LENGTH_SCALE = 2.0
"""Where length scales start: the width of most features, which run from -1 to 1."""

DEFAULT_VARIANCE = 0.5
"""Prior variance in units of the squared farthest move: two standard deviations cover it."""


def joint_kernel(
    features: FeatureMap,
    length_scale: ArrayLike = DEFAULT_LENGTH_SCALE,
    variance: ArrayLike = DEFAULT_VARIANCE,
    mu_length_scale: ArrayLike = DEFAULT_LENGTH_SCALE,
) -> AbstractKernel:
    """A kernel on (s, a, mu): one factor for the agent's state and action, one for mu.

    The first factor is squared exponential with a length scale for each feature; the second has
    one for all features of mu. With the feature map's ``mu="embedding"`` the second is a kernel
    between distributions, by the distance of their mean embeddings; without features of mu only
    the first is left.

    Args:
        features: The feature map.
        length_scale: One for all features of state and action, or one for each.
        variance: Variance of the values.
        mu_length_scale: One for all features of mu.
    """
    own, size = features.own_size, features.size
    scales = jnp.broadcast_to(jnp.asarray(length_scale, dtype=float), (own,))
    first = SquaredExponential(scales, variance)
    if size == own:
        return first
    second = SquaredExponential(jnp.asarray(mu_length_scale, dtype=float))
    return Product(
        Select(first, tuple(range(own))),
        Select(second, tuple(range(own, size))),
    )


def steered_kernel(
    features: FeatureMap,
    gain: ArrayLike = 1.0,
    variation: ArrayLike = 0.01,
    drift: ArrayLike = 1e-4,
    length_scale: ArrayLike = 1.0,
) -> AbstractKernel:
    """A kernel on (s, a, mu) for agents that actions steer: moves are nearly proportional to them.

    The gain on the action is nearly the same everywhere and varies slowly with state and mu, and
    an agent that rests hardly drifts. Where the noise is much larger than the moves, as in the
    swarm, this prior saves most of the data that a kernel without it needs.

    Actions count from the middle of their box. Variances are in units of the squared farthest
    move, for actions at the border of the box.

    Args:
        features: The feature map.
        gain: Variance of the common gain.
        variation: Variance of its changes with state and mu.
        drift: Variance of the motion without an action, common and by place.
        length_scale: How far such changes reach, in features: one for all, or one for each.
    """
    actions = tuple(range(features.own_size - len(features.lower), features.own_size))
    others = tuple(axis for axis in range(features.size) if axis not in actions)
    scales = jnp.broadcast_to(jnp.asarray(length_scale, dtype=float), (len(others),))
    common = Select(Linear(gain, drift), actions)
    local = Product(
        Select(Linear(variation, drift), actions), Select(SquaredExponential(scales), others)
    )
    return Sum(common, local)


def additive_kernel(
    features: FeatureMap,
    variance: ArrayLike = 1.0,
    slope: ArrayLike = 1.0,
    joint: ArrayLike = 0.01,
    length_scale: ArrayLike = DEFAULT_LENGTH_SCALE,
) -> AbstractKernel:
    """A kernel on (s, a, mu) for rewards, which are nearly sums.

    What a place is worth, what an action costs and what a crowd takes away, each a smooth
    function of its own, the last with a straight line through it; and little that is not such a
    sum. A sum is known from its parts: few data say what agents earn in places, with actions and
    in crowds that were never seen together.

    Variances are in units of the variance of the rewards.

    Args:
        features: The feature map.
        variance: Variance of each part.
        slope: Variance of the slopes in the features of mu.
        joint: Variance of what is no sum of parts.
        length_scale: How far values reach, in features.
    """
    first = features.own_size - len(features.lower)
    spans = [(0, first), (first, features.own_size), (features.own_size, features.size)]
    parts = [tuple(range(*span)) for span in spans if span[0] < span[1]]

    def smooth(axes: tuple[int, ...], variance: ArrayLike) -> AbstractKernel:
        scales = jnp.broadcast_to(jnp.asarray(length_scale, dtype=float), (len(axes),))
        return Select(SquaredExponential(scales, variance), axes)

    kernel = smooth(tuple(range(features.size)), joint)
    for axes in parts:
        kernel = Sum(kernel, smooth(axes, variance))
    if features.size > features.own_size:
        kernel = Sum(kernel, Select(Linear(slope, variance), parts[-1]))
    return kernel
