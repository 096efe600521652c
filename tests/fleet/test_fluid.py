"""The fluid linear programme: a bound of all policies, and a plan that reaches it."""

from dataclasses import replace
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import mufield as mf
from mufield.fleet import stay, towards_demand


def quick(state, action, mu):
    return state + 0.9 * action


def crowded(state, action, mu):
    """Slower in crowds, and later."""
    return state + 0.9 * action / (1 + 2 * mu.here + 0.1 * mu.step)


def later(state, action, mu):
    """Slower with the hour, whatever the crowd."""
    return state + 0.9 * action / (1 + 0.3 * mu.step)


MAPS = {quick: "...\n.#.\n...", crowded: ".#..\n....\n..#."}


def fleet(seed, motion=quick, horizon=3, load=0.7, cost=0.05, sparse=False):
    """A random city on a small map; one map for each motion, so that programs are compiled once."""
    rng = np.random.default_rng(seed)
    grid = mf.Grid.from_map(MAPS[motion])
    n = grid.n_cells
    passengers = mf.fleet.Passengers(grid, load * rng.dirichlet(np.full(n, 0.5), size=horizon))
    matrix = rng.dirichlet(np.full(n, 0.5), size=n)
    if sparse:
        matrix = np.eye(n)[rng.permutation(n)]
    problem = mf.Problem(
        space=grid,
        actions=mf.Box(-1.0, 1.0, dim=2),
        reward=mf.fleet.Earnings(
            passengers, pay=rng.uniform(0.5, 2.0, size=(horizon, n)), cost=cost
        ),
        horizon=horizon,
        initial=rng.dirichlet(np.ones(n)),
        noise=0.2,
        max_move=1.0,
        trips=mf.fleet.Trips(passengers, scipy.sparse.csr_array(matrix) if sparse else matrix),
    )
    return mf.SimulatedSystem(problem, motion)


def moves_of(system, points=3):
    return mf.MoveFlow(*system.reveal(), system.problem.actions.points(points))


@settings(max_examples=5, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    motion=st.sampled_from([quick, crowded]),
    load=st.floats(0.2, 1.5),
)
def test_no_policy_earns_more_than_the_bound(seed, motion, load):
    system = fleet(seed, motion, load=load)
    moves = moves_of(system)
    found = mf.fleet.fluid_plan(moves)
    rng = np.random.default_rng(seed)
    shape = moves.uniform().shape
    tried = [np.asarray(moves.uniform()), np.asarray(found.weights)]
    tried += [rng.dirichlet(np.full(shape[-1], a), size=shape[:-1]) for a in (0.02, 0.3, 3.0)]
    best = mf.MirrorAscent(sweeps=40, bound=False).solve(moves)
    values = [float(moves.rollout(jnp.asarray(w)).value) for w in tried] + [float(best.value)]
    assert max(values) <= found.upper + 1e-6
    assert found.value == pytest.approx(values[1], abs=1e-9)
    # It is no idle bound: that of a fleet that serves everybody for nothing is far above it.
    assert found.upper <= found.optimum + (0.02 if motion is quick else 0.2)


@pytest.mark.parametrize("motion", [later, crowded])
def test_the_rest_of_a_day_is_bounded_by_its_own_hours(motion):
    """Demand, pay, destinations and speeds of the first steps, which are over, do not count."""
    first, horizon = 2, 5
    rng = np.random.default_rng(8)
    grid = mf.Grid.from_map(MAPS[crowded])
    n = grid.n_cells
    demand = np.array([0.01, 0.02, 0.5, 0.7, 0.9])[:, None] * rng.dirichlet(np.ones(n), size=5)
    pay, ends = rng.uniform(0.5, 2.0, size=(5, n)), rng.dirichlet(np.ones(n), size=(5, n))

    def problem(steps):
        passengers = mf.fleet.Passengers(grid, demand[steps])
        return mf.Problem(
            space=grid,
            actions=mf.Box(-1.0, 1.0, dim=2),
            reward=mf.fleet.Earnings(passengers, pay=pay[steps], cost=0.05),
            horizon=len(demand[steps]),
            initial=mf.uniform(grid),
            noise=0.2,
            max_move=1.0,
            trips=mf.fleet.Trips(passengers, ends[steps]),
        )

    rest = mf.SimulatedSystem(problem(slice(None)), motion).from_step(first, mf.uniform(grid))
    moves = moves_of(rest)
    found = mf.fleet.fluid_plan(moves)
    assert found.weights.shape == moves.uniform().shape
    tried = [rng.dirichlet(np.full(9, a), size=moves.uniform().shape[:2]) for a in (0.02, 3.0)]
    values = [float(moves.rollout(jnp.asarray(weights)).value) for weights in tried]
    values.append(float(mf.MirrorAscent(sweeps=40, bound=False).solve(moves).value))
    assert max(values) <= found.upper + 1e-6
    # The same hours as an episode of their own.
    cut = mf.SimulatedSystem(
        problem(slice(first, horizon)),
        lambda s, a, mu: motion(s, a, replace(mu, step=mu.step + first)),
    )
    alone = mf.fleet.fluid_plan(moves_of(cut))
    assert found.optimum == pytest.approx(alone.optimum, rel=1e-5)
    assert found.upper == pytest.approx(alone.upper, rel=1e-4)
    assert found.value == pytest.approx(alone.value, rel=1e-3)
    assert found.served.sum() == pytest.approx(alone.served.sum(), rel=1e-3)


