"""Many agents at once move as one agent does."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import random_walls
from hypothesis import given
from hypothesis import strategies as st

from mufield import Grid
from mufield.space.move import move, move_many
from mufield.space.walls import short_distance

AGENTS = 200


@partial(jax.jit, static_argnums=0)
def both(grid, start, cell, aim):
    one = jax.vmap(lambda here, there: move(grid, here, there))(start, aim)
    return one, move_many(grid, tuple(start.T), cell, tuple(aim.T))


def check(grid, start, cell, aim):
    one, many = both(grid, start, cell, aim)
    np.testing.assert_allclose(np.stack(many.position, axis=1), one.position, rtol=0, atol=1e-5)
    assert np.array_equal(np.stack(many.stopped, axis=1), one.stopped)
    assert np.array_equal(many.cell, one.index)
    return one


@pytest.mark.parametrize("walls", [0.3, 0.0])
@pytest.mark.parametrize("far", [False, True])
@given(seed=st.integers(0, 10_000), dim=st.integers(1, 3), periodic=st.booleans())
def test_short_and_long_moves_follow_the_rule_for_one_agent(walls, far, seed, dim, periodic):
    shape = (6, 5, 4)[:dim]
    blocked = random_walls(shape, walls, 7) if walls else None
    # Numbers in 64 bits hold such edges of cells exactly, so that rounding decides at no corner.
    upper = np.multiply(shape, (0.5, 1.0, 0.25)[:dim]) - 1.0
    grid = Grid.box(-1.0, upper, shape, periodic=periodic, walls=blocked)
    rng = np.random.default_rng(seed)
    cell = rng.integers(grid.n_cells, size=AGENTS).astype(np.int32)
    size = np.asarray(grid.cell_size)
    # Many of the lines start from centres with moves of quarter cells: they meet corners.
    inside = np.where(rng.random((AGENTS, dim)) < 0.5, 0.0, rng.uniform(-0.49, 0.49, (AGENTS, dim)))
    reach = short_distance(dim) + (2.5 if far else -0.01)
    moves = rng.uniform(-reach, reach, (AGENTS, dim))
    moves = np.where(inside == 0, np.round(4 * moves) / 4, moves)
    if not far:
        moves = np.clip(moves, -reach - inside + 0.5, reach - inside - 0.5)
        # Equal moves on both axes that are no quarters meet corners but for rounding.
        moves = np.where(inside == 0, np.trunc(4 * moves) / 4, moves)
    start = grid.centres[cell] + inside * size
    check(grid, jnp.asarray(start), jnp.asarray(cell), jnp.asarray(start + moves * size))


def test_an_aim_that_is_not_a_number_goes_nowhere_and_says_so():
    grid = Grid.from_map("...\n.#.\n...")
    start = jnp.asarray([[0.5, 0.5]] * 3)
    aim = jnp.asarray([[jnp.nan, 1.7], [0.7, jnp.inf], [1.2, 0.3]])
    one = check(grid, start, jnp.zeros(3, dtype=jnp.int32), aim)
    assert np.isnan(one.position).any(axis=1).tolist() == [True, True, False]
