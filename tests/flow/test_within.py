"""The flow of agents who stand anywhere in their cells."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import walk, walking_problem

from mufield import (
    Flow,
    Grid,
    MoveFlow,
    Profile,
    SimulatedSystem,
    TablePolicy,
    make,
    point_mass,
    uniform,
)
from mufield.finite.system import FiniteSystem
from mufield.flow.moments import Origins, Spread

PLAZA = Grid.from_map("""
    ......
    ..#...
    ..##..
    ......
""")
HORIZON = 4

rollout = eqx.filter_jit(Flow.rollout)


def plaza(noise=0.25):
    return walking_problem(
        PLAZA, noise=noise, horizon=HORIZON, initial=point_mass(PLAZA, 0, 0), max_move=1.0
    )


def table(seed=0, moves=1):
    """Actions that differ from cell to cell, mostly up and right."""
    shape = (HORIZON, PLAZA.n_cells, moves)
    actions = jax.random.uniform(jax.random.key(seed), (*shape, 2), minval=-0.4, maxval=1.0)
    return Profile.stacked(TablePolicy(actions, jnp.full(shape, 1.0 / moves), PLAZA), HORIZON)


def whirl(state, mu, step):
    """A policy that differs within a cell."""
    return jnp.stack([jnp.cos(state[1]), jnp.sin(state[0])])


POLICIES = {"table": table(), "randomised": table(1, 9), "function": whirl}


@pytest.mark.parametrize("name", POLICIES)
def test_the_flow_is_that_of_many_agents(name):
    problem, policy = plaza(), POLICIES[name]
    within = SimulatedSystem(problem, walk, within_cells=True).evaluate(policy)
    assert np.asarray(within.mass.sum(axis=1)) == pytest.approx(1.0)
    assert float(within.mass.min()) >= 0
    agents = FiniteSystem(problem, walk, agents=20_000).evaluate(policy, jax.random.key(0))
    centred = SimulatedSystem(problem, walk).evaluate(policy)
    near, far = (
        0.5 * np.abs(np.asarray(flow.mass - agents.mass[0]))[1:].sum(axis=1)
        for flow in (within, centred)
    )
    # Chance alone makes about 0.013 of it.
    assert near.max() < 0.05
    assert near.mean() < 0.4 * far.mean()


def test_without_the_option_the_flow_is_from_cell_centres_bit_for_bit():
    problem = plaza()
    plain, within = Flow(problem), Flow(problem, within_cells=True)
    assert plain.centred is plain
    assert not within.transition.centred
    masses = [rollout(flow, table(), walk).mass for flow in (plain, within.centred, within)]
    assert np.array_equal(masses[0], masses[1])
    assert not np.allclose(masses[0], masses[2], atol=1e-3)


def test_gradients_agree_with_finite_differences():
    flow = Flow(plaza(), within_cells=True)
    policy = table(2)
    wanted = jax.random.normal(jax.random.key(3), (PLAZA.n_cells,))

    def end(actions):
        changed = eqx.tree_at(lambda p: p.per_step.actions, policy, actions)
        return jnp.vdot(wanted, flow.rollout(changed, walk).mass[-1])

    actions = policy.per_step.actions
    way = jax.random.normal(jax.random.key(4), actions.shape)
    value = jax.jit(jax.value_and_grad(end))
    slope = float(jnp.vdot(value(actions)[1], way))
    step = 1e-5
    rise = float(value(actions + step * way)[0] - value(actions - step * way)[0]) / (2 * step)
    assert slope == pytest.approx(rise, rel=1e-4)


def drifted(cells):
    """Distance from the exact law after a drift on a ring, within cells and from centres."""
    grid = Grid.box(0.0, 8.0, cells, periodic=True)
    problem = walking_problem(
        grid, noise=0.25, horizon=8, initial=point_mass(grid, 0), max_move=0.4
    )
    drift = lambda state, action, mu: state + 0.3  # noqa: E731
    rest = lambda state, mu, step: jnp.zeros(1)  # noqa: E731
    many = np.random.default_rng(0).random(2_000_000) * grid.cell_size[0] + 8 * 0.3
    many = np.mod(many + 0.25 * np.sqrt(8) * np.random.default_rng(1).normal(size=len(many)), 8.0)
    exact = np.bincount(np.asarray(grid.index_of(many[:, None])), minlength=cells) / len(many)
    return [
        0.5 * np.abs(np.asarray(rollout(flow, rest, drift).mass[-1]) - exact).sum()
        for flow in (Flow(problem, within_cells=True), Flow(problem))
    ]


def test_it_converges_as_cells_shrink():
    coarse, fine = drifted(8), drifted(16)
    assert coarse[0] < 0.02
    assert fine[0] < 0.005
    assert coarse[1] > 0.1


def test_agents_that_a_wall_stops_stand_at_it():
    grid = Grid.box(0.0, 4.0, 4)
    problem = walking_problem(grid, noise=0.05, horizon=1, initial=point_mass(grid, 2))
    flow = Flow(problem, within_cells=True)
    spread = Spread.even(problem.initial, 1)
    places, shares = spread.points()
    right = Origins(jnp.full((4, 1, 1), 2.5), places[:, None], shares[:, None])
    after = eqx.filter_jit(flow.phi.push)(problem.initial[:, None], right, problem.initial, 0)
    assert np.asarray(after.mass) == pytest.approx([0, 0, 0, 1])
    assert np.asarray(after.moments[3, 0]) == pytest.approx([0.5, 0.0, 0.0], abs=1e-6)


def test_two_points_have_the_moments():
    moments = jnp.array([[[0.1, 0.05, 0.004]], [[-0.3, 0.01, -0.0005]], [[0.0, 1 / 12, 0.0]]])
    mean, variance, third = moments[:, 0].T
    second = variance + mean**2
    powers = [jnp.ones(3), mean, second, third + 3 * mean * second - 2 * mean**3]
    places, shares = Spread(jnp.stack(powers, axis=1) / 3).points()
    mean = jnp.sum(places * shares, axis=-1)
    apart = places - mean[..., None]
    found = [mean, jnp.sum(apart**2 * shares, axis=-1), jnp.sum(apart**3 * shares, axis=-1)]
    assert np.asarray(jnp.stack(found, axis=-1)) == pytest.approx(np.asarray(moments))


def test_what_it_cannot_do_is_refused():
    flow = Flow(plaza(), within_cells=True)
    with pytest.raises(ValueError, match=r"give flow\.centred"):
        MoveFlow(flow, walk, flow.problem.actions.points(3))
    law = table().at(0).at_cells(PLAZA, flow.problem.initial, 0)
    with pytest.raises(ValueError, match=r"give flow\.centred"):
        flow.step(flow.problem.initial, law, walk)
    with pytest.raises(ValueError, match="needs noise on every axis"):
        Flow(plaza(noise=0.0), within_cells=True)


def test_agents_of_the_discrete_rooms_stand_in_the_middle_anyway():
    rooms = make("discrete-rooms", horizon=2)
    assert rooms.within_cells().reveal()[0].transition.centred


def test_rewards_are_taken_where_agents_stand():
    """Uniform on [0, 4], reward -s^2, two steps at rest: -2 * 16 / 3; at cell centres -10.5."""
    grid = Grid.box(0.0, 4.0, 4)
    problem = walking_problem(
        grid,
        noise=1e-3,
        horizon=1,
        initial=uniform(grid),
        pay_end=True,
        reward=lambda state, action, mu: -(state[0] ** 2),
    )
    for policy in (
        lambda state, mu, step: jnp.zeros(1),
        TablePolicy.deterministic(jnp.zeros((1, 1))),
    ):
        found = SimulatedSystem(problem, walk, within_cells=True).evaluate(policy)
        assert float(found.value) == pytest.approx(-32 / 3, rel=1e-4)


def test_policies_that_differ_within_cells_are_not_refused_in_single_precision():
    with jax.enable_x64(False):
        grid = Grid.box(-5.0, 5.0, 50)
        start = np.exp(-0.5 * grid.centres[:, 0] ** 2)
        problem = walking_problem(
            grid, noise=0.2, horizon=6, initial=start / start.sum(), max_move=2.5
        )
        system = SimulatedSystem(problem, walk, within_cells=True)
        for factor in (-0.5, -0.3, -0.1, 0.1, 0.4):
            found = system.evaluate(lambda x, mu, step, factor=factor: jnp.clip(factor * x, -1, 1))
            assert found.mass.dtype == jnp.float32
            assert float(found.mass.sum(axis=1).min()) == pytest.approx(1.0, abs=1e-5)


def test_mass_that_trips_bring_stands_anywhere_in_its_cell():
    grid = Grid.box(0.0, 4.0, 4)
    phi = Flow(walking_problem(grid, noise=0.2), within_cells=True).phi
    spread = phi.start(uniform(grid))
    more = phi.add(spread, uniform(grid))
    assert np.asarray(more.mass) == pytest.approx(2 * np.asarray(spread.mass))
    assert np.asarray(more.moments) == pytest.approx(np.asarray(spread.moments), abs=1e-12)
