"""The lifted environment is the mean-field problem itself."""

import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from helpers import walk

from benchmarks._lifted import LiftedEnv, interpolation
from mufield import (
    Box,
    Grid,
    Problem,
    SimulatedSystem,
    load_policy,
    make,
    save_policy,
    uniform,
)

pytestmark = pytest.mark.slow

SMALL = {
    "four-rooms": {"horizon": 3},
    "swarm": {"horizon": 4, "cells": 20},
    "discrete-rooms": {"horizon": 3, "actions": "extended", "noise_intensity": 0.3},
}
CODES = [(name, policy) for name in SMALL for policy in ("cells", "coarse")]


def episode(env, seed=0):
    """Random actions, the observations and the rewards of a whole episode."""
    env.action_space.seed(seed)
    seen, _ = env.reset(seed=seed)
    actions, observations, rewards, over = [], [seen], [], False
    while not over:
        actions.append(env.action_space.sample())
        seen, reward, over, truncated, _ = env.step(actions[-1])
        assert not truncated
        observations.append(seen)
        rewards.append(reward)
    return np.stack(actions), np.stack(observations), np.array(rewards)


@pytest.mark.parametrize("system", ["four-rooms", "swarm", "discrete-rooms"])
def test_gymnasium_finds_nothing_wrong(system):
    check_env(LiftedEnv(system, **SMALL[system]), skip_render_check=True)


@pytest.mark.parametrize(("name", "policy"), CODES)
def test_the_return_is_the_value_of_the_profile(name, policy):
    env = LiftedEnv(name, policy=policy, resolution=3, **SMALL[name])
    actions, observations, rewards = episode(env)
    rollout = env.system.evaluate(env.profile(actions))
    assert rewards.shape == (env.system.problem.horizon,)
    assert rewards.sum() == pytest.approx(float(rollout.value), rel=1e-12)
    assert np.allclose(observations[:, :-1], rollout.mass, atol=1e-7)
    assert np.allclose(observations[:, -1], np.linspace(0, 1, len(observations)))


def test_the_last_distribution_is_paid_only_where_the_problem_pays_it():
    paid, unpaid = (LiftedEnv("discrete-rooms", horizon=3, pay_end=end) for end in (True, False))
    with_end, without = episode(paid)[2], episode(unpaid)[2]
    assert np.allclose(with_end[:-1], without[:-1])
    assert with_end[-1] > without[-1]


class Contrarian:
    """A model that acts on what it sees: it would do otherwise elsewhere."""

    def __init__(self, size):
        self.weights = np.random.default_rng(0).normal(size=(size[0], size[1]))

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        assert deterministic
        return np.tanh(observation @ self.weights).astype(np.float32), state


@pytest.mark.parametrize(
    ("name", "policy"), [("four-rooms", "coarse"), ("discrete-rooms", "cells")]
)
def test_a_model_becomes_a_profile_that_can_be_kept(name, policy, tmp_path):
    env = LiftedEnv(name, policy=policy, **SMALL[name])
    model = Contrarian((env.observation_space.shape[0], env.action_space.shape[0]))
    seen, _ = env.reset()
    total, over = 0.0, False
    while not over:
        seen, reward, over, _, _ = env.step(model.predict(seen, deterministic=True)[0])
        total += reward
    profile = env.policy_profile(model)
    assert float(env.system.evaluate(profile).value) == pytest.approx(total, rel=1e-12)
    save_policy(tmp_path / "model.policy", profile)
    kept = load_policy(tmp_path / "model.policy")
    assert float(env.system.evaluate(kept).value) == pytest.approx(total, rel=1e-12)


def test_asking_for_a_profile_leaves_the_episode_alone():
    env = LiftedEnv("swarm", **SMALL["swarm"])
    model = Contrarian((env.observation_space.shape[0], env.action_space.shape[0]))
    env.reset()
    still = np.zeros(env.action_space.shape, np.float32)
    env.step(still)
    env.policy_profile(model)
    assert env.step(still)[0][-1] == 0.5


def test_numbers_at_the_ends_are_the_ends_of_the_action_box():
    env = LiftedEnv("four-rooms", action_box="printed", horizon=1)
    for number, action in ((-1.0, 0.0), (0.0, 0.5), (1.0, 1.0)):
        policy = env.profile(np.full((1, env.code.size), number)).at(0)
        assert np.allclose(policy.actions, action)


