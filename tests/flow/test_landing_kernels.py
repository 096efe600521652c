"""Motions that see mu: what they see, and the bank of kernels that stands in for them."""

import math
from functools import lru_cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import walk, walking_problem

from mufield import Box, Flow, Grid, Hallucinated, MirrorAscent, MoveFlow, point_mass
from mufield.flow.motion_table import kernels_ahead, move_targets
from mufield.flow.motion_table import tabulated as motion_table
from mufield.flow.motions import AbstractJointMotion, crowd_mass, dependence

pytestmark = pytest.mark.slow

GRID = Grid.from_map("....\n.#..\n....")
ACTIONS = Box(-1.0, 1.0, 2).points(3)
STEP = jnp.zeros(1, dtype=jnp.int32)


def crowded_walk(state, action, mu):
    return state + action / (1.0 + 0.3 * mu.here * mu.grid.n_cells)


def far_sighted_walk(state, action, mu):
    return state + action * (1.0 - 0.5 * mu.mass[0])


@lru_cache
def flow():
    start = point_mass(GRID, 0, 0)
    return Flow(walking_problem(GRID, horizon=4, initial=start, pay_end=True))


@lru_cache
def tabulated():
    return MoveFlow(flow(), crowded_walk, ACTIONS)


@lru_cache
def exact():
    return eqx.tree_at(lambda moves: moves.bank, tabulated(), None)


@eqx.filter_jit
def swept(moves, weights):
    return moves.sweep(weights, bound=False)


def random_weights(seed):
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.dirichlet(np.ones(9), size=(4, GRID.n_cells)))


def test_what_a_motion_sees_is_read_off_its_program():
    problem = flow().problem
    nothing, here, more = (False, False, False), (False, True, False), (True, True, False)
    assert dependence(problem, walk) == nothing
    assert dependence(problem, lambda s, a, mu: jnp.ones(2)) == nothing
    assert dependence(problem, crowded_walk) == here
    assert dependence(problem, lambda s, a, mu: s + jax.jit(jnp.sin)(mu.density_here)) == here
    assert dependence(problem, far_sighted_walk) == (True, False, False)
    assert dependence(problem, lambda s, a, mu: s + mu.here * mu.at(s)) == more
    assert dependence(problem, lambda s, a, mu: s + a * mu.step) == (False, False, True)
    # To say too much is allowed, to say too little is not.
    both = jax.jit(lambda mass, here: (jnp.sum(mass), here))
    assert dependence(problem, lambda s, a, mu: s + both(mu.mass, mu.here)[0]).mass


def bank_of(motion, **options):
    return MoveFlow(flow(), motion, ACTIONS, **options).bank


def test_kernels_are_computed_ahead_for_motions_that_see_no_more_than_their_cell():
    assert tabulated().bank.kernels.shape[:3] == (1, GRID.n_cells, 16)
    assert bank_of(walk).kernels.shape[:3] == (1, GRID.n_cells, 1)
    by_step = bank_of(lambda s, a, mu: s + a * jnp.cos(mu.step))
    assert by_step.kernels.shape[:3] == (4, GRID.n_cells, 1)
    assert bank_of(far_sighted_walk) is None
    windows = flow().windows
    size = GRID.n_cells * 9 * math.prod(windows.landing.window) * windows.noise_std.dtype.itemsize
    assert bank_of(crowded_walk, bank_bytes=12 * size - 1) is None
    assert bank_of(walk, bank_bytes=size - 1) is None


def landing_kernel(flow, motion, actions, mass, group=1):
    moved = move_targets(GRID, motion, mass, actions, 0, group)
    return flow.windows.kernel(moved)


def test_the_bank_is_exact_at_its_knots():
    bank, n = tabulated().bank, GRID.n_cells
    knots = bank.kernels.shape[2]
    joint = random_weights(0)[0]
    for knot in (0, 3, knots - 1):
        mass = jnp.full(n, crowd_mass(jnp.asarray(knot / (knots - 1)), n))
        kernel = landing_kernel(flow(), crowded_walk, tabulated().actions, mass)
        wanted = np.asarray(bank.landing.arrive(jnp.einsum("km,kme->ke", joint, kernel)))
        assert np.asarray(bank.push(joint, None, mass, 0)[0]) == pytest.approx(wanted, abs=1e-9)


