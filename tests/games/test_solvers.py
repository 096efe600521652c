"""Equilibria that are known, and solvers as objects that can be stepped by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

import mufield as mf
from mufield import games


def game(name, **options):
    return mf.MoveFlow(*mf.make(name, **options).reveal())


def always(action, nodes):
    return mf.TablePolicy.deterministic(jnp.full((nodes, 1), float(action)))


def test_left_right_is_exploited_by_one_and_by_two():
    flow, motion = mf.make("left-right").reveal()
    assert games.exploitability(flow, motion, always(0, 3)) == pytest.approx(1.0)
    assert games.exploitability(flow, motion, always(1, 3)) == pytest.approx(2.0)
    found = games.MirrorDescent(iterations=200).solve(game("left-right"))
    np.testing.assert_allclose(found.mass[-1], [0.0, 2 / 3, 1 / 3], atol=1e-4)
    assert float(found.exploitability) < 1e-4


def test_rock_paper_scissors_has_its_equilibrium():
    found = games.FictitiousPlay(iterations=2000).solve(game("rock-paper-scissors"))
    np.testing.assert_allclose(found.mass[-1, 1:], [0.337662, 0.259740, 0.402597], atol=2e-3)


def test_the_driver_does_what_steps_by_hand_do_and_keeps_the_best():
    moves = game("beach-bar", horizon=5)
    solver = games.FictitiousPlay(25, rate=1.0)
    found = solver.solve(moves)
    state, figures = solver.init(moves), []
    for _ in range(25):
        state, one = solver.step(moves, state)
        figures.append(one[0])
    np.testing.assert_allclose(found.history, jnp.stack(figures), rtol=1e-9)
    # Plain best responses go to and fro, so that the last policy is not the best.
    assert float(found.exploitability) == pytest.approx(float(found.history[:, 1].min()), rel=1e-9)
    assert float(found.history[-1, 1]) > float(found.exploitability)
    flow, motion = moves.flow, moves.motion
    again = games.exploitability(flow, motion, found.profile)
    assert again == pytest.approx(float(found.exploitability), rel=1e-6)


def test_solvers_stop_at_the_tolerance():
    moves = game("beach-bar", horizon=5)
    found = games.MirrorDescent(iterations=500, tolerance=0.1).solve(moves)
    assert float(found.exploitability) <= 0.1
    assert len(found.history) < 500
    assert "iterations=" in repr(found)


def test_damping_helps_best_responses():
    moves = game("beach-bar", horizon=5)
    plain, damped = (games.FictitiousPlay(40, rate=r).solve(moves) for r in (1.0, 0.1))
    assert float(damped.exploitability) < float(plain.exploitability)


def test_equilibria_do_not_depend_on_the_unit_of_the_reward():
    system = mf.make("beach-bar", horizon=5)
    flow, motion = system.reveal()
    reward = flow.problem.reward
    scaled = flow.problem.replace(reward=lambda s, a, mu: 1000.0 * reward(s, a, mu))
    one = games.MirrorDescent(iterations=30).solve(mf.MoveFlow(flow, motion))
    other = games.MirrorDescent(iterations=30).solve(mf.MoveFlow(flow.of_problem(scaled), motion))
    np.testing.assert_allclose(one.weights, other.weights, atol=1e-6)


def test_where_the_reward_is_the_entropy_s_the_optimum_is_an_equilibrium():
    moves = game("crowd-square", horizon=6)
    plan = mf.MirrorAscent(sweeps=200).solve(moves)
    gain = games.exploitability(moves.flow, moves.motion, plan.profile)
    assert gain <= mf.certify(moves.flow, moves.motion, plan.profile).gap + 1e-9
    assert gain < 0.01


def test_wrong_weights_are_refused():
    moves = game("left-right")
    solver = games.MirrorDescent()
    with pytest.raises(mf.UserError, match="must have the shape"):
        solver.init(moves, jnp.ones((1, 3, 4)))
    with pytest.raises(mf.UserError, match="divide them"):
        solver.init(moves, jnp.ones(moves.uniform().shape))


def test_a_best_response_that_leaves_a_node_empty_is_a_policy_there_too():
    moves, solver = game("braess"), games.FictitiousPlay(rate=1.0)
    state = solver.init(moves)
    for _ in range(3):
        state, figures = solver.step(moves, state)
        assert not np.isnan(np.asarray(state.logits)).any()
        assert np.isfinite(np.asarray(figures)).all()
