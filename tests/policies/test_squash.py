"""Policies that scatter agents: the law, its moments, and what it does to the flow."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import walking_problem

import mufield as mf
from mufield.policies.network import (
    SquashedTable,
    network_profile,
    normal_scores,
    scattered,
    unspread,
    unsquash,
)
from mufield.space.measure import mean_field_at

pytestmark = pytest.mark.slow

BOX = mf.Box((-1.0, 0.0), (1.0, 4.0))
GRID = mf.Grid.box((0.0, 0.0), (4.0, 3.0), (4, 3))


def softplus_inverse(value):
    return jnp.log(jnp.expm1(jnp.asarray(value)))


@pytest.mark.parametrize("points", [2, 3, 8])
@pytest.mark.parametrize("dim", [1, 2])
def test_scores_have_the_moments_of_the_normal_distribution(points, dim):
    scores = normal_scores(points, dim)
    assert scores.shape == (points**dim, dim)
    np.testing.assert_allclose(scores.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(scores.T @ scores / len(scores), np.eye(dim), atol=1e-12)


def test_one_point_has_no_spread():
    with pytest.raises(ValueError, match="at least two points"):
        normal_scores(1, 2)


def test_actions_scatter_around_the_centre_and_stay_in_the_box():
    wanted = jnp.asarray([[0.2, 1.0], [-0.5, 2.5]])
    deviation = jnp.asarray([[0.05, 0.1], [0.1, 0.2]])
    centre = unsquash(BOX, wanted)
    law = scattered(BOX, centre, unspread(BOX, centre, deviation), 5)
    np.testing.assert_allclose(law.weights.sum(axis=-1), 1.0, rtol=1e-6)
    np.testing.assert_allclose(law.mean(), wanted, atol=0.02)
    found = jnp.sqrt(jnp.mean((law.actions - law.mean()[:, None]) ** 2, axis=1))
    np.testing.assert_allclose(found, deviation, rtol=0.05)
    wide = scattered(BOX, centre, jnp.full((2, 2), 50.0), 5)
    assert bool(jnp.all(BOX.contains(wide.actions)))
    assert float(wide.actions[..., 1].max()) > 3.99


def test_a_vanishing_spread_is_the_table_without_one():
    raw = jax.random.normal(jax.random.key(0), (GRID.n_cells, 2))
    law = scattered(BOX, raw, jnp.full(raw.shape, -40.0), 3)
    np.testing.assert_allclose(law.actions, jnp.repeat(law.mean()[:, None], 9, axis=1), atol=1e-6)


@pytest.mark.parametrize("kind", ["table", "network"])
def test_one_agent_s_law_is_that_of_its_cell(kind):
    problem = walking_problem(GRID, horizon=2)
    if kind == "table":
        raw = jax.random.normal(jax.random.key(1), (2, GRID.n_cells, 2))
        policy = SquashedTable(raw[0], raw[1], problem.actions, 3)
    else:
        policy = network_profile(problem, jax.random.key(1), width=5, points=3).at(0)
    everywhere = policy.at_cells(GRID, problem.initial, 0)
    for cell in (0, 5, 11):
        state = jnp.asarray(GRID.centres[cell])
        law = policy.law(state, mean_field_at(GRID, problem.initial, state))
        np.testing.assert_allclose(law.actions, everywhere.actions[cell], rtol=1e-6)


def test_agents_that_start_together_part():
    """From one cell without noise, a table keeps everybody together; a spread does not."""
    system = mf.make("four-rooms", horizon=3, noise_std=0.05)
    flow, motion = system.reveal()
    raw = jnp.zeros((3, system.problem.grid.n_cells, 2)) + 0.5
    together = mf.Profile.stacked(mf.TablePolicy.deterministic(jnp.full_like(raw, 0.9)), 3)
    spread = jnp.full_like(raw, float(softplus_inverse(1.0)))
    wide = SquashedTable(raw, spread, flow.problem.actions, 5)
    apart = mf.Profile.stacked(wide, 3)
    assert float(flow.value(apart, motion)) > float(flow.value(together, motion)) + 1.0