def test_logits_mix_the_options():
    env = LiftedEnv("discrete-rooms", actions="extended", horizon=1)
    even = env.profile(np.zeros((1, env.code.size))).at(0)
    options = env.system.problem.actions.options
    assert np.allclose(even.weights, np.mean(options, axis=0))
    numbers = np.full((104, 9), -1.0)
    numbers[:, 6] = 1.0
    sure = env.profile(numbers.reshape(1, -1)).at(0)
    assert np.allclose(sure.weights, options[6], atol=1e-3)


@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize("resolution", [1, 2, 3, 5])
@pytest.mark.parametrize("shape", [(7,), (1, 5), (4, 6), (3, 2, 4)])
def test_interpolation_averages_neighbouring_points(shape, resolution, periodic):
    grid = Grid.box(0.0, 1.0, shape, periodic=periodic)
    blend = interpolation(grid, resolution)
    assert blend.shape == (grid.n_cells, resolution ** len(shape))
    assert (blend >= 0).all()
    assert np.allclose(blend.sum(axis=1), 1.0)
    assert (np.count_nonzero(blend, axis=1) <= 2 ** len(shape)).all()


def test_interpolation_reproduces_what_is_linear():
    grid = Grid.box(0.0, 1.0, (5, 9))
    ticks = [np.linspace(low, 1 - low, 3) for low in (0.1, 0.5 / 9)]
    points = np.stack(np.meshgrid(*ticks, indexing="ij"), axis=-1).reshape(-1, 2)
    assert np.allclose(interpolation(grid, 3) @ points, grid.centres)
    around = interpolation(Grid.box(0.0, 1.0, 8, periodic=True), 4)
    assert np.allclose(around[7], [0.5, 0.0, 0.0, 0.5])


def test_an_episode_must_be_begun_and_ends():
    env = LiftedEnv("four-rooms", horizon=1)
    still = np.zeros(env.action_space.shape, np.float32)
    with pytest.raises(gymnasium.error.ResetNeeded, match="call reset"):
        env.step(still)
    env.reset()
    assert env.step(still)[2]
    with pytest.raises(gymnasium.error.ResetNeeded, match="call reset"):
        env.step(still)


@pytest.mark.parametrize("bad", [np.zeros(3), np.full(208, 1.1), np.full(208, np.nan)])
def test_actions_that_cannot_be_read_are_refused(bad):
    env = LiftedEnv("four-rooms", horizon=1)
    env.reset()
    with pytest.raises(ValueError, match=r"shape \(208,\), got \(3,\)|between -1 and 1"):
        env.step(bad)


def test_mistakes_in_the_construction_are_named():
    system = make("four-rooms", horizon=1)
    for options, message in (
        ({"policy": "fine"}, "'cells' or 'coarse', got 'fine'"),
        ({"policy": "coarse", "resolution": 0}, "at least 1, got 0"),
        ({"policy": "coarse", "resolution": True}, "at least 1, got True"),
        ({"horizon": 3}, "horizon are for systems given by name"),
    ):
        with pytest.raises(ValueError, match=message):
            LiftedEnv(system, **options)


def test_a_reward_that_is_not_finite_is_reported():
    grid = Grid.box(0.0, 2.0, 2)
    problem = Problem(
        space=grid,
        actions=Box(-1.0, 1.0),
        reward=lambda state, action, mu: 1.0 / (action[0] - 1.0),
        horizon=2,
        initial=uniform(grid),
        noise=0.5,
        max_move=1.0,
    )
    env = LiftedEnv(SimulatedSystem(problem, walk))
    env.reset()
    with pytest.raises(ValueError, match="expected a finite reward"):
        env.step(np.ones(2))


def test_importing_mufield_does_not_import_the_library_and_its_lack_is_explained():
    code = (
        "import sys, mufield, mufield.adapters\n"
        "assert not {'gymnasium', 'pettingzoo'} & set(sys.modules)\n"
        "sys.modules['gymnasium'] = sys.modules['pettingzoo'] = None\n"
        "try: import mufield.adapters.parallel\n"
        "except ImportError as error: print(error)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    ).stdout
    assert "pip install 'mufield[pettingzoo]'" in said
