"""Laws that the mean-field flow must obey, whatever the map."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import TOLERANCE, one_step, random_laws, random_walls, walk, walking_problem
from hypothesis import given, settings
from hypothesis import strategies as st
from night import at_night
from scipy.stats import chisquare

from mufield import (
    FOUR_ROOMS,
    Box,
    Flow,
    Grid,
    Profile,
    SimulatedSystem,
    TablePolicy,
    entropy,
    from_density,
    make,
    point_mass,
)
from mufield.environments.swarm import closed_form_policy
from mufield.flow import WindowSettings
from mufield.policies import ActionLaw, uniform_policy
from mufield.space.move import move

pytestmark = pytest.mark.slow

ROOMS = Grid.from_map(FOUR_ROOMS)


def maze(dim, periodic=False, seed=3):
    shape = (4, 3, 3)[:dim]
    return Grid.box(
        0.0, np.array(shape) * 0.5, shape, walls=random_walls(shape, 0.25, seed), periodic=periodic
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("world", ["rooms", "maze", "torus"])
def test_mass_is_conserved_over_200_steps(dtype, world):
    grid = {"rooms": ROOMS, "maze": maze(2), "torus": Grid.box(0.0, 1.0, 40, periodic=True)}[world]
    flow = Flow(walking_problem(grid, noise=0.3 * min(grid.cell_size), max_move=1.0))
    flow = jax.tree.map(lambda x: x.astype(dtype) if eqx.is_inexact_array(x) else x, flow)
    law = jax.tree.map(lambda x: x.astype(dtype), random_laws(grid, 0))

    @jax.jit
    def run(mass):
        return jax.lax.scan(lambda m, _: (flow.step(m, law, walk),) * 2, mass, None, length=200)[1]

    start = point_mass(grid, *(0,) * grid.dim).astype(dtype)
    masses = run(start)
    assert masses.dtype == dtype
    assert float(jnp.max(jnp.abs(masses.sum(axis=1) - 1.0))) < TOLERANCE[dtype]
    assert float(jnp.min(masses)) >= 0.0


@given(
    dim=st.integers(1, 3),
    seed=st.integers(0, 1000),
    moves=st.sampled_from([1, 3]),
    noise=st.sampled_from([0.0, 0.05, 0.4]),
    periodic=st.booleans(),
)
@settings(max_examples=12)
def test_one_step_keeps_mass_whatever_the_map(dim, seed, moves, noise, periodic):
    shape = (4, 3, 2)[:dim]
    walls = random_walls(shape, 0.3, seed)
    grid = Grid.box(0.0, np.array(shape) * 1.5, shape, walls=walls, periodic=periodic)
    flow = Flow(walking_problem(grid, noise=noise), settings=WindowSettings(subcells=2))
    mass = from_density(grid, np.random.default_rng(seed).random(grid.n_cells) + 1e-3)
    after = one_step(flow, mass, random_laws(grid, seed, moves))
    assert float(jnp.sum(after)) == pytest.approx(1.0, abs=1e-12)
    assert float(jnp.min(after)) >= 0.0


WORLDS = {
    "four rooms": (ROOMS, 0.25),
    "torus": (Grid.box(0.0, 1.0, (8, 5), periodic=True), (0.1, 0.15)),
    "random 3-D map": (maze(3), 0.12),
    "line without noise": (maze(1), 0.0),
    "rooms without noise": (ROOMS, 0.0),
    "noise on one axis": (maze(2), (0.0, 0.2)),
}


@pytest.mark.parametrize("world", at_night([*WORLDS], [w for w in WORLDS if "3-D" not in w]))
def test_phi_equals_the_histogram_of_agents_that_move_from_cell_centres(world):
    grid, noise = WORLDS[world]
    agents = 200_000
    flow = Flow(walking_problem(grid, noise=noise, max_move=2 * min(grid.cell_size)))
    mass = from_density(grid, np.random.default_rng(1).random(grid.n_cells))
    law = random_laws(grid, 2, moves=2)
    law = eqx.tree_at(lambda x: x.actions, law, law.actions * 2 * min(grid.cell_size))
    expected = np.asarray(one_step(flow, mass, law))

    @jax.jit
    def moved(key):
        cell_key, move_key, noise_key = jax.random.split(key, 3)
        cell = jax.random.categorical(cell_key, jnp.log(mass), shape=(agents,))
        choice = jax.random.categorical(move_key, jnp.log(law.weights)[cell])
        start = jnp.asarray(grid.centres)[cell]
        std = jnp.broadcast_to(jnp.asarray(noise), (grid.dim,))
        aim = start + law.actions[cell, choice] + std * jax.random.normal(noise_key, start.shape)
        return jax.vmap(lambda s, a: move(grid, s, a).index)(start, aim)

    counts = np.bincount(np.asarray(moved(jax.random.key(3))), minlength=grid.n_cells)
    likely = expected * agents > 5
    assert counts[~likely].sum() < 20 + 2 * expected[~likely].sum() * agents
    observed = np.append(counts[likely], counts[~likely].sum())
    predicted = np.append(expected[likely] * agents, expected[~likely].sum() * agents)
    keep = predicted > 5
    observed, predicted = observed[keep], predicted[keep]
    assert chisquare(observed, predicted * observed.sum() / predicted.sum()).pvalue > 1e-3


@pytest.mark.parametrize("symmetry", ["flip x", "flip y", "transpose"])
def test_flipping_or_transposing_the_map_does_so_to_the_flow(symmetry):
    walls = random_walls((6, 6), 0.3, 11)
    act = {
        "flip x": (lambda w: w[::-1], lambda a: a * np.array([-1.0, 1.0])),
        "flip y": (lambda w: w[:, ::-1], lambda a: a * np.array([1.0, -1.0])),
        "transpose": (lambda w: w.T, lambda a: a[..., ::-1]),
    }
    on_map, on_action = act[symmetry]
    grid = Grid.box(0.0, 6.0, (6, 6), walls=walls)
    other = Grid.box(0.0, 6.0, (6, 6), walls=on_map(walls))
    rng = np.random.default_rng(0)
    mass = np.where(walls, 0.0, rng.random((6, 6)))
    mass /= mass.sum()
    actions = rng.uniform(-1, 1, (6, 6, 2))

    def step(grid, mass, actions):
        flow = Flow(walking_problem(grid))
        cells = tuple(grid.free_cells.T)
        law = ActionLaw(jnp.asarray(actions[cells])[:, None], jnp.ones((grid.n_cells, 1)))
        return grid.to_array(one_step(flow, jnp.asarray(mass[cells]), law), fill=0.0)

    there = step(
        other,
        on_map(mass),
        np.moveaxis(np.stack([on_map(on_action(actions)[..., a]) for a in range(2)]), 0, -1),
    )
    assert there == pytest.approx(on_map(step(grid, mass, actions)), abs=1e-12)


@pytest.mark.parametrize("world", ["rooms", "torus with crowding"])
def test_gradient_of_j_equals_central_differences(world):
    if world == "rooms":
        grid, motion = Grid.from_map("...\n.#.\n..."), walk
    else:
        grid = Grid.box(0.0, 2.0, 6, periodic=True)

        def motion(state, action, mu):
            return state + action * (1.0 - mu.here) + 0.1 * mu.at(state + 0.5)

    problem = walking_problem(
        grid, horizon=4, pay_end=True, max_move=1.2, initial=point_mass(grid, *(0,) * grid.dim)
    )
    flow = Flow(problem)
    shape = (4, grid.n_cells, grid.dim)
    centre = 0.5 * jnp.tanh(jax.random.normal(jax.random.key(0), shape))

    def value(actions):
        return flow.value(Profile.stacked(TablePolicy.deterministic(actions), 4), motion)

    gradient = jax.jit(jax.grad(value))(centre)
    j = jax.jit(value)
    rng = np.random.default_rng(0)
    for _ in range(5):
        direction = jnp.asarray(rng.normal(size=shape))
        step = 1e-5
        numeric = (j(centre + step * direction) - j(centre - step * direction)) / (2 * step)
        assert float(jnp.vdot(gradient, direction)) == pytest.approx(float(numeric), rel=1e-5)


def test_the_swarm_s_closed_form_is_stationary_as_the_step_shrinks():
    drift, gap, rate = [], [], np.log(np.i0(2.0))  # per step, in continuous time
    for horizon in (200, 400, 800):
        system = make("swarm", initial="ergodic", horizon=horizon, cells=horizon // 2)
        rollout = system.evaluate(closed_form_policy)
        drift.append(float(jnp.sum(jnp.abs(rollout.mass[-1] - rollout.mass[0]))))
        gap.append(rate - float(rollout.value) / horizon)
    # First order in the step: each halving halves the error.
    assert np.diff(np.log2(drift)) == pytest.approx(-1.0, abs=0.1)
    assert np.diff(np.log2(gap)) == pytest.approx(-1.0, abs=0.1)
    limit = rate - (2 * gap[2] - gap[1])
    assert limit == pytest.approx(rate, abs=0.01)


def test_the_random_policy_fails_to_fill_the_four_rooms():
    system = make("four-rooms")
    rollout = system.evaluate(uniform_policy(Box(-1.0, 1.0, 2).points(9, border=False)))
    assert float(entropy(rollout.mass[-1])) < np.log(104) - 1.0
    last_room = (ROOMS.free_cells > 5).all(axis=1)
    assert float(rollout.mass[-1][last_room].sum()) < 0.01


def test_a_single_full_cell_pays_nothing_at_first():
    rollout = make("four-rooms").evaluate(lambda state, mu, step: jnp.zeros(2))
    assert float(rollout.rewards[0]) == 0.0
    assert rollout.rewards.shape == (21,)
    assert rollout.mass.shape == (21, 104)
    assert float(rollout.value) == pytest.approx(float(entropy(rollout.mass).sum()))


def test_memory_of_the_gradient_grows_by_one_distribution_a_step(monkeypatch):
    monkeypatch.setattr("mufield.flow.rollout.MOST_KEPT", 0)

    # Without checkpoints every step would keep its windows, two hundred times as much.
    def stored(horizon):
        problem = walking_problem(ROOMS, horizon=horizon, initial=point_mass(ROOMS, 0, 0))
        flow = Flow(problem)

        def value(scale):
            return flow.value(lambda state, mu, step: scale * jnp.ones(2), walk)

        compiled = jax.jit(jax.grad(value)).lower(jnp.asarray(0.5)).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    per_step = (stored(220) - stored(20)) / 200
    assert per_step < 8 * 104 * 4


def test_without_noise_a_hit_on_a_corner_stops_mass_as_it_stops_agents():
    grid = Grid.from_map(".#\n..")
    flow = Flow(walking_problem(grid, noise=0.0))
    law = ActionLaw(jnp.ones((3, 1, 2)), jnp.ones((3, 1)))
    after = one_step(flow, point_mass(grid, 0, 0), law)
    assert after.tolist() == [1.0, 0.0, 0.0]


def test_on_a_ring_the_flow_and_the_agents_take_the_same_way_round():
    grid = Grid.from_map("...#....", periodic=True)
    problem = walking_problem(grid, noise=0.0, max_move=4.0, initial=point_mass(grid, 0), horizon=1)

    def jump(state, action, mu):
        return state + 4.6

    system = SimulatedSystem(problem, jump)
    episode = system.run(lambda s, mu, h: jnp.zeros(1), jax.random.key(0), agents=20)
    index = np.asarray(grid.index_of(episode.next_states[:, 0]))
    assert float(episode.mass[-1][int(index[0])]) == 1.0 or len(set(index.tolist())) > 1
    assert set(index.tolist()) <= {3, 4, 5}
