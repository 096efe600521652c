"""Policies by unbounded parameters, which gradient ascent changes: networks and tables.

tanh maps their outputs to actions in a box.
"""

import math
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._arrays import Action, Key, Mass, State, Step
from ..actions import Box, MoveSet
from ..errors import UserError, whole_number
from ..problem import Problem
from ..space.grid import Grid
from ..space.measure import MeanField
from .base import AbstractPolicy, ActionLaw, Profile, check_same
from .encoders import AbstractEncoder, Unseen, check_encoder, position_features, position_size
from .tables import TablePolicy


def squash(box: Box, raw: Float[Array, "*batch action_dim"]) -> Float[Array, "*batch action_dim"]:
    """Maps any numbers into the box."""
    lower, upper = box.corners(raw.dtype)
    return lower + (upper - lower) * 0.5 * (jnp.tanh(raw) + 1.0)


def unsquash(
    box: Box, actions: Float[Array, "*batch action_dim"]
) -> Float[Array, "*batch action_dim"]:
    """The inverse of `squash`, with actions at most 97% of the way from centre to border.

    Nearer to the border the slope of tanh vanishes, and gradient ascent could not move them.
    """
    lower, upper = box.corners(actions.dtype)
    share = 2.0 * (actions - lower) / (upper - lower) - 1.0
    return jnp.arctanh(jnp.clip(share, -0.97, 0.97))


class SquashedTable(AbstractPolicy):
    """A table by unbounded parameters, which gradient ascent changes; `table` is the table itself.

    Attributes:
        raw: The action of each cell, before it is squashed to the box by tanh.
    """

    raw: Float[Array, "*steps cells action_dim"]
    box: Box
    sees_mu: ClassVar[bool] = False
    by_cell: ClassVar[bool] = True

    def table(self, grid: Grid | None = None) -> TablePolicy:
        """The actions themselves."""
        return TablePolicy.deterministic(squash(self.box, self.raw), grid)

    def law(self, state: State, mu: MeanField) -> ActionLaw:
        """The action of the agent's cell."""
        return self.table().law(state, mu)

    def at_cells(self, grid: Grid, mass: Mass, step: Step) -> ActionLaw:
        """The whole table, without a look-up."""
        return self.table().at_cells(grid, mass, step)


class NetworkPolicy(AbstractPolicy):
    """pi(s, mu): a small network of the agent's position and the encoded population.

    The first layer has separate weights for position and population, so that for all cells
    together the population's part is computed once. tanh squashes the output to the action box.

    Attributes:
        from_state: First layer's weights of the position.
        from_mu: First layer's weights of the encoded population.
        bias: First layer's bias.
        hidden: Weights and biases of the further layers; the last gives the action.
        encoder: How the population is seen.
        grid: The space, to scale positions.
    """

    from_state: Float[Array, "*steps width position"]
    from_mu: Float[Array, "*steps width features"]
    bias: Float[Array, "*steps width"]
    hidden: tuple[tuple[Array, Array], ...]
    encoder: AbstractEncoder = eqx.field(static=True)
    grid: Grid = eqx.field(static=True)
    box: Box

    @property
    def sees_mu(self) -> bool:
        """Whether the encoder shows anything of mu."""
        return self.encoder.size(self.grid) > 0

    def check(self, grid: Grid, actions: Box | MoveSet) -> None:
        """Raises if the network was made for another space or other actions, which it scales to."""
        check_same(self.grid, grid, "another map than this")
        check_same(self.box, actions, "other actions")

    def raw(self, state: State, mu: MeanField) -> Action:
        """The output before it is squashed."""
        x = self.from_state @ position_features(self.grid, state)
        x = jnp.tanh(x + (self.from_mu @ self.encoder(state, mu).astype(x.dtype) + self.bias))
        for weight, bias in self.hidden[:-1]:
            x = jnp.tanh(weight @ x + bias)
        weight, bias = self.hidden[-1]
        return weight @ x + bias

    def law(self, state: State, mu: MeanField) -> ActionLaw:
        """The network's action."""
        return ActionLaw.certain(squash(self.box, self.raw(state, mu)))


def network_profile(
    problem: Problem, key: Key, *, width: int = 32, depth: int = 2, mu: AbstractEncoder = Unseen()
) -> Profile:
    """One network for each step, with random weights.

    Args:
        problem: The problem whose grid and action box the networks fit.
        key: Randomness of the weights.
        width: Units of a hidden layer.
        depth: Number of hidden layers.
        mu: How networks see the population, for example `Pooled` or `Here`.
    """
    if not isinstance(problem.actions, Box):
        raise UserError("a network needs a box of actions; for a set of moves use a TablePolicy")
    for name, value in (("width", width), ("depth", depth)):
        whole_number(value, name)
    box, grid, dtype = problem.actions, problem.grid, problem.initial.dtype
    inputs, seen = position_size(grid), check_encoder(mu).size(grid)

    def one(key: Key) -> Any:
        keys = jax.random.split(key, depth + 2)
        rows = (*[width] * (depth - 1), box.dim)
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
    policy = NetworkPolicy(from_state, from_mu, bias, hidden, mu, grid, box)
    return Profile.stacked(policy, problem.horizon)


def _weights(key: Key, rows: int, columns: int, gain: float, dtype: Any) -> Array:
    scale = gain / math.sqrt(max(1, columns))
    return scale * jax.random.normal(key, (rows, columns), dtype=dtype)
