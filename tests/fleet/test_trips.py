"""Trips: agents that are carried off instead of making their own move."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from scipy.stats import chisquare

import mufield as mf
from mufield.finite.system import FiniteSystem
from mufield.flow.phi import displacements

KEY = jax.random.key(0)
GRID = mf.Grid.from_map("""
    ....#...
    ........
    ....#...
""")
RNG = np.random.default_rng(1)
MATRIX = RNG.dirichlet(np.full(GRID.n_cells, 0.3), size=GRID.n_cells)
DEMAND = jnp.asarray(0.6 * RNG.dirichlet(np.ones(GRID.n_cells), size=4))


def finds_passenger(state, mu):
    """Served are as many as there are vehicles or passengers, whichever are fewer."""
    wanted = DEMAND[mu.step, GRID.index_of(state)]
    return jnp.minimum(1.0, wanted / jnp.maximum(mu.here, 1e-9))


def half(state, mu):
    return 0.5


def walk(state, action, mu):
    return state + 0.8 * action


def crowded(state, action, mu):
    return state + 0.8 * action / (1 + 3 * mu.here)


def served(state, action, mu):
    return finds_passenger(state, mu) - 0.01 * jnp.sum(action**2)


def problem_with(trips, reward=served):
    return mf.Problem(
        space=GRID,
        actions=mf.Box(-1.0, 1.0, dim=2),
        reward=reward,
        horizon=4,
        initial=mf.uniform(GRID),
        noise=0.2,
        max_move=0.9,
        trips=trips,
    )


TAXIS = problem_with(mf.fleet.Trips(finds_passenger, MATRIX))
MOVES = TAXIS.actions.points(3)


def policy(state, mu, step):
    return jnp.array([0.8, 0.4]) * jnp.cos(step + state[0])


def test_who_is_taken_lands_by_the_matrix_and_the_others_move():
    flow, plain = mf.Flow(TAXIS), mf.Flow(problem_with(None))
    found = flow.rollout(policy, walk)
    taken = jnp.minimum(found.mass[0], DEMAND[0])
    law = mf.as_profile(policy, 4).at(0).at_cells(GRID, found.mass[0], 0)
    moved = displacements(GRID, found.mass[0], walk, law.actions, 0)
    staying = (found.mass[0] - taken)[:, None] * law.weights
    rest = plain.phi.push(staying, moved, found.mass[0], 0)[0]
    np.testing.assert_allclose(found.mass[1], rest + taken @ MATRIX, atol=1e-12)
    np.testing.assert_allclose(found.mass.sum(axis=1), 1.0, atol=1e-9)
    assert float(found.rewards[0]) == pytest.approx(
        float(jnp.sum(taken) - 0.01 * jnp.vdot(found.mass[0], jnp.sum(law.mean() ** 2, -1)))
    )


def test_without_demand_nothing_changes_to_the_last_bit():
    idle = problem_with(mf.fleet.Trips(lambda state, mu: 0.0 * mu.here, MATRIX))
    moves = [mf.MoveFlow(mf.Flow(each), walk, MOVES) for each in (idle, problem_with(None))]
    weights = moves[0].uniform()
    for one, other in (
        [each.flow.rollout(policy, walk).mass for each in moves],
        [each.rollout(weights).mass for each in moves],
    ):
        np.testing.assert_array_equal(one, other)


def test_a_matrix_may_be_sparse_or_change_with_the_step():
    few = np.where(np.quantile(MATRIX, 0.97) < MATRIX, MATRIX, 0.0) + np.eye(GRID.n_cells)
    few /= few.sum(axis=1, keepdims=True)
    dense = mf.Flow(problem_with(mf.fleet.Trips(finds_passenger, few))).rollout(policy, walk)
    for given in (scipy.sparse.csr_array(few), np.stack([few] * 4)):
        trips = mf.fleet.Trips(finds_passenger, given)
        found = mf.Flow(problem_with(trips)).rollout(policy, walk)
        np.testing.assert_allclose(found.mass, dense.mass, atol=1e-12)
    for cell in (0, 7, 21):
        draw = jax.vmap(lambda u, cell=cell: trips.draw(jnp.asarray(cell), u, 1)[0])
        counts = np.bincount(draw(jnp.linspace(0.0005, 0.9995, 1000)), minlength=GRID.n_cells)
        np.testing.assert_allclose(counts / 1000, few[cell], atol=2e-3)


def test_in_32_bits_draws_from_the_last_of_many_sparse_rows_follow_that_row():
    cells, ends = 20_000, 50
    columns = RNG.integers(cells, size=(cells, ends))
    shares = RNG.dirichlet(np.ones(ends), size=cells)
    starts = np.arange(0, cells * ends + 1, ends)
    matrix = scipy.sparse.csr_array((shares.reshape(-1), columns.reshape(-1), starts))
    trips = jax.tree.map(
        lambda leaf: leaf.astype(jnp.float32) if eqx.is_inexact_array(leaf) else leaf,
        mf.fleet.Trips(half, matrix),
    )
    assert trips.matrix.shape == (cells * ends,)  # a dense one would take 1.6 GB
    taken = jnp.asarray(RNG.random(cells), jnp.float32)
    np.testing.assert_allclose(trips.ends(taken, 0)[0], matrix.T @ np.asarray(taken), rtol=1e-4)
    uniforms = (jnp.arange(50_000, dtype=jnp.float32) + 0.5) / 50_000
    for cell in (0, cells // 2, cells - 1):
        drawn = jax.vmap(lambda u, cell=cell: trips.draw(jnp.asarray(cell), u, 0)[0])(uniforms)
        counts = np.bincount(np.asarray(drawn), minlength=cells) / len(uniforms)
        row = matrix[[cell]].toarray()[0]
        assert 0.5 * np.abs(counts - row).sum() < 1e-3
        assert (counts[row > 2e-4] > 0).all()


def test_one_full_row_of_a_sparse_matrix_takes_no_memory_for_the_others():
    cells = 20_000  # all go home, and from there anywhere
    rows = np.concatenate([np.arange(1, cells), np.zeros(cells, int)])
    columns = np.concatenate([np.zeros(cells - 1, int), np.arange(cells)])
    shares = np.concatenate([np.ones(cells - 1), np.full(cells, 1 / cells)])
    trips = mf.fleet.Trips(half, scipy.sparse.csr_array((shares, (rows, columns))))
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(eqx.filter(trips, eqx.is_array))) < 2e6
    home = trips.ends(jnp.eye(1, cells)[0], 0)[0]
    np.testing.assert_allclose(home, 1 / cells, rtol=1e-5)
    assert float(trips.ends(jnp.full(cells, 1 / cells), 0)[0, 0]) > 0.999
    uniforms = (jnp.arange(1000) + 0.5) / 1000
    drawn = jax.vmap(lambda u: trips.draw(jnp.asarray(0), u, 0)[0])(uniforms)
    np.testing.assert_allclose(drawn, cells * uniforms, atol=2)
    assert int(trips.draw(jnp.asarray(cells - 1), jnp.asarray(0.99), 0)[0]) == 0


def test_the_rest_of_an_episode_has_the_matrices_of_its_own_steps():
    matrices = RNG.dirichlet(np.full(GRID.n_cells, 0.3), size=(4, GRID.n_cells))
    problem = problem_with(mf.fleet.Trips(finds_passenger, matrices))
    flow, system = mf.Flow(problem), mf.SimulatedSystem(problem, walk)
    whole = flow.rollout(policy, walk)
    rest = flow.from_step(2, whole.mass[2]).rollout(policy, walk)
    np.testing.assert_allclose(rest.mass[-1], whole.mass[-1], atol=1e-12)
    np.testing.assert_allclose(rest.rewards[-2:], whole.rewards[-2:], atol=1e-12)
    # Agents: only the matrix of step 3 leads from anywhere to cell 5.
    home = np.tile(np.eye(GRID.n_cells)[5], (GRID.n_cells, 1))
    problem = problem_with(mf.fleet.Trips(lambda s, mu: 1.0, np.stack([MATRIX] * 3 + [home])))
    system = mf.SimulatedSystem(problem, walk).from_step(3, problem.initial)
    episode = system.run(policy, KEY, agents=20)
    assert (GRID.index_of(np.asarray(episode.next_states[:, -1])) == 5).all()


@pytest.mark.parametrize(
    ("chances", "words"),
    [
        ({4: 1.0 + 1e-7}, None),
        ({4: 1.3}, r"got 1\.3 in cell 4, .* at step 2; .*jnp\.clip"),
        ({4: 1.3, 5: -0.4}, r"got -0\.4 in cell 5"),
        ({4: np.nan}, "got nan in cell 4"),
    ],
)
def test_the_worst_chance_outside_0_to_1_is_named(chances, words):
    table = np.zeros(GRID.n_cells)
    table[list(chances)] = list(chances.values())
    trips = mf.fleet.Trips(lambda s, mu: jnp.asarray(table)[GRID.index_of(s)], MATRIX)
    found = trips.wrong_chance(GRID, mf.uniform(GRID), 2)
    assert re.search(words, found) if words else found == ""


@pytest.mark.parametrize("motion", [walk, crowded])
def test_derivatives_of_a_sweep_are_those_of_j(motion):
    moves = mf.MoveFlow(mf.Flow(TAXIS), motion, MOVES)
    weights = jax.random.dirichlet(KEY, jnp.ones(len(MOVES)), (4, GRID.n_cells))
    change = jax.random.normal(jax.random.key(1), weights.shape)
    sweep = moves.sweep(weights)
    slope = jnp.sum(sweep.rollout.mass[:-1, :, None] * sweep.action_values * change)
    exact = jnp.vdot(jax.grad(lambda w: moves.rollout(w).value)(weights), change)
    # The table of a motion that sees mu is not exact.
    assert float(slope) == pytest.approx(float(exact), rel=1e-8 if motion is walk else 0.02)
    size = 1e-6
    there = [float(moves.rollout(weights + sign * size * change).value) for sign in (1, -1)]
    assert (there[0] - there[1]) / (2 * size) == pytest.approx(float(exact), rel=1e-4)


def test_plans_serve_more_than_vehicles_that_stay():
    flow = mf.Flow(TAXIS)
    found = mf.MirrorAscent(100).solve(mf.MoveFlow(flow, walk, MOVES))
    still = flow.value(lambda state, mu, step: jnp.zeros(2), walk)
    assert float(found.value) > 1.05 * float(still)
    assert float(found.value) <= float(jnp.sum(DEMAND))
    assert float(found.upper) == np.inf  # whether a trip is found depends on mu
    with pytest.raises(mf.UserError, match="the chance of a trip depends on mu"):
        mf.certify(flow, walk, found.profile, MOVES)


def test_trips_that_do_not_look_at_mu_leave_the_certificate():
    lift = problem_with(
        mf.fleet.Trips(half, MATRIX), lambda s, a, mu: -mf.log_mass(mu.here) - 0.1 * jnp.sum(a**2)
    )
    found = mf.MirrorAscent(200).solve(mf.MoveFlow(mf.Flow(lift), walk, MOVES))
    assert 0 <= float(found.gap) < 1e-3 * float(found.value)
    certificate = mf.certify(mf.Flow(lift), walk, found.profile, MOVES)
    assert certificate.upper == pytest.approx(float(found.upper), rel=1e-3)


def test_the_flow_is_the_histogram_of_many_agents():
    # Few agents move far in one step, so that the place in the cell hardly matters.
    agents, trips = 200_000, mf.fleet.Trips(half, MATRIX)
    problem = problem_with(trips)
    population = FiniteSystem(problem, walk, agents=agents, centred=True)
    episode = population.run(policy, KEY, agents=1000)
    expected = mf.Flow(problem).rollout(policy, walk).mass
    for step in (1, 4):
        counts = np.asarray(episode.mass[step]) * agents
        assert chisquare(counts, np.asarray(expected[step]) * agents / 1.0).pvalue > 1e-3
    share = float(jnp.mean(episode.carried))
    assert share == pytest.approx(0.5, abs=0.02)


def test_tracked_agents_know_who_was_carried_and_only_the_others_are_data():
    system = mf.SimulatedSystem(TAXIS, walk)
    episode = system.run(policy, KEY, agents=200)
    share = float(jnp.sum(system.evaluate(policy).rewards + 0.0)) / 4
    assert float(jnp.mean(episode.carried)) == pytest.approx(share, abs=0.08)
    data = mf.models.Transitions.of(TAXIS, [episode])
    assert len(data) == int(jnp.sum(~episode.carried))
    assert np.abs(data.next_states - data.states).max() < 0.9 + 5 * 0.2


@pytest.mark.nightly
def test_a_fleet_that_is_carried_can_be_learned():
    system = mf.SimulatedSystem(TAXIS, walk)
    learned = mf.learn(
        system, mf.M3UCRL(TAXIS, planner=mf.MirrorPlanner(points=3, sweeps=20)), episodes=2, seed=0
    )
    assert len(learned.metrics) == 2


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: mf.fleet.Trips(half, MATRIX[:5]), "a row and a column for each cell"),
        (lambda: mf.fleet.Trips(half, 2 * MATRIX), "sums to 2"),
        (lambda: mf.fleet.Trips(half, -MATRIX), "not be negative"),
        (lambda: mf.fleet.Trips(0.5, MATRIX), "must be a function"),
        (lambda: problem_with(mf.fleet.Trips(half, np.eye(5))), r"shape \(22, 22\)"),
        (lambda: problem_with(mf.fleet.Trips(lambda s, mu: 2.0, MATRIX)), "from 0 to 1, got 2.0"),
        (
            lambda: problem_with(mf.fleet.Trips(lambda s, mu: s, MATRIX)),
            "the chance of a trip must be one number",
        ),
        (lambda: problem_with(mf.fleet.Trips(lambda s: 0.5, MATRIX)), "could not be evaluated"),
    ],
)
def test_what_cannot_be_a_trip_is_refused(make, words):
    with pytest.raises(mf.UserError, match=words):
        make()
