"""Policies as tables: what agents do in each cell, whatever the population does."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._types import Mass, State, Step
from ..actions import Box, MoveSet
from ..checks import numbers
from ..errors import UserError
from ..problem import Problem
from ..space.grid import Grid
from ..space.measure import MeanField, check_grid
from .base import AbstractPolicy, ActionLaw, check_same_grid


class AbstractTable(AbstractPolicy):
    """What agents do in each cell, or block of cells, with actions that are stored."""

    actions: eqx.AbstractVar[Float[Array, "... action_dim"]]

    @property
    def sees_mu(self) -> bool:
        """A table never looks at mu."""
        return False

    @property
    def by_cell(self) -> bool:
        """A table knows only cells."""
        return True

    def check_actions(self, actions: Box | MoveSet) -> None:
        """Raises if the table's actions have another number of axes."""
        if self.actions.shape[-1] != actions.dim:
            raise UserError(
                f"the policy's actions have {self.actions.shape[-1]} axes, and the problem's "
                f"{actions.dim}; name the environment that it was planned for"
            )


class TablePolicy(AbstractTable):
    """Each agent draws one of finitely many moves, with the weights of the cell that it is in.

    A table with a single move is a deterministic policy. `Profile.stacked` makes a profile of
    tables that have one more axis at the front, for the steps.

    Attributes:
        actions: The moves of each cell; a single row is shared by all cells.
        weights: Their probabilities in each cell; a single row is shared by all cells. If there
            is only one move, its weight is ignored.
        grid: The space whose cells these are. On any other space the table is refused; without a
            grid only the number of cells is compared.
    """

    actions: Float[Array, "*steps action_rows moves action_dim"]
    weights: Float[Array, "*steps weight_rows moves"]
    grid: Grid | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        """Raises unless there are arrays with enough axes, and a grid if any."""
        _check_axes(self.actions, "actions", 3)
        _check_axes(self.weights, "weights", 2)
        if self.grid is not None:
            check_grid(self.grid)

    @classmethod
    def deterministic(
        cls, actions: Float[Array, "*steps cells action_dim"], grid: Grid | None = None
    ) -> "TablePolicy":
        """A table with one action for each cell."""
        actions = _as_array(actions, "actions")
        weights = jnp.ones((*actions.shape[:-2], 1, 1), dtype=actions.dtype)
        return cls(actions=actions[..., None, :], weights=weights, grid=grid)

    @classmethod
    def mixing(
        cls,
        moves: Float[Array, "moves action_dim"],
        weights: Float[Array, "*steps rows moves"],
        grid: Grid | None = None,
    ) -> "TablePolicy":
        """A table with the same moves in all cells, and weights for each cell."""
        moves, weights = _as_array(moves, "moves"), _as_array(weights, "weights")
        actions = jnp.broadcast_to(moves, (*weights.shape[:-2], 1, *moves.shape))
        return cls(actions=actions, weights=weights, grid=grid)

    @property
    def rows(self) -> int:
        """The number of cells that the table is for, or 1 if all cells share everything."""
        return max(self.actions.shape[-3], self.weights.shape[-2])

    def check_grid(self, grid: Grid) -> None:
        """Raises if the table is for other cells."""
        if self.rows not in (1, grid.n_cells):
            raise UserError(
                f"the table is for {self.rows} cells, and the grid has {grid.n_cells}; use the "
                "grid that it was planned for"
            )
        check_same_grid(self.grid, grid)

    def law(self, state: State, mu: MeanField) -> ActionLaw:
        """The moves and weights of the agent's cell."""
        self.check_grid(mu.grid)
        cell = mu.grid.index_of(state) if self.rows > 1 else 0
        actions = self.actions[cell if self.actions.shape[0] > 1 else 0]
        if actions.shape[0] == 1:
            return ActionLaw.certain(actions[0])
        weights = self.weights[cell if self.weights.shape[0] > 1 else 0]
        return ActionLaw(actions=actions, weights=weights)

    def at_cells(self, grid: Grid, mass: Mass, step: Step) -> ActionLaw:
        """The whole table, without a look-up."""
        self.check_grid(grid)
        moves = self.actions.shape[-2]
        actions = jnp.broadcast_to(self.actions, (grid.n_cells, *self.actions.shape[1:]))
        # A known weight of one compiles to better code than a stored one.
        if moves == 1:
            weights = jnp.ones((grid.n_cells, 1), dtype=actions.dtype)
        else:
            weights = jnp.broadcast_to(self.weights, (grid.n_cells, moves))
        return ActionLaw(actions=actions, weights=weights)


