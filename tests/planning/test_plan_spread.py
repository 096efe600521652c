"""Plans of a mean and a spread pass deterministic ones and come near the certified optimum."""

import jax
import numpy as np
import pytest

import mufield as mf
from mufield.finite.system import FiniteSystem
from mufield.planning.bptt import BPTT
from mufield.planning.spread import spread_start


@pytest.fixture(scope="module")
def rooms():
    system = mf.make("four-rooms", horizon=5)
    flow, motion = system.reveal()
    moves = mf.Box(-1.0, 1.0, 2).points(9)
    best = mf.MirrorAscent(sweeps=400, bracket=0.02).solve(mf.MoveFlow(flow, motion, moves))
    return system, flow, motion, float(best.upper)


def test_a_spread_passes_tables_and_comes_near_the_optimum(rooms):
    system, flow, motion, upper = rooms
    key = jax.random.key(0)
    table = mf.plan_table(flow, motion, key)
    spread = mf.plan_spread(flow, motion, key)
    assert float(spread.value) > float(table.value) + 0.3
    assert float(spread.value) > 0.99 * upper
    # What the planner says is what the system pays.
    np.testing.assert_allclose(system.evaluate(spread.profile).value, spread.value, rtol=1e-5)


def test_networks_start_where_the_table_ended(rooms):
    _, flow, motion, upper = rooms
    short = BPTT(steps=30, learning_rate=3e-3)
    result = mf.plan_spread(flow, motion, jax.random.key(0), policy="network", planner=short)
    assert float(result.history[0, 0]) > 0.95 * upper
    assert float(result.value) > 0.98 * upper
    assert result.lipschitz > 0


def test_gradients_by_centre_and_spread_agree_with_finite_differences(rooms):
    _, flow, motion, _ = rooms
    start = spread_start(flow, motion, 3, sweeps=20)
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
    plan = spread_start(flow, motion, 3, sweeps=20)
    finite = FiniteSystem.of(system, 40_000, centred=True)
    found = finite.evaluate(plan, jax.random.key(1)).mass[0]
    wanted = flow.rollout(plan, motion).mass
    assert float(np.abs(np.asarray(found - wanted)).sum(axis=1).max()) < 0.06


def test_an_unknown_kind_is_refused(rooms):
    _, flow, motion, _ = rooms
    with pytest.raises(ValueError, match="'table' or 'network'"):
        mf.plan_spread(flow, motion, jax.random.key(0), policy="tree")
