"""Tolls: derivatives by hand, optima that they make equilibria, simpler ones, and who obeys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mufield as mf
from mufield import games

RING = mf.Nodes.from_edges([(i, (i + 1) % 5) for i in range(5)])


def slip(node, action, mu):
    """Crowds hold agents back."""
    hold = jnp.minimum(2.0 * mu.here, 0.9)
    chosen = jnp.full(3, 0.1).at[action].add(0.7)
    return (1 - hold) * chosen + hold * jnp.array([1.0, 0.0, 0.0])


def reward(node, action, mu):
    return 1.0 * (node == 2) - (1.0 + 0.5 * node) * mu.here - 0.05 * (action > 0)


def ring(motion=slip, pay=reward, **changes):
    settings = {
        "space": RING,
        "actions": ["stay", "back", "on"],
        "reward": pay,
        "horizon": 4,
        "initial": [0.5, 0.2, 0.1, 0.1, 0.1],
        "pay_end": True,
    }
    return mf.SimulatedSystem(mf.Problem(**(settings | changes)), motion)


@pytest.fixture(scope="module")
def found():
    moves = mf.MoveFlow(*ring().reveal())
    return games.anarchy(moves, mf.MirrorAscent(sweeps=600), games.MirrorDescent(600))


def test_a_toll_is_what_one_more_agent_costs_the_others():
    """Finite differences of J, minus the agent's own value."""
    system = ring()
    flow, motion = system.reveal()
    weights = jax.random.dirichlet(jax.random.key(0), jnp.ones(3), (4, 5))
    moves = mf.MoveFlow(flow, motion)
    policy = moves.profile(weights)
    prices = games.tolls(flow, motion, policy)
    response = games.respond(moves, weights)
    np.testing.assert_allclose(prices.mass, response.rollout.mass, atol=1e-12)
    mass = response.rollout.mass[2]

    @jax.jit
    def value(mass):
        rest = moves.flow.problem.replace(initial=mass, first=jnp.asarray(2, jnp.int32))
        return mf.MoveFlow(flow.of_problem(rest), motion).rollout(weights).value

    # The agent's own way through the rest, with those it meets there paying their tolls too.
    own = games.respond(mf.MoveFlow(games.priced(flow, prices), motion), weights)
    size = 1e-5
    for node in range(5):
        more = size * jnp.eye(5)[node]
        slope = float(value(mass + more) - value(mass - more)) / (2 * size)
        worth = float(weights[2, node] @ own.values[2, node])
        assert slope == pytest.approx(worth, abs=1e-6)


def test_with_tolls_the_optimum_is_an_equilibrium(found):
    assert found.gap > 0.01
    assert found.price > 0
    plan, moves = found.optimum, found.equilibrium.moves
    without = games.exploitability(moves.flow, moves.motion, plan.profile)
    assert without > 0.05
    assert found.left < 1e-4 * found.gap
    assert float(found.equilibrium.exploitability) < 1e-3
    paid = found.under(found.tolls)
    assert found.closed(paid) > 0.9
    assert found.closed(found.equilibrium) == 0.0
    assert "price=" in repr(found)
    # What agents pay goes to nobody: J of the priced game is what they keep.
    kept = games.priced(moves.flow, found.tolls).value(plan.profile, moves.motion)
    revenue = float(jnp.sum(found.tolls.mass * found.tolls.prices))
    assert float(plan.value - kept) == pytest.approx(revenue, rel=1e-6)


def test_tolls_that_all_pay_alike_change_nothing(found):
    moves, policy = found.equilibrium.moves, found.equilibrium.profile
    gains = [
        games.exploitability(games.priced(moves.flow, prices), moves.motion, policy)
        for prices in (found.tolls, found.tolls.from_zero())
    ]
    assert gains[0] == pytest.approx(gains[1], rel=1e-6)
    used = np.asarray(found.tolls.mass) > 1e-4
    least = np.where(used, np.asarray(found.tolls.from_zero().prices), np.inf).min(axis=1)
    np.testing.assert_allclose(least, 0.0, atol=1e-12)


