"""Motions as polynomials of the action and splines of the mass."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import walk, walking_problem

from mufield import Box, Grid, Hallucinated
from mufield.flow.motion_table import MotionTable, tabulated
from mufield.flow.motions import AbstractJointMotion
from mufield.policies import Centre
from mufield.space.measure import mean_field_at

GRID = Grid.from_map("..\n.#")
PROBLEM = walking_problem(GRID)
BOX = Box((-0.5, 0.0), (1.0, 2.0))


class Curved(AbstractJointMotion):
    """Turns actions by place, predicts two things; what eta does is beyond polynomials."""

    action_dim: int = 2

    def predict(self, state, action, mu):
        return {"mean": state + jnp.sin(state[0] + action), "doubt": jnp.cos(action * state[1])}

    def hallucinate(self, state, prediction, eta):
        return prediction["mean"] + jnp.sign(eta) * prediction["doubt"]


def plain(state, action, mu):
    return state + jnp.tanh(action + state[1])


def crowded(state, action, mu):
    return state + jnp.tanh(action) / (1.0 + jnp.log1p(3 * mu.here))


def far_seeing(state, action, mu):
    return state + action * mu.mass[0]


def outcomes(motion, joint):
    centres, mass = jnp.asarray(GRID.centres), jnp.array([0.0, 0.1, 0.9])
    return jax.vmap(
        lambda s: jax.vmap(lambda a: motion(s, a, mean_field_at(GRID, mass, s)))(joint)
    )(centres)


@pytest.mark.parametrize("motion", [Curved(), plain, crowded])
def test_tabulated_motions_are_those_they_stand_for(motion):
    actions = BOX.sample(jax.random.key(0), (20,))
    if isinstance(motion, Curved):
        actions = jnp.concatenate([actions, jnp.linspace(-1.0, 1.0, 40).reshape(20, 2)], axis=1)
        quick = tabulated(Hallucinated().joint(PROBLEM), motion, BOX)
    else:
        quick = tabulated(PROBLEM, motion, BOX)
    assert quick is not motion
    found = outcomes(quick, actions)
    np.testing.assert_allclose(found, outcomes(motion, actions), atol=5e-3)
    slope, true = (
        jax.jacobian(lambda a, f=f: outcomes(f, a[None]).sum())(actions[0]) for f in (quick, motion)
    )
    np.testing.assert_allclose(slope, true, atol=3e-2)


class Gathering(Curved):
    """Agents go on towards the population's mean; also turned by crowds and by the hour."""

    gathers: bool = True

    @property
    def sees_centre(self):
        return self.gathers

    def predict(self, state, action, mu):
        found = super().predict(state, action, mu)
        mean = Centre()(state, mu)
        drawn = jnp.sin(mean) + 0.2 * mu.step + 0.3 * jnp.log1p(mu.here)
        return {"mean": found["mean"] + drawn, "doubt": found["doubt"] * mean[0]}


@pytest.mark.parametrize("listed", [False, True])
def test_motions_that_see_the_populations_mean_are_tabulated(listed):
    motion, joint = Gathering(), Hallucinated().joint(PROBLEM)
    own = BOX.sample(jax.random.key(0), (20,))
    quick = tabulated(joint, motion, own if listed else BOX)
    assert isinstance(quick, MotionTable)
    assert quick.knots == (10, 9, 9)
    actions = jnp.concatenate([own, jnp.linspace(-1.0, 1.0, 40).reshape(20, 2)], axis=1)

    def all_at(motion, mass):
        return jax.vmap(
            lambda s: jax.vmap(lambda a: motion(s, a, mean_field_at(GRID, mass, s, 2)))(actions)
        )(jnp.asarray(GRID.centres))

    for mass in ([0.0, 0.1, 0.9], [0.3, 0.3, 0.4], [1.0, 0.0, 0.0]):
        found = all_at(quick, jnp.array(mass))
        np.testing.assert_allclose(found, all_at(motion, jnp.array(mass)), atol=5e-3)
    # Who does not say that the mean is all of mu that it sees stays as it is.
    unsure = Gathering(gathers=False)
    assert tabulated(joint, unsure, BOX) is unsure


def test_what_cannot_be_tabulated_stays_as_it_is():
    assert tabulated(PROBLEM, far_seeing, BOX) is far_seeing
    large = walking_problem(Grid.box((0.0, 0.0), (300.0, 300.0), (300, 300)))
    assert tabulated(large, plain, BOX) is plain


def test_a_table_moves_agents_from_where_they_stand():
    quick = tabulated(PROBLEM, walk, PROBLEM.actions)
    assert isinstance(quick, MotionTable)
    state, action = jnp.array([0.9, 0.2]), jnp.array([0.3, -0.6])
    mu = mean_field_at(GRID, PROBLEM.initial, state)
    np.testing.assert_allclose(quick(state, action, mu), walk(state, action, mu), atol=1e-12)
