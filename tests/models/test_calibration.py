"""Calibration: quantiles, coverage, widening and the empirical beta."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from toy import LINE, RING, toy_episode, toy_problem

from mufield.models.base import (
    AbstractModel,
    AbstractModelFamily,
    Prediction,
    Residuals,
    predict_rows,
)
from mufield.models.calibration import EmpiricalBeta, coverage, held_out, widening
from mufield.models.data import Transitions

KEY = jax.random.key(0)
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


@st.composite
def any_held_out(draw):
    shape = (draw(st.integers(1, 30)), draw(st.integers(1, 2)))
    size = st.floats(0, 10, allow_subnormal=False)
    return Residuals(
        error=draw(arrays(float, shape, elements=st.floats(-10, 10))),
        epistemic=draw(arrays(float, shape, elements=size)),
        aleatoric=draw(arrays(float, shape, elements=size)),
        observed=draw(arrays(bool, shape)),
    )


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


@pytest.mark.parametrize("factor", [1.5, 3.0, 6.0])
def test_an_overconfident_axis_is_widened_by_about_the_right_factor(factor):
    found = widening(synthetic([0.2, 0.2], [0.2 * factor, 0.2]))
    assert found[0] == pytest.approx(factor, rel=0.1)
    assert found[1] == pytest.approx(1.0, abs=0.06)


def test_an_underconfident_model_keeps_its_band():
    assert widening(synthetic([1.0], [0.2])).tolist() == [1.0]


def test_noise_is_not_blamed_on_the_model():
    # The noise dwarfs the spread, and the spread is right.
    found = widening(synthetic([0.1], [0.1], noise=1.0))
    assert found[0] < 2.0


def test_widening_brings_the_coverage_to_its_level():
    held = synthetic([0.2], [0.6])
    found = float(widening(held)[0])
    assert coverage(held, LEVELS, found)[0] == pytest.approx(LEVELS, abs=0.03)


@given(any_held_out())
def test_no_data_make_a_band_narrower(held):
    found = widening(held)
    assert np.isfinite(found).all()
    assert (found >= 1).all()
    assert (found[~held.observed.any(axis=0)] == 1).all()


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


class Guesses(AbstractModelFamily):
    """Fits nothing, but remembers how many rows it was given."""

    claimed: float
    error: float
    seen: list = eqx.field(default_factory=list)

    def fit(self, data, key):
        self.seen.append(data.states[:, 0].tolist())
        return Guess(self.claimed, self.error, jnp.asarray(1.0))


def line_data(rows=200, grid=LINE, **options):
    problem = toy_problem(grid, horizon=rows, **options)
    return Transitions.of(problem, [toy_episode(problem, 3)])


def test_every_move_is_held_out_once_and_never_seen_by_the_model_that_predicts_it():
    data = line_data(83)
    family = Guesses(0.1, 0.0)
    held = held_out(family, data, KEY, folds=4)
    assert held.error.shape == (83, 1)
    everything = set(data.states[:, 0].tolist())
    left_out = [everything - set(seen) for seen in family.seen]
    assert len(left_out) == 4
    assert sum(len(part) for part in left_out) == 83
    assert set().union(*left_out) == everything
    assert min(len(part) for part in left_out) >= 10


def test_held_out_errors_are_those_of_the_moves():
    held = held_out(Guesses(0.1, 0.0), line_data(), KEY)
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


def test_too_few_moves_for_folds_are_refused():
    with pytest.raises(ValueError, match="at least 10 transitions, got 9"):
        held_out(Guesses(0.1, 0.0), line_data(9), KEY)


def beta_of(family, data):
    return EmpiricalBeta().of_fit(family, Guess(0.1, 0.4, jnp.asarray(1.0)), data, KEY)


def test_the_empirical_beta_grows_with_overconfidence():
    data = line_data(400)
    honest = beta_of(Guesses(0.4, 0.4), data)
    overconfident = beta_of(Guesses(0.1, 0.4), data)
    assert honest == pytest.approx(2.0, rel=0.15)
    assert overconfident == pytest.approx(8.0, rel=0.25)


def test_the_empirical_beta_without_data_is_two_standard_deviations():
    family = Guesses(0.1, 0.4)
    assert beta_of(family, line_data(9)) == 2.0
    assert family.seen == []
