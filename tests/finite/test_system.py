from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import random_laws, walk, walking_problem
from hypothesis import given
from hypothesis import strategies as st
from learning.small import MIRROR, SureFamily, corridor

import mufield
from mufield import (
    M3UCRL,
    Box,
    Grid,
    SimulatedSystem,
    TablePolicy,
    histogram,
    make,
    point_mass,
)
from mufield.constraints import cells_at_most, mass_at_most
from mufield.environments.four_rooms import uniform_legal
from mufield.finite import system as finite_system
from mufield.finite.draws import CellLaws, drawn
from mufield.finite.system import FiniteSystem
from mufield.policies import AbstractPolicy, ActionLaw, uniform_policy
from mufield.policies.network import SquashedTable
from mufield.space.measure import mean_field_at

pytestmark = pytest.mark.slow

# Most tests share a problem, a size and policies, and with them the compiled programs.

KEY = jax.random.key(0)
N = 2000
PLAZA = Grid.from_map("....\n.#..\n....")


@lru_cache
def plaza_problem():
    """Agents around a pillar."""
    return walking_problem(PLAZA, horizon=3, initial=point_mass(PLAZA, 0, 0), pay_end=True)


def plaza(agents=N, **options):
    return FiniteSystem(plaza_problem(), walk, agents=agents, **options)


@lru_cache
def by_cell():
    law = random_laws(PLAZA, 0, moves=5)
    return TablePolicy.mixing(law.actions[0], law.weights)


@lru_cache
def everyone():
    """An episode of which all agents' paths are known."""
    return plaza().run(by_cell(), KEY, agents=N)


def shy(state, mu, step):
    return jnp.tanh(state - 1.5 - mu.here)


def same(one, other):
    return jax.tree.all(jax.tree.map(lambda x, y: bool(jnp.array_equal(x, y)), one, other))


# The population.


def test_a_dispatcher_sees_where_agents_are_and_changes_their_policies():
    told = []

    def replan(step, mu, profile):
        told.append((step, mu))
        return profile if step < 1 else shy

    usual = plaza().evaluate(by_cell(), KEY)
    changed = plaza().evaluate(by_cell(), KEY, replan=replan)
    assert [step for step, _ in told] == [0, 1, 2]
    np.testing.assert_array_equal(jnp.stack([mu for _, mu in told]), changed.mass[0, :-1])
    np.testing.assert_array_equal(changed.mass[:, :2], usual.mass[:, :2])
    assert not np.array_equal(changed.mass[:, 2], usual.mass[:, 2])
    assert same(plaza().evaluate(by_cell(), KEY, replan=lambda *known: known[-1]), usual)
    with pytest.raises(mufield.UserError, match="has 3 steps but the profile has 2"):
        plaza().evaluate(
            by_cell(), KEY, replan=lambda *known: mufield.Profile.stationary(by_cell(), 2)
        )


def test_many_centred_agents_are_distributed_as_the_flow_says():
    agents = 40_000
    system = plaza(agents, centred=True)
    flow = SimulatedSystem(system.problem, walk).evaluate(shy)
    episode = system.run(shy, KEY, agents=agents)
    # Five standard deviations of a cell's share; the rest is the flow's rounding at walls' ends.
    off = np.abs(np.asarray(episode.mass - flow.mass))
    assert (off <= 5 * np.sqrt(np.asarray(flow.mass) / agents) + 2e-3).all()
    assert np.asarray(episode.rewards) == pytest.approx(np.asarray(flow.rewards), abs=0.03)
    assert float(episode.value) == pytest.approx(float(flow.value), abs=0.06)
    cells = np.asarray(PLAZA.index_of(episode.next_states[:, :-1]))
    assert np.array_equal(episode.states[:, 1:], PLAZA.centres[cells])


