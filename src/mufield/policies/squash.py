"""Policies by unbounded parameters, which gradient ascent changes.

tanh maps them, as it does a network's outputs, to one or several actions in a box.
"""

import itertools
from statistics import NormalDist
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._types import Mass, State, Step
from ..actions import Box
from ..errors import UserError
from ..space.grid import Grid
from ..space.measure import MeanField
from .base import AbstractPolicy, ActionLaw
from .tables import TablePolicy


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
    spread: Float[Array, "*cells action_dim"] | None,
    points: int,
) -> ActionLaw:
    """Equally likely actions that stand for a normal distribution, squashed to the box.

    Action number i is ``squash(centre + softplus(spread) * z_i)``, with the `normal_scores` z.
    They are finitely many, so that Phi, the simulator and each agent share one definition. Without
    a spread the centre is the only action.
    """
    if spread is None:
        return ActionLaw.certain(squash(box, centre))
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


class SquashedTable(AbstractPolicy):
    """A table by unbounded parameters, which gradient ascent changes; `table` is the table itself.

    The centre of each cell's actions is squashed to the action box by tanh. With a width, agents
    draw actions around it: those that all do the same would stay together but for the noise.

    Attributes:
        centre: Centre of each cell's actions, before they are squashed.
        width: How far actions scatter on each axis, before `softplus`; None for a single action.
        box: The action box.
        scatter: Number of different actions on each axis.
    """

    centre: Float[Array, "*steps cells action_dim"]
    width: Float[Array, "*steps cells action_dim"] | None
    box: Box
    scatter: int = eqx.field(static=True)
    sees_mu: ClassVar[bool] = False
    by_cell: ClassVar[bool] = True

    @classmethod
    def around(
        cls,
        box: Box,
        mean: Float[Array, "steps cells action_dim"],
        deviation: Float[Array, "steps cells action_dim"],
        scatter: int,
    ) -> "SquashedTable":
        """The table whose actions have about this mean and this standard deviation."""
        centre = unsquash(box, mean)
        return cls(centre, unspread(box, centre, deviation) if scatter > 1 else None, box, scatter)

    def table(self, grid: Grid | None = None) -> TablePolicy:
        """The actions themselves."""
        law = scattered(self.box, self.centre, self.width, self.scatter)
        return TablePolicy(law.actions, law.weights, grid)

    def law(self, state: State, mu: MeanField) -> ActionLaw:
        """The actions of the agent's cell, all equally likely."""
        return self.table().law(state, mu)

    def at_cells(self, grid: Grid, mass: Mass, step: Step) -> ActionLaw:
        """The whole table, without a look-up."""
        return self.table().at_cells(grid, mass, step)
