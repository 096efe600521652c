import numpy as np
import ot
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mufield import FOUR_ROOMS, Grid, point_mass, wasserstein
from mufield.space.measure import distances

ROOMS = Grid.from_map(FOUR_ROOMS)


def pair(n, seed, concentration=0.3):
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.full(n, concentration), size=2)


@given(seed=st.integers(0, 1000), periodic=st.booleans())
@settings(max_examples=20)
def test_line_and_circle_agree_with_linear_programming(seed, periodic):
    grid = Grid.box(0.0, 2.0, 17, periodic=periodic)
    mu, nu = pair(17, seed)
    expected = ot.emd2(mu, nu, distances(grid, grid.centres))
    assert wasserstein(grid, mu, nu) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("seed", range(3))
def test_rooms_agree_with_an_independent_solver(seed):
    mu, nu = pair(104, seed)
    expected = ot.emd2(mu, nu, distances(ROOMS, ROOMS.centres))
    assert wasserstein(ROOMS, mu, nu) == pytest.approx(expected, abs=1e-9)


def test_hundreds_of_cells_agree_with_an_independent_solver():
    grid = Grid.box(0.0, 20.0, (20, 20), periodic=(True, False))
    mu, nu = pair(400, 0)
    expected = ot.emd2(mu, nu, distances(grid, grid.centres))
    assert wasserstein(grid, mu, nu) == pytest.approx(expected, abs=1e-9)


def test_it_is_a_distance():
    mu, nu = pair(104, 5)
    rho = pair(104, 6)[0]
    assert wasserstein(ROOMS, mu, mu) == 0.0
    assert wasserstein(ROOMS, mu, nu) == pytest.approx(wasserstein(ROOMS, nu, mu))
    through = wasserstein(ROOMS, mu, rho) + wasserstein(ROOMS, rho, nu)
    assert wasserstein(ROOMS, mu, nu) <= through + 1e-12


def test_bad_questions_are_refused():
    mu, nu = pair(104, 0)
    with pytest.raises(ValueError, match="nu must sum to 1"):
        wasserstein(ROOMS, mu, nu * 0.9)


@pytest.mark.parametrize("periodic", [False, True])
def test_pooled_distances_are_off_by_no_more_than_the_bound(periodic):
    grid = Grid.box(0.0, 1.0, (12, 9), periodic=periodic)
    mu, nu = pair(grid.n_cells, 4)
    exact, pooled = wasserstein(grid, mu, nu), wasserstein(grid, mu, nu, most_cells=100)
    assert pooled != exact
    diagonal = np.linalg.norm(3 * np.asarray(grid.cell_size))  # of blocks of three by three cells
    assert abs(pooled - exact) <= np.abs(mu - nu).sum() * diagonal
    assert pooled == pytest.approx(exact, rel=0.5)
    assert wasserstein(grid, mu, mu, most_cells=100) == 0.0


def test_large_maps_are_pooled():
    grid = Grid.box(0.0, 100.0, (100, 100))
    left, right = point_mass(grid, 3, 3), point_mass(grid, 93, 3)
    assert wasserstein(grid, left, right) == pytest.approx(90.0)
    mu, nu = pair(grid.n_cells, 1)
    assert wasserstein(grid, mu, nu) == pytest.approx(wasserstein(grid, nu, mu), abs=1e-6)


def test_distributions_that_hardly_differ_are_solved_and_their_distance_scales():
    grid = Grid.from_map(FOUR_ROOMS)
    rng = np.random.default_rng(3)
    base = rng.dirichlet(np.full(grid.n_cells, 0.05))
    other = rng.dirichlet(np.full(grid.n_cells, 0.05))
    whole = wasserstein(grid, base, other)
    for share in (1e-3, 1e-6, 1e-9):
        near = (1 - share) * base + share * other
        assert wasserstein(grid, base, near) == pytest.approx(share * whole, rel=1e-5)
