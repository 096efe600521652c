import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import walk, walking_problem

import mufield
from mufield import (
    Box,
    Grid,
    Profile,
    SimulatedSystem,
    TablePolicy,
    catalogue,
    histogram,
    make,
    point_mass,
    register,
    wasserstein,
)
from mufield.environments import registry
from mufield.environments.four_rooms import MOVES, option_table, uniform_legal
from mufield.policies import AbstractPolicy, ActionLaw, uniform_policy

pytestmark = pytest.mark.slow

RANDOM = uniform_policy(Box(-1.0, 1.0, 2).points(5, border=False))
KEY = jax.random.key(0)
STEPS = 3
"""Of most episodes here, so that they share compiled programs."""


SYSTEMS = {entry.name: entry for entry in catalogue()}


@pytest.mark.parametrize("name", sorted(SYSTEMS))
def test_every_registered_system_runs_one_episode(name):
    system = make(name, **({"horizon": STEPS} if "horizon" in SYSTEMS[name].options else {}))
    problem = system.problem
    steps = problem.horizon
    policy = {1: lambda s, mu, h: jnp.zeros(1), 2: RANDOM}[problem.actions.dim]
    if name.startswith("discrete"):
        policy = uniform_legal(problem.grid)
    episode = system.run(policy, KEY, agents=4)
    assert episode.states.shape == (4, steps, problem.grid.dim)
    assert episode.actions.shape == (4, steps, problem.actions.dim)
    assert episode.mass.shape == (steps + 1, problem.grid.n_cells)
    assert episode.rewards.shape == (problem.paid_steps,)
    assert np.array_equal(episode.states[:, 1:], episode.next_states[:, :-1])
    assert (np.asarray(problem.grid.index_of(episode.next_states)) >= 0).all()
    assert np.allclose(episode.mass.sum(axis=1), 1.0)
    assert float(episode.value) == pytest.approx(float(system.evaluate(policy).value))


def test_the_same_key_gives_the_same_episode_and_another_key_another():
    system = make("four-rooms", horizon=STEPS)
    first, again = system.run(RANDOM, KEY), system.run(RANDOM, KEY)
    other = system.run(RANDOM, jax.random.key(1))
    assert jax.tree.all(jax.tree.map(lambda x, y: bool(jnp.array_equal(x, y)), first, again))
    assert not np.array_equal(first.states, other.states)


def test_tracked_agents_are_distributed_like_the_population():
    # On small cells the difference between cell centres and true positions is small.
    grid = Grid.box(0.0, 3.0, (12, 12))
    system = SimulatedSystem(walking_problem(grid, noise=0.3, max_move=0.5, horizon=4), half_walk)
    episode = system.run(RANDOM, KEY, agents=4000)
    for step in range(4):
        seen = histogram(grid, episode.next_states[:, step])
        assert wasserstein(grid, seen, episode.mass[step + 1]) < 0.12


def half_walk(state, action, mu):
    return state + 0.5 * action


def test_stopped_axes_are_those_that_missed_their_aim():
    grid = Grid.box(0.0, 3.0, (3, 3))
    system = SimulatedSystem(walking_problem(grid, noise=0.0, horizon=6), walk)
    episode = system.run(lambda s, mu, h: jnp.array([0.7, -0.6]), KEY, agents=20)
    missed = jnp.abs(episode.states + episode.actions - episode.next_states) > 1e-9
    assert np.array_equal(missed, episode.stopped)
    assert bool(episode.stopped.any())
    assert not bool(episode.stopped.all())


def test_actions_outside_the_box_are_refused():
    system = make("four-rooms", horizon=STEPS)
    for call in (lambda p: system.run(p, KEY), system.evaluate):
        with pytest.raises(ValueError, match=r"step 0 in the cell \(0, 0\) is outside the box"):
            call(lambda s, mu, h: 3.0 * jnp.ones(2))
        with pytest.raises(ValueError, match="outside"):
            call(lambda s, mu, h: jnp.full(2, jnp.nan))
        with pytest.raises(ValueError, match=r"action of shape \(2,\)"):
            call(lambda s, mu, h: jnp.ones(3))
        with pytest.raises(ValueError, match="could not be evaluated"):
            call(lambda s: s)
    with pytest.raises(mufield.UserError, match="expected a Profile"):
        system.evaluate(3)


def test_what_is_wrong_at_a_later_step_is_named_with_its_step_and_cell():
    line = Grid.box(0.0, 4.0, 4)
    problem = walking_problem(line, noise=0.0, horizon=3)
    system = SimulatedSystem(problem, walk)
    weights = jnp.full((3, 4, 2), 0.5).at[2, 1].set(jnp.array([0.9, 0.2])).at[1, 3, 0].set(7.0)
    table = mufield.TablePolicy.mixing(jnp.array([[-0.2], [0.2]]), weights)
    # Nobody is in cell 3, so that its weights do not count.
    system = system.from_step(0, mufield.point_mass(line, 1))
    with pytest.raises(ValueError, match=r"at step 2 in the cell \(1,\) they sum to 1.1"):
        system.evaluate(mufield.Profile.stacked(table, 3))

    def late(state, action, mu):
        return state + jnp.where(mu.step == 1, 30.0, 1.0) * action

    with pytest.raises(ValueError, match="farther than the problem's max_move"):
        SimulatedSystem(problem, late).evaluate(lambda s, mu, h: jnp.ones(1))


