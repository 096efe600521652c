import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mufield import FOUR_ROOMS, Grid


def test_four_rooms_has_the_paper_s_cells():
    grid = Grid.from_map(FOUR_ROOMS)
    assert grid.n_cells == 104
    assert grid.walls.sum() == 17
    doors = [(5, 2), (5, 8), (2, 5), (8, 5)]
    assert all(not grid.walls[door] for door in doors)
    assert all(grid.walls[5, j] for j in range(11) if j not in (2, 8))
    assert all(grid.walls[i, 5] for i in range(11) if i not in (2, 8))


@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    lower=st.floats(-10, 10),
    size=st.floats(0.1, 3.0),
    periodic=st.booleans(),
)
def test_each_centre_is_in_its_own_cell(shape, lower, size, periodic):
    upper = [lower + size * n for n in shape]
    grid = Grid.box([lower] * len(shape), upper, shape, periodic=periodic)
    # In NumPy, which compiles nothing for each of the shapes; the two agree, see below.
    assert np.array_equal(grid.index_of(grid.centres), np.arange(grid.n_cells))


@pytest.mark.parametrize("library", [np, jnp])
def test_lookup_knows_walls_borders_and_wrapping(library):
    grid = Grid.from_map("..#", periodic=False)
    points = library.asarray([[0.0], [0.999], [1.0], [2.5], [3.0], [3.1], [-0.1], [jnp.nan]])
    assert grid.index_of(points).tolist() == [0, 0, 1, -1, -1, -1, -1, -1]
    open_line = Grid.box(0.0, 3.0, 3)
    assert open_line.index_of(library.asarray([[3.0], [3.01]])).tolist() == [2, -1]
    ring = Grid.box(0.0, 3.0, 3, periodic=True)
    assert ring.index_of(library.asarray([[3.0], [-0.5], [7.5]])).tolist() == [0, 2, 1]


def test_drawings_show_y_upwards_and_floors_from_the_ground():
    grid = Grid.from_map("#..\n...")
    assert grid.shape == (3, 2)
    assert grid.walls[0, 1]
    assert grid.walls.sum() == 1
    tower = Grid.from_map(["..\n..", "#.\n.."], cell_size=(1, 1, 3.0))
    assert tower.shape == (2, 2, 2)
    assert tower.walls[0, 1, 1]
    assert tower.upper == (2.0, 2.0, 6.0)


def test_arrays_over_the_box_and_vectors_over_free_cells_convert_both_ways():
    grid = Grid.from_map("#..\n...")
    values = np.arange(5.0)
    full = grid.to_array(values)
    assert np.isnan(full[0, 1])
    assert np.array_equal(grid.from_array(full), values)
    assert grid.to_array(np.ones((7, 5)), fill=0.0).shape == (7, 3, 2)
    with pytest.raises(ValueError, match="last axes"):
        grid.from_array(np.ones((2, 3)))


def test_equal_grids_are_equal_and_hash_alike():
    one, two = Grid.from_map(FOUR_ROOMS), Grid.from_map(FOUR_ROOMS)
    assert one == two
    assert hash(one) == hash(two)
    assert one != Grid.from_map(FOUR_ROOMS, periodic=True)
    with pytest.raises(ValueError, match="read-only"):
        one.walls[0, 0] = True


@pytest.mark.parametrize(
    ("drawing", "message"),
    [
        ("###\n###", "no free cell"),
        ("...\n..", "line 2 of the map is"),
        ("..x", "line 1 of the map is '..x'"),
        ("", "empty"),
        ([], "one for each floor"),
        (["..", "..."], "same width"),
    ],
)
def test_bad_maps_are_refused(drawing, message):
    with pytest.raises(ValueError, match=message):
        Grid.from_map(drawing)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lower": 0, "upper": 1, "shape": (2, 2, 2, 2)}, "1 to 3 dimensions"),
        ({"lower": 1, "upper": 1, "shape": 3}, "lower to a higher"),
        ({"lower": 0, "upper": 1, "shape": 0}, "whole number of at least 1"),
        ({"lower": (0, 0, 0), "upper": 1, "shape": (2, 2)}, "2 axes"),
        ({"lower": 0, "upper": 1, "shape": 3, "walls": np.zeros(4)}, "wall mask"),
    ],
)
def test_bad_boxes_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Grid.box(**arguments)


def test_named_cells_are_checked():
    grid = Grid.from_map("..#")
    assert grid.index_at(1) == 1
    with pytest.raises(ValueError, match="is a wall"):
        grid.index_at(2)
    with pytest.raises(ValueError, match="within the shape"):
        grid.index_at(3)
