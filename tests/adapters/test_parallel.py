"""The finite population as others see it agrees with the mean-field problem."""

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import walk, walking_problem
from pettingzoo.test import parallel_api_test, parallel_seed_test

from mufield import Grid, SimulatedSystem, UserError, from_density, histogram, make, random_policy
from mufield.adapters.parallel import PopulationEnv
from mufield.policies import TablePolicy
from mufield.space.measure import mean_field_at

pytestmark = pytest.mark.slow

SMALL = {
    "four-rooms": {"horizon": 3},
    "swarm": {"horizon": 3, "cells": 20},
    "discrete-rooms": {"horizon": 3, "actions": "extended", "noise_intensity": 0.3},
}


def play(env, act, seed=0):
    """Rewards [steps, agents] of an episode in which each agent does ``act(observation)``."""
    seen, _ = env.reset(seed=seed)
    rewards = []
    while env.agents:
        seen, paid, *_ = env.step({name: act(seen[name]) for name in env.agents})
        rewards.append(list(paid.values()))
    return np.array(rewards)


SEEN = [("four-rooms", "mu"), ("swarm", "position"), ("discrete-rooms", "local")]


@pytest.mark.parametrize(("name", "observe"), SEEN)
def test_pettingzoo_finds_nothing_wrong(name, observe):
    parallel_api_test(PopulationEnv(name, agents=4, observe=observe, **SMALL[name]))
    parallel_seed_test(lambda: PopulationEnv(name, agents=4, observe=observe, **SMALL[name]))


@pytest.mark.parametrize(("name", "observe"), SEEN)
def test_observations_are_in_their_space_and_hold_what_they_say(name, observe):
    env = PopulationEnv(name, agents=5, observe=observe, **SMALL[name])
    grid = env.system.problem.grid
    env.reset(seed=1)
    for _ in range(2):
        seen, *_ = env.step({a: env.action_space(a).sample() for a in env.agents})
    matrix = np.stack(list(seen.values()))
    assert all(vector in env.observation_space(agent) for agent, vector in seen.items())
    assert env.state() in env.state_space
    states = matrix[:, : grid.dim] * grid.extent + grid.lower
    mass = np.asarray(histogram(grid, states))
    assert np.allclose(env.state(), [*mass, 2 / 3])
    assert np.allclose(matrix[:, -1], 2 / 3)
    expected = {
        "mu": np.tile(mass, (5, 1)),
        "local": mass[np.asarray(grid.index_of(jnp.asarray(states)))][:, None],
        "position": np.zeros((5, 0)),
    }
    assert np.allclose(matrix[:, grid.dim : -1], expected[observe])


def test_a_seed_fixes_this_episode_and_the_next_ones():
    env = PopulationEnv("four-rooms", agents=3, horizon=3)
    other = PopulationEnv("four-rooms", agents=3, horizon=3)
    still = {name: np.zeros(2, np.float32) for name in env.possible_agents}

    def positions(env, seed):
        first = env.reset(seed=seed)[0]
        return np.stack([*first.values(), *env.step(still)[0].values()])

    runs = [positions(env, 5), positions(env, None), positions(env, 5)]
    assert np.array_equal(runs[0], runs[2])
    assert not np.array_equal(runs[0], runs[1])
    assert np.array_equal(positions(other, 5), runs[0])
    assert np.array_equal(positions(other, None), runs[1])
    assert not np.array_equal(positions(other, 6), runs[0])


@pytest.mark.parametrize("pay_end", [True, False])
def test_many_agents_earn_what_the_mean_field_does_in_discrete_rooms(pay_end):
    system = make("discrete-rooms", horizon=5, noise_intensity=0.2, pay_end=pay_end)
    env = PopulationEnv(system, agents=2000, observe="position")
    chance = np.random.default_rng(0)
    mean = play(env, lambda seen: chance.integers(5)).sum(axis=0).mean()
    value = float(system.evaluate(random_policy(system.problem)).value)
    assert mean == pytest.approx(value, rel=0.02)


