"""Advice on a band that is too narrow, and silence where nothing matters."""

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import walking_problem
from small import Sure, sure

from mufield import Grid, as_transitions
from mufield.learning.diagnostics import advice, too_narrow
from mufield.models.base import Prediction, predict_rows

PLANE = Grid.box(0.0, 6.0, (6, 6))
PROBLEM = walking_problem(PLANE, noise=0.25, max_move=1.5)
COUNT, MOMENTS = 600, 40
CENTRES = np.asarray(PLANE.centres)


class Crowded(Sure):
    """The same, but it looks at mu."""

    def predict(self, state, action, mu):
        found = super().predict(state, action, mu)
        return Prediction(found.mean + 1e-3 * mu.here, found.epistemic, found.aleatoric)


def moved(step, *, noise=0.25, mass=None, seed=0):
    """Transitions of agents that aim at ``s + step(s, a, mass here in multiples of the mean)``."""
    rng = np.random.default_rng(seed)
    if mass is None:  # crowds anywhere, at any time
        mass = rng.dirichlet(np.full(36, 0.3), size=MOMENTS)
    states = rng.uniform(2.0, 4.0, size=(COUNT, 2))  # no wall within reach
    actions, moment = rng.uniform(-1, 1, size=(COUNT, 2)), rng.integers(0, len(mass), COUNT)
    here = 36 * mass[moment, PLANE.index_of(states)]
    ends = states + step(states, actions, here[:, None]) + noise * rng.normal(size=(COUNT, 2))
    ends = np.clip(ends, states - 1.5, states + 1.5)
    return as_transitions(PROBLEM, states, actions, ends, mass=mass, moment=moment)


def walk(states, actions, here):
    return actions


def slowed(states, actions, here):
    return actions / (1 + 0.7 * here)


def turned(states, actions, here):
    return actions * np.stack([np.cos(states[:, 0]), np.sin(states[:, 1])], axis=-1)


def said(data, model=None):
    return advice(model or sure(gain=0.8, spread=0.02), data.rows(np.arange(0, COUNT, 3)))


def test_a_motion_that_depends_on_mu_asks_for_a_model_that_sees_it():
    assert "mu=Here()" in said(moved(slowed))


def test_a_model_that_sees_mu_is_not_told_to():
    sees = Crowded(jnp.asarray(2.0), jnp.asarray(0.8), jnp.asarray(0.02))
    assert "mu=Here()" not in said(moved(slowed), sees)


class Clocked(Sure):
    """The same, but it looks at the step."""

    def predict(self, state, action, mu):
        found = super().predict(state, action, mu)
        return Prediction(found.mean + 1e-3 * mu.step, found.epistemic, found.aleatoric)


def test_a_model_that_sees_the_clock_is_not_told_to():
    assert f"mu=Clock({PROBLEM.horizon})" in said(moved(turned))
    sees = Clocked(jnp.asarray(2.0), jnp.asarray(0.8), jnp.asarray(0.02))
    assert "mu=Clock" not in said(moved(turned), sees)


def test_noise_that_was_given_too_small_is_named_with_what_would_fit():
    text = said(moved(walk, noise=0.4), sure(spread=0.01))
    given, needed = text.split("the noise is ")[1].split(" would")[0].split(", but ")
    assert given == "0.25, 0.25"
    np.testing.assert_allclose([float(each) for each in needed.split(",")], 0.4, rtol=0.1)
    assert "learn_noise=True" in text
    rows = moved(walk, noise=0.4)
    # A model that is nowhere sure can only be told to doubt more.
    assert "beta=" in said(rows, sure(spread=0.2, beta=2.0))


def test_the_beta_that_is_named_holds_the_moves():
    data, model = moved(turned), sure(spread=0.15, beta=2.0)
    text = said(data, model)
    named = float(text.split("beta=")[1].split(",")[0])
    found = predict_rows(model, data.rows(np.arange(0, COUNT, 3)))
    for beta, enough in ((1.1 * named, True), (0.8 * named, False)):
        inside = found.quantiles(beta / 2) <= 0.95
        assert (inside[found.observed].mean() >= 0.95) == enough


def test_a_model_that_cannot_follow_is_called_so():
    assert "choose another" in said(moved(turned, noise=0.1), sure(gain=-1.0, spread=1e-3))


@pytest.mark.parametrize(
    ("inside", "count", "warned"),
    [
        (14_957, 15_861, False),  # 94.3%: no chance, but no matter
        (14_275, 15_861, True),  # 90%
        (8, 10, False),  # 80%, but of ten
        (15, 20, False),
        (14, 20, True),
        (20, 20, False),
    ],
)
def test_a_shortfall_is_worth_a_warning_if_it_is_no_chance_and_matters(inside, count, warned):
    assert too_narrow(inside, count) == warned