def test_where_nothing_is_refused_and_no_crowds_slow_down_the_plan_reaches_the_bound():
    system = fleet(3, load=0.4, cost=0.02)
    found = mf.fleet.fluid_plan(moves_of(system, points=5))
    assert found.refused < 1e-3
    assert found.value == pytest.approx(found.upper, rel=0.01)
    assert float(system.evaluate(found.profile).value) == pytest.approx(found.value, rel=1e-5)


def test_the_optimum_of_a_tiny_fleet_is_known():
    """Two cells; all vehicles on the left, half of them wanted there and half on the right."""
    grid = mf.Grid.box(0.0, (2.0, 1.0), (2, 1))
    passengers = mf.fleet.Passengers(grid, [[0.5, 0.5], [0.0, 1.0]])
    problem = mf.Problem(
        space=grid,
        actions=mf.Box(-1.0, 1.0, dim=2),
        reward=mf.fleet.Earnings(passengers, pay=[[1.0, 1.0], [3.0, 3.0]], cost=0.1),
        horizon=2,
        initial=np.array([1.0, 0.0]),
        noise=1e-3,
        max_move=1.0,
        trips=mf.fleet.Trips(passengers, np.eye(2)),
    )
    moves = mf.MoveFlow(mf.Flow(problem), lambda s, a, mu: s + a, problem.actions.points(3))
    found = mf.fleet.fluid_plan(moves)
    # Serving pays 1 and leaves a vehicle on the left; driving costs 0.1 and earns 3 later. So all
    # refuse and drive: 3 - 0.1. Vehicles that may not refuse earn 0.5 + 0.5 * 2.9.
    assert found.optimum == pytest.approx(2.9, abs=1e-6)
    assert found.upper == pytest.approx(2.9, abs=1e-4)
    assert found.refused > 0.4
    assert found.value == pytest.approx(1.95, abs=1e-4)


def test_a_sparse_matrix_of_trips_gives_the_same_programme():
    sparse = fleet(4, crowded, sparse=True)
    cells = jnp.arange(sparse.problem.grid.n_cells)
    dense = jax.vmap(lambda cell: sparse.problem.trips.ends(1.0 * (cells == cell), 0)[0])(cells)
    trips = mf.fleet.Trips(sparse.problem.trips.chance, dense)
    other = mf.SimulatedSystem(eqx.tree_at(lambda p: p.trips, sparse.problem, trips), crowded)
    few, many = (mf.fleet.fluid_plan(moves_of(each)) for each in (sparse, other))
    assert few.upper == pytest.approx(many.upper, rel=1e-5)
    assert few.optimum == pytest.approx(many.optimum, rel=1e-6)


def test_more_moves_can_only_raise_the_bound():
    system = fleet(5)
    few = moves_of(system)
    alone, more = mf.fleet.fluid_plan(few), mf.fleet.fluid_plan(few, tried=moves_of(system, 5))
    assert alone.upper - 1e-6 <= more.upper <= alone.upper * 1.1
    best = mf.MirrorAscent(sweeps=60, bound=False).solve(moves_of(system, 5))
    assert float(best.value) <= more.upper + 1e-6


