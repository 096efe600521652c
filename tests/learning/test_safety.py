"""Learning inside limits: the first episode is safe, later ones are sure of their limits."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import walking_problem
from small import SureFamily

import mufield as mf
from mufield.constraints.outcomes import Outcomes, episode
from mufield.learning.optimism import MeanMotion
from mufield.learning.safety import ModelSamples, sampled_outcomes
from mufield.planning.moves import regular_moves
from mufield.policies.tables import profile_weights

GRID = mf.Grid.from_map(".....\n..#..\n.....")
DOOR = [(2, 2)]
CAP = 0.06


def system(*constraints):
    problem = mf.Problem(
        space=GRID,
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


CAPPED = system(mf.constraints.mass_at_most(GRID, DOOR, CAP, name="door"))
FAST = mf.MirrorPlanner(points=3, sweeps=40)


def starts(problem):
    return jnp.broadcast_to(problem.initial, (problem.horizon, GRID.n_cells))


@pytest.fixture(scope="module")
def learned():
    learner = mf.M3UCRL(CAPPED.problem, planner=FAST)
    return mf.learn(CAPPED, learner, episodes=4, agents=10, progress=False)


@pytest.mark.nightly
def test_the_first_episode_runs_the_safe_policy_and_says_so(learned):
    first = learned.metrics[0]
    assert "running the safe policy" in first.notes[0]
    rest = CAPPED.evaluate(lambda state, mu, step: jnp.zeros(2))
    assert first.value == pytest.approx(float(rest.value), rel=1e-5)


@pytest.mark.nightly
def test_later_episodes_leave_rest_and_keep_the_limit(learned):
    assert learned.metrics[-1].value > learned.metrics[0].value + 1.0
    for row in learned.metrics:
        assert row.margin > -0.01
        assert row.margins["door"] == pytest.approx(row.margins["door"][: CAPPED.problem.horizon])
        assert min(row.margins["door"]) == row.margin


def test_a_given_safe_policy_is_the_first():
    safe = mf.TablePolicy.deterministic(jnp.asarray([[0.0, 0.5]]))
    learner = mf.M3UCRL(CAPPED.problem, planner=FAST, safe=safe)
    plan = learner.ask(learner.init(jax.random.key(0)))
    assert "safe policy" in plan.note
    np.testing.assert_array_equal(plan.profile.at(0).actions, safe.actions)


@pytest.mark.nightly
def test_a_safe_policy_that_breaks_a_limit_is_left_and_the_note_says_what_to_do():
    home = mf.constraints.mass_at_most(GRID, [(0, 0)], 0.5, steps=[3, 4, 5], name="home")
    crowded = system(home)
    learner = mf.M3UCRL(crowded.problem, planner=FAST)
    rows = mf.learn(crowded, learner, episodes=3, agents=10, progress=False).metrics
    assert rows[0].margin < -0.3
    assert "running the safe policy" in rows[0].notes[0]
    assert "safe=" in rows[0].notes[0]
    assert "violates a constraint itself" in rows[1].notes[0]
    assert rows[0].margin < rows[1].margin
    assert rows[2].margin > 0


@pytest.mark.nightly
def test_samples_hold_the_expected_model_and_more_doubt_leaves_less(learned):
    problem, flow = CAPPED.problem, CAPPED.reveal()[0]
    model, key, own = learned.state.model, jax.random.key(1), problem.actions.points(3)
    found = [
        sampled_outcomes(ModelSamples(draws=16, widening=f), flow, model, problem.initial, own, key)
        for f in (0.0, 3.0)
    ]
    random = mf.as_profile(mf.random_policy(problem), problem.horizon)
    weights, _ = profile_weights(random, own, GRID, starts(problem))
    np.testing.assert_allclose(jnp.sum(weights, axis=-1), 1.0, rtol=1e-5)
    sure = problem.margins(episode(flow, found[0].models[0], weights))
    np.testing.assert_allclose(found[0].planned(weights), sure, atol=1e-5)
    assert float(jnp.min(found[1].planned(weights) - sure)) < -1e-4
    assert float(jnp.max(found[1].planned(weights) - sure)) <= 1e-6


def test_weights_on_moves_are_those_of_the_nearest_actions():
    problem, moves = CAPPED.problem, CAPPED.problem.actions.points(3)
    rng = np.random.default_rng(0)
    actions = jnp.asarray([[0.9, -0.1], [0.6, 0.2], [-1.0, 0.8]])
    weights = jnp.asarray(rng.dirichlet(np.ones(3), size=GRID.n_cells))
    shared = mf.TablePolicy.mixing(actions, weights, GRID)
    own = mf.TablePolicy(jnp.tile(actions, (GRID.n_cells, 1, 1)), weights, GRID)
    places = {tuple(move): place for place, move in enumerate(np.asarray(moves).tolist())}
    for policy in (shared, own):
        profile = mf.as_profile(policy, problem.horizon)
        found, rounded = profile_weights(profile, moves, GRID, starts(problem))
        assert bool(rounded)
        expected = np.zeros(found[0].shape)
        expected[:, places[1.0, 0.0]] = weights[:, 0] + weights[:, 1]
        expected[:, places[-1.0, 1.0]] = weights[:, 2]
        np.testing.assert_allclose(found[0], expected, atol=1e-6)


FLOW, MOTION = CAPPED.reveal()
MOVES = mf.MoveFlow(FLOW, MOTION, CAPPED.problem.actions.points(3))
KERNELS = jnp.swapaxes(MOVES.bank.kernels[0, :, 0], 1, 2)


@pytest.fixture(scope="module")
def bold():
    """The weights of a plan that knows no limit."""
    return mf.MirrorAscent(60).solve(mf.MoveFlow(system().reveal()[0], MOTION, MOVES.actions[0]))


def sampled(kernel, last=None):
    found = Outcomes(FLOW, MOVES.actions[0], jnp.stack([kernel] * 3), None)
    return found if last is None else found.after(last[0], MOVES.actions[0], last[1])


def test_models_that_look_at_the_step_lead_where_their_moves_do(bold):
    centres = jnp.asarray(GRID.centres)[:, None]
    moved = GRID.displacement(
        centres,
        jax.vmap(lambda s, a: jax.vmap(lambda b: MOTION(s, b, None))(a))(
            centres[:, 0], MOVES.actions
        ),
    )
    by_step = jnp.broadcast_to(moved, (FLOW.problem.horizon, *moved.shape)).at[1].set(0.0)
    found, alike = (
        Outcomes(FLOW, MOVES.actions[0], each[None], None).expected(bold.weights)
        for each in (by_step, KERNELS)
    )
    np.testing.assert_allclose(found[1], alike[1], atol=1e-6)
    assert float(jnp.max(jnp.abs(found[2] - alike[2]))) > 1e-3
    still = FLOW.windows.push(found[1][:, None], jnp.zeros_like(moved[:, :1]), found[1], 1)[0]
    np.testing.assert_allclose(found[2], still, atol=1e-6)


def test_a_mixture_is_the_greatest_share_that_keeps_the_limit(bold):
    still = jnp.zeros_like(bold.weights).at[..., 4].set(1.0)
    outcomes = sampled(KERNELS)
    found = outcomes.mixed(bold.weights, still)
    assert float(jnp.min(outcomes.planned(bold.weights))) < 0
    assert 0 < float(found.share) < 1
    assert float(jnp.min(found.margins)) >= 0
    np.testing.assert_allclose(found.margins, outcomes.planned(found.weights), atol=1e-6)
    again = outcomes.mixed(found.weights, still)
    assert float(again.share) == 1.0
    # What was run and kept the limit is a better company than rest.
    resumed = outcomes.mixed(bold.weights, still, found.weights)
    assert bool(resumed.resumed)
    assert float(MOVES.rollout(resumed.weights).value) >= float(MOVES.rollout(found.weights).value)
    assert not bool(outcomes.mixed(bold.weights, still, bold.weights).resumed)


@pytest.fixture(scope="module")
def wrong():
    """Kernels of a model in which everybody runs into the door's way twice as fast as in truth."""
    moves = mf.MoveFlow(FLOW, lambda s, a, mu: s + jnp.clip(2 * a + 0.3, -1, 1), MOVES.actions[0])
    return jnp.swapaxes(moves.bank.kernels[0, :, 0], 1, 2)


