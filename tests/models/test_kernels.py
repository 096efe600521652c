"""Kernels, against tinygp and by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tinygp
from helpers import walking_problem

from mufield import Grid
from mufield.models.features import FeatureMap
from mufield.models.kernels import (
    Additive,
    ControlAffine,
    Linear,
    Matern32,
    Select,
    SquaredExponential,
)
from mufield.policies.encoders import Here, LogHere

SCALES = jnp.array([0.7, 1.5, 3.0])
L2 = tinygp.kernels.distance.L2Distance()


def scaled(kernel):
    return tinygp.transforms.Linear(1 / SCALES, kernel)


PAIRS = {
    "squared exponential": (
        SquaredExponential(SCALES, 0.6),
        0.6 * scaled(tinygp.kernels.ExpSquared()),
    ),
    "one length scale": (SquaredExponential(1.3), tinygp.kernels.ExpSquared(1.3)),
    "matern 3/2": (Matern32(SCALES, 0.6), 0.6 * scaled(tinygp.kernels.Matern32(distance=L2))),
    "linear": (
        Linear(0.4, 0.2),
        0.4 * tinygp.kernels.DotProduct() + tinygp.kernels.Constant(0.2),
    ),
    "sum": (
        SquaredExponential(SCALES) + Linear(0.4, 0.2),
        scaled(tinygp.kernels.ExpSquared())
        + 0.4 * tinygp.kernels.DotProduct()
        + tinygp.kernels.Constant(0.2),
    ),
    "product of selections": (
        Select(SquaredExponential(0.5), (0, 2)) * Select(Matern32(2.0), (1,)),
        tinygp.transforms.Transform(lambda x: x[::2], tinygp.kernels.ExpSquared(0.5))
        * tinygp.transforms.Transform(lambda x: x[1:2], tinygp.kernels.Matern32(2.0)),
    ),
}

POINTS = np.random.default_rng(0).normal(size=(12, 3))


@pytest.mark.parametrize("name", PAIRS)
def test_kernels_equal_tinygps(name):
    ours, theirs = PAIRS[name]
    found, expected = jax.jit(
        lambda xs: (ours.matrix(xs, xs[:5]), theirs(xs, xs[:5])),
    )(jnp.asarray(POINTS))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", PAIRS)
def test_gradients_equal_finite_differences(name):
    kernel = jax.jit(lambda x, y: PAIRS[name][0](x, y))
    x, y = jnp.asarray(POINTS[0]), jnp.asarray(POINTS[1])
    step = 1e-6 * jnp.eye(3)
    differences = [(kernel(x + e, y) - kernel(x - e, y)) / 2e-6 for e in step]
    np.testing.assert_allclose(jax.grad(kernel)(x, y), jnp.stack(differences), atol=1e-8)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kernel", [SquaredExponential, Matern32])
def test_gradients_at_distance_zero_are_zero_and_small_nearby(kernel, dtype):
    k = jax.tree.map(lambda leaf: leaf.astype(dtype), kernel(SCALES))
    x = jnp.asarray(POINTS[0], dtype)
    assert float(k(x, x)) == 1.0
    np.testing.assert_array_equal(jax.grad(k)(x, x), jnp.zeros(3, dtype))
    scales = jax.grad(lambda kernel: kernel(x, x))(k)
    np.testing.assert_array_equal(scales.length_scale, jnp.zeros(3, dtype))
    for distance in (1e-30, 1e-20, 1e-6):
        slope = jax.jit(jax.grad(k))(jnp.full(3, distance, dtype), jnp.zeros(3, dtype))
        assert bool(jnp.all(jnp.isfinite(slope)))
        assert float(jnp.max(jnp.abs(slope))) < 1e-4


@pytest.mark.parametrize("build", [SquaredExponential, Matern32, Linear])
@pytest.mark.parametrize("value", [0.0, -1.0, np.nan])
def test_parameters_must_be_positive(build, value):
    with pytest.raises(ValueError, match="must be positive"):
        build(value)


def test_a_control_affine_agent_moves_in_proportion_to_its_action_and_hardly_drifts():
    problem = walking_problem(Grid.box((0.0, 0.0), (4.0, 3.0), (4, 3), periodic=(True, False)))
    features = FeatureMap(problem, Here())
    gain, variation, drift = 1.0, 0.01, 1e-4
    kernel = ControlAffine(gain, variation, drift)(features)
    rng = np.random.default_rng(1)
    z = jnp.asarray(rng.normal(size=features.size))
    # Features: cosine and sine of the periodic axis, the other axis, two actions, mu.
    rest, full = z.at[3:5].set(0.0), z.at[3:5].set(jnp.array([1.0, 0.0]))
    assert float(kernel(rest, rest)) == pytest.approx(2 * drift)
    assert float(kernel(full, full)) == pytest.approx(gain + variation + 2 * drift)
    # Half of the action is half of the move, up to the drift.
    half = full.at[3].set(0.5)
    assert float(kernel(full, half)) == pytest.approx(0.5 * (gain + variation) + 2 * drift)
    # Far away the common gain is left.
    far = full.at[5].add(100.0)
    assert float(kernel(full, far)) == pytest.approx(gain + drift)


def test_an_additive_reward_is_a_sum_of_parts_and_little_else():
    problem = walking_problem(Grid.box((0.0, 0.0), (4.0, 3.0), (4, 3), periodic=(True, False)))
    features = FeatureMap(problem, LogHere())
    kernel = Additive()(features)
    z = jnp.zeros(features.size)
    # Features: cosine and sine of the periodic axis, the other axis, two actions, mu.
    everything = 3 * 1.0 + 0.01 + 1.0
    assert float(kernel(z, z)) == pytest.approx(everything)
    # Far away in one part, the others are as alike as ever.
    for axis in (0, 3):
        assert float(kernel(z, z.at[axis].set(100.0))) == pytest.approx(everything - 1.01)
    crowd = z.at[5].set(100.0)
    assert float(kernel(crowd, crowd)) == pytest.approx(everything + 100.0**2)
    assert float(kernel(crowd, z)) == pytest.approx(everything - 1.01)
    blind = Additive()(FeatureMap(problem))
    assert float(blind(z[:5], z[:5])) == pytest.approx(2.01)
