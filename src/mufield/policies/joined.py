"""One profile of two: what was run until some step of a day, and what is run from then on."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._types import Masses
from ..space.grid import Grid
from .base import ActionLaw, Profile
from .tables import TablePolicy


def followed_by(grid: Grid, early: Profile, late: Profile, mass: Masses) -> Profile:
    """The policies of ``early``, one for each of its steps, and after them those of ``late``.

    Policies of the same kind are put one after the other. Those of different kinds, such as a
    table and networks, become one table, in which all agents of a cell do the same.

    Args:
        grid: The space.
        early: The first policies.
        late: The others.
        mass: The distributions at all steps, for policies that look at mu.
    """
    horizon = early.horizon + late.horizon
    if _alike(early, late):
        steps = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), early.per_step, late.per_step)
        return Profile(per_step=steps, shared=late.shared, horizon=horizon)
    before = _as_table(grid, early, mass[: early.horizon])
    after = _as_table(grid, late, mass[early.horizon :])
    # All moves of both, those of the other with no weight.
    empty = [jnp.zeros_like(table.weights[:1]) for table in (before, after)]
    weights = [
        _beside(before.weights, empty[1], early.horizon),
        _beside(empty[0], after.weights, late.horizon),
    ]
    actions = [
        _beside(before.actions, after.actions[:1], early.horizon),
        _beside(before.actions[:1], after.actions, late.horizon),
    ]
    table = TablePolicy(jnp.concatenate(actions), jnp.concatenate(weights), grid)
    return Profile.stacked(table, horizon)


def _alike(early: Profile, late: Profile) -> bool:
    """Whether the two differ in the arrays of their steps alone."""
    shapes = [
        [(leaf.shape[1:], leaf.dtype) for leaf in jax.tree.leaves(each.per_step)]
        for each in (early, late)
    ]
    trees: Any = [jax.tree.structure(each.per_step) for each in (early, late)]
    stepwise = early.per_step is not None
    same = trees[0] == trees[1] and shapes[0] == shapes[1]
    return stepwise and same and bool(eqx.tree_equal(early.shared, late.shared))


def _as_table(grid: Grid, profile: Profile, mass: Masses) -> TablePolicy:
    """The profile as tables of its steps; of a table itself, rows that cells share stay one."""
    policy = profile.join(profile.per_step)
    if isinstance(policy, TablePolicy):
        actions, weights = policy.actions, policy.weights
        if profile.per_step is None:
            actions, weights = actions[None], weights[None]
        if actions.shape[-2] == 1:  # its weight is ignored
            weights = jnp.ones_like(weights)
        return TablePolicy(actions=actions, weights=weights)

    def one(inputs: tuple[Any, Array]) -> ActionLaw:
        part, now = inputs
        return profile.join(part).at_cells(grid, now)

    laws = jax.lax.map(one, (profile.per_step, mass))
    return TablePolicy(actions=laws.actions, weights=laws.weights)


def _beside(left: Array, right: Array, steps: int) -> Array:
    """Two tables' arrays side by side along the moves, for each step."""
    rows = max(left.shape[1], right.shape[1])

    def wide(array: Array) -> Array:
        return jnp.broadcast_to(array, (steps, rows, *array.shape[2:]))

    return jnp.concatenate([wide(left), wide(right)], axis=2)