def test_other_problems_are_refused():
    system = fleet(0)
    problem = system.problem
    paid = problem.replace(reward=lambda state, action, mu: jnp.ones(()))
    hedged = mf.fleet.for_fleet(problem, 100)
    sees_all = mf.MoveFlow(
        mf.Flow(problem), lambda s, a, mu: s + 0.9 * a * mu.mass[0], problem.actions.points(3)
    )
    with pytest.raises(mf.UserError, match=r"no more than mu\.here"):
        mf.fleet.fluid_plan(sees_all)
    for wrong in (paid, hedged):
        moves = mf.MoveFlow(mf.Flow(wrong), quick, problem.actions.points(3))
        with pytest.raises(mf.UserError, match="needs a problem with trips"):
            mf.fleet.fluid_plan(moves)
    with pytest.raises(mf.UserError, match="a column for each"):
        mf.fleet.Passengers(problem.grid, [0.1, 0.2])
    with pytest.raises(mf.UserError, match="not negative"):
        mf.fleet.Passengers(problem.grid, np.full(problem.grid.n_cells, -0.1))
    with pytest.raises(mf.UserError, match="pay must be a number"):
        mf.fleet.Earnings(problem.trips.chance, pay=np.ones(2))
    with pytest.raises(mf.UserError, match="cost not negative"):
        mf.fleet.Earnings(problem.trips.chance, cost=-1.0)


def test_a_plan_for_a_fleet_expects_what_a_fleet_of_that_size_serves():
    """The chance for N vehicles is the mean of the limit's over the luck of the draw."""
    grid = mf.Grid.box(0.0, (2.0, 1.0), (2, 1))
    make = partial(mf.fleet.Passengers, grid, [[0.3, 0.1]])
    limit, finite = make(), make(400)
    rng = np.random.default_rng(0)
    state = jnp.array([0.5, 0.5])
    for mass in (0.2, 0.3, 0.4):
        drawn = np.maximum(rng.poisson(400 * mass, size=200_000), 1) / 400
        mu = mf.MeanField(jnp.array([mass, 1 - mass]), jnp.asarray(mass), grid, 0)
        served = np.minimum(drawn, 0.3).mean() / mass
        assert float(finite(state, mu)) == pytest.approx(served, abs=0.003)
    many = make(10**9)
    assert float(many(state, mu)) == pytest.approx(float(limit(state, mu)), abs=1e-4)
    mu = mf.MeanField(jnp.array([0.3, 0.7]), jnp.asarray(0.3), grid, 0)
    assert float(finite(state, mu)) < 0.97
    assert float(make(400, seen=0)(state, mu)) == 1.0  # whoever counted them knows
    assert float(make(400, seen=1)(state, mu)) == float(finite(state, mu))


def test_vehicles_stay_or_go_where_passengers_are():
    system = fleet(7, horizon=4)
    problem = system.problem
    before, after = (system.evaluate(each(problem)) for each in (stay, towards_demand))
    wanted = np.asarray(problem.trips.chance.demand)
    waiting = np.minimum(np.asarray(before.mass[:-1]), wanted)
    assert float(before.value) == pytest.approx(
        float(np.sum(waiting * np.asarray(problem.reward.pay))), abs=1e-6
    )
    law = towards_demand(problem, cells=1).at(0).at_cells(problem.grid, problem.initial, 0)
    np.testing.assert_allclose(np.asarray(law.weights).sum(axis=1), 1.0, atol=1e-6)
    # The move to each free cell near by is as likely as its share of their next demand.
    middle = problem.grid.index_at(1, 0)
    weights = np.asarray(law.weights)[middle]
    shown = np.zeros(problem.grid.n_cells)
    size = np.asarray(problem.max_move)
    for action, weight in zip(np.asarray(law.actions)[middle], weights, strict=True):
        if weight > 1e-7:
            target = problem.grid.centres[middle] + action * size
            shown[problem.grid.index_of(target)] += weight
    apart = np.abs(problem.grid.centres - problem.grid.centres[middle]).max(axis=1)
    near = np.where(apart < 1.5, wanted[1], 0.0)
    np.testing.assert_allclose(shown, near / near.sum(), atol=1e-6)
    assert np.isfinite(after.value)
    # The rest of a day has the demand of its own hours.
    rest = towards_demand(problem.from_step(2, problem.initial))
    jax.tree.map(
        lambda late, whole: np.testing.assert_array_equal(late[-2:], whole[-2:]),
        *(each.per_step for each in (rest, towards_demand(problem))),
    )
