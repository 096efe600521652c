"""Policies by unbounded parameters: actions in the box, and one agent's action is its cell's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import walking_problem

import mufield as mf
from mufield.policies.network import SquashedTable, network_profile, squash, unsquash
from mufield.space.measure import mean_field_at

pytestmark = pytest.mark.slow

BOX = mf.Box((-1.0, 0.0), (1.0, 4.0))
GRID = mf.Grid.box((0.0, 0.0), (4.0, 3.0), (4, 3))


def test_actions_stay_in_the_box_and_come_back_unless_they_are_at_its_border():
    wanted = jnp.asarray([[0.2, 1.0], [-0.5, 2.5]])
    np.testing.assert_allclose(squash(BOX, unsquash(BOX, wanted)), wanted, rtol=1e-6)
    wide = squash(BOX, jnp.asarray([[-50.0, 50.0]]))
    np.testing.assert_allclose(wide, [[-1.0, 4.0]])
    border = squash(BOX, unsquash(BOX, jnp.asarray([[1.0, 4.0]])))
    np.testing.assert_allclose(border, [[0.97, 3.94]], rtol=1e-6)


@pytest.mark.parametrize("kind", ["table", "network"])
def test_one_agent_s_law_is_that_of_its_cell(kind):
    problem = walking_problem(GRID, horizon=2)
    if kind == "table":
        raw = jax.random.normal(jax.random.key(1), (GRID.n_cells, 2))
        policy = SquashedTable(raw, problem.actions)
    else:
        policy = network_profile(problem, jax.random.key(1), width=5).at(0)
    everywhere = policy.at_cells(GRID, problem.initial, 0)
    for cell in (0, 5, 11):
        state = jnp.asarray(GRID.centres[cell])
        law = policy.law(state, mean_field_at(GRID, problem.initial, state))
        np.testing.assert_allclose(law.actions, everywhere.actions[cell], rtol=1e-6)
