"""Gaussian processes: the fit as a whole."""

import dataclasses
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy import LINE, PLANE, RING, Smooth, left_out, toy_episode, toy_problem

import mufield
from mufield.models.data import Transitions
from mufield.models.gp import GaussianProcess, TheoryBeta
from mufield.models.kernels import Linear, SquaredExponential
from mufield.policies.encoders import Pooled
from mufield.space.measure import mean_field_at

pytestmark = pytest.mark.slow

KEY = jax.random.key(0)
SMOOTH = GaussianProcess(prior=Smooth(), variances=(0.25, 4.0), inducing=2000)


def smooth(**options):
    return dataclasses.replace(SMOOTH, **options)


def toy_data(grid=PLANE, agents=2, seeds=(0,), **options):
    problem = toy_problem(grid, **options)
    return Transitions.of(problem, [toy_episode(problem, seed, agents) for seed in seeds])


@eqx.filter_jit
def predictions(model, states, actions, mass):
    grid = model.features.grid
    return jax.vmap(lambda s, a: model.predict(s, a, mean_field_at(grid, mass, s)))(states, actions)


def everywhere(problem, count=40, seed=9):
    rng = np.random.default_rng(seed)
    grid = problem.grid
    states = jnp.asarray(rng.uniform(grid.lower, grid.upper, size=(count, grid.dim)))
    actions = jnp.asarray(rng.uniform(-1, 1, size=(count, problem.actions.dim)))
    return states, actions, problem.initial


@pytest.mark.parametrize("inducing", [0, 256])
@pytest.mark.parametrize("fit_kernel", [False, True])
def test_without_data_the_model_is_the_prior(inducing, fit_kernel):
    problem = toy_problem(PLANE, max_move=(0.5, 2.0))
    family = smooth(inducing=inducing, fit_kernel=fit_kernel)
    model = family.fit(Transitions.empty(problem), KEY)
    where = everywhere(problem)
    found = predictions(model, *where)
    np.testing.assert_array_equal(found.mean, where[0])
    expected = np.broadcast_to(np.sqrt(0.5) * np.array([0.5, 2.0]), (40, 2))
    np.testing.assert_allclose(found.epistemic, expected, rtol=1e-12)
    assert family.solve(Transitions.empty(problem), KEY).factor.information_gain == 0.0


def test_a_fit_is_a_function_of_its_arguments():
    data = toy_data(seeds=(0, 1))
    first, second = (smooth().fit(data, KEY) for _ in range(2))
    for one, other in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(one, other)


def test_few_points_are_used_where_they_say_the_same_and_more_elsewhere():
    data = toy_data(agents=4)
    bland, rough = (SquaredExponential(scale, 0.5) for scale in (8.0, 0.05))
    family = smooth(prior=bland, fit_kernel=False, inducing=64)
    assert len(family.solve(data, KEY).factor.chosen) < 64
    family = dataclasses.replace(family, prior=rough)
    assert len(family.solve(data, KEY).factor.chosen) == 64
    for most in (0, 100):
        family = dataclasses.replace(family, inducing=most)
        assert len(family.solve(data, KEY).factor.chosen) == len(data) == 80


def test_both_posteriors_say_the_same_of_the_same_data():
    data = toy_data()
    families = [smooth(inducing=size) for size in (0, 256)]
    where = everywhere(data.problem)
    one, other = (predictions(each.fit(data, KEY), *where) for each in families)
    np.testing.assert_allclose(one.mean, other.mean, atol=1e-4)
    np.testing.assert_allclose(one.epistemic, other.epistemic, rtol=1e-2, atol=1e-4)
    exact, inducing = (each.solve(data, KEY).factor.information_gain for each in families)
    assert exact == pytest.approx(inducing, rel=1e-4)


def test_the_shorter_way_round_a_ring_is_learned():
    data = toy_data(RING, agents=10, max_move=0.1, noise=0.02)
    model = smooth().fit(data, KEY)
    states, actions, mass = everywhere(data.problem)
    found = predictions(model, states, actions, mass)
    assert float(jnp.max(jnp.abs(found.mean - states - 0.08 * actions))) < 0.03


