"""Tables: a deterministic action for every cell."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import Mass, State
from ..problem import Box
from ..space.grid import Grid
from ..space.measure import MeanField
from .base import AbstractPolicy, ActionLaw
from .squash import squash


class TabularPolicy(AbstractPolicy):
    """Agents do what the table says for the cell they are in, whatever the population does.

    `Profile.stacked` makes a per-cell, per-step plan of a table with one more leading axis.

    Attributes:
        actions: The action of each cell.
    """

    actions: Float[Array, "*steps cells action_dim"]

    def law(self, state: State, mu: MeanField) -> ActionLaw:
        """The action of the agent's cell, with certainty."""
        action = self.actions[mu.grid.index_of(state)]
        return ActionLaw(actions=action[None], weights=jnp.ones((1,), dtype=action.dtype))

    def at_cells(self, grid: Grid, mass: Mass) -> ActionLaw:
        """The whole table, without a look-up."""
        weights = jnp.ones((grid.n_cells, 1), dtype=self.actions.dtype)
        return ActionLaw(actions=self.actions[:, None], weights=weights)


class SquashedTable(AbstractPolicy):
    """A table whose entries may be any numbers: they are squashed to the action box by tanh.

    What gradient ascent works on; `table` gives the plain table.

    Attributes:
        raw: Numbers before they are squashed.
        box: The action box.
    """

    raw: Float[Array, "*steps cells action_dim"]
    box: Box

    def table(self) -> TabularPolicy:
        """The actions themselves."""
        return TabularPolicy(actions=squash(self.box, self.raw))

    def law(self, state: State, mu: MeanField) -> ActionLaw:
        """The action of the agent's cell, with certainty."""
        return self.table().law(state, mu)

    def at_cells(self, grid: Grid, mass: Mass) -> ActionLaw:
        """The whole table, without a look-up."""
        return self.table().at_cells(grid, mass)
