"""Maps unbounded numbers, such as a network's outputs, to one or several actions in a box."""

import itertools
from statistics import NormalDist

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..actions import Box
from ..errors import UserError
from .base import ActionLaw


def squash(box: Box, raw: Float[Array, "*batch action_dim"]) -> Float[Array, "*batch action_dim"]:
    """Maps any numbers into the box."""
    lower, upper = (jnp.asarray(b, dtype=raw.dtype) for b in (box.lower, box.upper))
    return lower + (upper - lower) * 0.5 * (jnp.tanh(raw) + 1.0)


def unsquash(
    box: Box, actions: Float[Array, "*batch action_dim"], inside: float = 0.97
) -> Float[Array, "*batch action_dim"]:
    """The inverse of `squash`, with actions at most ``inside`` of the way from centre to border.

    Nearer to the border the slope of tanh vanishes, and gradient ascent could not move them.
    """
    lower, upper = (jnp.asarray(b, dtype=actions.dtype) for b in (box.lower, box.upper))
    share = 2.0 * (actions - lower) / (upper - lower) - 1.0
    return jnp.arctanh(jnp.clip(share, -inside, inside))


def scattered(
    box: Box,
    centre: Float[Array, "*cells action_dim"],
    spread: Float[Array, "*cells action_dim"],
    points: int,
) -> ActionLaw:
    """Equally likely actions that stand for a normal distribution, squashed to the box.

    Action number i is ``squash(centre + softplus(spread) * z_i)``, with the `normal_scores` z.
    They are finitely many, so that Phi, the simulator and each agent share one definition.
    """
    scores = jnp.asarray(normal_scores(points, box.dim), dtype=centre.dtype)
    raw = centre[..., None, :] + jax.nn.softplus(spread)[..., None, :] * scores
    actions = squash(box, raw)
    weights = jnp.full(actions.shape[:-1], 1.0 / len(scores), dtype=actions.dtype)
    return ActionLaw(actions=actions, weights=weights)


def unspread(
    box: Box,
    centre: Float[Array, "*cells action_dim"],
    deviation: Float[Array, "*cells action_dim"],
) -> Float[Array, "*cells action_dim"]:
    """The ``spread`` with which `scattered` actions have about a given standard deviation."""
    lower, upper = (jnp.asarray(b, dtype=centre.dtype) for b in (box.lower, box.upper))
    slope = 0.5 * (upper - lower) * (1.0 - jnp.tanh(centre) ** 2)
    # Not so small that its gradient vanishes, not so wide that all actions are at the border.
    wanted = jnp.clip(deviation / slope, 0.05, 3.0)
    return jnp.log(jnp.expm1(wanted))


def normal_scores(points: int, dim: int) -> Float[np.ndarray, "moves dim"]:
    """Quantiles of the normal distribution, ``points`` on each axis, scaled to unit variance."""
    if points < 2:
        raise UserError(f"a spread needs at least two points on each axis, got {points}")
    scores = np.asarray([NormalDist().inv_cdf((i + 0.5) / points) for i in range(points)])
    scores = scores / np.sqrt(np.mean(scores**2))
    return np.asarray(list(itertools.product(scores, repeat=dim)))
