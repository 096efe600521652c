"""Large maps: the stencil of open cells against the tables."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import one_step, random_laws, random_walls, walk, walking_problem
from hypothesis import given, settings
from hypothesis import strategies as st

import mufield as mf
import mufield.flow.stencil as stencils
from mufield import Flow, Grid, MoveFlow, Profile, TablePolicy, UserError
from mufield.flow import WindowSettings
from mufield.flow.landings import Tables
from mufield.flow.stencil import Stencil
from mufield.flow.traces import open_cells
from mufield.policies import ActionLaw

pytestmark = pytest.mark.slow

WORLDS = {
    "walls": (Grid.box(0.0, 12.0, (12, 14), walls=random_walls((12, 14), 0.03, 1)), 0.25, 1.0),
    "torus": (Grid.box(0.0, 9.0, (9, 11), periodic=True), (0.25, 0.0), 1.0),
    "half torus, wide windows": (
        Grid.box(
            0.0, 6.0, (24, 20), periodic=(False, True), walls=random_walls((24, 20), 0.003, 2)
        ),
        0.1,
        0.5,
    ),
    "torus narrower than windows": (Grid.box(0.0, 3.0, (3, 4), periodic=True), 0.5, 1.0),
    "line": (Grid.box(0.0, 30.0, 30), 0.25, 1.0),
}


def both(world, **options):
    grid, noise, far = WORLDS[world]
    problem = walking_problem(grid, noise=noise, max_move=far, horizon=2, **options)
    by_tables, by_stencil = (
        Flow(problem, settings=WindowSettings(stencil=which)) for which in (False, True)
    )
    assert isinstance(by_stencil.windows.landing, Stencil)
    assert by_stencil.windows.landing.open.any()
    return by_tables, by_stencil


def value_and_gradient(flow, raw):
    def value(raw):
        policy = TablePolicy.deterministic(jnp.tanh(raw))
        return flow.value(Profile.stacked(policy, flow.problem.horizon), walk)

    return jax.jit(jax.value_and_grad(value))(raw)


@pytest.mark.parametrize("world", WORLDS)
def test_the_stencil_says_the_same_as_tables(world):
    flows = both(world)
    grid = flows[0].problem.grid
    raw = jax.random.normal(jax.random.key(0), (2, grid.n_cells, grid.dim))
    (value, gradient), (expected, slope) = (value_and_gradient(f, raw) for f in flows[::-1])
    assert float(value) == pytest.approx(float(expected), rel=1e-13)
    assert np.asarray(gradient) == pytest.approx(np.asarray(slope), abs=1e-13)
    mass = mf.from_density(grid, np.random.default_rng(0).random(grid.n_cells))
    law = random_laws(grid, 0, moves=3)
    after = [one_step(flow, mass, law) for flow in flows]
    assert np.asarray(after[1]) == pytest.approx(np.asarray(after[0]), abs=1e-15)
    assert float(after[1].sum()) == pytest.approx(1.0, abs=1e-13)


def test_kernels_of_large_maps_are_those_of_tables():
    flows = both("walls")
    moves = jnp.asarray(np.random.default_rng(1).uniform(-1, 1, (3, 2)))
    sweeps = [MoveFlow(flow, walk, moves) for flow in flows]
    weights = sweeps[0].uniform()
    found = [jax.jit(lambda w, s=sweep: s.sweep(w).action_values)(weights) for sweep in sweeps]
    assert np.asarray(found[1]) == pytest.approx(np.asarray(found[0]), abs=1e-12)


@pytest.mark.nightly
@given(blocks=st.integers(1, 4), unrolled=st.sampled_from([1, 6, 64]), seed=st.integers(0, 99))
@settings(max_examples=4)
def test_blocks_and_loops_do_not_change_the_stencil(blocks, unrolled, seed):
    grid, noise, far = WORLDS["torus"]
    flow = Flow(
        walking_problem(grid, noise=noise, max_move=far), settings=WindowSettings(stencil=True)
    )
    mass = mf.from_density(grid, np.random.default_rng(seed).random(grid.n_cells))
    law = random_laws(grid, seed)
    usual = np.asarray(one_step(flow, mass, law))
    with pytest.MonkeyPatch.context() as patch:
        size = int(np.prod(flow.windows.landing.padded))
        patch.setattr(stencils, "BLOCK", -(-size // blocks))
        patch.setattr(stencils, "MARGINS", 1)
        patch.setattr(stencils, "UNROLLED", unrolled)
        jax.clear_caches()
        assert np.asarray(one_step(flow, mass, law)) == pytest.approx(usual, abs=1e-15)


def test_open_cells_have_no_wall_within_reach():
    grid = Grid.box(0.0, 9.0, (9, 9), walls=random_walls((9, 9), 0.05, 3), periodic=(True, False))
    reach = (1, 2)
    walls = grid.padded_walls(reach)
    expected = [
        not walls[x : x + 2 * reach[0] + 1, y : y + 2 * reach[1] + 1].any()
        for x, y in grid.free_cells
    ]
    assert open_cells(grid, reach).tolist() == expected


def test_large_open_maps_go_by_the_stencil_and_mazes_by_tables():
    maze = Grid.box(0.0, 20.0, (20, 20), walls=random_walls((20, 20), 0.2, 0))
    for grid, kind in (
        (Grid.box(0.0, 20.0, (20, 20)), Stencil),
        (Grid.box(0.0, 10.0, (10, 10)), Tables),
        (maze, Tables),
    ):
        flow = Flow(walking_problem(grid), settings=WindowSettings(stencil_cells=300))
        assert isinstance(flow.windows.landing, kind)


def test_only_windows_of_tables_count_against_the_limit():
    problem = walking_problem(Grid.box(0.0, 20.0, (20, 20)))
    Flow(problem, settings=WindowSettings(stencil=True, most_entries=5_000))
    with pytest.raises(UserError, match="400"):
        Flow(problem, settings=WindowSettings(stencil=False, most_entries=5_000))


def test_nothing_of_the_size_of_all_windows_is_kept(monkeypatch):
    # Blocks that are as small beside this map as the usual ones beside a large one.
    monkeypatch.setattr(stencils, "BLOCK", 400)
    monkeypatch.setattr(stencils, "MARGINS", 1)

    def temporary(far):
        problem = walking_problem(
            Grid.box(0.0, 60.0, (60, 60), periodic=True), noise=0.1, max_move=far, horizon=2
        )
        flow = Flow(problem, settings=WindowSettings(stencil=True))
        law = random_laws(problem.grid, 0)

        def value(actions):
            return jnp.sum(flow.step(problem.initial, ActionLaw(actions, law.weights), walk) ** 2)

        compiled = jax.jit(jax.grad(value)).lower(law.actions).compile()
        return compiled.memory_analysis().temp_size_in_bytes / (8 * problem.grid.n_cells)

    assert temporary(3.9) < 40  # arrays of the size of the map; windows have 81 cells