def test_a_plan_of_the_mean_model_takes_the_place_of_a_safe_policy_that_is_not_safe(bold, wrong):
    still = jnp.zeros_like(bold.weights).at[..., 4].set(1.0)
    fine = sampled(KERNELS).mixed(bold.weights, still).weights
    unsure = Outcomes(FLOW, MOVES.actions[0], jnp.stack([KERNELS, wrong, wrong]), None)
    assert float(unsure.mixed(fine, bold.weights).share) == 0.0
    seen = unsure.after(MOVES.rollout(bold.weights).mass, MOVES.actions[0], bold.weights)
    assert float(jnp.min(seen.checked(fine))) < 0
    assert float(seen.mixed(fine, bold.weights, bold.weights).share) > 0.99


def test_models_are_held_against_the_last_episode(bold, wrong):
    true = MOVES.rollout(bold.weights).mass
    margins = CAPPED.problem.margins
    was = margins(true)
    unaware, aware = sampled(wrong), sampled(wrong, (true, bold.weights))
    expected = margins(episode(FLOW, wrong, bold.weights))
    assert float(jnp.max(jnp.abs(expected - was))) > 0.1  # else it would not be wrong
    np.testing.assert_allclose(unaware.checked(bold.weights), expected, atol=1e-6)
    np.testing.assert_allclose(aware.checked(bold.weights), jnp.maximum(was, expected), atol=1e-5)
    right = sampled(KERNELS, (true, bold.weights))
    np.testing.assert_allclose(right.errors, 0.0, atol=1e-5)