def test_mu_is_the_histogram_of_the_agents_and_the_reward_their_average():
    episode, reward = everyone(), plaza_problem().reward
    places = jnp.concatenate([episode.states, episode.next_states[:, -1:]], axis=1)
    centres = jnp.asarray(PLAZA.centres)[PLAZA.index_of(places)]
    actions = jnp.concatenate([episode.actions, jnp.zeros((N, 1, 2))], axis=1)
    for step, mass in enumerate(episode.mass):
        assert np.array_equal(mass, histogram(PLAZA, places[:, step]))

    def one(state, action, mass):
        return reward(state, action, mean_field_at(PLAZA, mass, state))

    paid = jax.vmap(jax.vmap(one, in_axes=(0, 0, None)), in_axes=(1, 1, 0))(
        centres, actions, episode.mass
    )
    assert np.asarray(episode.rewards) == pytest.approx(np.asarray(paid).mean(axis=1))


def test_agents_live_in_continuous_space_and_go_on_from_where_they_are():
    episode = everyone()
    assert np.array_equal(episode.states[:, 1:], episode.next_states[:, :-1])
    noise = np.asarray(episode.next_states - episode.states - episode.actions)
    free = ~np.asarray(episode.stopped)
    assert noise[free].std() == pytest.approx(0.25, rel=0.1)
    assert np.abs(noise[free]).max() < 6 * 0.25
    assert 0 < free.mean() < 1


def test_the_start_is_drawn_from_the_initial_distribution():
    initial = jnp.arange(11.0) / 55
    problem = eqx.tree_at(lambda p: p.initial, plaza_problem(), initial)
    start = FiniteSystem(problem, walk, agents=N).run(by_cell(), KEY, agents=N).states[:, 0]
    off = np.abs(np.asarray(histogram(PLAZA, start) - initial))
    assert (off <= 5 * np.sqrt(np.asarray(initial) / N)).all()
    inside = np.asarray(start) % 1.0
    assert inside.mean(axis=0) == pytest.approx([0.5, 0.5], abs=0.04)
    assert inside.std(axis=0) == pytest.approx([12**-0.5] * 2, abs=0.02)


# Randomness.


def test_the_same_key_gives_the_same_episode_whatever_the_threads(monkeypatch):
    monkeypatch.setattr(finite_system, "BLOCK", 1500)
    episode = plaza().run(by_cell(), KEY, agents=N)
    assert episode.states.shape == (N, 3, 2)
    assert not np.array_equal(episode.states[:1000, 0], episode.states[1000:, 0])
    monkeypatch.setattr(finite_system, "_pool", lambda: ThreadPoolExecutor(1))
    assert same(episode, plaza().run(by_cell(), KEY, agents=N))
    other = plaza().run(by_cell(), jax.random.key(1), agents=N)
    assert not np.array_equal(episode.mass, other.mass)


def test_an_evaluation_is_made_of_runs():
    found = plaza().evaluate(by_cell(), KEY, episodes=2)
    for i, key in enumerate(jax.random.split(KEY, 2)):
        episode = plaza().run(by_cell(), key, agents=N)
        assert np.array_equal(found.rewards[i], episode.rewards)
        assert np.array_equal(found.mass[i], episode.mass)
        assert float(found.values[i]) == pytest.approx(float(episode.value))


def test_memory_does_not_grow_with_steps(monkeypatch):
    held = []

    def watched(*inputs):
        held.append(sum(array.nbytes for array in jax.live_arrays()))
        return advance(*inputs)

    advance = finite_system.advance
    monkeypatch.setattr(finite_system, "advance", watched)
    plaza().evaluate(by_cell(), KEY, episodes=4)
    assert held[-1] < held[1] + N  # not one byte more for each agent


# The clock.


class ByStep(AbstractPolicy):
    """Goes right at step 2 and left at step 3; stays otherwise."""

    cellwise: bool = eqx.field(static=True)

    @property
    def by_cell(self):
        return self.cellwise

    def law(self, state, mu):
        move = jnp.where(mu.step == 2, 1.0, jnp.where(mu.step == 3, -0.5, 0.0))
        return ActionLaw(jnp.full((1, 2), move).astype(state.dtype), jnp.ones(1))


