"""The tables behind the flow: routings, traces of windows, slabs."""

import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import one_step, random_laws, random_walls, walking_problem
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from mufield import FOUR_ROOMS, Flow, Grid, uniform
from mufield.flow import WindowSettings
from mufield.flow.landings import assemble
from mufield.flow.routing import Ellpack, Routing
from mufield.flow.traces import trace_windows
from mufield.flow.windows import slab_masses, window_edges

pytestmark = pytest.mark.slow


@given(seed=st.integers(0, 1000), links=st.integers(0, 30))
def test_a_routing_and_its_gradient_equal_the_dense_matrix(seed, links):
    rng = np.random.default_rng(seed)
    inputs, outputs = rng.integers(7, size=links), rng.integers(5, size=links)
    matrix = np.zeros((5, 7))
    np.add.at(matrix, (outputs, inputs), 1.0)
    routing = Routing.build(inputs, outputs, 7, 5)
    x, g = rng.normal(size=(7, 2)), rng.normal(size=(5, 2))
    value, pull = jax.vjp(routing, jnp.asarray(x))
    assert value == pytest.approx(matrix @ x)
    assert pull(jnp.asarray(g))[0] == pytest.approx(matrix.T @ g)


def test_a_few_long_lists_are_continued_and_sum_the_same():
    rng = np.random.default_rng(0)
    # Every output has an input, three have hundreds and some a few more.
    outputs = np.concatenate(
        [np.arange(300), np.repeat([3, 250, 7], 400), rng.integers(300, size=900)]
    )
    inputs = rng.integers(500, size=len(outputs))
    matrix = np.zeros((300, 500))
    np.add.at(matrix, (outputs, inputs), 1.0)
    routing = Routing.build(inputs, outputs, 500, 300)
    assert routing.incoming.rows.size < 2 * len(outputs)
    x, g = rng.normal(size=(500, 2)), rng.normal(size=(300, 2))
    value, pull = jax.vjp(routing, jnp.asarray(x))
    assert value == pytest.approx(matrix @ x)
    assert pull(jnp.asarray(g))[0] == pytest.approx(matrix.T @ g)


@pytest.mark.nightly
def test_wide_windows_take_little_memory_and_say_how_far_they_are():
    """At a border most of a window lands in few cells, whose lists made all others as long."""
    grid, reach = Grid.box(0.0, 24.0, (24, 24)), (12, 12)
    shares = []
    tracemalloc.start()
    try:
        traces = trace_windows(grid, reach, 2, np.arange(grid.n_cells), done=shares.append)
        assert shares[-1] == pytest.approx(1.0, abs=0.05)
        found = assemble(traces, grid.cell_index, grid.n_cells, "float32")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 60e6  # in lists of one length: 240 MB
    stored = sum(leaf.nbytes for leaf in jax.tree.leaves(found))
    assert stored < 12 * traces.landing.nbytes
    assert shares == sorted(shares)


def test_tables_that_would_fill_the_memory_are_refused(monkeypatch):
    monkeypatch.setattr(Ellpack, "most", 40)
    with pytest.raises(ValueError, match=r"lists of 50 entries.*move fewer cells"):
        Routing.build(np.arange(50), np.arange(50) % 10, 50, 10)


@given(displacement=st.floats(-3, 3), std=st.floats(0.01, 2.0), reach=st.integers(1, 4))
def test_slab_masses_are_differences_of_the_distribution_function(displacement, std, reach):
    masses = slab_masses(jnp.asarray(displacement), jnp.asarray(std), window_edges(reach))
    inner = np.arange(1, 2 * reach + 1) - (reach + 0.5)
    cumulative = np.concatenate([[0.0], norm.cdf(inner, displacement, std), [1.0]])
    assert masses == pytest.approx(np.diff(cumulative), abs=1e-12)
    assert float(masses.sum()) == pytest.approx(1.0, abs=1e-14)


def test_without_noise_the_slab_that_holds_the_aim_gets_all():
    edges = window_edges(2)
    for displacement, slab in ((0.0, 2), (0.49, 2), (0.5, 3), (-0.5, 2), (-0.51, 1), (9.0, 4)):
        masses = slab_masses(jnp.asarray(displacement), jnp.asarray(0.0), edges)
        assert int(jnp.argmax(masses)) == slab
        assert float(jnp.max(masses)) == 1.0


def test_finer_subcells_converge_at_second_order():
    grid = Grid.from_map(FOUR_ROOMS)
    law = random_laws(grid, 0)
    after = {
        cut: one_step(
            Flow(walking_problem(grid), settings=WindowSettings(subcells=cut)), uniform(grid), law
        )
        for cut in (2, 4, 8, 32)
    }
    error = [float(jnp.abs(after[cut] - after[32]).sum()) for cut in (2, 4, 8)]
    assert error[0] / error[1] > 3.0
    assert error[1] / error[2] > 3.0
    assert error[2] < 5e-4


def test_only_moves_past_the_ends_of_walls_are_split():
    def split(grid):
        return Flow(walking_problem(grid)).windows.landing.split_shares.shape[0]

    assert split(Grid.box(0.0, 8.0, (8, 8))) == 0
    assert split(Grid.from_map("....\n....\n####\n....")) == 0
    assert split(Grid.from_map("....\n....\n##.#\n....")) > 0


def test_the_window_may_be_wider_than_the_space():
    for periodic in (False, True):
        grid = Grid.box(0.0, 1.0, (3, 4), periodic=periodic, walls=random_walls((3, 4), 0.2, 0))
        wide = Flow(walking_problem(grid, noise=0.5, max_move=1.0))
        after = one_step(wide, uniform(grid), random_laws(grid, 0))
        assert float(after.sum()) == pytest.approx(1.0, abs=1e-12)
        if periodic:
            assert wide.windows.landing.window[0] > 3


def test_large_maps_are_built_from_few_patterns():
    # Four rooms of 80 by 80 cells: more than 25,000 cells, traced in a second or two.
    walls = np.zeros((161, 161), dtype=bool)
    walls[80, :] = walls[:, 80] = True
    walls[80, [40, 120]] = walls[[40, 120], 80] = False
    flow = Flow(walking_problem(Grid.box(0.0, 161.0, (161, 161), walls=walls)))
    assert flow.windows.landing.near.split_shares.shape[0] == 208
