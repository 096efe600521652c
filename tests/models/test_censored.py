"""What moves that a wall stopped say: expectation propagation against integrals and samples."""

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm
from toy import LINE, left_out, toy_episode, toy_problem

from mufield.models.base import predict_rows
from mufield.models.data import Transitions
from mufield.models.features import Rows, with_stopped_moves
from mufield.models.gp import GaussianProcess
from mufield.models.kernels import Linear

NUMBERS = st.floats(-2.0, 2.0)


def one_row(value, side):
    return Rows(*(np.array([[each]]) for each in (1.0, value, 0.0, float(side))))


@given(wall=NUMBERS, side=st.sampled_from([-1, 1]), noise=st.floats(0.05, 4.0))
def test_one_stopped_move_has_the_moments_of_the_integral(wall, side, noise):
    found = with_stopped_moves(one_row(wall, side), np.array([[1.0]]), np.array([noise]))
    precision = found.weight[0, 0] / noise
    variance = 1 / (1 + precision)
    mean = variance * precision * found.targets[0, 0]
    f = np.linspace(-9.0, 9.0, 20001)
    density = norm.pdf(f) * norm.cdf(side * (f - wall) / np.sqrt(noise))
    density /= density.sum()
    expected = np.sum(density * f)
    assert mean == pytest.approx(expected, abs=1e-3)
    assert variance == pytest.approx(np.sum(density * (f - expected) ** 2), abs=1e-3)


def test_observed_moves_stay_as_they_are():
    rng = np.random.default_rng(0)
    side = np.zeros((6, 2))
    side[1, 0] = side[4, 1] = 1
    rows = Rows(rng.normal(size=(6, 2)), rng.normal(size=(6, 2)), np.ones((6, 2)), side)
    found = with_stopped_moves(rows, rng.normal(size=(6, 3)), np.array([0.1, 0.2]))
    np.testing.assert_array_equal(found.targets[side == 0], rows.targets[side == 0])
    np.testing.assert_array_equal(found.weight[side == 0], 1.0)
    assert (found.weight[side != 0] > 0).all()
    assert (found.weight[side != 0] < 1).all()  # less than an observation says


def test_walls_do_not_push():
    """Agents near a wall who are not stopped by it are those whose noise pointed away."""
    problem = toy_problem(LINE, noise=0.5)
    data = Transitions.of(problem, [toy_episode(problem, seed, 20) for seed in range(2)])
    near = data.states[:, 0] > 3.4
    towards = data.rows(near & (data.actions[:, 0] > 0.3))
    family = GaussianProcess(prior=Linear(1.0, 1.0), fit_kernel=False)
    off = {}
    for censored in (False, True):
        model = family.fit(towards if censored else left_out(towards), jax.random.key(0))
        # The noiseless truth at the same places.
        truth = dataclasses.replace(
            towards,
            next_states=towards.states + 0.8 * towards.actions,
            observed=np.ones_like(towards.observed),
        )
        off[censored] = float(np.mean(predict_rows(model, truth).error))
    assert off[False] > 0.2  # left out, the model aims too short
    assert abs(off[True]) < 0.1
