"""What each kind of optimism believes, and the joint actions that it plans with."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import corridor, sure

from mufield import Bonus, Flow, Greedy, Hallucinated, Thompson
from mufield.learning.optimism import HallucinatedMotion
from mufield.planning.moves import regular_moves
from mufield.space.measure import mean_field_at

KEY = jax.random.key(0)
STATE = jnp.array([2.5])
ACTION = jnp.array([0.5])


def mu():
    problem = corridor().problem
    return mean_field_at(problem.grid, problem.initial, STATE)


def imagined(optimism, model, key=KEY):
    problem = corridor().problem
    return optimism.imagine(problem, Flow(optimism.joint(problem)), model, None, key)


def test_eta_moves_the_aim_by_beta_standard_deviations():
    motion = HallucinatedMotion(sure(spread=0.1, beta=2.0), 1.0, mu().grid, (1.0,), 1)
    for eta, wanted in ((0.0, 0.5), (1.0, 0.7), (-1.0, 0.3)):
        joint = jnp.array([0.5, eta])
        assert motion(STATE, joint, mu())[0] == pytest.approx(2.5 + wanted)


def test_motions_beyond_the_farthest_move_are_cut():
    motion = HallucinatedMotion(sure(spread=5.0), 1.0, mu().grid, (1.0,), 1)
    assert motion(STATE, jnp.array([0.5, 1.0]), mu())[0] == pytest.approx(3.5)


def test_the_hallucinated_reward_ignores_eta():
    problem = corridor().problem
    joint = Hallucinated().joint(problem)
    assert joint.actions.dim == 2
    paid = [joint.reward(STATE, jnp.array([0.5, eta]), mu()) for eta in (-1.0, 0.3)]
    assert paid[0] == paid[1] == problem.reward(STATE, ACTION, mu())


def test_joint_moves_are_all_pairs_with_the_etas_of_an_action_together():
    flow, motion = imagined(Hallucinated(), sure())
    actions = corridor().problem.actions
    moves = regular_moves(flow, motion, actions, points=2, controls=3)
    wanted = [[-1, -1], [-1, 0], [-1, 1], [1, -1], [1, 0], [1, 1]]
    np.testing.assert_allclose(moves.actions[0], wanted)
    corners = regular_moves(flow, motion, actions, points=2, controls=2)
    np.testing.assert_allclose(corners.actions[0, :3, 1], [0, -1, 1])


def test_each_kind_of_optimism_believes_in_its_own_motion_and_reward():
    model = sure(gain=0.5, spread=0.1)
    _, greedy = imagined(Greedy(), model)
    assert greedy(STATE, ACTION, mu())[0] == pytest.approx(2.75)
    _, drawn = imagined(Thompson(), model)
    _, other = imagined(Thompson(), model, jax.random.key(1))
    assert drawn(STATE, ACTION, mu())[0] != other(STATE, ACTION, mu())[0]
    _, half = imagined(Thompson(0.5), model)
    wanted = 2.75 + 0.5 * (drawn(STATE, ACTION, mu())[0] - 2.75)
    assert half(STATE, ACTION, mu())[0] == pytest.approx(float(wanted))
    flow, motion = imagined(Bonus(1.0), model)
    assert motion(STATE, ACTION, mu())[0] == pytest.approx(2.75)
    plain = corridor().problem.reward(STATE, ACTION, mu())
    # beta times the spread, in units of the farthest move.
    assert flow.problem.reward(STATE, ACTION, mu()) == pytest.approx(float(plain) + 0.2)


def test_negative_sizes_are_refused():
    with pytest.raises(ValueError, match="scale of optimism must be one finite number from 0"):
        Hallucinated(-1.0)
    with pytest.raises(ValueError, match="weight of optimism must be one finite number from 0"):
        Bonus(-1.0)
