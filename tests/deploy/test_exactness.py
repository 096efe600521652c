"""Exported files decide as the policy in JAX does, whatever its kind."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, HORIZON, deployed, line, randomised, ring, rooms, stacked, table
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load

from mufield.deploy.export import (
    TOLERANCE,
    describe,
    jax_law,
    largest_difference,
    policy_bytes,
    random_inputs,
    read_back,
)
from mufield.deploy.reader import DeployedPolicy
from mufield.finite.draws import drawn
from mufield.io.sealed import sealed_bytes
from mufield.space.measure import histogram

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_file_decides_as_jax_does(case, dtype):
    profile, problem = CASES[case](dtype)
    policy = read_back(policy_bytes(describe(profile, problem)))
    assert largest_difference(policy, profile, problem) <= TOLERANCE


def test_the_comparison_sees_a_small_change():
    problem = rooms()
    for make in (table, randomised):
        policy = make(problem)
        file = read_back(policy_bytes(describe(stacked(policy), problem)))
        for name in ("actions", "weights"):
            if name == "actions" or make is randomised:
                moved = getattr(policy, name).at[..., 0].multiply(1 - 1e-3)
                object.__setattr__(policy, name, moved)
                assert largest_difference(file, stacked(policy), problem) > TOLERANCE


@pytest.mark.parametrize("case", CASES)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_reader_agrees_with_jax_anywhere(case, seed):
    profile, problem = CASES[case]("float64")
    policy = deployed(case)
    rng = np.random.default_rng(seed)
    inputs = random_inputs(problem, int(rng.integers(HORIZON)), 7, rng)
    law = policy.law(inputs.states, inputs.mass, step=inputs.step)
    expected = jax_law(profile, problem, inputs)
    np.testing.assert_allclose(law.actions, expected.actions, atol=1e-6)
    np.testing.assert_allclose(law.weights, expected.weights, atol=1e-6)


@given(
    place=st.tuples(st.floats(-1.0, 1.0), st.floats(-1.0, 1.0)),
    border=st.tuples(st.booleans(), st.booleans()),
)
def test_cells_are_those_of_the_grid_also_on_borders(place, border):
    for case, problem in (("table by step", rooms()), ("stationary table", ring())):
        grid = problem.grid
        share = np.where(border, np.round(place), place)
        middle, half = (np.add(grid.lower, grid.upper) / 2, np.asarray(grid.extent) / 2)
        point = (middle + share * half)[None]
        assert deployed(case).space.cells_of(point)[0] == grid.index_of(jnp.asarray(point))[0]


class Numbers:
    """A generator whose numbers are known beforehand."""

    def __init__(self, numbers):
        self.numbers = np.asarray(numbers)

    def random(self, count):
        return np.broadcast_to(self.numbers, count)


def test_the_reader_draws_what_finite_populations_draw():
    problem = rooms()
    profile = stacked(randomised(problem))
    policy = describe(profile, problem)
    inputs = random_inputs(problem, 2, 300, np.random.default_rng(0))
    laws, numbers = jax_law(profile, problem, inputs), np.random.default_rng(1).random(300)
    ours = policy.act(inputs.states, step=2, rng=Numbers(numbers))
    for row in range(300):
        law = type(laws)(actions=laws.actions[row], weights=laws.weights[row])
        np.testing.assert_allclose(ours[row], drawn(law, jnp.asarray(numbers[row])))


def test_moves_without_weight_are_never_drawn_and_others_as_often_as_they_should():
    problem = line()
    policy = describe(stacked(randomised(problem)), problem)
    state = np.full((20_000, 1), 0.5)
    weights = policy.law(state[:1], step=0).weights[0]
    actions = policy.act(state, step=0, rng=np.random.default_rng(3))
    shares = [(actions[:, 0] == move).mean() for move in (-1.0, 1.0)]
    np.testing.assert_allclose(shares, weights, atol=0.01)
    for number in (0.0, np.nextafter(1.0, 0.0)):
        for case in ("randomised by step", "uniform", "stationary randomised"):
            policy = deployed(case, "float32")
            inputs = random_inputs(CASES[case]("float32")[1], 0, 50, np.random.default_rng(1))
            law = policy.law(inputs.states, step=0)
            chosen = policy.act(inputs.states, step=0, rng=Numbers(number))
            found = (law.actions == chosen[:, None]).all(axis=-1) & (law.weights > 0)
            assert found.any(axis=1).all()


def test_agents_that_rest_at_walls_count_to_the_cell_they_touch():
    problem = rooms()
    grid, profile = problem.grid, stacked(table(problem))
    policy = describe(profile, problem)
    cell = grid.index_at(1, 0)  # walls on both sides, the border below
    centre, size = grid.centres[cell], np.asarray(grid.cell_size)
    for sign in itertools.product((-1, 0), (-1, 0)):
        touching = centre + np.asarray(sign) * size * (0.5 + 5e-4)
        found = policy.act(touching[None].astype(np.float32), step=1)
        np.testing.assert_allclose(found[0], profile.at(1).actions[cell, 0], atol=1e-6)


def test_histograms_are_mufields():
    problem = ring()
    policy = deployed("network of blocks")
    states = random_inputs(problem, 0, 100, np.random.default_rng(2)).states
    np.testing.assert_allclose(policy.histogram(states), histogram(problem.grid, states))


@pytest.mark.parametrize("case", CASES)
def test_equal_policies_have_equal_bytes_that_safetensors_reads(case, tmp_path):
    profile, problem = CASES[case]("float32")
    first, second = (describe(profile, problem, identity={"run": "r"}) for _ in range(2))
    data = sealed_bytes(first.document, first.arrays, kind=DeployedPolicy.kind)
    assert data == sealed_bytes(second.document, second.arrays, kind=DeployedPolicy.kind)
    for name, array in load(data).items():
        np.testing.assert_array_equal(first.arrays.pop(name), array)
    assert not first.arrays
    path = tmp_path / "policy.safetensors"
    path.write_bytes(data)
    policy = DeployedPolicy.load(path)
    assert policy.identity == {"run": "r"}
    assert policy.horizon == HORIZON
    grid = problem.grid
    assert policy.space.lower == grid.lower
    assert policy.space.upper == grid.upper
    assert policy.space.periodic == grid.periodic
    np.testing.assert_array_equal(policy.space.walls, grid.walls)
