"""One profile of two: what was run until some step of a day, and what is run from then on."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._types import Masses
from ..space.grid import Grid
from .base import Profile
from .tables import TablePolicy


def switched_at(grid: Grid, step: int, early: Profile, late: Profile, mass: Masses) -> Profile:
    """The policies of ``early`` before a step, and those of ``late`` from it on.

    Policies of the same kind are joined as they are. Those of different kinds, such as a table and
    networks, become one table, in which all agents of a cell do the same.

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
        early_rows = now.reshape(-1, *(1,) * (before.ndim - 1))
        return jnp.where(early_rows, before, after)

    shapes = [jax.tree.map(jnp.shape, each.per_step) for each in (early, late)]
    alike = early.per_step is not None and eqx.tree_equal(*shapes)
    if alike and bool(eqx.tree_equal(early.shared, late.shared)):
        steps = jax.tree.map(switch, early.per_step, late.per_step)
        return Profile(per_step=steps, shared=late.shared, horizon=late.horizon)
    before, after = (_as_table(grid, each, mass) for each in (early, late))
    # All moves of both, those of the other with no weight.
    rows = max(each.rows for each in (before, after))

    def wide(array: Array) -> Array:
        return jnp.broadcast_to(array, (late.horizon, rows, *array.shape[2:]))

    actions = jnp.concatenate([wide(before.actions), wide(after.actions)], axis=2)
    rows_now = now[:, None, None]
    weights = [
        jnp.where(rows_now, wide(before.weights), 0),
        jnp.where(rows_now, 0, wide(after.weights)),
    ]
    table = TablePolicy(actions, jnp.concatenate(weights, axis=2), grid)
    return Profile.stacked(table, late.horizon)


def _as_table(grid: Grid, profile: Profile, mass: Masses) -> TablePolicy:
    """The profile as tables of its steps; of a table itself, rows that cells share stay one."""
    policy = profile.join(profile.per_step)
    if not isinstance(policy, TablePolicy):
        # Where nothing is known of the population, an even one stands in for it.
        laws = profile.laws(grid, jnp.where(jnp.isfinite(mass), mass, 1 / grid.n_cells))
        return TablePolicy(actions=laws.actions, weights=laws.weights)
    actions, weights = policy.actions, policy.weights
    if profile.per_step is None:
        actions, weights = actions[None], weights[None]
    if actions.shape[-2] == 1:  # its weight is ignored
        weights = jnp.ones_like(weights)
    return TablePolicy(actions=actions, weights=weights)
