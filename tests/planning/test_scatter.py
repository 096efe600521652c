"""Plans that scatter actions pass deterministic ones and come near the certified optimum."""

import jax
import numpy as np
import pytest

import mufield as mf
from mufield.finite.system import FiniteSystem
from mufield.planning.ascent import regular_moves
from mufield.planning.gradient import table_start

pytestmark = pytest.mark.slow

ROOM = "......\n......\n..##..\n......\n......\n......"


@pytest.fixture(scope="module")
def rooms():
    system = mf.make("four-rooms", horizon=4, drawing=ROOM)
    flow, motion = system.reveal()
    moves = mf.Box(-1.0, 1.0, 2).points(9)
    best = mf.MirrorAscent(sweeps=400, bracket=0.02).solve(mf.MoveFlow(flow, motion, moves))
    return system, flow, motion, float(best.upper)


def start_of(flow, motion):
    actions = flow.problem.actions
    moves = regular_moves(flow, motion, actions, points=9)
    return table_start(flow, actions, 3, moves, sweeps=20)[0]


@pytest.mark.nightly
def test_scattered_actions_pass_tables_and_comes_near_the_optimum(rooms):
    system, flow, motion, upper = rooms
    table = mf.plan(flow, motion)
    scattered = mf.plan(flow, motion, mf.Table(scatter=5))
    assert float(scattered.value) > float(table.value) + 0.3
    assert float(scattered.value) > 0.99 * upper
    # What the planner says is what the system pays.
    paid = system.evaluate(scattered.profile).value
    np.testing.assert_allclose(paid, scattered.value, rtol=1e-5)
    # A warm start has about the means and deviations of the table's actions.
    again = mf.plan(
        flow,
        motion,
        mf.Table(scatter=5),
        starts=0,
        warm=[scattered.profile],
        ascent=mf.planning.BPTT(steps=50, learning_rate=0.1),
    )
    assert float(again.history[0, 0]) > 0.9 * upper
    assert float(again.value) > 0.97 * upper


@pytest.mark.nightly
def test_networks_start_where_the_table_ended(rooms):
    _, flow, motion, upper = rooms
    short = mf.planning.BPTT(steps=30, learning_rate=3e-3)
    result = mf.plan(flow, motion, mf.Network(scatter=5), ascent=short)
    assert float(result.history[0, 0]) > 0.95 * upper
    assert float(result.value) > 0.98 * upper


def test_gradients_by_centre_and_width_agree_with_finite_differences(rooms):
    _, flow, motion, _ = rooms
    start = start_of(flow, motion)
    rng = np.random.default_rng(0)
    toward = jax.tree.map(lambda x: rng.normal(size=x.shape), start)
    gradient = jax.grad(lambda profile: flow.value(profile, motion))(start)
    pairs = zip(jax.tree.leaves(gradient), jax.tree.leaves(toward), strict=True)
    slope = sum(float((g * d).sum()) for g, d in pairs)

    def value(length):
        moved = jax.tree.map(lambda x, d: x + length * d, start, toward)
        return float(flow.value(moved, motion))

    np.testing.assert_allclose(slope, (value(1e-4) - value(-1e-4)) / 2e-4, rtol=1e-4)


def test_agents_of_the_simulator_follow_the_plan(rooms):
    system, flow, motion, _ = rooms
    plan = start_of(flow, motion)
    finite = FiniteSystem.of(system, 40_000, centred=True)
    found = finite.evaluate(plan, jax.random.key(1)).mass[0]
    wanted = flow.rollout(plan, motion).mass
    assert float(np.abs(np.asarray(found - wanted)).sum(axis=1).max()) < 0.06
