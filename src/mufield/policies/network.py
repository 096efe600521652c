"""Neural-network policies, bounded to the action box."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._types import Action, Key, Scalar, State
from ..actions import Box, MoveSet
from ..checks import whole_number
from ..errors import UserError
from ..problem import Problem
from ..space.grid import Grid
from ..space.measure import MeanField
from .base import AbstractPolicy, ActionLaw, Profile, check_same
from .encoders import (
    AbstractEncoder,
    Unseen,
    check_encoder,
    position_features,
    position_size,
)
from .squash import normal_scores, scattered


class NetworkPolicy(AbstractPolicy):
    """pi(s, mu): a small network of the agent's position and the encoded population.

    The first layer has separate weights for position and population, so that for all cells
    together the population's part is computed once. The output is squashed to the action box by
    tanh. With several ``points`` the network also gives a spread, and the action is random.

    Attributes:
        from_state: First layer's weights of the position.
        from_mu: First layer's weights of the encoded population.
        bias: First layer's bias.
        hidden: Weights and biases of the further layers; the last gives the action, followed by
            its spread if there are several points.
        mu: How the population is seen.
        grid: The space, to scale positions.
        points: Number of different actions on each axis; 1 for a deterministic policy, more for
            actions as in `mufield.policies.squash.scattered`.
    """

    from_state: Float[Array, "*steps width position"]
    from_mu: Float[Array, "*steps width features"]
    bias: Float[Array, "*steps width"]
    hidden: tuple[tuple[Array, Array], ...]
    mu: AbstractEncoder = eqx.field(static=True)
    grid: Grid = eqx.field(static=True)
    box: Box
    points: int = eqx.field(static=True, default=1)

    @property
    def sees_mu(self) -> bool:
        """Whether the encoder shows anything of mu."""
        return self.mu.size(self.grid) > 0

    def check(self, grid: Grid, actions: Box | MoveSet) -> None:
        """Raises if the network was made for another space or other actions, which it scales to."""
        check_same(self.grid, grid, "another map than this")
        check_same(self.box, actions, "other actions")

    def raw(self, state: State, mu: MeanField) -> Action:
        """The output before it is squashed."""
        x = self.from_state @ position_features(self.grid, state)
        x = jnp.tanh(x + (self.from_mu @ self.mu(state, mu).astype(x.dtype) + self.bias))
        for weight, bias in self.hidden[:-1]:
            x = jnp.tanh(weight @ x + bias)
        weight, bias = self.hidden[-1]
        return weight @ x + bias

    def law(self, state: State, mu: MeanField) -> ActionLaw:
        """The network's action, or its scattered actions, all equally likely."""
        centre, *spread = jnp.split(self.raw(state, mu), 1 if self.points == 1 else 2)
        return scattered(self.box, centre, spread[0] if spread else None, self.points)

    def lipschitz(self) -> Scalar:
        """An upper bound of the Lipschitz constant in the position (assumption
        LipschitzPolicyAndReward): the product of the layers' spectral norms.

        The dependence on mu is not covered. The bound is the largest over the steps of a stacked
        profile, and over the scattered actions.
        """
        axes = zip(self.grid.periodic, self.grid.extent, strict=True)
        slope = max((2 * math.pi if periodic else 2.0) / extent for periodic, extent in axes)
        bound = _spectral(self.from_state) * slope  # of position_features
        for weight, _ in self.hidden:
            bound = bound * _spectral(weight)
        widest = max(hi - lo for lo, hi in zip(self.box.lower, self.box.upper, strict=True))
        if self.points > 1:
            farthest = float(np.abs(normal_scores(self.points, 1)).max())
            bound = bound * math.sqrt(1.0 + farthest**2)
        return jnp.max(bound) * widest / 2


def network_profile(
    problem: Problem,
    key: Key,
    *,
    width: int = 32,
    depth: int = 2,
    mu: AbstractEncoder = Unseen(),
    points: int = 1,
) -> Profile:
    """One network for each step, with random weights.

    Args:
        problem: The problem whose grid and action box the networks fit.
        key: Randomness of the weights.
        width: Units of a hidden layer.
        depth: Number of hidden layers.
        mu: How networks see the population, for example `Pooled` or `Here`.
        points: Number of different actions on each axis; with more than one, actions are random.
    """
    if not isinstance(problem.actions, Box):
        raise UserError(
            "a network policy needs a box of continuous actions; for a finite set of moves use "
            "a TablePolicy"
        )
    for name, value in (("width", width), ("depth", depth), ("points", points)):
        whole_number(value, name)
    box, grid, dtype = problem.actions, problem.grid, problem.initial.dtype
    inputs, seen = position_size(grid), check_encoder(mu).size(grid)
    outputs = box.dim if points == 1 else 2 * box.dim

    def one(key: Key) -> Any:
        keys = jax.random.split(key, depth + 2)
        rows = (*[width] * (depth - 1), outputs)
        hidden = tuple(
            (_weights(key, n, width, 1.0, dtype), jnp.zeros((n,), dtype=dtype))
            for key, n in zip(keys[2:], rows, strict=True)
        )
        return (
            # Large, so that tanh units bend within the space, each at another place.
            _weights(keys[0], width, inputs, 3.0, dtype),
            _weights(keys[1], width, seen, 0.1, dtype),
            jax.random.uniform(keys[1], (width,), dtype=dtype, minval=-1.0, maxval=1.0),
            hidden,
        )

    from_state, from_mu, bias, hidden = jax.vmap(one)(jax.random.split(key, problem.horizon))
    policy = NetworkPolicy(from_state, from_mu, bias, hidden, mu, grid, box, points)
    return Profile.stacked(policy, problem.horizon)


def _weights(key: Key, rows: int, columns: int, gain: float, dtype: Any) -> Array:
    scale = gain / math.sqrt(max(1, columns))
    return scale * jax.random.normal(key, (rows, columns), dtype=dtype)


def _spectral(weight: Float[Array, "... rows columns"]) -> Float[Array, "..."]:
    return jnp.linalg.svd(weight, compute_uv=False)[..., 0]