@pytest.mark.nightly
def test_only_what_was_run_is_held_against_models(learned):
    learner, state = learned.learner, learned.state
    mass, profile = state.last_mass, state.profile
    assert mass.shape == (CAPPED.problem.horizon + 1, GRID.n_cells)
    np.testing.assert_allclose(mass, CAPPED.evaluate(profile).mass, atol=1e-5)
    assert learner.init(jax.random.key(0)).last_mass is None
    episode = CAPPED.run(learned.profile, jax.random.key(0), agents=2)
    assert learner.tell(state, episode).last_mass is None
    logged = learner.add(state, state.data.first(7))
    np.testing.assert_array_equal(logged.last_mass, mass)


def test_pessimism_needs_limits():
    with pytest.raises(mf.UserError, match="no constraints"):
        mf.M3UCRL(system().problem, pessimism=ModelSamples())
    with pytest.raises(mf.UserError, match="safe policy"):
        mf.M3UCRL(CAPPED.problem, random_first=1.0)
    with pytest.raises(mf.UserError, match="of at least 0, got -1"):
        ModelSamples(draws=-1)


@pytest.mark.nightly
def test_plans_with_limits_repeat(learned):
    learner = learned.learner
    again = [learner.ask(learned.state).profile for _ in range(2)]
    same = jax.tree.map(lambda a, b: bool(jnp.all(a == b)), *again)
    assert all(jax.tree.leaves(same))
    assert dataclasses.is_dataclass(learned.metrics[0])


@pytest.mark.nightly
def test_the_policy_to_use_keeps_the_limit_too(learned):
    best = learned.best()
    margins = CAPPED.problem.margins(CAPPED.evaluate(best.profile).mass)
    assert float(jnp.min(margins)) > -0.01
    assert best.how not in ("the best episode's policy", "the last policy")


@pytest.mark.nightly
def test_a_mixture_has_no_planned_value(learned):
    first = learned.metrics[0]
    assert first.optimistic is None
    assert first.w1_end == pytest.approx(first.w1_end)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_plan_that_was_rounded_to_moves_is_judged_as_it_is_run():
    loose = system(mf.constraints.mass_at_most(GRID, DOOR, 0.95, name="door"))
    planner = mf.GradientPlanner(mf.Table(), steps=6, sweeps=5, points=3)
    learner = mf.M3UCRL(loose.problem, SureFamily(spread=0.01), planner)
    state = learner.init(jax.random.key(0))
    plan = learner.ask(state)
    assert "safe" not in plan.note  # the limit is far, and all follow the plan
    mean = MeanMotion(state.model, loose.problem.max_move)
    np.testing.assert_allclose(plan.mass, loose.reveal()[0].rollout(plan.profile, mean).mass)
    assert np.isnan(float(plan.value))  # nothing was planned for what is run
    moves = {tuple(move) for move in np.asarray(planner.own_moves(loose.problem.actions)).tolist()}
    assert {tuple(move) for move in np.asarray(plan.profile.at(0).actions[0]).tolist()} <= moves


@pytest.mark.nightly
def test_the_last_episode_is_known_even_if_no_move_of_it_was_seen():
    grid = mf.Grid.box(0.0, 6.0, 6)
    problem = walking_problem(
        grid, horizon=3, trips=mf.fleet.Trips(lambda state, mu: 1.0, np.roll(np.eye(6), 1, axis=1))
    )
    carried = mf.SimulatedSystem(problem, lambda state, action, mu: state + action)
    learner = mf.M3UCRL(problem, SureFamily(), mf.MirrorPlanner(points=3, sweeps=3))
    state = learner.init(jax.random.key(0))
    plan = learner.ask(state)
    log = mf.as_transitions(
        problem,
        np.full((5, 1), 2.5),
        np.zeros((5, 1)),
        np.full((5, 1), 2.5),
        mass=np.tile(np.eye(6)[2], (5, 1)),
        moment=np.arange(5),
    )
    state = learner.add(state, log)
    start = mf.point_mass(grid, 4)
    episode = carried.from_step(0, start).run(plan.profile, jax.random.key(1), agents=2)
    state = learner.tell(state, episode, plan)
    assert len(state.data) == 5
    np.testing.assert_allclose(state.last_mass, episode.mass)
    assert [int(row.argmax()) for row in state.last_mass[:-1]] == [4, 5, 0]


