"""Policies as tables: what agents do in each cell."""

from dataclasses import replace
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._arrays import Mass, Masses, State, Step
from ..actions import Box, MoveSet, nearest_move
from ..errors import UserError, numbers
from ..problem import Problem
from ..space.grid import Grid
from ..space.measure import MeanField, check_grid
from .base import AbstractPolicy, ActionLaw, Profile, check_same


class TablePolicy(AbstractPolicy):
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
    sees_mu: ClassVar[bool] = False
    by_cell: ClassVar[bool] = True

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
        moves: Float[Array, "*cells moves action_dim"],
        weights: Float[Array, "*steps rows moves"],
        grid: Grid | None = None,
    ) -> "TablePolicy":
        """A table with the same moves at all steps, and in all cells or for each its own."""
        moves, weights = _as_array(moves, "moves"), _as_array(weights, "weights")
        rows = moves if moves.ndim > 2 else moves[None]
        actions = jnp.broadcast_to(rows, (*weights.shape[:-2], *rows.shape))
        return cls(actions=actions, weights=weights, grid=grid)

    @property
    def rows(self) -> int:
        """The number of cells that the table is for, or 1 if all cells share everything."""
        return max(self.actions.shape[-3], self.weights.shape[-2])

    def check(self, grid: Grid, actions: Box | MoveSet) -> None:
        """Raises if the table is for other cells, or its actions have another number of axes."""
        if self.rows not in (1, grid.n_cells):
            raise UserError(
                f"the table is for {self.rows} cells, and the grid has {grid.n_cells}; use the "
                "grid that it was planned for"
            )
        if self.grid is not None:
            check_same(self.grid, grid, "another map than this")
        if self.actions.shape[-1] != actions.dim:
            raise UserError(
                f"the policy's actions have {self.actions.shape[-1]} axes, and the problem's "
                f"{actions.dim}; name the environment that it was planned for"
            )

    def law(self, state: State, mu: MeanField) -> ActionLaw:
        """The moves and weights of the agent's cell."""
        cell = mu.grid.index_of(state) if self.rows > 1 else 0
        actions = self.actions[cell if self.actions.shape[0] > 1 else 0]
        if actions.shape[0] == 1:
            return ActionLaw.certain(actions[0])
        weights = self.weights[cell if self.weights.shape[0] > 1 else 0]
        return ActionLaw(actions=actions, weights=weights)

    def at_cells(self, grid: Grid, mass: Mass, step: Step) -> ActionLaw:
        """The whole table, without a look-up."""
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


def rest_policy(problem: Problem) -> TablePolicy:
    """The policy of agents at rest."""
    return TablePolicy.deterministic(jnp.asarray(problem.actions.rest)[None])


def random_policy(problem: Problem, points: int = 9) -> TablePolicy:
    """The uniform random policy over a set's moves, or over ``points`` on each axis of a box."""
    actions = problem.actions
    if isinstance(actions, MoveSet) and actions.available is not None:
        weights = actions.available / jnp.sum(actions.available, axis=1, keepdims=True)
        return TablePolicy.mixing(actions.moves, weights, problem.grid)
    return uniform_policy(actions.points(points, border=False))


def uniform_policy(moves: Float[Array, "moves action_dim"]) -> TablePolicy:
    """The policy that draws from the same moves with equal probability everywhere."""
    count = moves.shape[0]
    return TablePolicy.mixing(moves, jnp.full((1, count), 1.0 / count, dtype=moves.dtype))


