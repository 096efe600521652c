import jax
import numpy as np
import pytest
from learning.small import corridor

from mufield import Box, uniform_policy
from mufield.environments.swarm import closed_form_policy, swarm
from mufield.finite.gap import PopulationGap, fit_power, population_gap

pytestmark = pytest.mark.slow

KEY = jax.random.key(0)
RANDOM = uniform_policy(Box(-1.0, 1.0).points(5, border=False))


def test_a_power_law_is_found_with_its_error():
    sizes = np.array([10, 100, 1000, 10_000])
    law = fit_power(sizes, 3.0 / np.sqrt(sizes))
    assert law.slope == pytest.approx(-0.5)
    assert law.slope_error == pytest.approx(0.0, abs=1e-9)
    assert law.factor == pytest.approx(3.0)
    assert law(sizes) == pytest.approx(3.0 / np.sqrt(sizes))
    rough = 3.0 / np.sqrt(sizes) * np.array([1.1, 0.9, 0.9, 1.1])
    x, y = np.log(sizes), np.log(rough)
    known, covariance = np.polyfit(x, y, 1, cov=True)
    law = fit_power(sizes, rough)
    assert law.slope == pytest.approx(known[0])
    assert law.slope_error == pytest.approx(np.sqrt(covariance[0, 0]))
    assert np.isnan(fit_power(sizes[:2], rough[:2]).slope_error)
    with pytest.raises(ValueError, match="positive figures"):
        fit_power(sizes, np.array([1.0, 0.5, 0.0, 0.1]))


def test_the_gap_is_spread_and_bias_together():
    values = np.array([[1.0, 2.0, 3.0], [2.0, 2.1, 2.2]])
    gap = PopulationGap(sizes=np.array([10, 100]), values=values, limit=1.5, distances=np.ones(2))
    assert gap.means == pytest.approx([2.0, 2.1])
    assert gap.stds == pytest.approx([1.0, 0.1])
    assert gap.gaps**2 == pytest.approx((gap.means - 1.5) ** 2 + values.var(axis=1))


def test_the_gap_of_the_swarm_closes_with_the_square_root_of_its_size():
    system = swarm(horizon=4, duration=0.02)
    gap = population_gap(system, closed_form_policy, [100, 1000, 10_000], 12, KEY)
    assert gap.values.shape == (3, 12)
    assert gap.limit == pytest.approx(float(system.evaluate(closed_form_policy).value))
    # Twelve episodes tell each gap to a fifth or so.
    assert -0.75 < gap.law.slope < -0.25
    assert fit_power(gap.sizes, gap.distances).slope == pytest.approx(-0.5, abs=0.05)


def test_the_limit_of_agents_that_are_not_centred_is_another():
    centred = population_gap(corridor(), RANDOM, [1000, 4000], 4, KEY, centred=True)
    assert centred.gaps[1] < 0.1
    free = population_gap(corridor(), RANDOM, [1000, 4000], 4, KEY, limit=1.0)
    assert free.limit == 1.0
    assert abs(free.means[1] - centred.limit) > 0.2


def test_a_gap_needs_sizes_and_episodes():
    for sizes, episodes in (([10], 5), ([10, 10], 5), ([10, 20], 1)):
        with pytest.raises(ValueError, match="at least two sizes and two episodes"):
            population_gap(corridor(), RANDOM, sizes, episodes, KEY)
