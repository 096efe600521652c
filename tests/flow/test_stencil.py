"""Large maps: the stencil of open cells, alone and split over devices, against the tables."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import one_step, random_laws, random_walls, walk, walking_problem
from hypothesis import given, settings
from hypothesis import strategies as st

import mufield as mf
from mufield import ActionLaw, Flow, Grid, MoveFlow, PooledTable, Profile, TablePolicy, UserError
from mufield.flow import flow as limits
from mufield.flow import stencil
from mufield.flow.ground import open_cells
from mufield.flow.sharded import split_rows

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
    "without noise": (
        Grid.box(0.0, 12.0, (12, 14), walls=random_walls((12, 14), 0.03, 1)),
        0.0,
        1.0,
    ),
}


def both(world, **options):
    grid, noise, far = WORLDS[world]
    problem = walking_problem(grid, noise=noise, max_move=far, horizon=2, **options)
    by_tables, by_stencil = (Flow(problem, stencil=which) for which in (False, True))
    assert by_stencil.ground is not None
    assert by_stencil.ground.open.any()
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


@given(blocks=st.integers(1, 4), unrolled=st.sampled_from([1, 6, 64]), seed=st.integers(0, 99))
@settings(max_examples=4)
def test_blocks_and_loops_do_not_change_the_stencil(blocks, unrolled, seed):
    grid, noise, far = WORLDS["torus"]
    flow = Flow(walking_problem(grid, noise=noise, max_move=far), stencil=True)
    mass = mf.from_density(grid, np.random.default_rng(seed).random(grid.n_cells))
    law = random_laws(grid, seed)
    usual = np.asarray(one_step(flow, mass, law))
    with pytest.MonkeyPatch.context() as patch:
        size = int(np.prod(flow.ground.room))
        patch.setattr(stencil, "BLOCK", -(-size // blocks))
        patch.setattr(stencil, "MARGINS", 1)
        patch.setattr(stencil, "UNROLLED", unrolled)
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


def test_large_open_maps_go_by_the_stencil_and_mazes_by_tables(monkeypatch):
    monkeypatch.setattr(limits, "FEWEST_CELLS", 300)
    assert Flow(walking_problem(Grid.box(0.0, 20.0, (20, 20)))).ground is not None
    assert Flow(walking_problem(Grid.box(0.0, 10.0, (10, 10)))).ground is None
    maze = Grid.box(0.0, 20.0, (20, 20), walls=random_walls((20, 20), 0.2, 0))
    assert Flow(walking_problem(maze)).ground is None


def test_only_windows_of_tables_count_against_the_limit(monkeypatch):
    monkeypatch.setattr(limits, "MOST_ENTRIES", 5_000)
    problem = walking_problem(Grid.box(0.0, 20.0, (20, 20)))
    assert Flow(problem, stencil=True).ground is not None
    with pytest.raises(UserError, match="400"):
        Flow(problem, stencil=False)


def test_nothing_of_the_size_of_all_windows_is_kept(monkeypatch):
    # Blocks that are as small beside this map as the usual ones beside a large one.
    monkeypatch.setattr(stencil, "BLOCK", 400)
    monkeypatch.setattr(stencil, "MARGINS", 1)

    def temporary(far):
        problem = walking_problem(
            Grid.box(0.0, 60.0, (60, 60), periodic=True), noise=0.1, max_move=far, horizon=2
        )
        flow = Flow(problem, stencil=True)
        law = random_laws(problem.grid, 0)

        def value(actions):
            return jnp.sum(flow.step(problem.initial, ActionLaw(actions, law.weights), walk) ** 2)

        compiled = jax.jit(jax.grad(value)).lower(law.actions).compile()
        return compiled.memory_analysis().temp_size_in_bytes / (8 * problem.grid.n_cells)

    assert temporary(3.9) < 40  # arrays of the size of the map; windows have 81 cells


def test_a_pooled_table_acts_alike_within_blocks():
    grid = Grid.box(0.0, 6.0, (6, 4), walls=random_walls((6, 4), 0.1, 0))
    policy = PooledTable(jnp.arange(12.0).reshape(3, 2, 2) / 12.0, grid)
    problem = walking_problem(grid, horizon=2)
    flow = Flow(problem)
    assert float(flow.value(policy, walk)) == pytest.approx(
        float(flow.value(policy.table(), walk)), rel=1e-14
    )
    actions = policy.at_cells(grid, problem.initial).actions[:, 0]
    cells = grid.free_cells // 2
    assert np.asarray(actions) == pytest.approx(np.asarray(policy.actions)[tuple(cells.T)])


SCRIPT = """
import json, sys
import jax
process, processes, port = (int(word) for word in sys.argv[1:])
jax.config.update("jax_enable_x64", True)
if processes > 1:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", processes, process)
import equinox as eqx
import numpy as np
import mufield as mf
from helpers import random_walls, walking_problem