@pytest.mark.parametrize(
    "policy",
    [ByStep(True), ByStep(False), lambda state, mu, step: ByStep(True).law(state, mu).actions[0]],
    ids=["by cell", "anywhere", "function"],
)
@pytest.mark.parametrize("centred", [False, True])
def test_policies_see_the_true_step_in_the_rest_of_an_episode(policy, centred):
    grid = Grid.box(0.0, 9.0, (9, 9))
    problem = walking_problem(grid, noise=0.0, horizon=4, initial=point_mass(grid, 4, 4))
    system = SimulatedSystem(problem, walk).from_step(2, point_mass(grid, 4, 4))
    expected = np.array([[1.0, 1.0], [-0.5, -0.5]])
    flow = system.evaluate(policy)
    agents = FiniteSystem.of(system, 3, centred=centred).run(policy, KEY, agents=3)
    one = system.run(policy, KEY)
    assert one.present.tolist() == [[False, False, True, True]]
    assert agents.present.tolist() == one.present.tolist() * 3
    assert np.asarray(one.actions[0, 2:]) == pytest.approx(expected)
    assert np.asarray(agents.actions[:, 2:]) == pytest.approx(np.stack([expected] * 3))
    assert np.asarray(system.reveal()[0].mean_actions(policy, flow.mass)[2:, 0]) == pytest.approx(
        expected
    )
    assert float(flow.mass[2, grid.index_at(4, 4)]) == pytest.approx(1.0)
    assert float(flow.mass[3, grid.index_at(5, 5)]) == pytest.approx(1.0)


def test_motions_see_the_present_histogram():
    grid = Grid.box(0.0, 10.0, 10)

    def drift(state, action, mu):
        return state + mu.here

    problem = walking_problem(grid, noise=0.0, horizon=3, initial=point_mass(grid, 0))
    episode = FiniteSystem(problem, drift, agents=40).run(
        lambda s, mu, h: jnp.zeros(1), KEY, agents=40
    )
    cells = np.asarray(grid.index_of(episode.states))
    here = np.take_along_axis(np.asarray(episode.mass[:-1]).T, cells, axis=0)
    assert np.asarray(episode.next_states - episode.states)[..., 0] == pytest.approx(here)


def test_the_discrete_rooms_have_their_own_noise():
    rooms = make("discrete-rooms", horizon=1, noise_intensity=0.8)
    system = FiniteSystem.of(rooms, 4000)
    episode = system.run(uniform_legal(rooms.problem.grid), KEY, agents=3)
    assert np.array_equal(episode.states % 1.0, np.full((3, 1, 2), 0.5))
    # Only those that stay, a third, and are not pushed away again remain in the corner, and
    # those that are pushed back.
    stay, back = (1 - 0.8 * 2 / 3) / 3, 2 / 3 * 0.8 / 4
    assert float(episode.mass[1, 0]) == pytest.approx(stay + back, abs=0.04)


