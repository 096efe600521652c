"""The default family: few data for simple motions, and mu only where the motion depends on it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy import PLANE, toy_episode, toy_problem

from mufield.models.base import predict_rows
from mufield.models.data import Transitions
from mufield.models.features import FeatureMap
from mufield.models.gp import GaussianProcess
from mufield.models.kernels import Structured, Sum
from mufield.policies.encoders import Here, Unseen
from mufield.space.measure import MeanField

pytestmark = pytest.mark.slow

KEY = jax.random.key(0)
PROBLEM = toy_problem(PLANE)


def crowded(seed):
    """Moves that crowds shorten, and the free moves of the same agents."""
    episode = toy_episode(PROBLEM, seed, agents=12)
    data = Transitions.of(PROBLEM, [episode])
    cells = PLANE.index_of(data.states)
    here = data.mass[data.moment, cells] * PLANE.n_cells
    slow = data.states + 0.8 * data.actions / (1 + here[:, None])
    noise = np.random.default_rng(seed).normal(size=slow.shape) * 0.1
    inside = np.clip(slow + noise, 0.0, 4.0)
    return data, Transitions(
        problem=PROBLEM,
        states=data.states,
        actions=data.actions,
        next_states=inside,
        observed=inside == slow + noise,
        mass=data.mass,
        moment=data.moment,
        step=data.step,
    )


def test_mu_is_seen_where_the_motion_depends_on_it_and_only_there():
    free, slowed = crowded(0)
    assert isinstance(GaussianProcess().fit(free, KEY).features.mu, Unseen)
    model = GaussianProcess().fit(slowed, KEY)
    assert isinstance(model.features.mu, Here)
    fresh = crowded(1)[1]
    blind = GaussianProcess(mu=Unseen()).fit(slowed, KEY)
    error = [float(np.std(predict_rows(m, fresh).error[fresh.observed])) for m in (model, blind)]
    assert error[0] < 0.8 * error[1]
    assert error[0] < 0.13  # of which the noise is 0.1


def test_after_few_moves_mu_may_matter_and_before_the_first_no_prediction_depends_on_it():
    few = crowded(0)[0].first(4)
    assert isinstance(GaussianProcess().fit(few, KEY).features.mu, Here)
    model = GaussianProcess().fit(Transitions.empty(PROBLEM), KEY)
    assert isinstance(model.features.mu, Unseen)
    seeing = GaussianProcess(mu=Here()).fit(Transitions.empty(PROBLEM), KEY)
    state, action = jnp.array([1.0, 2.0]), jnp.array([0.3, -0.2])
    mass = PROBLEM.initial
    alone, crowd = (
        seeing.predict(state, action, MeanField(mass, jnp.asarray(here), PLANE))
        for here in (0.0, 0.9)
    )
    assert jnp.array_equal(alone.mean, crowd.mean)
    assert jnp.allclose(alone.epistemic, crowd.epistemic, rtol=1e-6)
    blind = model.predict(state, action, MeanField(mass, mass[0], PLANE))
    assert jnp.allclose(blind.epistemic, alone.epistemic, rtol=0.1)


def test_the_left_part_of_the_kernel_does_not_need_the_features_of_mu():
    seen, unseen = (FeatureMap(PROBLEM, mu) for mu in (Here(), Unseen()))
    whole, own = Structured()(seen), Structured()(unseen)
    assert isinstance(whole, Sum)
    x, y = jax.random.normal(KEY, (2, seen.size))
    short = [v[: unseen.size] for v in (x, y)]
    assert float(whole.terms[0](x, y)) == pytest.approx(float(own(*short)), rel=1e-12)
    crowd = whole.terms[1](x.at[-1].set(0.0), x.at[-1].set(100.0))
    assert float(crowd) == pytest.approx(0.0, abs=1e-12)


def test_few_moves_teach_a_simple_motion_everywhere():
    data = Transitions.of(PROBLEM, [toy_episode(PROBLEM, seed) for seed in range(2)])
    model = GaussianProcess().fit(data, KEY)
    states = jnp.asarray(PLANE.centres)
    free = Transitions.of(PROBLEM, [toy_episode(PROBLEM, 9, agents=10)])
    found = predict_rows(model, free)
    off = free.states + 0.8 * free.actions
    error = np.asarray(found.error) - (free.next_states - off)
    error = np.where(free.observed, error, 0.0)
    assert len(states) == PLANE.n_cells
    assert np.sqrt(np.mean(error**2)) < 0.1
    assert np.mean(np.abs(error) <= float(model.beta) * found.epistemic) > 0.99
