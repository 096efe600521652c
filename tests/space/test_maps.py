"""Grids on the earth."""

import re

import numpy as np
import pytest

import mufield as mf

HOME = (-73.98, 40.75)


def points_on(city, count=500, seed=0):
    states = np.random.default_rng(seed).uniform(0, city.grid.upper, size=(count, 2))
    return city.to_earth(states).T


def city(**changes):
    """A town of 2 by 3 km with traffic on its western half only."""
    arguments = {"cell": 500.0, "turn": 29.0, "origin": HOME, "size": (2000.0, 3000.0)} | changes
    blank = mf.fleet.CityMap(*HOME, 29.0, mf.Grid.box(0.0, (1.0, 3.0), (2, 6)))
    return mf.fleet.CityMap.of_traffic(*points_on(blank), **arguments)


def test_cells_with_traffic_are_free_and_all_others_walls():
    town = city()
    assert town.grid.shape == (4, 6)
    np.testing.assert_array_equal(
        town.grid.walls, np.repeat([[False], [False], [True], [True]], 6, 1)
    )
    assert town.grid.cell_size == pytest.approx((0.5, 0.5))
    (place,) = town.notes
    assert re.search("12 cells are on 2 by 3 km around longitude -73.96, latitude 40.76", place)
    small = city(size=(500.0, 3000.0))
    assert small.grid.shape == (1, 6)
    note, _ = small.notes
    assert re.fullmatch("2[0-9]{2} of 500 points are off the map", note)


def test_without_origin_and_size_all_points_fit():
    town = city(origin=None, size=None)
    assert len(town.notes) == 1  # where it lies
    assert town.grid.upper == pytest.approx((1.0, 3.0), abs=0.5)


def test_there_and_back_again():
    town = city()
    where = np.stack(points_on(town), axis=-1)
    states = town.to_plane(*where.T)
    np.testing.assert_allclose(town.to_earth(states), where, atol=1e-12)
    # The second axis points 29 degrees east of north; a degree of latitude has 111.2 km.
    east, north = (town.to_earth([[0.0, 1.0]]) - town.to_earth([[0.0, 0.0]]))[0]
    assert north * 111.195 == pytest.approx(np.cos(np.radians(29)), rel=1e-3)
    assert east * 111.195 * np.cos(np.radians(40.75)) == pytest.approx(
        np.sin(np.radians(29)), rel=1e-3
    )
    again = mf.fleet.CityMap.of_traffic(*points_on(town), cell=500, turn=29, origin=HOME)
    assert np.hypot(*(again.to_plane(*HOME)[0])) < 1e-9


def test_a_fleet_becomes_a_distribution_and_who_is_far_off_is_counted():
    town = city()
    states = [[0.1, 0.1], [0.2, 0.2], [0.9, 2.9], [1.2, 2.9], [40.0, 2.9]]
    mass, lost = town.histogram(*town.to_earth(states).T)
    assert lost == 1
    assert mass[town.grid.index_at(0, 0)] == pytest.approx(0.5)
    assert mass[town.grid.index_at(1, 5)] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: city(cell=0.0), "edge of a cell, in metres, must be"),
        (lambda: city(least=0), "the points that make a cell free, must be"),
        (lambda: city(least=10**6), "no cell of the map has 1000000 points"),
        (lambda: city(size=(0.0, 3.0)), "larger than 0"),
        (
            lambda: mf.fleet.CityMap.of_traffic([0.0, 90.0], [0.0, 0.0], cell=500),
            "smaller than 400 km",
        ),
        (lambda: city().to_plane([np.nan], [40.0]), "got nan in row 0"),
        (lambda: city().to_plane([40.75], [-173.98]), "check the order"),
        (lambda: city().to_plane([1.0, 2.0], [1.0]), "as many longitudes as latitudes"),
        (lambda: city().to_plane(["here"], [1.0]), "must be numbers"),
        (lambda: city().to_earth([1.0, 2.0]), r"the shape \(points, 2\)"),
        (lambda: city().histogram([10.0], [10.0]), "none of 1 positions"),
    ],
)
def test_what_is_no_place_is_refused(make, words):
    with pytest.raises(mf.UserError, match=words):
        make()
