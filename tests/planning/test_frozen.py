"""Sweeps with the kernels of an episode, for motions that see all of mu."""

from functools import lru_cache

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import walk, walking_problem

from mufield import Box, Flow, Grid, MirrorAscent, MoveFlow, point_mass
from mufield.flow import kernels
from mufield.flow.frozen import FrozenFlow, keep

pytestmark = pytest.mark.slow

GRID = Grid.from_map("....\n.#..\n....")
ACTIONS = Box(-1.0, 1.0, 2).points(3)


def jammed_walk(state, action, mu):
    """A walk that becomes slower where the neighbourhood is crowded."""
    distance = jnp.sum((jnp.asarray(mu.grid.centres) - state) ** 2, axis=1)
    return state + action / (1.0 + jnp.vdot(jnp.exp(-distance), mu.mass))


@lru_cache
def moves():
    start = point_mass(GRID, 0, 0)
    problem = walking_problem(GRID, horizon=4, initial=start, pay_end=True)
    return MoveFlow(Flow(problem), jammed_walk, ACTIONS)


def random_weights(seed):
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.dirichlet(np.ones(9), size=(4, GRID.n_cells)))


exact = eqx.filter_jit(lambda moves, weights: moves.sweep(weights, bound=False))
nearby = eqx.filter_jit(lambda moves, kept, weights: FrozenFlow(moves, kept).sweep(weights))
kept_of = eqx.filter_jit(keep)


def test_motions_that_see_more_than_their_cell_are_frozen(monkeypatch):
    assert moves().freezes
    assert not MoveFlow(moves().flow, walk, ACTIONS).freezes
    size = kernels.kernel_bytes(moves().flow, 9)
    monkeypatch.setattr(kernels, "MOST_KERNEL_BYTES", 4 * size - 1)
    assert not moves().freezes


def test_at_the_episode_itself_flow_value_and_derivatives_are_the_motion_s():
    weights = random_weights(0)
    wanted = exact(moves(), weights)
    kept, episode = kept_of(moves(), weights)
    for found in (episode, nearby(moves(), kept, weights)):
        for ours, theirs in (
            (found.rollout.mass, wanted.rollout.mass),
            (found.rollout.value, wanted.rollout.value),
            (found.action_values, wanted.action_values),
        ):
            assert np.asarray(ours) == pytest.approx(np.asarray(theirs), abs=1e-8)
        assert not np.isfinite(float(found.gap))


def test_the_error_grows_with_the_square_of_the_distance():
    weights = random_weights(1)
    other = random_weights(2) - weights
    kept, _ = kept_of(moves(), weights)
    errors = []
    for step in (0.4, 0.2, 0.1):
        near = nearby(moves(), kept, weights + step * other).rollout.value
        errors.append(abs(float(near - exact(moves(), weights + step * other).rollout.value)))
    assert errors[0] > 1e-6
    assert errors[1] < 0.35 * errors[0]
    assert errors[2] < 0.35 * errors[1]


def test_derivatives_away_from_the_episode_are_those_of_the_value():
    kept, _ = kept_of(moves(), random_weights(3))
    weights = random_weights(4)
    other = random_weights(5) - weights
    sweep = nearby(moves(), kept, weights)
    along = jnp.sum(sweep.rollout.mass[:-1, :, None] * sweep.action_values * other)
    up, down = (
        float(nearby(moves(), kept, weights + step * other).rollout.value) for step in (1e-6, -1e-6)
    )
    assert (up - down) / 2e-6 == pytest.approx(float(along), rel=1e-5)


def test_ascents_with_and_without_freezing_earn_the_same(monkeypatch):
    ascent = MirrorAscent(sweeps=60, bound=False)
    fast = ascent.solve(moves())
    value = float(moves().rollout(fast.weights).value)
    assert float(fast.value) == pytest.approx(value, rel=1e-9)
    assert int(fast.state.sweeps) == 60
    assert not np.isfinite(float(fast.upper))
    monkeypatch.setattr(kernels, "MOST_KERNEL_BYTES", 0)
    # Another number of sweeps at once, or the program compiled before would serve again.
    slow = MirrorAscent(sweeps=60, bound=False, sweeps_at_once=30).solve(moves())
    assert float(fast.value) == pytest.approx(float(slow.value), rel=5e-4)