def test_moves_outside_the_set_are_refused():
    system = make("discrete-rooms", horizon=STEPS)
    with pytest.raises(ValueError, match="outside the 5 moves"):
        system.evaluate(lambda s, mu, h: jnp.array([0.5, 0.0]))


def test_motions_that_fail_on_the_way_are_reported():
    grid = Grid.box(0.0, 3.0, 3)

    def breaks_in_crowds(state, action, mu):
        return jnp.where(mu.here > 0.5, jnp.nan, state + action)

    system = SimulatedSystem(walking_problem(grid, noise=0.1), breaks_in_crowds)
    with pytest.raises(ValueError, match="not finite"):
        system.evaluate(lambda s, mu, h: jnp.ones(1))


def test_at_least_one_agent_is_tracked():
    with pytest.raises(ValueError, match="the number of tracked agents must be"):
        make("four-rooms").run(RANDOM, KEY, agents=0)


def test_a_profile_may_change_from_step_to_step():
    system = make("four-rooms", horizon=STEPS)
    table = jnp.zeros((3, 104, 2)).at[1].set(1.0)
    episode = system.run(Profile.stacked(TablePolicy.deterministic(table), 3), KEY)
    assert episode.actions[0, :, 0].tolist() == [0.0, 1.0, 0.0]
    by_function = system.run(lambda s, mu, h: jnp.where(h == 1, 1.0, 0.0) * jnp.ones(2), KEY)
    assert np.array_equal(by_function.actions, episode.actions)
    with pytest.raises(ValueError, match="3 slices"):
        Profile.stacked(TablePolicy.deterministic(table[:2]), 3)
    with pytest.raises(ValueError, match="has 3 steps but the profile has 4"):
        system.run(Profile.stationary(RANDOM, 4), KEY)


def test_the_extended_rooms_have_nine_options():
    assert len(option_table("standard")) == 5
    assert len(option_table("extended")) == 9
    assert np.allclose(option_table("extended").sum(axis=1), 1.0)
    system = make("discrete-rooms-extended")
    assert system.problem.actions.options.shape == (9, len(MOVES))
    with pytest.raises(ValueError, match="actions must be one of"):
        option_table("many")


def test_variants_of_the_paper_are_options():
    assert make("four-rooms", action_box="printed").problem.actions.lower == (0.0, 0.0)
    quadratic, printed = (make("swarm", effort=e, horizon=5) for e in ("quadratic", "printed"))
    earned = [
        float(s.evaluate(lambda s, mu, h: jnp.full(1, 3.0)).value) for s in (quadratic, printed)
    ]
    assert earned[1] - earned[0] == pytest.approx(5 * (4.5 - 1.5))
    starts = {i: make("swarm", initial=i).problem.initial for i in ("normal", "uniform", "ergodic")}
    points = quadratic.problem.grid.centres[:, 0]
    normal = np.asarray(starts["normal"])
    assert normal @ (points - 0.5) ** 2 == pytest.approx(0.04, abs=0.004)  # less, being wrapped
    assert np.allclose(starts["uniform"], 0.01)
    assert points[int(jnp.argmax(starts["ergodic"]))] == pytest.approx(0.25, abs=0.01)
    for name, options in (
        ("swarm", {"motion": "slow"}),
        ("swarm", {"initial": "here"}),
        ("swarm", {"effort": "none"}),
        ("swarm", {"horizon": 0}),
        ("four-rooms", {"action_box": "round"}),
    ):
        with pytest.raises(ValueError, match=next(iter(options))):
            make(name, **options)


def test_crowds_slow_the_congested_swarm():
    system = make("swarm-congested", horizon=1, cells=4)
    motion = system._motion
    from mufield.space.measure import mean_field_at

    grid = system.problem.grid
    mass = jnp.array([1.0, 0.0, 0.0, 0.0])
    full, empty = (mean_field_at(grid, mass, jnp.array([x])) for x in (0.1, 0.6))
    assert float(motion(jnp.array([0.1]), jnp.ones(1), full)[0]) == pytest.approx(0.1)
    assert float(motion(jnp.array([0.6]), jnp.ones(1), empty)[0]) == pytest.approx(4.6)


def test_names_are_checked_and_can_be_added():
    with pytest.raises(ValueError, match=r"no system is named 'rooms'; there are .*, four-rooms, "):
        make("rooms")
    with pytest.raises(ValueError, match="registered already"):
        register("four-rooms", "another")(lambda: make("swarm"))


@pytest.fixture
def names(monkeypatch):
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))


def defined(horizon, module="notebook"):
    """A function as a notebook's cell defines it, anew each time that it is run."""

    def my_rooms():
        return make("four-rooms", horizon=horizon)

    my_rooms.__module__ = module
    return my_rooms


