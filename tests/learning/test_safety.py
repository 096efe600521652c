"""Learning inside limits: the first episode is safe, later ones are sure of their limits."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mufield as mf
from mufield.learning.safety import weights_of
from mufield.planning.outcomes import DrawnOutcomes, episode

GRID = mf.Grid.from_map(".....\n..#..\n.....")
DOOR = [(2, 2)]
CAP = 0.06


def system(*constraints):
    problem = mf.Problem(
        grid=GRID,
        actions=mf.Box(-1.0, 1.0, dim=2),
        reward=lambda state, action, mu: -mf.log_mass(mu.here),
        horizon=5,
        initial=mf.point_mass(GRID, 0, 0),
        noise=0.3,
        max_move=1.0,
        pay_end=True,
        constraints=constraints,
    )
    return mf.SimulatedSystem(problem, lambda state, action, mu: state + action)


CAPPED = system(mf.mass_at_most(GRID, DOOR, CAP, name="door"))
FAST = mf.MirrorPlanner(points=3, sweeps=40)


@pytest.fixture(scope="module")
def learned():
    learner = mf.M3UCRL(CAPPED.problem, planner=FAST)
    return mf.learn(CAPPED, learner, episodes=4, agents=10, progress=False)


def test_the_first_episode_runs_the_safe_policy_and_says_so(learned):
    first = learned.metrics[0]
    assert "running the safe policy" in first.notes[0]
    rest = CAPPED.evaluate(lambda state, mu, step: jnp.zeros(2))
    assert first.value == pytest.approx(float(rest.value), rel=1e-5)


def test_later_episodes_leave_rest_and_keep_the_limit(learned):
    assert learned.metrics[-1].value > learned.metrics[0].value + 1.0
    for row in learned.metrics:
        assert row.margin > -0.01
        assert row.margins["door"] == pytest.approx(row.margins["door"][: CAPPED.problem.horizon])
        assert min(row.margins["door"]) == row.margin


def test_a_given_safe_policy_is_the_first(learned):
    safe = mf.TablePolicy.deterministic(jnp.asarray([[0.0, 0.5]]))
    learner = mf.M3UCRL(CAPPED.problem, planner=FAST, safe=safe)
    plan = learner.ask(learner.init(jax.random.key(0)))
    assert "safe policy" in plan.note
    np.testing.assert_array_equal(plan.profile.at(0).actions, safe.actions)


def test_worlds_hold_the_expected_one_and_more_doubt_leaves_less(learned):
    problem, flow = CAPPED.problem, CAPPED.reveal()[0]
    model, key, own = learned.state.model, jax.random.key(1), problem.actions.points(3)
    found = [
        mf.DrawnWorlds(draws=16, farther=f).outcomes(
            problem, flow, model, problem.initial, own, key
        )
        for f in (0.0, 3.0)
    ]
    weights = weights_of(found[0], mf.as_profile(mf.random_policy(problem), problem.horizon))
    np.testing.assert_allclose(jnp.sum(weights, axis=-1), 1.0, rtol=1e-5)
    limits = problem.constraints
    sure = limits.along(episode(flow, found[0].mean, weights))
    np.testing.assert_allclose(found[0].least(weights), sure, atol=1e-5)
    assert float(jnp.min(found[1].least(weights) - sure)) < -1e-4
    assert float(jnp.max(found[1].least(weights) - sure)) <= 1e-6
    doubtful = mf.AccumulatedDoubt(2.0)
    doubtful = doubtful.outcomes(problem, flow, model, problem.initial, own, key)
    assert float(jnp.max(doubtful.least(weights) - sure)) < 0


def test_a_mixture_is_the_greatest_share_that_keeps_the_limit():
    flow, motion = CAPPED.reveal()
    moves = mf.MoveFlow(flow, motion, CAPPED.problem.actions.points(3))
    free = system()
    bold = mf.MirrorAscent(60).solve(mf.MoveFlow(free.reveal()[0], motion, moves.actions[0]))
    still = jnp.zeros_like(bold.weights).at[..., 4].set(1.0)
    outcomes = DrawnOutcomes(flow, moves.actions[0], moves.kernel, *[moves.kernel[None]] * 2)
    share, weights, margins = outcomes.mixed(bold.weights, still)
    assert float(jnp.min(outcomes.least(bold.weights))) < 0
    assert 0 < float(share) < 1
    assert float(jnp.min(margins)) >= 0
    np.testing.assert_allclose(margins, outcomes.least(weights), atol=1e-6)


def test_pessimism_needs_limits():
    with pytest.raises(mf.UserError, match="no limits"):
        mf.M3UCRL(system().problem, pessimism=mf.DrawnWorlds())
    with pytest.raises(mf.UserError, match="safe policy"):
        mf.M3UCRL(CAPPED.problem, random_first=True)
    with pytest.raises(mf.UserError, match="at least one"):
        mf.DrawnWorlds(draws=0)


def test_plans_with_limits_repeat(learned):
    learner = learned.learner
    again = [learner.ask(learned.state).profile for _ in range(2)]
    same = jax.tree.map(lambda a, b: bool(jnp.all(a == b)), *again)
    assert all(jax.tree.leaves(same))
    assert dataclasses.is_dataclass(learned.metrics[0])


def test_the_policy_to_use_keeps_the_limit_too(learned):
    best = learned.best()
    margins = CAPPED.problem.constraints.worst(CAPPED.evaluate(best.profile).mass)
    assert float(jnp.min(margins)) > -0.01
    assert "luckiest" not in best.how
    assert "last" not in best.how


def test_a_mixture_has_no_planned_value(learned):
    first = learned.metrics[0]
    assert first.optimistic is None
    assert first.w1_end == pytest.approx(first.w1_end)
