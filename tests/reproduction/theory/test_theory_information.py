"""Information of data, its greatest possible value, and the complexity that it bounds."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mufield.models.features import Rows
from mufield.models.gp import TheoryBeta
from mufield.models.kernels import SquaredExponential
from mufield.models.posterior import Factor
from reproduction.theory.information import (
    gains,
    log_stale_factor,
    most_information,
    stale_bound,
    stale_variances,
)


def se(xs, ys, length=0.2, variance=1.0):
    apart = np.asarray(xs)[:, None] - np.asarray(ys)[None, :]
    return variance * np.exp(-0.5 * (apart / length) ** 2)


def information_gain(covariance, noise):
    """By the book: half of log det(I + K / lambda)."""
    return 0.5 * np.linalg.slogdet(np.eye(len(covariance)) + covariance / noise)[1]


def posterior_variance(train, at, noise, **options):
    """By the book, eq. GPPosteriorVariance."""
    k = se(train, at, **options)
    solved = np.linalg.solve(se(train, train, **options) + noise * np.eye(len(train)), k)
    return np.diagonal(se(at, at, **options)) - np.sum(k * solved, axis=0)


seeds = st.integers(0, 10**6)


@given(seed=seeds, noise=st.floats(0.01, 10.0), count=st.integers(1, 12))
def test_chain_rule_and_determinant_agree(seed, noise, count):
    xs = np.random.default_rng(seed).uniform(size=count)
    one_by_one = [
        0.5 * math.log1p(posterior_variance(xs[:i], xs[i : i + 1], noise)[0] / noise)
        for i in range(count)
    ]
    np.testing.assert_allclose(gains(se(xs, xs), noise), one_by_one, rtol=1e-6, atol=1e-9)
    together = information_gain(se(xs, xs), noise)
    assert gains(se(xs, xs), noise).sum() == pytest.approx(together, rel=1e-9)


def test_the_term_that_lemma_chowdhury_prints_is_less_than_the_information():
    xs, noise = np.array([0.1, 0.12, 0.5]), 0.1
    printed = 0.5 * np.sum(np.log1p(posterior_variance(xs, xs, noise) / noise))
    assert printed < 0.5 * information_gain(se(xs, xs), noise)


def test_information_is_that_of_the_model():
    xs = np.random.default_rng(0).uniform(size=(30, 1))
    rows = Rows(xs, np.zeros((30, 1)), np.ones((30, 1)), np.zeros((30, 1)))
    factor = Factor.of(SquaredExponential(0.2), np.array([0.05]), rows, 30, tolerance=0.0)
    expected = information_gain(se(xs[:, 0], xs[:, 0]), 0.05)
    assert factor.information_gain == pytest.approx(expected, rel=1e-9)


@given(seed=seeds, noise=st.floats(0.05, 5.0), count=st.integers(1, 8))
def test_no_data_tell_more_than_data_with_nothing_in_common(seed, noise, count):
    xs = np.random.default_rng(seed).uniform(size=count)
    assert gains(se(xs, xs), noise).sum() <= most_information(count, 1.0, noise) + 1e-9
    apart = 1e3 * np.arange(count)
    most = gains(se(apart, apart), noise).sum()
    assert most == pytest.approx(most_information(count, 1.0, noise))


def test_beta_grows_with_the_information_and_with_certainty():
    information = np.cumsum(gains(se(*(np.linspace(0, 1, 20),) * 2), 0.1))
    betas = [TheoryBeta(1.0, 0.1)(1.0, each) for each in information]
    assert np.all(np.diff(betas) > 0)
    assert TheoryBeta(1.0, 0.01)(1.0, 2.0) > TheoryBeta(1.0, 0.1)(1.0, 2.0)
    assert TheoryBeta(1.0, 0.1)(0.5, 2.0) == pytest.approx(
        1 + 0.5 * math.sqrt(2 * math.log(10) + 4)
    )


@given(
    seed=seeds,
    noise=st.floats(0.05, 20.0),
    points=st.integers(1, 6),
    episodes=st.integers(1, 5),
    spread=st.floats(1e-3, 1.0),
)
def test_old_variances_are_bounded_by_the_information(seed, noise, points, episodes, spread):
    xs = 0.5 + spread * (np.random.default_rng(seed).uniform(size=points * episodes) - 0.5)
    ends = points * np.arange(1, episodes + 1)
    stale = stale_variances(se(xs, xs), noise, ends)
    for t in range(episodes):
        part = slice(points * t, points * (t + 1))
        np.testing.assert_allclose(
            stale[part], posterior_variance(xs[: points * t], xs[part], noise), atol=1e-7
        )
    by_episode = gains(se(xs, xs), noise).reshape(episodes, points).sum(axis=1)
    total = np.cumsum(stale.reshape(episodes, points).sum(axis=1))
    assert np.all(total <= stale_bound(noise, 1.0, points, by_episode) + 1e-9)
    factor = math.exp(log_stale_factor(noise, 1.0, points))
    assert total[-1] <= factor * by_episode.sum() * (1 + 1e-9)


@pytest.mark.parametrize("points", [1, 2, 5, 20, 200, 10_000])
def test_the_papers_constant_holds_with_the_papers_lambda(points):
    """2 e p H with lambda = p H and variances up to one: more than the exact factor."""
    exact = log_stale_factor(float(points), 1.0, points)
    assert exact <= math.log(2 * math.e * points)
    assert exact >= math.log(points)  # and of its order


def test_the_papers_constant_halved_would_be_false():
    """All points of an episode alike: the old posterior does not see that they are."""
    points = 50
    xs = np.full(points, 0.5)
    information = information_gain(se(xs, xs), float(points))
    stale = np.sum(stale_variances(se(xs, xs), float(points), np.array([points])))
    assert information == pytest.approx(0.5 * math.log(2))
    assert math.e * points * information < stale <= 2 * math.e * points * information


def test_print_sums_over_the_wrong_points():
    """Eq. ChodhuryOnlineLemma11Partial sums over D_1, ..., D_{t-1} in each t.

    Those points were observed, so their variances are small; the new ones' are not.
    """
    xs, noise = np.array([0.1, 0.9]), 0.01
    new = stale_variances(se(xs, xs), noise, np.array([1, 2])).sum()
    old = posterior_variance(xs[:1], xs[:1], noise).sum()
    assert old < 0.01 * new


def test_a_small_lambda_makes_the_factor_vast_but_not_the_bound():
    factor = log_stale_factor(0.01, 1.0, 200)
    assert factor > 900
    assert stale_bound(0.01, 1.0, 200, np.array([3.0, 0.1, 0.0])).tolist() == pytest.approx(
        [
            200.0,
            200 + math.exp(0.2) * 0.2 / math.log(101),
            200 + math.exp(0.2) * 0.2 / math.log(101),
        ]
    )


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: gains(np.eye(2), 0.0), "must be positive"),
        (lambda: log_stale_factor(1.0, 0.0, 3), "must be positive"),
    ],
)
def test_senseless_questions_are_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()