def motion(state, action, mu):
    return state + action * (1.0 - mu.here)

def gathered(state, action, mu):
    return state + action * (1.0 - mu.at(state + 0.5))

def one(grid, motion):
    initial = mf.from_density(grid, np.random.default_rng(0).random(grid.n_cells))
    problem = walking_problem(grid, horizon=2, pay_end=True, initial=initial)
    profile = mf.network_profile(problem, jax.random.key(0), width=4, depth=1)

    @eqx.filter_jit
    def both(flow, profile):
        return eqx.filter_value_and_grad(lambda p: flow.value(p, motion))(profile)

    found = []
    for flow in (mf.ShardedFlow(problem), mf.Flow(problem)):
        value, gradient = both(flow, profile)
        leaves = [np.asarray(leaf).ravel() for leaf in jax.tree.leaves(gradient)]
        found.append(np.concatenate([[float(value)], *leaves]))
    kinds = (mf.ShardedFlow, mf.Flow) if processes == 1 and not grid.periodic[0] else ()
    mass = [np.asarray(kind(problem).rollout(profile, motion).mass) for kind in kinds]
    return found, mass

worlds = [
    (mf.Grid.box(0.0, 12.0, (14, 8), walls=random_walls((14, 8), 0.06, 1)), motion),
    (mf.Grid.box(0.0, 12.0, (12, 8), periodic=True, walls=random_walls((12, 8), 0.1, 2)), motion),
    (mf.Grid.box(0.0, 12.0, (13, 8)), gathered),
][: 3 if processes == 1 else 1]
for grid, law in worlds:
    (ours, theirs), mass = one(grid, law)
    apart = [float(np.max(np.abs(ours - theirs)))]
    if mass:
        apart += [float(np.max(np.abs(mass[0] - mass[1]))), abs(mass[0][-1].sum() - 1.0)]
    print(json.dumps(apart), flush=True)
print(json.dumps([len(jax.devices())]))
"""


def run_elsewhere(processes, devices):
    """The figures that the script prints; in each of some processes with devices of its own."""
    tests = Path(__file__).resolve().parents[1]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "XLA_FLAGS": flags}
    path = [str(tests), str(Path(mf.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(path)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(i), str(processes), str(port)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(processes)
    ]
    found = []
    for worker in workers:
        out, err = worker.communicate(timeout=600)
        assert worker.returncode == 0, err
        # The library for collectives prints lines of its own, which also begin with a bracket.
        found.append([json.loads(x) for x in out.splitlines() if x[1:2].isdigit()])
    return found


def test_split_over_devices_value_and_gradient_are_those_of_one():
    (figures,) = run_elsewhere(processes=1, devices=4)
    *apart, devices = figures
    assert devices == [4]
    assert len(apart) == 3
    for figure in apart:
        assert max(figure) < 1e-12


def test_split_over_processes_value_and_gradient_are_those_of_one():
    for *apart, devices in run_elsewhere(processes=2, devices=2):
        assert devices == [4]
        assert len(apart) == 1
        assert max(apart[0]) < 1e-12


def test_what_cannot_be_split_is_refused():
    tiny = Grid.box(0.0, 2.0, (2, 30))
    with pytest.raises(UserError, match="fewer devices"):
        split_rows(tiny, 4, 2)
    with pytest.raises(UserError, match="divisible"):
        split_rows(Grid.box(0.0, 9.0, (9, 9), periodic=True), 4, 2)
    rooms = mf.make("discrete-rooms").problem
    with pytest.raises(UserError, match="Gaussian"):
        mf.ShardedFlow(rooms)
