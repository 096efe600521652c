"""Planning inside limits: feasible plans, bounds that hold, and proofs that there is no plan."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mufield as mf
from mufield.constraints.reachability import reach as reached
from mufield.planning.ascent import StepRule
from mufield.planning.constrained import prove_infeasible
from mufield.policies.base import Profile
from mufield.policies.tables import TablePolicy

GRID = mf.Grid.from_map(".....\n..#..\n.....")
MOVES = mf.Box(-1.0, 1.0, dim=2).points(3)
DOOR = [(2, 2)]


def reward(state, action, mu):
    return -mf.log_mass(mu.here) + 0.1 * state[0]


def walk(state, action, mu):
    return state + action


def flow_with(*constraints, horizon=5):
    return mf.Flow(
        mf.Problem(
            space=GRID,
            actions=mf.Box(-1.0, 1.0, dim=2),
            reward=reward,
            horizon=horizon,
            initial=mf.point_mass(GRID, 0, 0),
            noise=0.3,
            max_move=1.0,
            pay_end=True,
            constraints=constraints,
        )
    )


def solve(flow, sweeps=200):
    return mf.MirrorAscent(sweeps).solve(mf.MoveFlow(flow, walk, MOVES))


@pytest.fixture(scope="module")
def free():
    return solve(flow_with())


@pytest.fixture(scope="module")
def capped():
    return solve(flow_with(mf.constraints.mass_at_most(GRID, DOOR, 0.06)))


def test_a_plan_keeps_a_limit_that_binds_and_its_price_is_bracketed(free, capped):
    without = free.moves.flow.rollout(free.profile, walk).mass[:, GRID.index_at(*DOOR[0])]
    assert float(jnp.max(without)) > 0.08  # else the cap would not bind
    assert float(jnp.min(capped.margins)) >= 0
    assert float(capped.value) < float(free.value)
    assert 0 <= float(capped.gap) < 0.003 * float(capped.value)


def test_a_limit_that_does_not_bind_changes_nothing(free):
    loose = solve(flow_with(mf.constraints.mass_at_most(GRID, DOOR, 0.5)))
    assert float(loose.value) == pytest.approx(float(free.value), rel=2e-4)
    assert float(loose.upper) >= float(free.value) - 1e-4


def test_limits_of_the_entropy_and_from_below():
    least = mf.constraints.entropy_at_least(GRID, 1.5, steps=range(2, 6))
    west = mf.constraints.mass_at_least(GRID, lambda state: state[0] < 2, 0.5)
    found = solve(flow_with(least, west))
    assert float(jnp.min(found.margins)) >= 0
    assert float(found.gap) < 0.01 * float(found.value)


@given(st.integers(0, 10_000), st.floats(0.0, 3.0))
@settings(max_examples=5, deadline=None)
def test_no_policy_inside_the_limits_passes_the_bound(capped, seed, sharpness):
    flow = capped.moves.flow
    draws = jax.random.normal(jax.random.key(seed), capped.weights.shape)
    weights = jax.nn.softmax(jnp.log(capped.weights + 1e-3) + sharpness * draws, axis=-1)
    rollout = capped.moves.rollout(weights)
    # For any multipliers the Lagrangian's bound is above what keeps the limits.
    multipliers = jnp.abs(jax.random.normal(jax.random.key(seed + 1), (5, 1)))
    policy = Profile.stacked(TablePolicy.mixing(MOVES, weights), 5)
    bound = mf.certify(flow, walk, policy, MOVES, multipliers=multipliers)
    assert bound.upper >= float(capped.value) - 1e-3
    if float(jnp.min(flow.problem.margins(rollout.mass))) >= 0:
        assert float(rollout.value) <= float(capped.upper) + 1e-4
        assert bound.violation == 0
    else:
        assert bound.violation > 0


def test_the_certificate_of_a_plan_is_as_tight_as_the_ascent(capped):
    flow = capped.moves.flow
    found = mf.certify(flow, walk, capped.profile, MOVES, multipliers=capped.multipliers)
    assert found.value == pytest.approx(float(capped.value), rel=1e-5)
    assert found.upper < 1.004 * found.value
    loose = mf.certify(flow, walk, capped.profile, MOVES)
    assert loose.upper > found.upper
    with pytest.raises(mf.UserError, match="zero or more"):
        mf.certify(flow, walk, capped.profile, MOVES, multipliers=-jnp.ones((5, 1)))
    with pytest.raises(mf.UserError, match="no constraints"):
        mf.certify(flow_with(), walk, capped.profile, MOVES, multipliers=capped.multipliers)


def test_the_bound_with_multipliers_is_one_of_the_lagrangian(free):
    """J plus multipliers times margins, of any plan: also where the limit does not bind."""
    flow = flow_with(mf.constraints.mass_at_most(GRID, DOOR, 0.5))
    prices = jnp.full((5, 1), 10.0)
    bound = mf.certify(flow, walk, free.profile, MOVES, multipliers=prices)
    margins = flow.problem.margins(flow.rollout(free.profile, walk).mass)
    assert float(jnp.min(margins)) > 0.1
    assert bound.upper >= bound.value + float(jnp.sum(prices * margins)) - 1e-6


def test_what_no_policy_can_keep_is_proved():
    flow = flow_with(
        mf.constraints.mass_at_least(GRID, lambda state: state[0] > 4, 0.5, steps=(2,))
    )
    with pytest.raises(
        mf.constraints.InfeasibleError, match=r"no policy .* after any of its moves: at best .*%"
    ):
        solve(flow)
    left, right = (lambda state: state[0] < 2), (lambda state: state[0] > 2)
    flow = flow_with(
        mf.constraints.mass_at_least(GRID, left, 0.7, steps=(4,), name="left"),
        mf.constraints.mass_at_least(GRID, right, 0.4, steps=(4,), name="right"),
    )
    with pytest.raises(  # each can be kept, but not both
        mf.constraints.InfeasibleError, match=r"no policy .* violates .* at least .* after move 4"
    ):
        solve(flow)


def test_a_second_proof_compiles_nothing_new():
    cap = mf.constraints.mass_at_most(GRID, lambda state: state[0] > 0, 0.5)
    moves, compiled = mf.MoveFlow(flow_with(cap, horizon=2), walk, MOVES), []

    def listen(event, duration, **details):
        if event.startswith("/jax/core/compile"):
            compiled.append(details.get("fun_name", event))

    def prove():
        with pytest.raises(mf.constraints.InfeasibleError):
            prove_infeasible(moves, 20, StepRule())

    prove()
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        prove()
        assert compiled == []
        jax.jit(lambda x: x + 1.0)(jnp.ones(3))  # else nothing would have been heard
        assert compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def test_the_lagrangian_has_the_derivative_that_it_says():
    problem = flow_with(
        mf.constraints.mass_at_most(GRID, DOOR, 0.06), mf.constraints.entropy_at_least(GRID, 1.0)
    ).problem
    active = problem.constraints.active(problem.begun)
    lagrangian = problem.constraints.lagrangian(active, jnp.asarray(0.7))
    lagrangian = replace(lagrangian, margin=lagrangian.margin + 0.1)
    lagrangian = lagrangian.updated(lagrangian(mass := _episode(0)))
    penalty, along = lagrangian(mass), _episode(1) - mass
    step = 1e-4
    ahead, behind = (float(lagrangian(mass + s * step * along).augmented) for s in (1, -1))
    assert (ahead - behind) / (2 * step) == pytest.approx(
        float(jnp.vdot(penalty.slopes, along)), rel=1e-3
    )


def _episode(seed):
    draws = jax.random.normal(jax.random.key(seed), (6, GRID.n_cells))
    return jax.nn.softmax(draws.astype(jnp.result_type(float)), axis=-1)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("kind", [mf.Table(), mf.Network(width=8)])
def test_tables_and_networks_stay_inside_the_limits(capped, kind):
    flow = capped.moves.flow
    found = mf.plan(
        flow, walk, kind, ascent=mf.planning.BPTT(steps=150, learning_rate=kind.learning_rate)
    )
    assert float(jnp.min(found.margins)) > -0.003
    assert np.isfinite(float(found.value))
    assert float(found.value) > 0.9 * float(capped.value)


EAST = GRID.centres[:, 0] > 2


def reach(flow, motion=walk):
    east = mf.constraints.mass_at_least(GRID, EAST, 0.5)
    limit = mf.constraints.constraint.Constraints.of(
        east, GRID, flow.problem.initial, flow.problem.horizon
    )
    moves = mf.MoveFlow(flow.of_problem(flow.problem.replace(constraints=limit)), motion, MOVES)
    return np.asarray(reached(moves).upper[:, 0]) + 0.5


def in_the_east_at(step):
    return lambda state, action, mu: jnp.where((mu.step == step) & (state[0] > 2), 1.0, 0.0)


def test_the_greatest_mass_of_a_region_is_what_the_plan_for_it_reaches():
    best = reach(flow_with())
    problem = flow_with(horizon=3).problem.replace(reward=in_the_east_at(3))
    plan = solve(mf.Flow(problem))
    assert float(plan.value) <= best[2] + 1e-5
    assert float(plan.value) == pytest.approx(best[2], rel=1e-3)
    assert (np.diff(best) > 0).all()


def with_passengers(seed):
    """The same map with passengers, some of whom lead away from the east."""
    rng = np.random.default_rng(seed)
    cells = GRID.n_cells
    passengers = mf.fleet.Passengers(GRID, 0.5 * rng.dirichlet(np.ones(cells), size=5))
    trips = mf.fleet.Trips(passengers, rng.dirichlet(np.full(cells, 0.3), size=cells))
    return mf.Flow(flow_with().problem.replace(initial=mf.uniform(GRID), trips=trips))


@pytest.mark.parametrize("seed", range(3))
def test_no_policy_with_passengers_is_above_the_bound(seed):
    flow = with_passengers(seed)
    best, moves = reach(flow), mf.MoveFlow(flow, walk, MOVES)
    for key in jax.random.split(jax.random.key(seed), 5):
        weights = jax.nn.softmax(8 * jax.random.normal(key, moves.uniform().shape))
        mass = np.asarray(moves.rollout(weights).mass)
        assert (mass[1:, EAST].sum(axis=1) <= best + 1e-5).all()
    if seed == 0:  # after the first move it is exact
        problem = flow_with(horizon=1).problem.replace(
            initial=flow.problem.initial, trips=flow.problem.trips, reward=in_the_east_at(1)
        )
        plan = mf.MirrorAscent(60, bound=False).solve(mf.MoveFlow(mf.Flow(problem), walk, MOVES))
        assert float(plan.value) == pytest.approx(best[0], rel=1e-3)


def test_a_limit_is_left_out_where_it_cannot_be_reached_and_the_note_says_so():
    limit = mf.constraints.mass_at_least(GRID, EAST, 0.3, name="east")
    best = reach(flow_with())
    out = 1 + np.flatnonzero(best < 0.3)
    assert 0 < len(out) < 5
    plan = solve(flow_with(limit))
    assert plan.note.startswith(f"no policy over these moves satisfies 'east' after move {out[0]}")
    assert np.isinf(plan.margins[: len(out), 0]).all()
    assert float(jnp.min(plan.margins)) >= -1e-3


def test_an_action_between_the_coarse_moves_may_reach_what_none_of_them_does():
    grid = mf.Grid.box(0.0, 33.0, 33)
    problem = mf.Problem(
        space=grid,
        actions=mf.Box(-1.0, 1.0),
        reward=lambda state, action, mu: -mf.log_mass(mu.here),
        horizon=1,
        initial=mf.point_mass(grid, 16),
        noise=0.2,
        max_move=8.0,
        pay_end=True,
        constraints=mf.constraints.mass_at_least(grid, [[17]], 0.5),
    )
    # The coarse moves are two cells apart.
    moves = mf.MoveFlow(mf.Flow(problem), lambda state, action, mu: state + 8.0 * action)
    found = mf.MirrorAscent(60).solve(moves)
    assert float(found.margins.min()) >= -problem.constraints.rule.tolerance
    assert 0.0 <= float(found.gap) < 0.05