def test_stopped_moves_of_an_unknown_side_have_no_influence():
    data = left_out(toy_data(agents=3))
    assert not data.observed.all()
    assert not data.side.any()
    # Another end of a censored move, with the flags kept.
    moved = np.where(data.observed, data.next_states, data.next_states + 0.1)
    other = dataclasses.replace(data, next_states=moved)
    where = everywhere(data.problem)
    for inducing in (0, 256):
        family = smooth(inducing=inducing)
        one, two = (predictions(family.fit(d, KEY), *where) for d in (data, other))
        np.testing.assert_array_equal(one.mean, two.mean)
        np.testing.assert_array_equal(one.epistemic, two.epistemic)


def test_noise_comes_from_the_problem_or_the_data():
    data = toy_data(agents=10, noise=(0.1, 0.3))
    known = smooth().fit(data, KEY)
    where = everywhere(data.problem)
    np.testing.assert_allclose(predictions(known, *where).aleatoric[0], [0.1, 0.3])
    learned = smooth(learn_noise=True).fit(data, KEY)
    np.testing.assert_allclose(predictions(learned, *where).aleatoric[0], [0.1, 0.3], rtol=0.2)
    fixed = smooth(learn_noise=True, fit_kernel=False).solve(data, KEY).factor
    np.testing.assert_allclose(np.sqrt(fixed.noise), [0.1, 0.3], rtol=0.25)
    np.testing.assert_array_equal(fixed.kernel.length_scale, 2.0)


def test_noise_of_the_discrete_rooms_is_learned():
    system = mufield.make("discrete-rooms", noise_intensity=0.3)
    policy = mufield.random_policy(system.problem)
    data = Transitions.of(system.problem, [system.run(policy, KEY, agents=10)])
    # A push comes with probability 0.3 and is one of up to five moves, two of them on an axis.
    np.testing.assert_allclose(smooth().solve(data, KEY).factor.noise, 0.12, rtol=0.4)


def test_beta_of_the_theory_equals_a_hand_computation_and_never_falls():
    kernel = SquaredExponential(1.0, 0.5)
    family = smooth(
        prior=kernel,
        fit_kernel=False,
        beta=TheoryBeta(norm_bound=1.5, delta=0.05),
        inducing=0,
    )
    betas = []
    for count in range(3):
        data = left_out(toy_data(LINE, agents=1, seeds=range(count), noise=0.2, max_move=0.5))
        model = family.fit(data, KEY)
        factor = family.solve(data, KEY).factor
        rows = factor.rows
        seen = rows.observed[:, 0]
        gram = kernel.matrix(jnp.asarray(rows.inputs[seen]), jnp.asarray(rows.inputs[seen]))
        gain = 0.5 * np.linalg.slogdet(np.eye(seen.sum()) + np.asarray(gram) / 0.4**2)[1]
        expected = 1.5 + math.sqrt(2 * (math.log(20) + gain))
        assert float(model.beta) == pytest.approx(expected, rel=1e-12)
        assert factor.information_gain == pytest.approx(gain, rel=1e-9)
        betas.append(float(model.beta))
    assert betas == sorted(betas)
    assert betas[0] < betas[-1]


@pytest.mark.parametrize("inducing", [0, 256])
def test_predictions_have_the_slopes_of_finite_differences(inducing):
    data = toy_data()
    model = smooth(inducing=inducing, mu=Pooled(2)).fit(data, KEY)
    grid = data.problem.grid

    @jax.jit
    def total(state, action, mass):
        found = model.predict(state, action, mean_field_at(grid, mass, state))
        return jnp.sum(found.mean * jnp.array([1.0, -2.0])) + jnp.sum(found.epistemic)

    state, action = jnp.array([1.3, 2.6]), jnp.array([0.3, -0.4])
    mass = jnp.asarray(data.mass[0])
    slopes = jax.grad(total, argnums=(0, 1, 2))(state, action, mass)
    for place, slope in enumerate(slopes):
        for axis in range(2):
            arguments = [state, action, mass]
            ends = []
            for step in (1e-5, -1e-5):
                arguments[place] = [state, action, mass][place].at[axis].add(step)
                ends.append(float(total(*arguments)))
            assert float(slope[axis]) == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-6)


