"""Tables that gradient ascent can change without leaving the action box."""

from jaxtyping import Array, Float

from .._types import Mass, State
from ..problem import Box
from ..space.grid import Grid
from ..space.measure import MeanField
from .base import AbstractPolicy, ActionLaw
from .squash import squash
from .tables import TablePolicy


class SquashedTable(AbstractPolicy):
    """A table whose entries may be any numbers: they are squashed to the action box by tanh.

    What gradient ascent works on; `table` gives the plain table.

    Attributes:
        raw: Numbers before they are squashed.
        box: The action box.
    """

    raw: Float[Array, "*steps cells action_dim"]
    box: Box

    @property
    def sees_mu(self) -> bool:
        """Tables know cells only."""
        return False

    @property
    def by_cell(self) -> bool:
        """All agents of a cell act alike."""
        return True

    @property
    def actions(self) -> Float[Array, "*steps cells action_dim"]:
        """The actions themselves."""
        return squash(self.box, self.raw)

    def table(self) -> TablePolicy:
        """The same policy as a plain table."""
        return TablePolicy.deterministic(self.actions)

    def law(self, state: State, mu: MeanField) -> ActionLaw:
        """The action of the agent's cell, with certainty."""
        return self.table().law(state, mu)

    def at_cells(self, grid: Grid, mass: Mass) -> ActionLaw:
        """The whole table, without a look-up."""
        return self.table().at_cells(grid, mass)
