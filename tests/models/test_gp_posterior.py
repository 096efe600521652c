"""Posteriors of Gaussian processes, against tinygp and by the laws that they obey."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tinygp
from hypothesis import given, settings
from hypothesis import strategies as st
from test_kernels import PAIRS, SCALES
from toy import LINE, toy_problem

from mufield.models.features import FeatureMap, Rows, Units
from mufield.models.kernels import Linear, Matern32, SquaredExponential
from mufield.models.likelihood import Limits, log_likelihood, most_likely
from mufield.models.posterior import (
    LOST_INFORMATION,
    Factor,
    Posterior,
    Process,
    covariances,
    safe_root,
)
from mufield.space.measure import mean_field_at

pytestmark = pytest.mark.slow

NOISE = np.array([0.05, 0.2])
KERNEL = SquaredExponential(SCALES, 0.6)
QUERIES = jnp.asarray(np.random.default_rng(5).uniform(-1.5, 1.5, size=(30, 3)))


def free(inputs, targets, observed):
    """Rows of moves that no wall stopped."""
    return Rows(inputs, targets, observed.astype(float), np.zeros(targets.shape))


def rows_of(count, seed=0, hidden=0.2):
    """Inputs, smooth targets with noise, and some entries that were not observed."""
    rng = np.random.default_rng(seed)
    inputs = rng.uniform(-1, 1, size=(count, 3))
    clean = np.stack([np.sin(2 * inputs[:, 0]) + inputs[:, 1], inputs[:, 2] ** 2], axis=1)
    targets = clean + rng.normal(size=clean.shape) * np.sqrt(NOISE)
    # As many on each axis, so that tinygp's programs serve both.
    observed = rng.permuted(np.arange(count)[:, None].repeat(2, 1) >= hidden * count, axis=0)
    return free(inputs, targets, observed)


ROWS = rows_of(50)


def process_of(factor, dtype="float64", size=64):
    """The process of a factor in buffers of one size, so that a program serves many factors."""
    found = Process.of(factor, dtype)
    points, rank = size - len(found.points), size - found.weights.shape[1]
    missing = {
        "points": ((0, points), (0, 0)),
        "whiten": ((0, 0), (0, rank), (0, points)),
        "weights": ((0, 0), (0, rank)),
        "deviations": ((0, 0), (0, rank)),
    }
    padded = {n: jnp.asarray(np.pad(getattr(found, n), each)) for n, each in missing.items()}
    return Process(found.kernel, **padded)


@eqx.filter_jit
def evaluate_process(process, queries):
    return jax.vmap(process)(queries)


def evaluate(factor):
    return evaluate_process(process_of(factor), QUERIES)


def exact_factor(kernel=KERNEL, noise=NOISE, rows=ROWS):
    return Factor.of(kernel, noise, rows, len(rows.inputs), tolerance=0.0)


def factors(kernel=KERNEL, rows=ROWS):
    return {
        "exact": exact_factor(kernel, rows=rows),
        "inducing": Factor.of(kernel, NOISE, rows, 64, tolerance=1e-9),
        "few inducing": Factor.of(kernel, NOISE, rows, 10),
    }


@pytest.mark.parametrize("name", PAIRS)
def test_the_exact_posterior_equals_tinygps(name):
    ours, theirs = PAIRS[name]
    mean, variance = evaluate(exact_factor(ours))

    @jax.jit
    def condition(inputs, targets, noise):
        process = tinygp.GaussianProcess(theirs, inputs, diag=noise)
        found = process.condition(targets, QUERIES, diag=0.0).gp
        return found.loc, found.variance

    for axis, noise in enumerate(NOISE):
        seen = ROWS.observed[:, axis]
        expected = condition(ROWS.inputs[seen], ROWS.targets[seen, axis], noise)
        np.testing.assert_allclose(mean[:, axis], expected[0], atol=1e-8)
        np.testing.assert_allclose(variance[:, axis], expected[1], atol=1e-8)


def test_inducing_posteriors_tend_to_the_exact_one():
    exact = evaluate(exact_factor())
    gaps = []
    for size in (5, 10, 20, 50):
        factor = Factor.of(KERNEL, NOISE, ROWS, size, tolerance=0.0)
        found = evaluate(factor)
        gaps.append(max(float(jnp.max(jnp.abs(a - b))) for a, b in zip(exact, found, strict=True)))
    assert gaps[1] < gaps[0]
    assert gaps[2] < gaps[1]
    assert gaps[3] < 1e-6


def test_a_choice_of_points_that_ends_early_loses_no_more_than_it_may():
    exact = exact_factor()
    factor = Factor.of(KERNEL, NOISE, ROWS, 50, tolerance=1e-2)
    assert len(factor.chosen) < 50
    lost = exact.information_gain - factor.information_gain
    assert -1e-9 <= lost <= 2 * 1e-2


@pytest.mark.parametrize("kind", ["exact", "inducing"])
def test_entries_that_were_not_observed_have_no_influence(kind):
    changed = ROWS._replace(targets=np.where(ROWS.observed, ROWS.targets, 1e6))
    one = evaluate(factors()[kind])
    other = evaluate(factors(rows=changed)[kind])
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_row_without_observations_on_an_axis_is_as_good_as_absent():
    hidden = ROWS.observed.copy()
    hidden[:10, 0] = False
    exact = exact_factor(rows=free(ROWS.inputs, ROWS.targets, hidden))
    shorter = exact_factor(rows=ROWS.at(slice(10, None)))
    one, other = evaluate(exact), evaluate(shorter)
    np.testing.assert_allclose(one[0][:, 0], other[0][:, 0], atol=1e-12)
    np.testing.assert_allclose(one[1][:, 0], other[1][:, 0], atol=1e-12)


def test_the_precision_with_few_points_is_that_of_the_formula():
    factor = Factor.of(KERNEL, NOISE, ROWS, 20, tolerance=0.0)
    assert len(factor.points) == 20
    lower = np.linalg.cholesky(covariances(KERNEL, factor.points, factor.points))
    phi = np.linalg.solve(lower, covariances(KERNEL, factor.points, ROWS.inputs)).T
    for axis, noise in enumerate(NOISE):
        seen = phi[ROWS.observed[:, axis]]
        expected = np.eye(20) + seen.T @ seen / noise
        np.testing.assert_allclose(factor.precision[axis], expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("kind", ["exact", "inducing"])
def test_more_data_never_give_less_information(kind):
    gains = []
    for count in (0, 10, 30, 50):
        gains.append(factors(rows=ROWS.at(slice(count)))[kind].information_gain)
    assert gains[0] == 0.0
    assert gains == sorted(gains)


def test_the_information_gain_is_that_of_the_definition():
    expected = 0.0
    for axis, noise in enumerate(NOISE):
        inputs = ROWS.inputs[ROWS.observed[:, axis]]
        gram = covariances(KERNEL, inputs, inputs)
        expected += 0.5 * np.linalg.slogdet(np.eye(len(inputs)) + gram / noise)[1]
    exact, inducing = factors()["exact"], factors()["inducing"]
    assert exact.information_gain == pytest.approx(expected, rel=1e-10)
    assert inducing.information_gain == pytest.approx(expected, rel=1e-6)


@eqx.filter_jit
def stds_and_slopes(process, queries):
    def std(z):
        return jnp.sum(safe_root(process(z)[1]))

    def both(z):
        return safe_root(process(z)[1]), jax.grad(std)(z), jax.grad(lambda z: process(z)[0][0])(z)

    return jax.vmap(both)(queries)


@given(
    seed=st.integers(0, 10_000),
    spacing=st.sampled_from([0.0, 1e-12, 1e-7, 1e-3]),
    noise=st.sampled_from([1e-4, 1e-2, 4.0]),
    kind=st.sampled_from(["exact", "inducing"]),
    dtype=st.sampled_from(["float32", "float64"]),
    build=st.sampled_from([SquaredExponential, Matern32]),
)
@settings(max_examples=40)
def test_near_duplicates_give_no_negative_variance_and_finite_slopes(
    seed, spacing, noise, kind, dtype, build
):
    rng = np.random.default_rng(seed)
    base = rng.uniform(-1, 1, size=(4, 3))
    inputs = base[rng.integers(4, size=40)] + spacing * rng.normal(size=(40, 3))
    rows = free(inputs, rng.normal(size=(40, 2)), rng.random((40, 2)) > 0.1)
    lambdas = np.full(2, noise)
    kernel = build(SCALES, 0.6)
    factor = Factor.of(kernel, lambdas, rows, 64, 0.0 if kind == "exact" else LOST_INFORMATION)
    queries = jnp.asarray(np.concatenate([inputs[:20], rng.normal(size=(10, 3))]), dtype)
    std, *slopes = stds_and_slopes(process_of(factor, dtype), queries)
    assert std.dtype == dtype
    assert bool(jnp.all(std > 0))
    assert all(bool(jnp.all(jnp.isfinite(slope))) for slope in slopes)
    # No more than the prior's.
    assert float(jnp.max(std)) <= np.sqrt(0.6) * (1 + 1e-5)


@pytest.mark.parametrize("kind", ["exact", "inducing", "few inducing"])
def test_the_std_is_lipschitz_in_the_kernel_metric(kind):
    """Lemma sigmaLipschitz, on each axis."""
    factor = factors()[kind]
    std = np.sqrt(np.asarray(evaluate(factor)[1]))
    prior = covariances(KERNEL, np.asarray(QUERIES), np.asarray(QUERIES))
    metric = np.sqrt(2 * 0.6 - 2 * prior + 1e-15)
    apart = np.abs(std[:, None] - std[None]).max(axis=-1)
    assert np.all(apart <= metric + 1e-7)


@eqx.filter_jit
def draws_of(model, keys, states, actions, mu):
    def one(key):
        motion = model.draw(key)
        return jax.vmap(lambda s, a: motion(s, a, mu))(states, actions)[:, 0]

    return jax.vmap(one)(keys)


@pytest.mark.parametrize("kind", ["exact", "inducing", "few inducing"])
def test_draws_have_the_posteriors_mean_and_covariance(kind):
    problem = toy_problem(LINE)
    features = FeatureMap(problem)
    rng = np.random.default_rng(3)
    inputs = rng.uniform(-1, 1, size=(20, 2))
    rows = free(inputs, np.sin(3 * inputs[:, :1]), np.ones((20, 1)))
    kernel, noise = SquaredExponential(0.8, 0.6), np.array([0.1])
    factor = exact_factor(kernel, noise, rows)
    if kind != "exact":
        factor = Factor.of(kernel, noise, rows, 4 if kind == "few inducing" else 20)
    model = Posterior(
        beta=jnp.asarray(2.0),
        features=features,
        units=Units(jnp.ones(1), None),
        noise_std=jnp.full(1, 0.1),
        process=process_of(factor, size=64),
        evidence=jnp.zeros(0),
        needed=5.0,
    )
    states = jnp.array([[0.5], [0.7], [3.9]])
    actions = jnp.array([[0.2], [0.3], [-0.9]])

    mu = mean_field_at(LINE, problem.initial, states[0])
    found = jax.vmap(lambda s, a: model.predict(s, a, mu))(states, actions)
    keys = jax.random.split(jax.random.key(1), 20_000)
    samples = np.asarray(draws_of(model, keys, states, actions, mu))
    together = model.mean_and_draws(keys[:5])
    values = jax.vmap(lambda s, a: together(s, a, mu))(states, actions)[:, :, 0].T
    np.testing.assert_allclose(values[0], found.mean[:, 0], atol=1e-12)
    np.testing.assert_allclose(values[1:], samples[:5], atol=1e-12)
    std = np.asarray(found.epistemic[:, 0])
    assert np.max(np.abs(samples.mean(axis=0) - np.asarray(found.mean[:, 0])) / std) < 0.03
    np.testing.assert_allclose(samples.std(axis=0), std, rtol=0.03)
    if kind != "few inducing":
        z = jax.vmap(lambda s, a: features(s, a, mu))(states, actions)
        k = covariances(kernel, rows.inputs, np.asarray(z))
        gram = covariances(kernel, rows.inputs, rows.inputs) + noise * np.eye(20)
        prior = covariances(kernel, np.asarray(z), np.asarray(z))
        expected = prior - k.T @ np.linalg.solve(gram, k)
        np.testing.assert_allclose(np.cov(samples.T), expected, atol=0.03 * std.max() ** 2)


def test_the_log_likelihood_and_its_slope_equal_tinygps():
    kernel = SquaredExponential(SCALES, 0.6) + Linear(0.3, 0.2)
    rows = ROWS._replace(weight=ROWS.weight * np.linspace(0.1, 1.0, 50)[:, None])
    logs = jnp.log(jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(kernel)]))

    def theirs(logs):
        scales, variance, slope, bias, noise = (
            jnp.exp(part) for part in (logs[:3], logs[3], logs[4], logs[5], logs[6:])
        )
        covariance = (
            variance * tinygp.transforms.Linear(1 / scales, tinygp.kernels.ExpSquared())
            + slope * tinygp.kernels.DotProduct()
            + tinygp.kernels.Constant(bias)
        )
        total = 0.0
        for axis in range(2):
            seen = ROWS.observed[:, axis]
            process = tinygp.GaussianProcess(
                covariance,
                jnp.asarray(ROWS.inputs[seen]),
                diag=noise[axis] / rows.weight[seen, axis],
            )
            total += process.log_probability(jnp.asarray(ROWS.targets[seen, axis]))
        return total

    vector = jnp.concatenate([logs, jnp.log(jnp.asarray(NOISE))])
    arrays = [jnp.asarray(part) for part in rows[:3]]
    value, slopes = log_likelihood(kernel, vector, *arrays)
    expected, expected_slopes = jax.jit(jax.value_and_grad(theirs))(vector)
    assert float(value) == pytest.approx(float(expected), rel=1e-9)
    np.testing.assert_allclose(slopes, expected_slopes, rtol=1e-7, atol=1e-7)


def test_the_parameters_found_are_better_than_their_neighbours():
    limits = Limits((0.01, 100.0), (0.01, 100.0))
    found = most_likely(KERNEL, None, ROWS, limits, jax.random.key(0))
    arrays = [jnp.asarray(part) for part in ROWS[:3]]

    def value(kernel, noise):
        parameters = [np.ravel(leaf) for leaf in (*jax.tree.leaves(kernel), noise)]
        return log_likelihood(KERNEL, jnp.log(jnp.concatenate(parameters)), *arrays)[0]

    def posterior(kernel, noise):
        """The likelihood times the priors, which sit at the start."""
        away = np.log(kernel.length_scale / KERNEL.length_scale)
        total = float(value(kernel, noise)) - 0.5 * float(np.sum(away**2))
        total -= 0.5 * float(np.log(kernel.variance / KERNEL.variance) ** 2)
        return total - 0.5 * float(np.sum((np.log(noise / 0.1) / 3) ** 2))

    best = posterior(found.kernel, found.noise)
    assert best > posterior(KERNEL, np.full(2, 0.1))
    for factor in (0.9, 1.1):
        for axis in range(3):
            scales = np.array(found.kernel.length_scale)
            scales[axis] *= factor
            assert posterior(SquaredExponential(scales, found.kernel.variance), found.noise) < best
        other = SquaredExponential(found.kernel.length_scale, found.kernel.variance * factor)
        assert posterior(other, found.noise) < best
        assert posterior(found.kernel, found.noise * factor) < best


def test_many_rows_are_fitted_on_a_random_subset():
    rows = rows_of(600)
    one, same = (
        most_likely(KERNEL, NOISE, rows, Limits(), jax.random.key(seed)) for seed in (0, 0)
    )
    np.testing.assert_array_equal(one.kernel.length_scale, same.kernel.length_scale)
    assert np.any(one.kernel.length_scale != KERNEL.length_scale)