def test_the_table_s_flow_is_near_the_motion_s_and_conserves_mass():
    weights = random_weights(1)
    near, true = swept(tabulated(), weights), swept(exact(), weights)
    assert np.asarray(near.rollout.mass.sum(axis=1)) == pytest.approx(1.0, abs=1e-12)
    assert np.asarray(near.rollout.mass) == pytest.approx(np.asarray(true.rollout.mass), abs=4e-3)
    assert float(near.rollout.value) == pytest.approx(float(true.rollout.value), rel=4e-3)
    scale = np.abs(true.action_values).max()
    error = np.abs(near.action_values - true.action_values).max()
    assert error < 0.05 * scale
    # The flow itself goes by the motion, whatever sweeps do.
    plain = tabulated().rollout(weights)
    assert np.asarray(plain.mass) == pytest.approx(np.asarray(true.rollout.mass), abs=1e-12)


def test_more_knots_come_nearer():
    weights = random_weights(2)
    true = swept(exact(), weights).rollout.value
    errors = []
    for knots in (12, 24, 48):
        bank = kernels_ahead(flow().windows, exact().motion, exact().actions, STEP, knots)
        moves = eqx.tree_at(lambda m: m.bank, tabulated(), bank)
        errors.append(abs(float(swept(moves, weights).rollout.value - true)))
    # Linear interpolation: a quarter of the error for twice the knots.
    assert errors[1] < 0.4 * errors[0]
    assert errors[2] < 0.4 * errors[1]


def test_the_sweep_s_derivatives_are_those_of_the_table_s_flow():
    weights, moves = random_weights(3), tabulated()
    sweep = swept(moves, weights)
    # A direction that keeps the weights' sums, so that masses stay distributions.
    other = random_weights(4) - weights
    value = lambda step: float(swept(moves, weights + step * other).rollout.value)  # noqa: E731
    along = jnp.sum(sweep.rollout.mass[:-1, :, None] * sweep.action_values * other)
    assert (value(1e-6) - value(-1e-6)) / 2e-6 == pytest.approx(float(along), rel=1e-5)


def test_ascents_by_the_table_and_by_the_motion_earn_the_same():
    ascent = MirrorAscent(sweeps=60, bound=False)
    fast, slow = ascent.solve(tabulated()), ascent.solve(exact())
    assert float(fast.value) == pytest.approx(float(slow.value), rel=5e-4)
    # What is reported is what the motion itself gives.
    assert float(fast.value) == pytest.approx(float(exact().rollout(fast.weights).value), rel=1e-12)
    assert not np.isfinite(float(fast.upper))


class Banded(AbstractJointMotion):
    """A crowded walk with a band that eta picks from."""

    action_dim: int = 2

    def predict(self, state, action, mu):
        return crowded_walk(state, action, mu), 0.2 + 0.1 * jnp.sin(state)

    def hallucinate(self, state, prediction, eta):
        return prediction[0] + prediction[1] * eta


@pytest.mark.parametrize("motion", ["joint", "plain"])
def test_moves_computed_together_lead_to_the_same_place_as_one_by_one(motion):
    banded = Banded()
    motion = banded if motion == "joint" else (lambda s, a, mu: banded(s, a, mu))
    etas = jnp.asarray([[0.0, 0.0], [1.0, -1.0]])
    joint = jnp.concatenate([jnp.repeat(ACTIONS, 2, axis=0), jnp.tile(etas, (9, 1))], axis=1)
    actions = jnp.broadcast_to(joint, (GRID.n_cells, 18, 4))
    mass = flow().problem.initial
    single = move_targets(GRID, banded, mass, actions, 0)
    grouped = move_targets(GRID, motion, mass, actions, 0, 2)
    assert np.asarray(grouped) == pytest.approx(np.asarray(single), abs=1e-12)
    kernel = landing_kernel(flow(), motion, actions, mass, 2)
    wanted = landing_kernel(flow(), banded, actions, mass)
    assert np.asarray(kernel) == pytest.approx(np.asarray(wanted), abs=1e-12)


def test_a_model_asked_at_few_masses_has_nearly_the_kernels_of_one_asked_at_all():
    banded = Banded()
    etas = jnp.asarray([[0.0, 0.0], [1.0, -1.0]])
    joint = jnp.concatenate([jnp.repeat(ACTIONS, 2, axis=0), jnp.tile(etas, (9, 1))], axis=1)
    actions = jnp.broadcast_to(joint, (GRID.n_cells, 18, 4))
    table = motion_table(Hallucinated().joint(flow().problem), banded, ACTIONS)
    few = kernels_ahead(flow().windows, table, actions, STEP, 16, 2).kernels
    plain = kernels_ahead(flow().windows, banded, actions, STEP, 16, 2).kernels
    assert np.abs(few - plain).max() < 5e-3
