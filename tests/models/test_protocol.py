"""A model of a third party, in about twenty lines, goes wherever ours go."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import walking_problem
from toy import PLANE, toy_episode, toy_problem

from mufield import (
    M3UCRL,
    Bonus,
    Greedy,
    Hallucinated,
    MirrorPlanner,
    Thompson,
    uniform,
)
from mufield.models.base import AbstractModel, AbstractModelFamily, Prediction, predict_rows
from mufield.models.data import Transitions
from mufield.models.features import FeatureMap
from mufield.policies.encoders import AbstractEncoder, Unseen
from mufield.space.measure import mean_field_at

KEY = jax.random.key(0)


class LinearModel(AbstractModel):
    features: FeatureMap
    weights: jax.Array  # dim, features
    covariance: jax.Array  # dim, features, features
    noise: jax.Array
    beta: jax.Array

    def predict(self, state, action, mu):
        z = self.features(state, action, mu)
        variance = jnp.einsum("i,dij,j->d", z, self.covariance, z)
        return Prediction(state + self.weights @ z, jnp.sqrt(variance), self.noise)


class BayesianLinearRegression(AbstractModelFamily):
    mu: AbstractEncoder = eqx.field(static=True, default=Unseen())

    def fit(self, data, key):
        features, grid = FeatureMap(data.problem, self.mu), data.problem.grid
        design, noise = jnp.asarray(data.map(features)), jnp.asarray(data.noise_std)
        moved = jnp.asarray(grid.displacement(data.states, data.next_states))

        def one(target, weight, std):  # one axis; what was not observed weighs nothing
            precision = (design.T * weight) @ design / std**2 + jnp.eye(features.size)
            covariance = jnp.linalg.inv(precision)
            return covariance @ (design.T @ (weight * target)) / std**2, covariance

        weights, covariance = jax.vmap(one)(moved.T, data.observed.T.astype(float), noise)
        return LinearModel(features, weights, covariance, noise, jnp.asarray(2.0))


@pytest.fixture(scope="module")
def data():
    problem = toy_problem(PLANE, noise=(0.1, 0.3), horizon=150)
    return Transitions.of(problem, [toy_episode(problem, seed) for seed in range(2)])


def one_prediction(model):
    state = jnp.array([1.5, 2.5])
    mu = mean_field_at(PLANE, uniform(PLANE), state)
    return model.predict(state, jnp.array([1.0, -0.5]), mu), mu, state


def test_it_learns_the_motion(data):
    found, _, state = one_prediction(BayesianLinearRegression().fit(data, KEY))
    # Censoring at the border bends the truth a little.
    assert np.asarray(found.mean - state) == pytest.approx([0.8, -0.4], abs=0.1)
    assert (found.epistemic < 0.05).all()


def test_without_data_it_is_the_prior(data):
    model = BayesianLinearRegression().fit(Transitions.empty(data.problem), KEY)
    found, _, state = one_prediction(model)
    assert np.array_equal(found.mean, state)
    assert (found.epistemic > 0.5).all()


def test_its_predictions_of_rows_stand_beside_the_moves(data):
    found = predict_rows(BayesianLinearRegression().fit(data, KEY), data)
    assert found.error.shape == (300, 2)
    assert found.aleatoric[0].tolist() == [0.1, 0.3]
    assert np.std(found.error, axis=0, where=found.observed) == pytest.approx([0.1, 0.3], rel=0.15)


def test_it_draws_motions_without_a_line_of_its_own(data):
    model = BayesianLinearRegression().fit(data, KEY)
    found, mu, state = one_prediction(model)
    drawn = np.stack(
        [model.draw(jax.random.key(seed))(state, jnp.array([1.0, -0.5]), mu) for seed in range(200)]
    )
    assert drawn.mean(axis=0) == pytest.approx(np.asarray(found.mean), abs=0.01)
    assert drawn.std(axis=0) == pytest.approx(np.asarray(found.epistemic), rel=0.2)
    together = model.mean_and_draws(jax.vmap(jax.random.key)(jnp.arange(200)))
    values = np.asarray(together(state, jnp.array([1.0, -0.5]), mu))
    assert values == pytest.approx(np.concatenate([found.mean[None], drawn]), abs=1e-12)


class PlainBeta(BayesianLinearRegression):
    """Its models have a Python number for beta."""

    def fit(self, data, key):
        return dataclasses.replace(super().fit(data, key), beta=2.0)


@pytest.mark.parametrize(
    "optimism",
    [Hallucinated(), Bonus(), Thompson(), Greedy()],
    ids=lambda each: type(each).__name__,
)
def test_a_plain_number_is_a_beta_too(optimism):
    problem = walking_problem(PLANE, noise=(0.1, 0.3), horizon=3)
    planner = MirrorPlanner(points=3, controls=1, sweeps=2)
    plans = []
    for family in (PlainBeta(), BayesianLinearRegression()):
        learner = M3UCRL(problem, family, planner, optimism=optimism)
        state = learner.init(KEY)
        first = learner.ask(state)
        plans.append(learner.ask(learner.tell(state, toy_episode(problem, 0), first)))
    plain, array = (jax.tree.leaves(eqx.filter(plan.profile, eqx.is_array)) for plan in plans)
    assert isinstance(PlainBeta().fit(Transitions.empty(problem), KEY).beta, float)
    for one, other in zip(plain, array, strict=True):
        assert np.asarray(one) == pytest.approx(np.asarray(other), abs=1e-9)


def test_a_hidden_reward_needs_a_family_that_says_how():
    with pytest.raises(ValueError, match="BayesianLinearRegression; pass reward_family"):
        BayesianLinearRegression().for_rewards()