def test_parameters_stay_within_their_bounds():
    data = toy_data(LINE, agents=10, noise=0.02)
    family = smooth(length_scales=(1.9, 2.1), variances=(0.9, 1.1))
    kernel = family.solve(data, KEY).factor.kernel
    slack = 1e-9
    assert np.all(kernel.length_scale >= 1.9 - slack)
    assert np.all(kernel.length_scale <= 2.1 + slack)
    assert 0.45 - slack <= float(kernel.variance) <= 0.55 + slack
    # The bounds bind: freed, the parameters go farther.
    free = smooth().solve(data, KEY).factor.kernel
    assert np.any((free.length_scale < 1.9) | (free.length_scale > 2.1))


def test_the_prior_does_not_collapse_when_noise_hides_the_motion():
    data = toy_data(RING, agents=1, max_move=0.05, noise=0.2)
    kernel = smooth().solve(data, KEY).factor.kernel
    assert float(kernel.variance) >= 0.25 * 0.5


def test_a_product_trades_no_variances():
    data = toy_data()
    kernel = smooth(mu=Pooled(2)).solve(data, KEY).factor.kernel
    assert float(kernel.second.kernel.variance) == 1.0
    assert float(kernel.first.kernel.variance) != 0.5


def test_the_motion_of_the_swarm_is_learned_from_a_few_episodes():
    system = mufield.make("swarm")
    problem, policy = system.problem, mufield.random_policy(system.problem)
    episodes = [system.run(policy, jax.random.key(seed), agents=2) for seed in range(3)]
    model = smooth().fit(Transitions.of(problem, episodes), KEY)
    states, _, mass = everywhere(problem, 200)
    actions = jnp.asarray(np.random.default_rng(1).uniform(-7, 7, size=(200, 1)))
    found = predictions(model, states, actions, mass)
    truth = states + actions / 200
    error = jnp.sqrt(jnp.mean((found.mean - truth) ** 2))
    before = jnp.sqrt(jnp.mean((states - truth) ** 2))
    assert float(error) < 0.4 * float(before)
    inside = jnp.abs(found.mean - truth) <= 2 * found.epistemic
    assert float(jnp.mean(inside)) > 0.9


def test_predictions_in_single_precision_are_near_those_in_double():
    data = toy_data(agents=20, noise=0.1)
    model = smooth().fit(data, KEY)
    single = jax.tree.map(
        lambda leaf: leaf.astype("float32") if eqx.is_inexact_array(leaf) else leaf, model
    )
    where = everywhere(data.problem)
    double = predictions(model, *where)
    rounded = predictions(single, *(part.astype("float32") for part in where))
    assert rounded.mean.dtype == "float32"
    off = np.abs(np.asarray(rounded.mean - double.mean)) / np.asarray(double.epistemic)
    assert off.max() < 0.01
    np.testing.assert_allclose(rounded.epistemic, double.epistemic, rtol=0.01)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": -0.1}, "beta must be"),
        ({"length_scales": (2.0, 1.0)}, "length_scales must be"),
    ],
)
def test_settings_that_cannot_be_right_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        smooth(**options)


def test_a_kernel_of_another_size_is_refused():
    family = smooth(prior=SquaredExponential(jnp.ones(3)))
    with pytest.raises(ValueError, match="vectors of 4 features"):
        family.fit(toy_data(), KEY)


def test_a_kernel_that_is_not_finite_is_refused():
    family = smooth(prior=Linear(1e308, 1.0) * Linear(1e308, 1.0), fit_kernel=False)
    with pytest.raises(ValueError, match="NaN or infinity"):
        family.fit(toy_data(), KEY)
