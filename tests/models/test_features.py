"""Features of (s, a, mu): ranges, the seam of a ring, and how the population enters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy import LINE, PLANE, RING, toy_episode, toy_problem

from mufield import Grid, MoveSet, Problem, point_mass, uniform
from mufield.models.data import Transitions
from mufield.models.features import FeatureMap
from mufield.policies.encoders import (
    ENCODERS,
    Here,
    LogHere,
    Pooled,
    Seen,
    Unseen,
    check_encoder,
)
from mufield.space.measure import mean_field_at

STILL = jnp.zeros(1)


def features_at(problem, mu, state, action=None, mass=None):
    """One agent's features."""
    features = FeatureMap(problem, mu)
    state = jnp.asarray(state, dtype=float)
    action = jnp.zeros(problem.actions.dim) if action is None else jnp.asarray(action)
    mass = uniform(problem.grid) if mass is None else jnp.asarray(mass)
    found = features(state, action, mean_field_at(problem.grid, mass, state))
    assert found.shape == (features.size,)
    return np.asarray(found)


def test_corners_of_the_box_become_corners_of_the_unit_cube():
    problem = toy_problem(PLANE)
    assert features_at(problem, Unseen(), [0.0, 4.0], [1.0, -1.0]).tolist() == [-1, 1, 1, -1]
    assert features_at(problem, Unseen(), [2.0, 3.0], [0.0, 0.5]).tolist() == [0, 0.5, 0, 0.5]


def test_finite_sets_of_moves_are_scaled_to_their_range():
    problem = Problem(
        space=LINE,
        actions=MoveSet([[-2.0], [0.0], [6.0]]),
        reward=lambda state, action, mu: 0.0 * mu.here,
        horizon=2,
        initial=uniform(LINE),
        noise=0.1,
    )
    for move, scaled in [(-2.0, -1.0), (2.0, 0.0), (6.0, 1.0)]:
        assert features_at(problem, Unseen(), [2.0], [move]).tolist() == [0.0, scaled]


def test_the_seam_of_a_ring_does_not_show_and_the_ends_of_a_line_do():
    ring, line = FeatureMap(toy_problem(RING)), FeatureMap(toy_problem(LINE))
    mu = mean_field_at(RING, uniform(RING), jnp.zeros(1))
    here, there = (ring(jnp.array([s]), STILL, mu) for s in (0.0, 1.0))
    assert np.asarray(here) == pytest.approx(np.asarray(there), abs=1e-12)
    slope = jax.jacfwd(lambda s: ring(s, STILL, mu))
    assert np.asarray(slope(jnp.zeros(1))) == pytest.approx(
        np.asarray(slope(jnp.ones(1))), abs=1e-12
    )
    # Two places half a ring apart must not be taken for one.
    assert not np.allclose(here, ring(jnp.array([0.5]), STILL, mu))

    mu = mean_field_at(LINE, uniform(LINE), jnp.zeros(1))
    assert not np.allclose(*(line(jnp.array([s]), STILL, mu) for s in (0.0, 4.0)))


def test_without_mu_the_population_is_not_seen():
    problem = toy_problem(PLANE)
    crowded = np.eye(16)[3]
    assert np.array_equal(
        features_at(problem, Unseen(), [0.5, 0.5]),
        features_at(problem, Unseen(), [0.5, 0.5], mass=crowded),
    )
    assert FeatureMap(problem).own_size == FeatureMap(problem).size == 4


def test_the_local_mass_is_all_that_local_features_see():
    problem = toy_problem(LINE)
    one = features_at(problem, Here(), [1.5], mass=[0.2, 0.5, 0.3, 0.0])
    same = features_at(problem, Here(), [1.5], mass=[0.5, 0.5, 0.0, 0.0])
    other = features_at(problem, Here(), [1.5], mass=[0.5, 0.25, 0.25, 0.0])
    assert np.array_equal(one, same)
    assert one[-1] == pytest.approx(np.log1p(4 * 0.5))
    assert other[-1] == pytest.approx(np.log1p(4 * 0.25))


def test_pooled_features_are_the_masses_of_blocks():
    grid = Grid.box(0.0, 8.0, 8)
    mass = np.random.default_rng(0).dirichlet(np.ones(8))
    found = features_at(toy_problem(grid), Pooled(4), [1.5], mass=mass)
    assert found[2:] == pytest.approx(2 * mass.reshape(2, 4).sum(axis=1))
    even = features_at(toy_problem(PLANE), Pooled(2), [0.5, 0.5])
    assert even[4:].tolist() == [1.0] * 4
    alone = features_at(toy_problem(PLANE), Pooled(2), [0.5, 0.5], mass=point_mass(PLANE, 0, 0))
    assert alone[4:].tolist() == [4.0, 0.0, 0.0, 0.0]


def test_users_may_bring_their_own_features_of_mu():
    def crowd_and_way(state, mu):
        return jnp.stack([mu.here, state[0] * mu.mass[0]])

    mass = [0.1, 0.2, 0.3, 0.4]
    found = features_at(toy_problem(LINE), Seen(crowd_and_way), [2.5], mass=mass)
    assert found[2:] == pytest.approx([0.3, 0.25])
    # A single number is a vector of one.
    assert features_at(toy_problem(LINE), Seen(lambda state, mu: mu.here), [2.5]).shape == (3,)


def test_features_of_mu_that_are_no_vector_are_refused():
    with pytest.raises(ValueError, match=r"must be a vector for one agent, got \(2, 4\)"):
        Seen(lambda state, mu: jnp.stack([mu.mass, mu.mass])).size(LINE)


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"Pooled\(\).*got 'global'"):
        check_encoder("global")


@pytest.mark.parametrize("mu", [kind() for kind in ENCODERS.values()], ids=list(ENCODERS))
def test_rows_of_data_get_the_features_of_their_own_moment(mu):
    problem = toy_problem(PLANE, horizon=3)
    data = Transitions.of(problem, [toy_episode(problem, seed, agents=2) for seed in range(2)])
    rows = data.map(FeatureMap(problem, mu))
    assert rows.shape[0] == len(data)
    for row in range(len(data)):
        mass = data.mass[data.moment[row]]
        alone = features_at(problem, mu, data.states[row], data.actions[row], mass)
        assert rows[row] == pytest.approx(alone, abs=1e-12)


def test_the_logarithm_here_is_zero_where_even_and_one_where_everybody_is():
    problem = toy_problem(LINE)
    assert features_at(problem, LogHere(), [1.5])[-1] == pytest.approx(0.0, abs=1e-12)
    everybody, nobody = [0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]
    assert features_at(problem, LogHere(), [1.5], mass=everybody)[-1] == pytest.approx(1.0)
    lowest = np.log(1e-6) / np.log(4)
    assert features_at(problem, LogHere(), [1.5], mass=nobody)[-1] == pytest.approx(lowest)