def with_random_moves(
    profile: Profile, share: float, actions: Box | MoveSet | None = None
) -> Profile:
    """The profile with a share of each table's moves drawn from all of its moves alike.

    If the actions are given and are a box, only moves no farther from rest than a quarter of its
    sides are drawn, the farther the more often; if a table has none there, all alike. Policies that
    are no tables stay as they are.
    """

    def mixed(part: Any) -> Any:
        if not isinstance(part, TablePolicy) or part.weights is None:
            return part
        drawn = jnp.ones(part.actions.shape[:-1], dtype=part.weights.dtype)
        if isinstance(actions, Box):
            sides = jnp.asarray(actions.upper) - jnp.asarray(actions.lower)
            away = jnp.max(jnp.abs(part.actions - jnp.asarray(actions.rest)) / sides, axis=-1)
            quarter = 0.25 + 1e-4  # a little more, for moves on the edge that were rounded
            near = jnp.where(away < quarter, away, 0.0).astype(drawn.dtype)
            drawn = jnp.where(jnp.any(near > 0, axis=-1, keepdims=True), near, drawn)
        drawn = share * drawn / jnp.sum(drawn, axis=-1, keepdims=True)
        return replace(part, weights=(1 - share) * part.weights + drawn)

    return jax.tree.map(mixed, profile, is_leaf=lambda part: isinstance(part, TablePolicy))


def profile_weights(
    profile: Profile, moves: Float[Array, "*cells moves action_dim"], grid: Grid, masses: Masses
) -> tuple[Float[Array, "steps cells moves"], Bool[Array, ""]]:
    """A profile's weights on some moves; other actions are rounded to the nearest move.

    Policies see ``masses``, the distributions before each move. Also returns whether any action
    with weight was rounded.
    """
    listed = moves if moves.ndim == 2 else moves[:, None]

    def one(inputs: tuple[Any, Mass, Array]) -> tuple[Array, Array]:
        part, mass, step = inputs
        policy = profile.join(part)
        law = policy.at_cells(grid, mass, step)
        # Plans have the same moves in all cells; then what is nearest to them is, too.
        shared = isinstance(policy, TablePolicy) and len(policy.actions) == 1 and moves.ndim == 2
        index, apart = nearest_move(listed, law.actions[:1] if shared else law.actions)
        nearest = jax.nn.one_hot(index, moves.shape[-2], dtype=mass.dtype)
        far = jnp.any((apart > 1e-10) & (law.weights > 0))
        if shared:
            return law.weights @ nearest[0], far
        return jnp.einsum("km,kmn->kn", law.weights, nearest), far

    steps = jnp.arange(profile.horizon, dtype=jnp.int32)
    weights, rounded = jax.lax.map(one, (profile.per_step, masses, steps))
    return weights, jnp.any(rounded)


def switched_at(grid: Grid, step: int, early: Profile, late: Profile, mass: Masses) -> Profile:
    """The policies of ``early`` before a step, and those of ``late`` from it on.

    Policies of the same kind are joined as they are. Those of different kinds, such as a table and
    networks, become one table with the actions of both, in which all agents of a cell do the same.

    Args:
        grid: The space.
        step: The first step of ``late``.
        early: The first policies, for all steps of an episode.
        late: The others, likewise.
        mass: The distributions before each move, for policies that look at mu.
    """
    now = jnp.arange(late.horizon) < step

    def switch(before: Array, after: Array) -> Array:
        # Not by slices, which would be compiled anew for every step.
        return jnp.where(now.reshape(-1, *(1,) * (before.ndim - 1)), before, after)

    shapes = [jax.tree.map(jnp.shape, each.per_step) for each in (early, late)]
    alike = early.per_step is not None and eqx.tree_equal(*shapes)
    if alike and bool(eqx.tree_equal(early.shared, late.shared)):
        steps = jax.tree.map(switch, early.per_step, late.per_step)
        return Profile(per_step=steps, shared=late.shared, horizon=late.horizon)
    # Where nothing is known of the population, an even one stands in for it.
    seen = jnp.where(jnp.isfinite(mass), mass, 1 / grid.n_cells)
    before, after = (_laws(each, grid, seen) for each in (early, late))
    rows = now[:, None, None]
    weights = [jnp.where(rows, before.weights, 0), jnp.where(rows, 0, after.weights)]
    actions = jnp.concatenate([before.actions, after.actions], axis=2)
    table = TablePolicy(actions, jnp.concatenate(weights, axis=2), grid)
    return Profile.stacked(table, late.horizon)


# Compiled once for the module, so that further plans of a day share the program.
_laws = eqx.filter_jit(Profile.laws)