def test_projected_tolls_are_means_within_bounds(found):
    districts, hours = np.array([0, 0, 1, 1, 1]), np.array([0, 0, 1, 1, 1])
    prices = found.tolls.projected(districts, hours)
    table = prices.table(districts)
    assert table.shape == (5, 2)
    np.testing.assert_allclose(table[0], table[1])
    np.testing.assert_allclose(prices.table(districts, hours), table[[0, 2]])
    np.testing.assert_allclose(prices.prices[0, 0], prices.prices[1, 1])
    exact = found.tolls.from_zero()
    inside = np.ix_([0, 1], [0, 1])
    mass, paid = np.asarray(exact.mass)[inside], np.asarray(exact.prices)[inside]
    assert float(prices.prices[0, 0]) == pytest.approx((mass * paid).sum() / mass.sum())
    assert float(prices.prices.min()) >= 0.0
    low = found.tolls.projected(districts, most=0.1)
    assert float(low.prices.max()) <= 0.1
    with pytest.raises(mf.UserError, match="districts must be 5 whole numbers"):
        found.tolls.projected(np.zeros(4, int))
    with pytest.raises(mf.UserError, match="hours must be 5 whole numbers"):
        found.tolls.projected(districts, np.zeros(4, int))
    with pytest.raises(mf.UserError, match="tolls must have a row"):
        games.priced(mf.Flow(ring(horizon=3).problem), found.tolls)


def test_where_the_reward_is_the_entropy_s_tolls_are_one_everywhere():
    def drift(node, action, mu):
        return jnp.full(3, 0.1).at[action].add(0.7)

    system = ring(drift, lambda node, action, mu: -mf.log_mass(mu.here))
    prices = games.tolls(*system.reveal(), mf.random_policy(system.problem)).prices
    np.testing.assert_allclose(prices, 1.0, rtol=1e-9)


def test_between_all_obey_and_none_there_is_a_share(found):
    moves, plan = found.equilibrium.moves, found.optimum.weights
    solver = games.MirrorDescent(300)
    none, half, everybody = (
        solver.solve(moves, followers=games.Followers(plan, share)) for share in (0.0, 0.5, 1.0)
    )
    assert float(none.value) == pytest.approx(float(found.equilibrium.value), abs=1e-3)
    assert float(everybody.value) == pytest.approx(float(found.optimum.value), rel=1e-9)
    assert float(none.value) < float(half.value) < float(everybody.value)
    assert float(half.exploitability) < 1e-2
    np.testing.assert_allclose(half.mass.sum(axis=1), 1.0, atol=1e-9)
    with pytest.raises(mf.UserError, match="from 0 to 1"):
        games.Followers(plan, 1.5)
    with pytest.raises(mf.UserError, match="must have the shape"):
        solver.init(moves, followers=games.Followers(plan[:2], 0.5))


def test_two_groups_with_one_policy_are_one_population(found):
    moves, plan = found.equilibrium.moves, found.optimum.weights
    both = games.respond(moves, plan, games.Followers(plan, 0.3))
    alone = games.respond(moves, plan)
    np.testing.assert_allclose(both.rollout.mass, alone.rollout.mass, atol=1e-12)
    assert float(both.rollout.value) == pytest.approx(float(alone.rollout.value), rel=1e-9)
    assert float(both.exploitability) == pytest.approx(float(alone.exploitability), rel=1e-9)


def test_a_learner_finds_the_equilibrium_of_an_unknown_motion():
    system = mf.make("left-right")
    planner = games.EquilibriumPlanner(games.MirrorDescent(100))
    gains = []
    mf.learn(
        system,
        mf.M3UCRL(system.problem, planner=planner),
        episodes=4,
        agents=10,
        progress=False,
        watch=lambda *row: gains.append(games.exploitability(*system.reveal(), row[1].profile)),
    )
    assert gains[-1] < 0.05
    assert gains[-1] < gains[0]