def test_a_cell_that_is_run_again_replaces_the_system_that_it_registered(names):
    for horizon in (2, 3):
        register("my-rooms", "rooms")(defined(horizon))
    assert make("my-rooms").problem.horizon == 3
    with pytest.raises(mufield.UserError, match="registered already"):
        register("my-rooms", "rooms")(defined(4, module="elsewhere"))
    with pytest.raises(mufield.UserError, match="registered already"):
        register("swarm", "rooms")(defined(4, module="mufield.environments.swarm"))


def test_callable_modules_keep_their_own_arrays():
    class Go(eqx.Module):
        goal: jax.Array

        def __call__(self, state, mu, step):
            return jnp.clip(self.goal - state, -1.0, 1.0)

    system = make("four-rooms", horizon=STEPS)
    episode = system.run(Go(jnp.array([3.0, 1.0])), KEY)
    expected = np.clip(np.array([3.0, 1.0]) - np.asarray(episode.states[0]), -1.0, 1.0)
    assert np.asarray(episode.actions[0]) == pytest.approx(expected)


def test_weights_that_are_no_distribution_are_refused():
    system = make("discrete-rooms", horizon=STEPS)
    moves = system.problem.actions.moves
    for row in ([0.9, 0.0, 0.0, 0.0, 0.0], [1.5, -0.5, 0.0, 0.0, 0.0]):
        weights = jnp.broadcast_to(jnp.asarray(row), (104, 5))
        with pytest.raises(ValueError, match="sum to 1"):
            system.evaluate(TablePolicy.mixing(moves, weights))


def test_tracked_agents_are_held_to_the_box_and_to_numbers():
    system = make("four-rooms", horizon=STEPS)
    with pytest.raises(ValueError, match="in the state"):
        system.run(lambda s, mu, h: 4.0 * (s - jnp.floor(s) - 0.5), KEY, agents=20)
    grid = Grid.box(0.0, 3.0, 3)

    def only_centres(state, action, mu):
        centred = jnp.abs(state - jnp.floor(state) - 0.5) < 1e-3
        return jnp.where(centred, state + action, jnp.nan)

    broken = SimulatedSystem(walking_problem(grid), only_centres)
    with pytest.raises(ValueError, match="not finite"):
        broken.run(lambda s, mu, h: jnp.ones(1), KEY, agents=5)


def test_motions_that_outrun_max_move_are_found_when_it_happens():
    grid = Grid.box(0.0, 20.0, 20)

    def wild(state, action, mu):
        return state + 4.0 * jnp.sin(jnp.pi * action)

    system = SimulatedSystem(walking_problem(grid, max_move=0.5), wild)
    with pytest.raises(ValueError, match="farther than"):
        system.evaluate(lambda s, mu, h: jnp.full(1, 0.5))


def test_discrete_agents_stand_in_the_middle_of_their_cells():
    system = make("discrete-rooms", horizon=STEPS)
    episode = system.run(lambda s, mu, h: jnp.array([-1.0, 0.0]), KEY)
    assert np.asarray(episode.next_states[0]).tolist() == [[0.5, 0.5]] * STEPS


def test_options_are_mixtures_of_moves():
    system = make("discrete-rooms-extended", horizon=2)
    choice = jnp.full((2, 104), 5)  # half up, half right
    actions = system.problem.actions
    table = TablePolicy.mixing(actions.moves, actions.options[choice])
    profile = Profile.stacked(table, 2)
    mass = system.evaluate(profile).mass
    grid = system.problem.grid
    assert float(mass[1][grid.index_at(0, 1)]) == 0.5
    assert float(mass[1][grid.index_at(1, 0)]) == 0.5
    assert float(mass[2][grid.index_at(1, 1)]) == 0.5


class LateStart(AbstractPolicy):
    """Rests at first and goes right from step 2 on, by the clock that agents see."""

    def law(self, state, mu):
        action = jnp.where(mu.step >= 2, 1.0, 0.0) * jnp.ones(1)
        return ActionLaw(actions=action[None], weights=jnp.ones(1))


def test_policies_that_look_at_the_clock_act_alike_for_all():
    grid = Grid.box(0.0, 8.0, 8)
    problem = walking_problem(grid, horizon=4, noise=1e-3, initial=point_mass(grid, 1))
    system = SimulatedSystem(problem, walk)
    places = [1, 1, 1, 2, 3]
    by_step = system.evaluate(lambda state, mu, step: jnp.where(step >= 2, 1.0, 0.0) * jnp.ones(1))
    assert np.argmax(by_step.mass, axis=1).tolist() == places
    for policy in (LateStart(), Profile.stationary(LateStart(), 4)):
        np.testing.assert_allclose(system.evaluate(policy).mass, by_step.mass, atol=1e-12)
        episode = system.run(policy, KEY, agents=3)
        np.testing.assert_allclose(episode.mass, by_step.mass, atol=1e-12)
        assert episode.actions[..., 0].tolist() == [[0.0, 0.0, 1.0, 1.0]] * 3
        assert np.asarray(grid.index_of(episode.next_states)).tolist() == [places[1:]] * 3
