"""The problems of the field on nodes equal the code of those who published them."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pyspiel
import pytest
from open_spiel.python import policy as policies
from open_spiel.python.mfg.algorithms import distribution, policy_value
from open_spiel.python.mfg.games import factory

import mufield as mf
from mufield.environments.registry import FIELD
from mufield.planning.moves import regular_moves


def uniform_there(game):
    policy = policies.UniformRandomPolicy(game)
    flow = distribution.DistributionPolicy(game, policy)
    return flow, policy_value.PolicyValue(game, flow, policy)(game.new_initial_state())


def uniform_here(name, **options):
    system = mf.make(name, **options)
    return system, system.evaluate(mf.random_policy(system.problem))


def best(name, sweeps=150):
    system = mf.make(name)
    moves = regular_moves(*system.reveal(), system.problem.actions, points=1)
    return mf.MirrorAscent(sweeps=sweeps).solve(moves)


@pytest.mark.parametrize("name", FIELD)
def test_all_have_a_flow_that_keeps_its_mass(name):
    options = {"horizon": 8} if name == "braess" else {}
    rollout = uniform_here(name, **options)[1]
    np.testing.assert_allclose(rollout.mass.sum(axis=1), 1.0, atol=1e-12)
    assert np.isfinite(rollout.value)


def test_crowds_on_a_ring_are_open_spiel_s():
    game = pyspiel.load_game("python_mfg_crowd_modelling")
    flow, value = uniform_there(game)
    rollout = uniform_here("crowd-line")[1]
    for step in range(10):
        expected = [flow.value_str(str((x, step)), 0.0) for x in range(10)]
        np.testing.assert_allclose(rollout.mass[step], expected, atol=1e-12)
    assert value == 27.215850929940448
    # Their search keeps one state of each place and time, with the move by which it first came
    # there: one state of ten came by staying. By the definition a third of all agents did.
    there, here = 9 * 0.9 / 10, 9 * (2 / 3) / 10
    assert float(rollout.value) + here - there == pytest.approx(value, abs=1e-9)


def test_crowds_in_a_square_are_open_spiel_s():
    start = {"initial_distribution": "[0|0]", "initial_distribution_value": "[1.0]"}
    game = pyspiel.load_game(
        "mfg_crowd_modelling_2d",
        {"only_distribution_reward": True, "size": 5, "horizon": 6} | start,
    )
    flow, value = uniform_there(game)
    system, rollout = uniform_here("crowd-square", drawing="\n".join(["....."] * 5), horizon=6)
    cells = [(round(x - 0.5), 4 - round(y - 0.5)) for x, y in system.problem.grid.positions]
    for step in range(6):
        expected = [flow.value_str(f"({x}, {y}, {step})", 0.0) for x, y in cells]
        np.testing.assert_allclose(rollout.mass[step], expected, atol=1e-12)
    # In the order of their lists, the successors of all places of the torus are alike.
    assert float(jnp.ptp(system.reveal()[1].function.table, axis=0).max()) < 1e-12
    # Their first reward is taken before the distribution is known: uniform over all cells.
    assert float(rollout.value) + np.log(25) == pytest.approx(value, abs=1e-9)


def test_braess_network_is_open_spiel_s():
    game = factory.create_game_with_setting("python_mfg_dynamic_routing", "dynamic_routing_braess")
    value = uniform_there(game)[1]
    rollout = uniform_here("braess", whole_steps=True)[1]
    assert float(rollout.value) == pytest.approx(value, abs=1e-9)


def test_left_right_and_rock_paper_scissors_have_the_printed_optima():
    left = best("left-right")
    assert float(left.value) == pytest.approx(-2 / 3, abs=1e-5)
    assert float(left.upper) == pytest.approx(-2 / 3, abs=1e-5)
    np.testing.assert_allclose(left.state.sweep.rollout.mass[-1], [0, 2 / 3, 1 / 3], atol=1e-2)
    rock = best("rock-paper-scissors")
    assert float(rock.value) == pytest.approx(1.0, abs=1e-4)
    np.testing.assert_allclose(rock.state.sweep.rollout.mass[-1], [0, 0, 0.5, 0.5], atol=1e-2)


def test_the_beach_bar_and_the_epidemic_are_mfglib_s():
    # Its own formulas, in arrays of (next state, state, action); `make peers` runs its code.
    n, bar, still = 6, 2, 0.5
    motion = np.zeros((n, n, 3))
    for s in range(n):
        for a in range(3):
            for drift, chance in zip([-1, 0, 1], [0.25, still, 0.25], strict=True):
                motion[min(max(s + a - 1 + drift, 0), n - 1), s, a] += chance
    far = np.minimum(np.roll(np.arange(n), bar), np.roll(np.arange(n)[::-1], bar + 1))
    mass, total = np.full(n, 1 / n), 0.0
    for _ in range(4):
        total += np.sum(mass * (-far - 2 / (3 * n) - np.log(mass + 1e-20)))
        mass = motion.mean(axis=2) @ mass
    rollout = uniform_here("beach-bar", places=n, bar=bar, horizon=4)[1]
    np.testing.assert_allclose(rollout.mass[-1], mass, atol=1e-12)
    assert float(rollout.value) == pytest.approx(total, abs=1e-9)
    ill, total = 0.6, 0.0
    for _ in range(51):
        total -= ill + 0.25
        ill = 0.7 * ill + 0.5 * 0.81 * ill * (1 - ill)
    assert float(uniform_here("sis")[1].value) == pytest.approx(total, abs=1e-9)


def test_equal_seeds_of_garnets_are_equal_and_others_differ():
    one, two = (float(uniform_here("garnet", seed=seed)[1].value) for seed in (3, 4))
    assert one == float(uniform_here("garnet", seed=3)[1].value) != two
    assert jnp.isfinite(uniform_here("garnet", seed=3, coupling="multiplicative")[1].value)
    first, second = (mf.make("garnet", seed=seed).reveal() for seed in (3, 4))
    same = (eqx.filter(each, eqx.is_array, inverse=True) for each in (first, second))
    assert eqx.tree_equal(*same)  # one compiled program serves both
    with pytest.raises(mf.UserError, match="additive or multiplicative"):
        mf.make("garnet", coupling="both")


def test_cyber_security_has_the_published_rates():
    # Generators over DI, DS, UI, US as github.com/alexbstl/meanfield-cybersecurity writes them.
    recovery, attacks, contagion = (0.5, 0.4), (0.6 * 0.4, 0.6 * 0.3), (0.4, 0.3)
    mass, total, step = np.full(4, 0.25), 0.0, 0.25
    cost = np.array([0.3 + 0.5, 0.3, 0.5, 0.0])
    for _ in range(40):
        total -= step * mass @ cost
        caught = [a + b * (mass[0] + mass[2]) for a, b in zip(attacks, contagion, strict=True)]
        rates = np.zeros((4, 4))
        rates[0, 1], rates[1, 0], rates[2, 3], rates[3, 2] = (
            recovery[0],
            caught[0],
            recovery[1],
            caught[1],
        )
        rates[[0, 1, 2, 3], [2, 3, 0, 1]] = 0.5 * 0.8  # half of the owners switch
        mass = mass + step * (mass @ rates - mass * rates.sum(axis=1))
    rollout = uniform_here("cyber-security")[1]
    np.testing.assert_allclose(rollout.mass[-1], mass, atol=1e-12)
    assert float(rollout.value) == pytest.approx(total, abs=1e-9)


def test_garnets_are_drawn_by_the_formulas_of_bench_mfg():
    # Its class MFGarnet, whose draws come in this order.
    rng, n, moves, ends = np.random.default_rng(7), 10, 4, 5
    own_p, mu_p, own_r, mu_r = rng.uniform(0.0, 1.0, 4)
    base = np.zeros((n, moves, n))
    for s in range(n):
        for a in range(moves):
            where = rng.integers(0, n, size=(ends,))
            base[s, a, where] += rng.dirichlet(np.ones(ends))  # of equal ends the last one counts
    coupling = rng.normal(size=(n, moves, n, n)).astype(np.float32)
    reward, both = rng.normal(size=(n, moves)), rng.normal(size=(n, n))
    mass, total = np.full(n, 1 / n), 0.0
    for _ in range(20):
        total += mass @ (own_r * reward.mean(axis=1) + mu_r * 0.5 * (both + both.T) @ mass)
        motion = np.maximum(own_p * base + mu_p * coupling @ mass, 0.0)
        motion /= motion.sum(axis=-1, keepdims=True)
        mass = mass @ motion.mean(axis=1)
    rollout = uniform_here("garnet", seed=7)[1]
    np.testing.assert_allclose(rollout.mass[-1], mass, atol=1e-9)
    assert float(rollout.value) == pytest.approx(total, abs=1e-8)
