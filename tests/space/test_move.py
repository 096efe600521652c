from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import random_walls
from hypothesis import given
from hypothesis import strategies as st

from mufield import FOUR_ROOMS, Grid
from mufield.space.move import move

ROOMS = Grid.from_map(FOUR_ROOMS)


def go(grid, start, aim):
    moved = move(grid, jnp.asarray(start, dtype=float), jnp.asarray(aim, dtype=float))
    return np.asarray(moved.position), moved.stopped.tolist(), int(moved.index)


@pytest.mark.parametrize(
    ("start", "aim", "end", "stopped"),
    [
        ((0.5, 0.5), (3.0, 3.2), (3.0, 3.2), [False, False]),  # free
        ((4.5, 0.5), (6.5, 1.5), (5.0, 1.5), [True, False]),  # slides along the wall
        ((4.5, 1.5), (5.4, 2.6), (5.4, 2.6), [False, False]),  # through the door, y first
        ((4.5, 1.5), (5.6, 2.4), (5.0, 2.4), [True, False]),  # x first: the wall beside it
        ((10.5, 0.5), (12.0, -1.0), (11.0, 0.0), [True, True]),  # both borders
        ((6.5, 1.5), (4.2, 1.7), (6.0, 1.7), [True, False]),  # the wall from its other side
        ((4.5, 2.5), (6.4, 2.5), (6.4, 2.5), [False, False]),  # straight through the door
    ],
)
def test_moves_in_the_four_rooms(start, aim, end, stopped):
    position, axes, index = go(ROOMS, start, aim)
    assert position == pytest.approx(end, abs=1e-9)
    assert axes == stopped
    assert index == int(ROOMS.index_of(jnp.asarray(position))) >= 0


def test_a_hit_exactly_on_a_corner_stops_both_axes():
    grid = Grid.from_map(".#\n..")  # the wall is at (1, 1)
    position, stopped, _ = go(grid, (0.5, 0.5), (1.5, 1.5))
    assert stopped == [True, True]
    assert position == pytest.approx((1.0, 1.0), abs=1e-9)


def test_touching_a_flat_wall_at_a_lattice_point_slides():
    grid = Grid.from_map(".#\n.#")
    position, stopped, _ = go(grid, (0.5, 0.5), (1.5, 1.5))
    assert stopped == [True, False]
    assert position == pytest.approx((1.0, 1.5), abs=1e-9)


def test_periodic_axes_wrap_and_walls_beyond_the_seam_stop():
    ring = Grid.from_map("...#", periodic=True)
    assert go(ring, (0.5,), (1.7,))[0] == pytest.approx([1.7])
    position, stopped, index = go(ring, (0.5,), (-1.0,))
    assert stopped == [True]
    assert position == pytest.approx([0.0], abs=1e-9)
    assert index == 0
    free = Grid.box(0.0, 1.0, 4, periodic=True)
    assert go(free, (0.9,), (1.3,))[0] == pytest.approx([0.3])
    assert go(free, (0.1,), (-2.2,))[0] == pytest.approx([0.8])


@partial(jax.jit, static_argnums=0)
def go_all(grid, starts, aims):
    return jax.vmap(lambda start, aim: move(grid, start, aim))(starts, aims)


@given(seed=st.integers(0, 10_000), dim=st.integers(1, 3), periodic=st.booleans())
def test_agents_always_rest_in_free_cells_and_only_stopped_axes_miss_the_aim(seed, dim, periodic):
    shape = (6, 5, 4)[:dim]
    grid = Grid.box(
        -1.0,
        np.arange(1, dim + 1) * 1.3,
        shape,
        periodic=periodic,
        walls=random_walls(shape, 0.3, 7),
    )
    rng = np.random.default_rng(seed)
    cell = rng.integers(grid.n_cells, size=40)
    size = np.asarray(grid.cell_size)
    start = grid.centres[cell] + rng.uniform(-0.49, 0.49, (40, dim)) * size
    aim = start + rng.uniform(-3, 3, (40, dim)) * size
    moved = go_all(grid, start, aim)
    index = np.asarray(grid.index_of(moved.position))
    assert (index >= 0).all()
    assert np.array_equal(index, moved.index)
    missed = np.abs(np.asarray(grid.displacement(moved.position, jnp.asarray(aim))))
    extent = np.asarray(grid.extent)
    missed = np.minimum(missed, np.abs(missed - extent)) if periodic else missed
    assert (missed[~np.asarray(moved.stopped)] < 1e-9).all()


def test_float32_agents_rest_in_free_cells():
    rng = np.random.default_rng(0)
    cell = rng.integers(ROOMS.n_cells, size=5000)
    start = (ROOMS.centres[cell] + rng.uniform(-0.49, 0.49, (5000, 2))).astype(np.float32)
    aim = start + rng.uniform(-2, 2, (5000, 2)).astype(np.float32)
    # A second move starts from the walls where the first one ended.
    step = jax.jit(jax.vmap(lambda s, a: move(ROOMS, s, a)))
    for _ in range(3):
        moved = step(jnp.asarray(start), jnp.asarray(aim))
        assert moved.position.dtype == jnp.float32
        assert (np.asarray(ROOMS.index_of(moved.position)) == np.asarray(moved.index)).all()
        start, aim = moved.position, moved.position + jnp.asarray(aim - start)


@given(seed=st.integers(0, 10_000), drawing=st.integers(0, 2))
def test_the_rule_treats_axes_and_directions_alike(seed, drawing):
    walls = random_walls((5, 5), 0.3, drawing)
    grid = Grid.box(0.0, 5.0, (5, 5), walls=walls)
    swapped = Grid.box(0.0, 5.0, (5, 5), walls=walls.T)
    turned = Grid.box(0.0, 5.0, (5, 5), walls=walls[::-1])
    rng = np.random.default_rng(seed)
    start = grid.centres[rng.integers(grid.n_cells, size=40)]
    aim = start + rng.uniform(-2.5, 2.5, (40, 2))
    moved = go_all(grid, start, aim)
    other = go_all(swapped, start[:, ::-1], aim[:, ::-1])
    np.testing.assert_allclose(other.position, moved.position[:, ::-1], atol=1e-9)
    assert np.array_equal(other.stopped, moved.stopped[:, ::-1])
    mirror = np.array([-1.0, 1.0])
    shift = np.array([5.0, 0.0])
    other = go_all(turned, shift + mirror * start, shift + mirror * aim)
    np.testing.assert_allclose(other.position, shift + mirror * moved.position, atol=1e-9)
    assert np.array_equal(other.stopped, moved.stopped)


def test_an_aim_that_is_not_a_number_goes_nowhere_and_says_so():
    moved = move(ROOMS, jnp.array([0.5, 0.5]), jnp.array([jnp.nan, 1.7]))
    assert bool(jnp.isnan(moved.position[0]))
    assert float(moved.position[1]) == pytest.approx(1.7)
