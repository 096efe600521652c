import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

from mufield import (
    FOUR_ROOMS,
    Grid,
    UserError,
    entropy,
    from_density,
    histogram,
    log_mass,
    point_mass,
    sample,
    uniform,
)
from mufield.space.measure import check_mass, mean_field_at

ROOMS = Grid.from_map(FOUR_ROOMS)


def test_entropy_is_zero_for_a_point_and_log_n_for_uniform():
    assert entropy(point_mass(ROOMS, 0, 0)) == 0.0
    assert float(entropy(uniform(ROOMS))) == pytest.approx(np.log(104))


def test_densities_integrate_to_one():
    grid = Grid.box(0.0, 2.0, 8)
    seen = mean_field_at(grid, uniform(grid), jnp.array([0.3]))
    assert float(seen.density_here) == pytest.approx(0.5)


def test_logarithm_is_finite_in_empty_cells_and_keeps_entropy_concave():
    mass = jnp.asarray([0.0, 1e-30, 1e-25, 1e-10, 1.0])
    assert bool(jnp.all(jnp.isfinite(log_mass(mass))))
    slope = jax.vmap(jax.grad(lambda m: -m * log_mass(m)))(mass)
    assert bool(jnp.all(jnp.diff(slope) <= 0))


def test_samples_follow_the_distribution_and_become_it_again():
    mass = from_density(ROOMS, np.arange(1.0, 105.0))
    agents = sample(ROOMS, mass, jax.random.key(0), 50_000)
    seen = histogram(ROOMS, agents)
    assert float(jnp.sum(seen)) == pytest.approx(1.0)
    assert chisquare(np.asarray(seen) * 50_000, np.asarray(mass) * 50_000).pvalue > 1e-3


def test_an_agent_sees_the_mass_of_its_own_cell():
    mass = from_density(ROOMS, np.arange(1.0, 105.0))
    mu = mean_field_at(ROOMS, mass, jnp.asarray([0.2, 1.9]))
    assert float(mu.here) == float(mass[1])
    assert float(mu.at(jnp.asarray([0.5, 2.5]))) == float(mass[2])
    assert float(mu.at(jnp.asarray([5.5, 0.5]))) == 0.0  # a wall


@pytest.mark.parametrize(
    ("mass", "message"),
    [
        (np.full(104, 0.9 / 104), "sums to 0.9"),
        (np.r_[-0.1, 1.1, np.zeros(102)], "must not be negative.*-0.1 in cell"),
        (np.r_[np.nan, np.ones(103) / 103], "NaN"),
        (np.ones(10) / 10, "104 free cells.*got the shape"),
        (np.ones((11, 11)) / 121, "inside walls"),
    ],
)
def test_bad_distributions_are_refused(mass, message):
    with pytest.raises(ValueError, match=message):
        check_mass(ROOMS, mass)


def test_an_array_over_the_whole_box_is_accepted():
    full = np.zeros((11, 11))
    full[0, 0] = 1.0
    assert np.array_equal(check_mass(ROOMS, full), point_mass(ROOMS, 0, 0))


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        (np.array([[0.5, 0.5], [5.5, 0.5]]), "1 of 2 positions.*row 1"),
        (np.array([[0.5, np.nan]]), "1 of 1"),
        (np.array([0.5, 0.5]), r"got \(2,\)"),
        (np.zeros((0, 2)), r"agents >= 1, 2\), got \(0, 2\)"),
    ],
)
def test_positions_outside_the_space_are_refused(positions, message):
    with pytest.raises(ValueError, match=message):
        histogram(ROOMS, positions)


def test_a_density_must_be_a_density():
    with pytest.raises(ValueError, match="must not be negative"):
        from_density(ROOMS, np.full(104, -1.0))


def test_a_density_may_be_a_function_of_one_state():
    def density(state):
        return state[0] ** 2 + 1.0

    expected = from_density(ROOMS, ROOMS.centres[:, 0] ** 2 + 1.0)
    assert np.asarray(from_density(ROOMS, density)) == pytest.approx(np.asarray(expected))
    with pytest.raises(UserError, match=r"jnp\.where"):
        from_density(ROOMS, lambda state: 1.0 if state[0] > 3 else 0.0)
    with pytest.raises(UserError, match="one entry for each of the 104"):
        from_density(ROOMS, lambda state: state)


def test_there_is_no_mass_where_no_agent_can_be():
    mass = jnp.arange(1.0, 105.0) / 5460.0
    for state in ([5.5, 0.5], [-3.0, 2.0]):  # in a wall and outside
        assert float(mean_field_at(ROOMS, mass, jnp.asarray(state)).here) == 0.0
