"""Lemma sigmaLipschitz and the norm of a kernel's space, and the range of J."""

import jax.numpy as jnp
import numpy as np
from helpers import walking_problem
from hypothesis import given
from hypothesis import strategies as st

from mufield import Grid
from mufield.models.kernels import SquaredExponential
from mufield.models.posterior import covariances
from reproduction.theory.report import value_range


def metric(kernel, xs, ys):
    """d_k(z, z'), the distance of two points' features in the kernel's space."""
    parts = [np.diagonal(covariances(kernel, *pair)) for pair in ((xs, xs), (ys, ys), (xs, ys))]
    return np.sqrt(np.maximum(parts[0] + parts[1] - 2 * parts[2], 0.0))


@given(seed=st.integers(0, 10**6), noise=st.floats(0.01, 5.0), count=st.integers(0, 8))
def test_posterior_deviations_move_no_faster_than_the_kernel_metric(seed, noise, count):
    """Lemma sigmaLipschitz, for one output."""
    rng = np.random.default_rng(seed)
    kernel = SquaredExponential(0.3)
    seen, at = rng.uniform(size=(count, 1)), rng.uniform(size=(2, 1))
    k = covariances(kernel, seen, at)
    inner = covariances(kernel, seen, seen) + noise * np.eye(count)
    variance = 1.0 - np.sum(k * np.linalg.solve(inner, k), axis=0)
    deviation = np.sqrt(np.maximum(variance, 0.0))
    assert abs(deviation[0] - deviation[1]) <= metric(kernel, at[:1], at[1:])[0] + 1e-9


def test_the_lemma_is_nearly_reached_and_lacks_the_root_of_p_for_p_outputs():
    kernel = SquaredExponential(0.3)
    seen, at = np.array([[0.5]]), np.array([[0.5], [0.55]])
    k = covariances(kernel, seen, at)
    deviation = np.sqrt(1.0 - np.sum(k**2, axis=0) / (1 + 1e-6))
    moved, allowed = abs(np.diff(deviation)[0]), metric(kernel, at[:1], at[1:])[0]
    assert 0.95 * allowed < moved <= allowed
    assert np.linalg.norm([moved, moved]) > allowed


@given(seed=st.integers(0, 10**6))
def test_functions_of_a_known_norm_keep_to_it(seed):
    """|f(z) - f(z')| <= B d_k(z, z')."""
    rng = np.random.default_rng(seed)
    kernel = SquaredExponential(0.3)
    centres, at = rng.uniform(size=(5, 1)), rng.uniform(size=(2, 1))
    weights = rng.normal(size=5)
    norm = np.sqrt(weights @ covariances(kernel, centres, centres) @ weights)
    values = weights @ covariances(kernel, centres, at)
    assert abs(values[0] - values[1]) <= norm * metric(kernel, at[:1], at[1:])[0] + 1e-9


def test_the_range_of_j_is_that_between_one_cell_and_all():
    grid = Grid.box(0.0, 1.0, 12, periodic=True)
    problem = walking_problem(grid, horizon=3, max_move=0.2)
    # The entropy of a density: from one cell to evenly spread, three times.
    mass = np.asarray(jnp.broadcast_to(problem.initial, (4, 12)))
    np.testing.assert_allclose(value_range(problem, mass), 3 * np.log(12), rtol=1e-6)
