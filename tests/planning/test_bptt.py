"""Gradient ascent through the flow, its starts, and the networks that it trains."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import walk, walking_problem

from mufield import (
    Flow,
    GradientPlanner,
    Grid,
    Network,
    Profile,
    Table,
    TablePolicy,
    log_mass,
    plan,
    point_mass,
)
from mufield.planning import BPTT, gradient
from mufield.planning.gradient import fit, table_start
from mufield.planning.kinds import table_of
from mufield.planning.moves import regular_moves
from mufield.policies import network_profile
from mufield.policies.encoders import Here, Pooled, Unseen
from mufield.policies.network import squash, unsquash

pytestmark = pytest.mark.slow

SMALL = Grid.from_map("....\n.#..\n....")
KEY = jax.random.key(0)


def small_flow(horizon=4):
    return Flow(
        walking_problem(SMALL, horizon=horizon, initial=point_mass(SMALL, 0, 0), pay_end=True)
    )


FLOW = small_flow()
BOX = FLOW.problem.actions


def random_table(key=KEY):
    return Table().random(FLOW.problem, BOX, key)


def even_table(size):
    actions = jnp.full((4, SMALL.n_cells, 2), size)
    return table_of(FLOW.problem, BOX, actions)


@pytest.mark.parametrize("mu", [Unseen(), Pooled(1), Pooled(2), Here()], ids=str)
def test_gradient_of_a_network_equals_central_differences(mu):
    profile = network_profile(FLOW.problem, KEY, width=5, mu=mu)
    arrays, rest = eqx.partition(profile, eqx.is_inexact_array)
    flat, unravel = jax.flatten_util.ravel_pytree(arrays)
    value = jax.jit(lambda x: FLOW.value(eqx.combine(unravel(x), rest), walk))
    gradient = jax.jit(jax.grad(value))(flat)
    rng = np.random.default_rng(0)
    for _ in range(3):
        direction = jnp.asarray(rng.normal(size=flat.shape))
        numeric = (value(flat + 1e-5 * direction) - value(flat - 1e-5 * direction)) / 2e-5
        assert float(jnp.vdot(gradient, direction)) == pytest.approx(float(numeric), rel=1e-5)


def test_ascent_keeps_the_best_and_says_which_start_it_came_from():
    starts = [random_table(k) for k in jax.random.split(KEY, 3)]
    result = BPTT(steps=40, learning_rate=0.1).solve(FLOW, walk, starts)
    assert result.history.shape == (40, 3)
    assert float(result.value) == float(result.values[result.start]) == float(result.values.max())
    assert float(FLOW.value(result.profile, walk)) == pytest.approx(float(result.value), abs=1e-9)
    assert (np.asarray(result.values) >= np.asarray(result.history[0])).all()
    assert float(result.value) > float(result.history[0].max()) + 0.5
    assert result.skipped.tolist() == [0, 0, 0]


def test_stepping_by_hand_is_what_the_driver_does():
    planner = BPTT(steps=30, learning_rate=0.05)
    start = random_table()
    state = planner.init([start])
    seen = []
    for _ in range(3):
        state, value = planner.step(FLOW, walk, state)
        seen.append(float(value[0, 0]))
    result = planner.solve(FLOW, walk, [start])
    assert seen == pytest.approx(np.asarray(result.history[:3, 0]).tolist(), abs=1e-12)


@pytest.mark.parametrize("kind", [Table(), Network(width=4, depth=1)], ids=str)
def test_plans_do_not_depend_on_the_unit_of_the_reward(kind):
    figures = []
    for unit in (1e-6, 1e6):

        def reward(state, action, mu, unit=unit):
            return unit * (state[0] - log_mass(mu.here))

        flow = FLOW.of_problem(FLOW.problem.replace(reward=reward))
        starts = [kind.random(flow.problem, BOX, KEY)]
        found = BPTT(steps=60, learning_rate=kind.learning_rate).solve(flow, walk, starts)
        figures.append(float(found.value) / unit)
    assert figures[0] == pytest.approx(figures[1], rel=1e-3)


def test_a_plan_is_no_worse_than_the_last_one_by_the_motion_itself(monkeypatch):
    def backwards(problem, motion, actions):
        return lambda state, action, mu: state - action

    # A tabulated motion that misleads the ascent as far as one can.
    monkeypatch.setattr(gradient, "tabulated", backwards)
    planner = GradientPlanner(Table(), steps=20, table_steps=4, sweeps=10, points=3)
    best = plan(FLOW, walk, ascent=BPTT(steps=60, learning_rate=0.1))
    actions = FLOW.mean_actions(best.profile, FLOW.rollout(best.profile, walk).mass)
    memory = table_of(FLOW.problem, BOX, actions)
    found = planner.plan(FLOW, walk, BOX, KEY, memory)
    assert float(found.value) == pytest.approx(float(FLOW.value(memory, walk)), rel=1e-9)
    assert float(found.value) == pytest.approx(float(FLOW.value(found.profile, walk)), rel=1e-9)


def test_steps_without_a_finite_gradient_are_skipped_and_counted():
    def breaks(state, action, mu):
        # Fine for small actions, not a number for larger ones.
        return state + jnp.where(jnp.abs(action) < 0.3, action, jnp.nan)

    starts = [even_table(0.1), even_table(0.5)]
    result = BPTT(steps=10, learning_rate=1e-3).solve(FLOW, breaks, starts)
    assert result.skipped.tolist() == [0, 11]
    assert result.start == 0
    assert np.isfinite(float(result.value))


def test_starts_must_be_alike_and_at_least_one():
    with pytest.raises(ValueError, match="at least one"):
        BPTT().init([])
    with pytest.raises(ValueError, match="same kind"):
        BPTT().init([random_table(), network_profile(FLOW.problem, KEY)])
    with pytest.raises(ValueError, match="number of starts"):
        plan(FLOW, walk, starts=0)


def test_tables_may_have_several_starts():
    found = plan(FLOW, walk, starts=3, ascent=BPTT(steps=2, learning_rate=0.1))
    assert found.history.shape[1] == 3
    first = found.history[0]
    assert np.argmax(first) == 0, "only the first is made from mirror ascent's plan"
    assert len(np.unique(first)) == 3


@pytest.mark.nightly
def test_global_starts_beat_random_ones_on_a_small_map():
    quick = BPTT(steps=60, learning_rate=0.1)
    best = plan(FLOW, walk, ascent=quick)
    assert isinstance(best.profile.at(0), TablePolicy)
    random = plan(FLOW, walk, ascent=quick, random=True, starts=2)
    assert random.history.shape[1] == 2
    assert float(best.value) >= float(random.value) - 0.02


@pytest.mark.nightly
def test_networks_are_fitted_to_tables_and_improved():
    moves = regular_moves(FLOW, walk, BOX, points=9)
    table, _ = table_start(FLOW, BOX, moves, sweeps=40)
    rollout = FLOW.rollout(table, walk)
    actions = FLOW.mean_actions(table, rollout.mass)
    network = network_profile(FLOW.problem, KEY, width=16)
    fitted = fit(FLOW, network, table, rollout.mass, steps=300)
    before = float(jnp.mean((FLOW.mean_actions(network, rollout.mass) - actions) ** 2))
    after = float(jnp.mean((FLOW.mean_actions(fitted, rollout.mass) - actions) ** 2))
    assert after < 0.1 * before
    ascent = BPTT(steps=40, learning_rate=3e-3)
    result = plan(FLOW, walk, Network(width=16), starts=2, ascent=ascent)
    assert result.history.shape == (40, 2)
    assert float(result.value) > float(FLOW.value(network, walk))


def test_actions_of_networks_stay_in_their_box():
    profile = network_profile(FLOW.problem, KEY)
    wild = jax.tree.map(lambda x: 100.0 * x if eqx.is_inexact_array(x) else x, profile)
    actions = FLOW.mean_actions(wild, FLOW.rollout(wild, walk).mass)
    assert bool(jnp.all(FLOW.problem.actions.contains(actions)))


def test_squash_and_unsquash_are_inverse_inside_the_box():
    box = FLOW.problem.actions
    actions = jnp.asarray([[-0.9, 0.0], [0.5, 0.96]])
    assert np.asarray(squash(box, unsquash(box, actions))) == pytest.approx(np.asarray(actions))
    assert bool(jnp.all(jnp.isfinite(unsquash(box, jnp.asarray([[1.0, -1.0]])))))


def test_networks_need_a_box_and_sound_sizes():
    from mufield import make

    discrete = make("discrete-rooms", horizon=2).problem
    with pytest.raises(ValueError, match="needs a box"):
        network_profile(discrete, KEY)
    with pytest.raises(ValueError, match="needs a box"):
        plan(Flow(discrete), walk)
    with pytest.raises(ValueError, match="at least 1"):
        network_profile(FLOW.problem, KEY, width=0)
    assert isinstance(network_profile(FLOW.problem, KEY, mu=Pooled()), Profile)


def test_stationary_networks_can_be_improved():
    alone = Profile.stationary(network_profile(FLOW.problem, KEY, width=8).at(0), 4)
    assert np.isfinite(float(BPTT(steps=2).solve(FLOW, walk, [alone]).value))


def test_starts_of_different_sizes_and_no_steps_are_refused():
    wide, narrow = (network_profile(FLOW.problem, KEY, width=w) for w in (4, 5))
    with pytest.raises(ValueError, match="same sizes"):
        BPTT().init([wide, narrow])
    with pytest.raises(ValueError, match="number of steps"):
        BPTT(steps=0)
