"""Learning inside limits: the first episode is safe, later ones are sure of their limits."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mufield as mf
from mufield.learning.safety import weights_of
from mufield.planning.outcomes import DrawnOutcomes, Past, episode

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


def test_a_safe_policy_that_breaks_a_limit_is_left_and_the_note_says_what_to_do():
    home = mf.mass_at_most(GRID, [(0, 0)], 0.5, steps=[3, 4, 5], name="home")
    crowded = system(home)
    learner = mf.M3UCRL(crowded.problem, planner=FAST)
    rows = mf.learn(crowded, learner, episodes=3, agents=10, progress=False).metrics
    assert rows[0].margin < -0.3
    assert "running the safe policy" in rows[0].notes[0]
    assert "safe=" in rows[0].notes[0]
    assert "breaks a limit itself" in rows[1].notes[0]
    assert rows[0].margin < rows[1].margin
    assert rows[2].margin > 0


def test_worlds_hold_the_expected_one_and_more_doubt_leaves_less(learned):
    problem, flow = CAPPED.problem, CAPPED.reveal()[0]
    model, key, own = learned.state.model, jax.random.key(1), problem.actions.points(3)
    found = [
        mf.DrawnWorlds(draws=16, farther=f).outcomes(
            problem, flow, model, problem.initial, own, key, None
        )
        for f in (0.0, 3.0)
    ]
    weights = weights_of(problem, own, mf.as_profile(mf.random_policy(problem), problem.horizon))
    np.testing.assert_allclose(jnp.sum(weights, axis=-1), 1.0, rtol=1e-5)
    limits = problem.constraints
    sure = limits.along(episode(flow, found[0].kernels[0], weights))
    np.testing.assert_allclose(found[0].least(weights), sure, atol=1e-5)
    assert float(jnp.min(found[1].least(weights) - sure)) < -1e-4
    assert float(jnp.max(found[1].least(weights) - sure)) <= 1e-6
    doubtful = mf.AccumulatedDoubt(2.0)
    doubtful = doubtful.outcomes(problem, flow, model, problem.initial, own, key, None)
    assert float(jnp.max(doubtful.least(weights) - sure)) < 0


def test_weights_on_moves_are_those_of_the_nearest_actions():
    problem, moves = CAPPED.problem, CAPPED.problem.actions.points(3)
    rng = np.random.default_rng(0)
    actions = jnp.asarray([[0.9, -0.1], [0.6, 0.2], [-1.0, 0.8]])
    weights = jnp.asarray(rng.dirichlet(np.ones(3), size=GRID.n_cells))
    shared = mf.TablePolicy.mixing(actions, weights, GRID)
    own = mf.TablePolicy(jnp.tile(actions, (GRID.n_cells, 1, 1)), weights, GRID)
    places = {tuple(move): place for place, move in enumerate(np.asarray(moves).tolist())}
    for policy in (shared, own):
        found = weights_of(problem, moves, mf.as_profile(policy, problem.horizon))[0]
        expected = np.zeros(found.shape)
        expected[:, places[1.0, 0.0]] = weights[:, 0] + weights[:, 1]
        expected[:, places[-1.0, 1.0]] = weights[:, 2]
        np.testing.assert_allclose(found, expected, atol=1e-6)


FLOW, MOTION = CAPPED.reveal()
MOVES = mf.MoveFlow(FLOW, MOTION, CAPPED.problem.actions.points(3))


@pytest.fixture(scope="module")
def bold():
    """The weights of a plan that knows no limit."""
    return mf.MirrorAscent(60).solve(mf.MoveFlow(system().reveal()[0], MOTION, MOVES.actions[0]))


def worlds(kernel, past=None):
    return DrawnOutcomes.of(FLOW, MOVES.actions[0], jnp.stack([kernel] * 3), past)


def test_a_mixture_is_the_greatest_share_that_keeps_the_limit(bold):
    still = jnp.zeros_like(bold.weights).at[..., 4].set(1.0)
    outcomes = worlds(MOVES.kernel)
    found = outcomes.mixed(bold.weights, still)
    assert float(jnp.min(outcomes.least(bold.weights))) < 0
    assert 0 < float(found.share) < 1
    assert float(jnp.min(found.margins)) >= 0
    np.testing.assert_allclose(found.margins, outcomes.least(found.weights), atol=1e-6)
    again = outcomes.mixed(found.weights, still)
    assert float(again.share) == 1.0
    # What was run and kept the limit is a better company than rest.
    resumed = outcomes.mixed(bold.weights, still, found.weights)
    assert bool(resumed.resumed)
    assert float(MOVES.rollout(resumed.weights).value) >= float(MOVES.rollout(found.weights).value)
    assert not bool(outcomes.mixed(bold.weights, still, bold.weights).resumed)


def test_worlds_are_held_against_the_last_episode(bold):
    # In this world everybody runs into the door's way twice as fast as in truth.
    wrong = mf.MoveFlow(
        FLOW, lambda s, a, mu: s + jnp.clip(2 * a + 0.3, -1, 1), MOVES.actions[0]
    ).kernel
    true = MOVES.rollout(bold.weights).mass
    was, limits = CAPPED.problem.constraints.along(true), CAPPED.problem.constraints
    unaware, aware = worlds(wrong), worlds(wrong, Past(true[:-1], bold.weights))
    expected = limits.along(episode(FLOW, wrong, bold.weights))
    assert float(jnp.max(jnp.abs(expected - was)[:-1])) > 0.1  # else it would not be wrong
    np.testing.assert_allclose(unaware.checked(bold.weights), expected, atol=1e-6)
    np.testing.assert_allclose(
        aware.checked(bold.weights)[:-1], jnp.maximum(was, expected)[:-1], atol=1e-5
    )
    right = worlds(MOVES.kernel, Past(true[:-1], bold.weights))
    np.testing.assert_allclose(right.errors, 0.0, atol=1e-5)


def test_only_what_was_run_is_held_against_worlds(learned):
    learner, state = learned.learner, learned.state
    mass, profile = state.last
    assert mass.shape == (CAPPED.problem.horizon, GRID.n_cells)
    np.testing.assert_allclose(mass, CAPPED.evaluate(profile).mass[:-1], atol=1e-5)
    assert learner.init(jax.random.key(0)).last is None
    episode = CAPPED.run(learned.profile, jax.random.key(0), agents=2)
    assert learner.tell(state, episode).last is None
    logged = learner.add(state, state.data.first(7))
    np.testing.assert_array_equal(logged.last[0], mass)


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
    assert best.how not in ("the luckiest policy", "the last policy")


def test_a_mixture_has_no_planned_value(learned):
    first = learned.metrics[0]
    assert first.optimistic is None
    assert first.w1_end == pytest.approx(first.w1_end)
