"""Calibration: quantiles and coverage of predictions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy import LINE, RING, toy_episode, toy_problem

from mufield.models.base import (
    AbstractModel,
    Prediction,
    Residuals,
    predict_rows,
)
from mufield.models.data import Transitions

LEVELS = np.array([0.5, 0.68, 0.8, 0.9, 0.95, 0.99])


def synthetic(claimed, true, *, noise=0.1, rows=20_000, seed=0):
    """Errors of a model that claims ``claimed`` for its spread, one for each axis."""
    rng = np.random.default_rng(seed)
    claimed, true = np.atleast_1d(claimed), np.atleast_1d(true)
    shape = (rows, len(claimed))
    error = rng.normal(size=shape) * np.sqrt(true**2 + noise**2)
    return Residuals(
        error=error,
        epistemic=np.broadcast_to(claimed, shape).astype(float),
        aleatoric=np.full(shape, noise),
        observed=np.ones(shape, dtype=bool),
    )


def coverage(held, levels, widening=1.0):
    """Share of the rows inside the central interval of each level, for each axis."""
    inside = held.quantiles(widening)[..., None] <= levels
    count = held.observed.sum(axis=0)
    return (inside & held.observed[..., None]).sum(axis=0) / count[:, None]


def test_quantiles_of_a_perfect_model_are_uniform():
    held = synthetic([0.5, 0.05], [0.5, 0.05])
    quantiles = np.sort(held.quantiles(), axis=0)
    even = (np.arange(len(quantiles)) + 0.5) / len(quantiles)
    # Kolmogorov's distance; 1.63 / sqrt(n) is passed once in a hundred times.
    assert np.abs(quantiles - even[:, None]).max() < 1.63 / np.sqrt(len(quantiles))
    assert coverage(held, LEVELS) == pytest.approx(np.stack([LEVELS, LEVELS]), abs=0.01)


def test_overconfidence_shows_in_the_coverage():
    found = coverage(synthetic([0.1, 0.5], [0.5, 0.5]), LEVELS)
    assert (found[0] < LEVELS - 0.2).all()
    assert found[1] == pytest.approx(LEVELS, abs=0.01)


def test_censored_axes_do_not_count():
    held = synthetic(0.5, 0.5)
    observed = np.random.default_rng(1).random(held.error.shape) < 0.7
    spoiled = Residuals(
        error=np.where(observed, held.error, 100.0),
        epistemic=held.epistemic,
        aleatoric=held.aleatoric,
        observed=observed,
    )
    assert coverage(spoiled, LEVELS)[0] == pytest.approx(LEVELS, abs=0.015)
    assert coverage(spoiled, np.ones(1))[0, 0] == 1.0


def test_a_wider_band_covers_more():
    held = synthetic([0.2], [0.6])
    assert coverage(held, LEVELS, 3.0)[0] == pytest.approx(LEVELS, abs=0.03)


class Guess(AbstractModel):
    """Knows the motion, and is wrong about its knowledge: it is off by ``error``."""

    claimed: float
    error: float
    beta: jax.Array

    def predict(self, state, action, mu):
        # Normal over many rows, because far digits of a random state are uniform.
        wiggle = jax.scipy.stats.norm.ppf((1000 * state) % 1.0)
        return Prediction(
            mean=state + 0.8 * action + self.error * wiggle,
            epistemic=jnp.full_like(state, self.claimed),
            aleatoric=jnp.full_like(state, 0.1),
        )


def line_data(rows=200, grid=LINE, **options):
    problem = toy_problem(grid, horizon=rows, **options)
    return Transitions.of(problem, [toy_episode(problem, 3)])


def test_errors_are_those_of_the_moves():
    held = predict_rows(Guess(0.1, 0.0, jnp.asarray(1.0)), line_data())
    assert np.std(held.error[held.observed]) == pytest.approx(0.1, rel=0.15)
    assert held.epistemic == pytest.approx(0.1)
    assert held.aleatoric == pytest.approx(0.1)


def test_a_move_across_the_seam_of_a_ring_is_a_short_one():
    data = line_data(200, RING, max_move=0.2, noise=0.01)
    across = np.abs(data.next_states - data.states) > 0.5
    assert across.sum() > 5
    # The guess is of moves of 0.8 times the action; here a fifth of it.
    model = Guess(0.1, 0.0, jnp.asarray(1.0))
    moved = predict_rows(model, data).error + 0.8 * data.actions
    assert moved == pytest.approx(0.16 * data.actions, abs=0.05)
