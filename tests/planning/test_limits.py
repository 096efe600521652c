"""Planning inside limits: feasible plans, bounds that hold, and proofs that there is no plan."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mufield as mf
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
            grid=GRID,
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
    assert 0 <= float(capped.bracket) < 0.003 * float(capped.value)


def test_a_limit_that_does_not_bind_changes_nothing(free):
    loose = solve(flow_with(mf.constraints.mass_at_most(GRID, DOOR, 0.5)))
    assert float(loose.value) == pytest.approx(float(free.value), rel=2e-4)
    assert float(loose.upper) >= float(free.value) - 1e-4


def test_limits_of_the_entropy_and_from_below():
    least = mf.constraints.entropy_at_least(GRID, 1.5, steps=range(2, 6))
    west = mf.constraints.mass_at_least(GRID, lambda state: state[0] < 2, 0.5)
    found = solve(flow_with(least, west))
    assert float(jnp.min(found.margins)) >= 0
    assert float(found.bracket) < 0.01 * float(found.value)


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


def test_what_no_policy_can_keep_is_proved():
    flow = flow_with(
        mf.constraints.mass_at_least(GRID, lambda state: state[0] > 4, 0.5, steps=(2,))
    )
    with pytest.raises(
        mf.constraints.InfeasibleError, match=r"no policy .* violates .* at least .* after move 2"
    ):
        solve(flow)


def test_the_lagrangian_has_the_derivative_that_it_says():
    problem = flow_with(
        mf.constraints.mass_at_most(GRID, DOOR, 0.06), mf.constraints.entropy_at_least(GRID, 1.0)
    ).problem
    lagrangian = problem.constraints.lagrangian(problem.begun, jnp.asarray(0.7)).tightened(0.1)
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
