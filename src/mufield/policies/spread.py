"""Randomised policies that give each agent a mean and a spread."""

import itertools
from statistics import NormalDist

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._types import Mass, State
from ..errors import UserError
from ..problem import Box
from ..space.grid import Grid
from ..space.measure import MeanField
from .base import AbstractPolicy, ActionLaw
from .squash import squash
from .tables import TablePolicy

DEFAULT_POINTS = 5
"""Actions on each axis. In the four rooms three lose 0.1 of J, and seven gain nothing."""


class SpreadTable(AbstractPolicy):
    """Each agent scatters its action around the centre of its cell, as far as the cell's spread.

    Agents that do the same would stay together; these part, which a deterministic policy can
    only do by noise. What gradient ascent works on may be any numbers: see `scattered`.

    Attributes:
        centre: Of each cell's actions, before they are squashed.
        spread: Of each cell's actions on each axis, before `softplus`.
        box: The action box.
        points: Number of different actions on each axis.
    """

    centre: Float[Array, "*steps cells action_dim"]
    spread: Float[Array, "*steps cells action_dim"]
    box: Box
    points: int = eqx.field(static=True, default=DEFAULT_POINTS)

    @property
    def sees_mu(self) -> bool:
        """Tables know cells only."""
        return False

    @property
    def by_cell(self) -> bool:
        """All agents of a cell act alike."""
        return True

    def table(self) -> TablePolicy:
        """The same policy as a plain table."""
        law = scattered(self.box, self.centre, self.spread, self.points)
        return TablePolicy(actions=law.actions, weights=law.weights[..., :1, :])

    def law(self, state: State, mu: MeanField) -> ActionLaw:
        """The actions of the agent's cell, all equally likely."""
        cell = mu.grid.index_of(state)
        return scattered(self.box, self.centre[cell], self.spread[cell], self.points)

    def at_cells(self, grid: Grid, mass: Mass) -> ActionLaw:
        """The whole table, without a look-up."""
        return scattered(self.box, self.centre, self.spread, self.points)


def scattered(
    box: Box,
    centre: Float[Array, "*cells action_dim"],
    spread: Float[Array, "*cells action_dim"],
    points: int,
) -> ActionLaw:
    """Equally likely actions that stand for a normal distribution, squashed to the box.

    Action number i is ``squash(centre + softplus(spread) * z_i)``, where the z are the normal
    distribution's quantiles on each axis, scaled to a standard deviation of one. Finitely many,
    so that Phi, the simulator and each agent share one definition.
    """
    scores = jnp.asarray(normal_scores(points, box.dim), dtype=centre.dtype)
    raw = centre[..., None, :] + jax.nn.softplus(spread)[..., None, :] * scores
    actions = squash(box, raw)
    weights = jnp.full(actions.shape[:-1], 1.0 / len(scores), dtype=actions.dtype)
    return ActionLaw(actions=actions, weights=weights)


def normal_scores(points: int, dim: int) -> Float[np.ndarray, "moves dim"]:
    """Quantiles of the standard normal distribution, ``points`` on each axis, of unit variance."""
    if points < 2:
        raise UserError(f"a spread needs at least two points on each axis, got {points}")
    scores = np.asarray([NormalDist().inv_cdf((i + 0.5) / points) for i in range(points)])
    scores = scores / np.sqrt(np.mean(scores**2))
    return np.asarray(list(itertools.product(scores, repeat=dim)))


def unspread(
    box: Box,
    centre: Float[Array, "*cells action_dim"],
    deviation: Float[Array, "*cells action_dim"],
) -> Float[Array, "*cells action_dim"]:
    """The ``spread`` that gives actions about a standard deviation, where they are squashed.

    Args:
        box: The action box.
        centre: Centres before they are squashed.
        deviation: Standard deviations of the actions.
    """
    lower, upper = (jnp.asarray(b, dtype=centre.dtype) for b in (box.lower, box.upper))
    slope = 0.5 * (upper - lower) * (1.0 - jnp.tanh(centre) ** 2)
    # Neither so small that its gradient vanishes, nor so wide that all actions are at the border.
    wanted = jnp.clip(deviation / slope, 0.05, 3.0)
    return jnp.log(jnp.expm1(wanted))