def _as_array(values: Any, name: str) -> Array:
    """The values as an array of JAX with at least two axes; raises if they cannot be one."""
    array = values if isinstance(values, Array) else jnp.asarray(numbers(values, name), dtype=float)
    _check_axes(array, name, 2)
    return array


def _check_axes(array: Any, name: str, axes: int) -> None:
    if getattr(array, "ndim", 0) < axes:
        raise UserError(
            f"the {name} of a TablePolicy must be an array with at least {axes} axes, got "
            f"{getattr(array, 'shape', type(array).__name__)}; for one action in each cell use "
            "TablePolicy.deterministic, for the same moves in all cells TablePolicy.mixing"
        )


class PooledTable(AbstractTable):
    """One action for each block of cells: a table for maps of too many cells to plan one by one.

    `Profile.stacked` makes a profile of tables that have one more axis at the front, for the steps.

    Attributes:
        actions: The actions of the blocks. The axes of the grid are cut into as many equal parts,
            up to whole cells, as the array has entries along them.
        grid: The space.
    """

    actions: Float[Array, "*steps_and_blocks action_dim"]
    grid: Grid = eqx.field(static=True)

    def check_grid(self, grid: Grid) -> None:
        """Raises if the table is for another space."""
        check_same_grid(self.grid, grid)

    def law(self, state: State, mu: MeanField) -> ActionLaw:
        """The action of the block of the agent's cell."""
        grid = self.grid
        place = []
        for axis, (where, cells) in enumerate(zip(grid.lattice(state), grid.shape, strict=True)):
            cell = jnp.floor(where).astype(jnp.int32)
            cell = cell % cells if grid.periodic[axis] else jnp.clip(cell, 0, cells - 1)
            place.append(cell * self.actions.shape[axis] // cells)
        return ActionLaw.certain(self.actions[tuple(place)])

    def table(self) -> TablePolicy:
        """The same policy with an action for each cell, for example to save it."""
        cells = self.grid.free_cells
        first = self.actions.ndim - 1 - self.grid.dim
        blocks = self.actions.shape[first:-1]
        place = tuple(cells.T * np.array(blocks)[:, None] // np.array(self.grid.shape)[:, None])
        return TablePolicy.deterministic(self.actions[(..., *place, slice(None))], self.grid)


def option_policy(
    actions: MoveSet, choice: Int[Array, "*steps cells"], grid: Grid | None = None
) -> TablePolicy:
    """The policy that takes one of a move set's options in each cell.

    ``choice`` holds the options' numbers. With an axis of steps, use `Profile.stacked`.
    """
    return TablePolicy.mixing(actions.moves, actions.options[choice], grid)


def random_policy(problem: Problem, points: int = 9) -> TablePolicy:
    """The uniform random policy over a set's moves, or over ``points`` on each axis of a box."""
    return uniform_policy(problem.actions.points(points, border=False))


def uniform_policy(moves: Float[Array, "moves action_dim"]) -> TablePolicy:
    """The policy that draws from the same moves with equal probability everywhere."""
    count = moves.shape[0]
    return TablePolicy.mixing(moves, jnp.full((1, count), 1.0 / count, dtype=moves.dtype))
