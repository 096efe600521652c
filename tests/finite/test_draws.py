"""The random numbers of large populations."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from mufield import GaussianNoise
from mufield.finite.draws import random_bits, uniform

NOISE = GaussianNoise(1.0)
SEED = np.asarray([3, 7], dtype=np.uint32)


def test_numbers_have_their_distributions_and_agents_do_not_share_them():
    bits = jnp.asarray(random_bits(SEED, 0, 50_000, 3))
    chances, draws = uniform(bits[0], float), NOISE.from_uniform(uniform(bits[1:3].T, float))
    assert stats.kstest(np.asarray(chances), "uniform").pvalue > 0.01
    for axis in range(2):
        assert stats.kstest(np.asarray(draws[:, axis]), "norm").pvalue > 0.01
    together = np.column_stack([chances, draws])
    assert np.abs(np.corrcoef(together, rowvar=False) - np.eye(3)).max() < 0.02
    assert len(np.unique(np.asarray(bits[0]))) > 49_000


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_no_number_is_infinite_or_leaves_the_interval(dtype):
    ends = jnp.asarray([0, 2**32 - 1], dtype=jnp.uint32)
    low, high = np.asarray(uniform(ends, dtype), dtype=float)
    assert 0 < low < 1e-6
    assert 1 - 1e-6 < high < 1
    below, above = np.asarray(NOISE.from_uniform(uniform(ends, dtype)), dtype=float)
    assert below == -above
    assert 5 < above < 6


def test_steps_and_blocks_have_numbers_of_their_own():
    first = random_bits(SEED, 0, 100, 3)
    np.testing.assert_array_equal(first, random_bits(SEED, 0, 100, 3))
    for other in (random_bits(SEED, 1, 100, 3), random_bits(SEED + 1, 0, 100, 3)):
        assert np.mean(first == other) < 0.01
