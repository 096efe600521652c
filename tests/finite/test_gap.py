"""How far finite populations are from the mean-field limit."""

import jax
import numpy as np
import pytest
from learning.small import corridor

from mufield import Box
from mufield.environments.swarm import closed_form_policy, swarm
from mufield.finite.system import FiniteSystem
from mufield.policies import uniform_policy

pytestmark = pytest.mark.slow

KEY = jax.random.key(0)
RANDOM = uniform_policy(Box(-1.0, 1.0).points(5, border=False))


def played(system, policy, sizes, episodes, **options):
    """The episodes of populations of several sizes."""
    return [
        FiniteSystem.of(system, size, **options).evaluate(policy, key, episodes=episodes)
        for size, key in zip(sizes, jax.random.split(KEY, len(sizes)), strict=True)
    ]


def slope(sizes, figures):
    return np.polyfit(np.log(sizes), np.log(figures), 1)[0]


def test_the_gap_of_the_swarm_closes_with_the_square_root_of_its_size():
    system, sizes = swarm(horizon=4, duration=0.02), [100, 1000, 10_000]
    limit = system.evaluate(closed_form_policy)
    found = played(system, closed_form_policy, sizes, 12)
    gaps = [np.sqrt(np.mean((each.values - limit.value) ** 2)) for each in found]
    # Twelve episodes tell each gap to a fifth or so.
    assert -0.75 < slope(sizes, gaps) < -0.25
    apart = [0.5 * np.abs(each.mass - limit.mass)[:, 1:].sum(axis=-1).mean() for each in found]
    assert slope(sizes, apart) == pytest.approx(-0.5, abs=0.05)


def test_the_limit_of_agents_that_are_not_centred_is_another():
    limit = float(corridor().evaluate(RANDOM).value)
    centred = played(corridor(), RANDOM, [1000, 4000], 4, centred=True)
    assert np.sqrt(np.mean((centred[1].values - limit) ** 2)) < 0.1
    free = played(corridor(), RANDOM, [1000, 4000], 4)
    assert abs(np.mean(free[1].values) - limit) > 0.2
