"""Policies by unbounded parameters, which gradient ascent changes, and joint ones."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import Mass, State, Step
from ..actions import Box
from ..space.grid import Grid
from ..space.measure import MeanField
from .base import AbstractPolicy, ActionLaw
from .squash import scattered, squash, unspread, unsquash
from .tables import TablePolicy


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

    @property
    def sees_mu(self) -> bool:
        """False: a table knows cells only."""
        return False

    @property
    def by_cell(self) -> bool:
        """True: all agents of a cell act alike."""
        return True

    def table(self, grid: Grid | None = None) -> TablePolicy:
        """The actions themselves."""
        if self.width is None:
            return TablePolicy.deterministic(squash(self.box, self.centre), grid)
        law = scattered(self.box, self.centre, self.width, self.scatter)
        return TablePolicy(law.actions, law.weights, grid)

    def law(self, state: State, mu: MeanField) -> ActionLaw:
        """The actions of the agent's cell, all equally likely."""
        return self.table().law(state, mu)

    def at_cells(self, grid: Grid, mass: Mass, step: Step) -> ActionLaw:
        """The whole table, without a look-up."""
        return self.table().at_cells(grid, mass, step)


class JointPolicy(AbstractPolicy):
    """A policy for actions a and a deterministic one for hallucinated controls eta."""

    action: AbstractPolicy
    control: AbstractPolicy

    @property
    def sees_mu(self) -> bool:
        """Whether either of the two does."""
        return self.action.sees_mu or self.control.sees_mu

    @property
    def by_cell(self) -> bool:
        """Whether both act by cell."""
        return self.action.by_cell and self.control.by_cell

    def law(self, state: State, mu: MeanField) -> ActionLaw:
        """The joint actions (a, eta)."""
        return _pairs(self.action.law(state, mu), self.control.law(state, mu))

    def at_cells(self, grid: Grid, mass: Mass, step: Step) -> ActionLaw:
        """The joint actions of all cells."""
        return _pairs(
            self.action.at_cells(grid, mass, step), self.control.at_cells(grid, mass, step)
        )


def _pairs(action: ActionLaw, control: ActionLaw) -> ActionLaw:
    # The control is the same for all actions that an agent draws from.
    shape = (*action.actions.shape[:-1], control.actions.shape[-1])
    joint = [action.actions, jnp.broadcast_to(control.actions, shape)]
    return ActionLaw(actions=jnp.concatenate(joint, axis=-1), weights=action.weights)