@pytest.mark.parametrize("pay_end", [True, False])
def test_many_agents_earn_what_the_mean_field_does_in_a_corridor(pay_end):
    # On small cells the difference between cell centres and true positions is small.
    grid = Grid.box(0.0, 3.0, 30)
    start = from_density(grid, grid.centres[:, 0] < 1.0)
    problem = walking_problem(grid, noise=0.2, horizon=3, initial=start, pay_end=pay_end)
    system = SimulatedSystem(problem, walk)
    env = PopulationEnv(system, agents=2000, observe="position")
    mean = play(env, lambda seen: 0.5 - seen[:1]).sum(axis=0).mean()
    value = float(system.evaluate(lambda state, mu, step: 0.5 - state / 3.0).value)
    assert mean == pytest.approx(value, abs=0.06)


def test_scouts_are_known_by_their_names_and_count_as_the_others_do():
    env, plain = (PopulationEnv("swarm", agents=5, scouts=n, horizon=3, cells=20) for n in (2, 0))
    assert env.possible_agents == ["scout_0", "scout_1", "agent_2", "agent_3", "agent_4"]
    one, two = (play(each, lambda seen: np.zeros(1, np.float32)) for each in (env, plain))
    np.testing.assert_array_equal(one, two)
    with pytest.raises(UserError, match="can be scouts, got 6"):
        PopulationEnv("swarm", agents=5, scouts=6)


def test_an_option_is_a_distribution_over_moves():
    system = make("discrete-rooms", actions="extended", horizon=1, noise_intensity=0.0)
    env = PopulationEnv(system, agents=2000)
    up_or_right = 5
    play(env, lambda seen: up_or_right)
    grid = system.problem.grid
    actions = system.problem.actions
    choice = jnp.full(grid.n_cells, up_or_right)
    policy = TablePolicy.mixing(actions.moves, actions.options[choice])
    assert np.abs(env.state()[:-1] - system.evaluate(policy).mass[-1]).max() < 0.05


def test_every_agent_earns_its_own_reward():
    problem = make("swarm", horizon=1, cells=20).problem
    env = PopulationEnv("swarm", agents=6, horizon=1, cells=20, observe="local")
    env.reset(seed=3)
    actions = {name: np.full(1, i, np.float32) for i, name in enumerate(env.agents)}
    mass = histogram(problem.grid, env._states)
    expected = [
        float(problem.reward(state, jnp.asarray(action), mean_field_at(problem.grid, mass, state)))
        for action, state in zip(actions.values(), env._states, strict=True)
    ]
    paid = env.step(actions)[1]
    assert list(paid.values()) == pytest.approx(expected)
    assert len(set(paid.values())) == 6


def test_an_episode_must_be_begun_and_ends_for_all():
    env = PopulationEnv("four-rooms", agents=2, horizon=1)
    still = {name: np.zeros(2, np.float32) for name in env.possible_agents}
    with pytest.raises(ValueError, match="call reset"):
        env.step(still)
    env.reset()
    _, _, terminated, truncated, _ = env.step(still)
    assert all(terminated.values())
    assert not any(truncated.values())
    assert env.agents == []
    assert env.step({}) == ({}, {}, {}, {}, {})
    with pytest.raises(ValueError, match="call reset"):
        env.step(still)


def test_actions_that_nobody_can_take_are_refused():
    env = PopulationEnv("four-rooms", agents=2, horizon=1)
    env.reset()
    here = np.zeros(2, np.float32)
    for actions, message in (
        ({"agent_0": here}, "'agent_1' is missing or unknown"),
        ({"agent_0": here, "agent_1": here, "agent_9": here}, "'agent_9' is missing or unknown"),
        ({"agent_0": here, "agent_1": here + 2}, "of agent_1 is outside the box"),
        ({"agent_0": here, "agent_1": here * np.nan}, "of agent_1 is outside the box"),
        ({"agent_0": np.zeros(1), "agent_1": np.zeros(1)}, r"shape \(2,\), got \(1,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            env.step(actions)
    rooms = PopulationEnv("discrete-rooms", agents=2, horizon=1)
    rooms.reset()
    for bad in (5, -1, 0.5, np.zeros(1, int)):
        with pytest.raises(ValueError, match="whole number from 0 to 4"):
            rooms.step({"agent_0": bad, "agent_1": bad})


def test_mistakes_in_the_construction_are_named():
    for options, message in (
        ({"agents": 0}, "at least 1, got 0"),
        ({"observe": "all"}, "'local' or 'position', got 'all'"),
    ):
        with pytest.raises(ValueError, match=message):
            PopulationEnv("four-rooms", **options)
