"""Corollary ConfidenceInterval: the band holds functions of a known norm, as often as promised."""

import math

import numpy as np
import pytest

from mufield.models.gp import TheoryBeta
from reproduction.theory.information import gains

LENGTH, NORM, DELTA = 0.2, 1.5, 0.1
PLACES = np.linspace(0, 1, 60)


def kernel(xs, ys):
    return np.exp(-0.5 * ((xs[:, None] - ys[None, :]) / LENGTH) ** 2)


def worst_ratio(seed, noise_std, lam, *, points=25):
    """Greatest |f - m| / (beta sigma) over all places and times, with points chosen to be hard."""
    rng = np.random.default_rng(seed)
    centres = rng.uniform(size=6)
    weights = rng.normal(size=6)
    weights *= NORM / math.sqrt(weights @ kernel(centres, centres) @ weights)

    def f(xs):
        return weights @ kernel(centres, xs)

    beta_of = TheoryBeta(NORM, DELTA)
    xs, ys, worst = np.zeros(0), np.zeros(0), 0.0
    for _ in range(points):
        k = kernel(xs, PLACES)
        solved = np.linalg.solve(kernel(xs, xs) + lam * np.eye(len(xs)), np.c_[k, ys])
        mean = k.T @ solved[:, -1]
        deviation = np.sqrt(np.maximum(1 - np.sum(k * solved[:, :-1], axis=0), 1e-12))
        information = float(np.sum(gains(kernel(xs, xs), lam))) if len(xs) else 0.0
        beta = beta_of(noise_std / math.sqrt(lam), information)
        ratio = np.abs(f(PLACES) - mean) / (beta * deviation)
        worst = max(worst, float(ratio.max()))
        # Where the band is widest, as an optimist would: the points depend on the noise.
        x = PLACES[int(np.argmax(deviation + 0.3 * mean))]
        xs = np.append(xs, x)
        ys = np.append(ys, f(np.array([x]))[0] + noise_std * rng.normal())
    return worst


@pytest.mark.parametrize(("noise_std", "lam"), [(0.3, 0.09), (0.3, 3.0), (1.0, 1.0)])
def test_the_band_fails_no_more_often_than_promised(noise_std, lam):
    worst = np.array([worst_ratio(seed, noise_std, lam) for seed in range(60)])
    assert np.mean(worst > 1) <= DELTA
    # A band of a quarter of the width would fail: the corollary is not true for nothing.
    assert np.mean(worst > 0.25) > DELTA


def test_without_noise_the_norm_alone_is_needed_and_less_is_not_enough():
    worst = max(worst_ratio(seed, 1e-9, 1e-6, points=6) for seed in range(40))
    assert 0.5 < worst <= 1 + 1e-9