# Mistakes.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"agents": 0}, "agents must be a whole number"),
        ({"agents": True}, "agents must be a whole number"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        plaza(**options)


def test_no_more_agents_are_tracked_than_there_are():
    with pytest.raises(ValueError, match="at most all of the 2000 agents"):
        plaza().run(shy, KEY, agents=2001)
    with pytest.raises(ValueError, match="at least one"):
        plaza().run(shy, KEY, agents=0)
    with pytest.raises(ValueError, match="episodes must be a whole number"):
        plaza().evaluate(shy, KEY, episodes=0)


class Always(eqx.Module):
    action: jax.Array

    def __call__(self, state, mu, step):
        return self.action


def test_what_agents_cannot_do_is_refused():
    for policy, message in (
        (Always(jnp.full(2, 3.0)), r"action \[3\. 3\.\] at step 0 in the state"),
        (Always(jnp.full(2, jnp.nan)), "outside the box"),
        (Always(jnp.zeros(3)), r"action of shape \(2,\)"),
        (lambda s: s, "could not be evaluated"),
        (TablePolicy.mixing(jnp.zeros((2, 2)), jnp.full((11, 2), 0.6)), "sum to 1"),
    ):
        with pytest.raises(ValueError, match=message):
            plaza().evaluate(policy, KEY)
    with pytest.raises(mufield.UserError, match="expected a Profile"):
        plaza().evaluate(3, KEY)


def test_results_that_are_not_finite_are_refused():
    def breaks(state, action, mu):
        return jnp.where((mu.here > 0) & (mu.here < 0.9), jnp.nan, state + action)

    with pytest.raises(ValueError, match="position is not finite"):
        FiniteSystem(plaza_problem(), breaks, agents=N).evaluate(by_cell(), KEY)
    with pytest.raises(ValueError, match="the motion must return the shape"):
        FiniteSystem(plaza_problem(), lambda s, a, mu: s[0], agents=N)


# Limits.


@pytest.mark.nightly
def test_an_episode_has_the_least_margin_of_its_own_histograms():
    limits = (cells_at_most(PLAZA, 0.2, steps=(2, 3)), mass_at_most(PLAZA, [(0, 0)], 0.5))
    problem = walking_problem(PLAZA, horizon=3, initial=point_mass(PLAZA, 0, 0), constraints=limits)
    system = FiniteSystem(problem, walk, agents=100)
    found = system.evaluate(by_cell(), KEY, episodes=2)
    wanted = [float(problem.margins(mass).min()) for mass in found.mass]
    np.testing.assert_allclose(found.margin, wanted, rtol=1e-6)
    assert plaza(100).evaluate(by_cell(), KEY).margin is None


# Learning.


def test_a_learner_takes_a_finite_population_for_a_system():
    system = FiniteSystem.of(corridor(), 50)
    learner = M3UCRL(system.problem, SureFamily(), MIRROR)
    result = mufield.learn(system, learner, episodes=1, agents=3, progress=False)
    assert len(result.state.data) == 3 * system.problem.horizon
    assert np.isfinite(result.metrics[0].value)


# Drawing.


@given(seed=st.integers(0, 10_000))
def test_one_number_draws_a_move_by_its_weight(seed):
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.ones(7), size=3) * (rng.random((3, 7)) < 0.7)
    weights[:, rng.integers(7)] += 0.1
    weights /= weights.sum(axis=1, keepdims=True)
    chances = np.concatenate([rng.random(30), [0.0, np.nextafter(1.0, 0.0)]])
    cells = rng.integers(3, size=len(chances))
    moves = np.arange(7.0)  # so that an action tells which move it is
    law = ActionLaw(jnp.asarray(np.tile(moves[:, None], (3, 1, 1))), jnp.asarray(weights))
    laws = CellLaws.build(law, np.ones(3, dtype=bool))
    by_table, by_law = draws(laws, law, jnp.asarray(cells), jnp.asarray(chances))
    sums = np.cumsum(weights, axis=1)
    for i, (cell, chance) in enumerate(zip(cells, chances, strict=True)):
        wanted = np.searchsorted(sums[cell] / sums[cell, -1], chance, "right")
        assert weights[cell, wanted] > 0
        assert by_table[i, 0] == wanted
        assert by_law[i, 0] == wanted


@jax.jit
def draws(laws, law, cells, chances):
    def by_law(cell, chance):
        return drawn(ActionLaw(law.actions[cell], law.weights[cell]), chance)

    return jax.vmap(laws.action)(cells, laws.find(cells, chances)), jax.vmap(by_law)(cells, chances)


def test_policies_by_cell_have_the_same_law_in_all_of_a_cell():
    table = jnp.asarray(np.random.default_rng(0).uniform(-1, 1, (11, 2)))
    policies = (
        by_cell(),
        uniform_policy(Box(-1.0, 1.0, 2).points(3, border=False)),
        TablePolicy.deterministic(table),
        SquashedTable(table, plaza_problem().actions),
    )
    assert all(policy.by_cell and not policy.sees_mu for policy in policies)
    mass = point_mass(PLAZA, 0, 0)
    for policy in policies:
        laws = policy.at_cells(PLAZA, mass, 0)
        for cell in (0, 7):
            state = jnp.asarray(PLAZA.centres[cell] + np.array([0.3, -0.4]))
            law = policy.law(state, mean_field_at(PLAZA, mass, state))
            assert np.array_equal(law.actions, laws.actions[cell])
            assert np.array_equal(law.weights, laws.weights[cell])