def test_margins_during_the_ascent_are_of_the_moves_that_each_node_has():
    line = mf.Nodes.from_edges([(0, 1), (1, 2)])
    available = np.array([[True, False, True], [False, True, True], [True, True, False]])

    def motion(node, action, mu):  # the move itself is the slot that it leads to
        return jax.nn.one_hot(action, 3)

    problem = mf.Problem(
        space=line,
        actions=mf.MoveSet(["stay", "back", "on"], available=available),
        reward=lambda node, action, mu: -1.0 * (action == 0),
        horizon=2,
        initial=np.full(3, 1 / 3),
        constraints=mf.constraints.mass_at_most(line, [2], 0.5),
    )
    planner, asked = mf.MirrorPlanner(sweeps=24), []
    flow = mf.Flow(problem)
    moves = planner.own_moves(problem.actions)
    listed = mf.MoveFlow(flow, motion, moves)
    samples = Outcomes(flow, moves, jnp.swapaxes(listed.bank.kernels[:, :, 0], 2, 3), None)

    def least(weights):
        margins = samples.planned(weights)
        planned = problem.margins(
            regular_moves(flow, motion, problem.actions).rollout(weights).mass
        )
        jax.debug.callback(lambda a, b: asked.append((a, b)), margins, planned)
        return margins

    planner.plan(flow, motion, problem.actions, jax.random.key(0), None, least)
    assert asked
    for sampled_margins, planned in asked:
        np.testing.assert_allclose(sampled_margins, planned, atol=1e-9)


EAST = GRID.centres[:, 0] > 2
IMPOSSIBLE = "no policy with any motion that the data allow satisfies 'east' after "


def asked(gain=1.0, spread=0.001, limit=0.3, steps=None):
    east = mf.constraints.mass_at_least(GRID, EAST, limit, name="east", steps=steps)
    learner = mf.M3UCRL(system(east).problem, SureFamily(gain=gain, spread=spread), FAST)
    return learner.ask(learner.init(jax.random.key(0)))


def test_a_learner_leaves_out_the_move_after_which_no_plausible_motion_reaches_a_limit():
    plan = asked()
    assert plan.note.startswith(f"{IMPOSSIBLE}move 1 (at best 4.8% of the population are there)")
    assert "safe policy" not in plan.note
    assert np.isinf(plan.margins[:, 0]).tolist() == [True] + 4 * [False]
    assert float(jnp.min(plan.margins)) >= 0
    found = CAPPED.evaluate(plan.profile).mass[1:, EAST].sum(axis=1)
    assert found[0] < 0.05
    assert (found[1:] > 0.3).all()


def test_what_is_impossible_depends_on_the_band_and_a_hopeless_limit_stays():
    slow = {"gain": 0.3, "limit": 0.6, "steps": (2, 3, 4)}
    assert f"{IMPOSSIBLE}move 2, 3 (at best" in asked(**slow).note
    assert "no policy with any motion" not in asked(**slow, spread=1.0).note
    hopeless = asked(**slow | {"limit": 0.9})
    assert f"{IMPOSSIBLE}any of its moves: at best" in hopeless.note
    assert "running the safe policy" in hopeless.note
    assert not np.isinf(hopeless.margins[1:4]).any()


def test_on_nodes_a_learner_says_what_no_plausible_motion_reaches():
    line = mf.Nodes.from_edges([(number, number + 1) for number in range(4)])
    problem = mf.Problem(
        space=line,
        actions=["back", "on"],
        reward=lambda node, action, mu: -mu.here,
        horizon=6,
        initial=np.eye(5)[0],
        constraints=mf.constraints.mass_at_least(line, [4], 0.5, name="east"),
    )
    learner = mf.M3UCRL(problem, planner=mf.MirrorPlanner(sweeps=20))
    note = learner.ask(learner.init(jax.random.key(0))).note
    assert f"{IMPOSSIBLE}move 1, 2, 3 (at best 0.0%, 0.0%, 0.0%" in note
