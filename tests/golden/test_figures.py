"""Figures that must not change unnoticed."""

import jax
import numpy as np
import pytest

from mufield import Box, entropy, make
from mufield.environments.swarm import closed_form_policy
from mufield.policies import uniform_policy

RANDOM = uniform_policy(Box(-1.0, 1.0, 2).points(9, border=False))


def test_random_policy_in_the_four_rooms():
    rollout = make("four-rooms").evaluate(RANDOM)
    assert float(rollout.value) == pytest.approx(56.18374, abs=1e-4)
    assert float(entropy(rollout.mass[-1])) == pytest.approx(3.39315, abs=1e-4)


def test_closed_form_policy_in_the_swarm():
    rollout = make("swarm", initial="ergodic").evaluate(closed_form_policy)
    assert float(rollout.value) == pytest.approx(-99.39604, abs=1e-3)
    congested = make("swarm-congested", initial="uniform").evaluate(closed_form_policy)
    assert float(congested.value) == pytest.approx(2181.40377, abs=1e-3)


def test_one_seeded_episode():
    episode = make("four-rooms").run(RANDOM, jax.random.key(7))
    place = np.asarray(episode.next_states[0, -1])
    assert place == pytest.approx((3.9513760783, 2.3234354238), abs=1e-6)
