"""Numbers beyond sense are refused, with the remedy, before they cost time, memory or mass."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import walk, walking_problem

from mufield import (
    M3UCRL,
    Box,
    Flow,
    GradientPlanner,
    Grid,
    MirrorAscent,
    MirrorPlanner,
    MoveFlow,
    Problem,
    SimulatedSystem,
    Table,
    UserError,
    learn,
    plan,
    point_mass,
    uniform,
)
from mufield.constraints import Constraint
from mufield.fleet import Trips
from mufield.flow.checks import diagnose
from mufield.planning import BPTT
from mufield.policies import Seen

SMALL = Grid.box(0.0, 4.0, (4, 4))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise": 1e6}, "smaller than the space, which is 4 wide on axis 0"),
        ({"noise": 5.0}, "standard deviation of 5; check the units"),
        ({"max_move": 1e9}, r"got 1e\+09; check the units"),
    ],
)
@pytest.mark.parametrize("periodic", [False, True])
def test_noise_and_moves_beyond_the_space_are_refused(options, message, periodic):
    grid = Grid.box(0.0, 4.0, (4, 4), periodic=periodic)
    with pytest.raises(UserError, match=message):
        walking_problem(grid, **options)
    assert walking_problem(grid, noise=3.0, max_move=8.0).max_move == (8.0, 8.0)


@pytest.mark.parametrize(
    ("grid", "options"),
    [
        (Grid.box(0.0, 40.0, (40, 40)), {"max_move": None}),
        (Grid.box(0.0, 300.0, (300, 300)), {"max_move": None}),
        (Grid.box(0.0, 4.0, (8, 8), periodic=True), {"noise": 3.9}),
        (Grid.box(0.0, 1e4, (1000, 1000)), {"max_move": 400.0}),
    ],
)
def test_windows_that_are_larger_than_sense_are_refused_with_the_remedy(grid, options):
    problem = walking_problem(grid, **options)
    with pytest.raises(UserError, match=r"give a smaller max_move .* less noise or larger cells"):
        Flow(problem)


def rewarded(reward, **options):
    problem = walking_problem(SMALL, horizon=2, **options)
    return problem.replace(reward=reward)


def test_rewards_whose_sum_overflows_are_refused():
    most = float(jnp.finfo(jnp.result_type(float)).max)
    system = SimulatedSystem(rewarded(lambda state, action, mu: 0.9 * most), walk)
    with pytest.raises(UserError, match="sum of the rewards overflows"):
        system.evaluate(lambda state, mu, step: jnp.zeros(2))


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        (lambda s, a, mu: jnp.where((s[0] > 3) & (mu.step == 1), jnp.nan, 0.0), "cell (3, 0), at"),
        (lambda s, a, mu: jnp.sqrt(1 - a[0] ** 2 - a[1] ** 2), "action [-1.0, -1.0]"),
        (lambda s, a, mu: jnp.sqrt(jnp.abs(a[0])), "no finite derivative by the action"),
        (lambda s, a, mu: jnp.sqrt(mu.here * (s[0] > 3)), "no finite derivative by mu"),
    ],
)
def test_the_cell_and_step_where_a_reward_is_to_blame_are_named(reward, words):
    found = diagnose(rewarded(reward))
    assert found.startswith("the reward")
    assert words in found
    if "cell" in words:
        assert "at step 1" in found


def test_a_sound_reward_is_not_blamed():
    assert diagnose(walking_problem(SMALL, horizon=2), walk) == ""


def bad_late(state, action, mu):
    return jnp.where((state[0] > 3) & (mu.step == 1), jnp.nan, 0.0)


def test_steps_before_the_rest_of_an_episode_are_not_blamed():
    problem = walking_problem(SMALL, horizon=3).replace(reward=bad_late)
    assert "at step 1" in diagnose(problem.from_step(1, problem.initial))
    assert diagnose(problem.from_step(2, problem.initial)) == ""
    late = SimulatedSystem(problem, walk).from_step(2, problem.initial)
    assert float(late.evaluate(lambda state, mu, step: jnp.zeros(2)).value) == 0.0


def test_plans_with_known_motion_name_the_cell_and_step_too():
    flow, motion = SimulatedSystem(rewarded(bad_late), walk).reveal()
    words = r"no plan with a finite J .* found: the reward is NaN .* cell \(3, 0\), at step 1"
    with pytest.raises(UserError, match=words):
        MirrorAscent(sweeps=1).solve(MoveFlow(flow, motion, flow.problem.actions.points(2)))
    with pytest.raises(UserError, match=words):
        plan(flow, motion, Table(), ascent=BPTT(steps=1), starts=1, random=True)


def steep(state, action, mu):
    """The derivative of the logarithm is infinite in empty cells, and so not that of the branch."""
    return state[0] - jnp.where(mu.here > 0, jnp.log(mu.here), 0.0)


def test_plans_whose_derivatives_are_not_finite_are_refused_although_j_is_finite():
    """Every step of mirror ascent would be undone, and its start be handed out as a plan."""
    start = {"initial": point_mass(SMALL, 0, 0), "noise": 0.1}
    system = SimulatedSystem(rewarded(steep, **start), walk)
    flow, motion = system.reveal()
    words = r"the reward has no finite derivative by mu .* use mufield.log_mass"
    with pytest.raises(UserError, match=words):
        MirrorAscent(sweeps=2).solve(MoveFlow(flow, motion, flow.problem.actions.points(2)))
    for planner in (MirrorPlanner(points=2, sweeps=2), GradientPlanner(Table(), steps=2)):
        with pytest.raises(UserError, match=words):
            learn(system, M3UCRL(flow.problem, planner=planner), episodes=1, progress=False)


def test_plans_say_that_rewards_overflow():
    large = 0.9 * float(jnp.finfo(jnp.result_type(float)).max)
    system = SimulatedSystem(rewarded(lambda state, action, mu: large), walk)
    flow, motion = system.reveal()
    with pytest.raises(UserError, match="sum of the rewards overflows"):
        MirrorAscent(sweeps=2).solve(MoveFlow(flow, motion, flow.problem.actions.points(2)))


def test_an_evaluation_names_the_function_that_is_to_blame():
    def broken(state, action, mu):
        return state + action + bad_late(state, action, mu)

    still = rewarded(lambda state, action, mu: 0.0)
    system = SimulatedSystem(still, broken)
    with pytest.raises(UserError, match=r"not finite: the motion is NaN .* \(3, 0\), at step 1"):
        system.evaluate(lambda state, mu, step: jnp.zeros(2))


def jammed(chance):
    """Trips whose chance is no probability where more than 60% of all agents are."""
    return Trips(lambda state, mu: jnp.where(mu.here > 0.6, chance, 0.2), np.eye(16))


def to_the_corner(state, action, mu):
    return -jnp.sum(state) - 0.01 * mu.here


@pytest.mark.parametrize("chance", [1.5, -0.5])
def test_a_chance_of_a_trip_that_is_none_later_is_named(chance):
    problem = walking_problem(SMALL, horizon=6, noise=0.1, trips=jammed(chance))
    system = SimulatedSystem(problem, walk)
    assert system.evaluate(lambda state, mu, step: jnp.zeros(2)).mass.min() >= 0
    words = rf"chance of a trip .* got {chance} in cell 0, .*at step [2-5]"
    for use in (system.evaluate, lambda policy: system.run(policy, jax.random.key(0))):
        with pytest.raises(UserError, match=words):
            use(lambda state, mu, step: -jnp.ones(2))


def test_no_plan_has_negative_mass():
    trips = jammed(1.5)
    problem = walking_problem(SMALL, horizon=6, noise=0.1, trips=trips).replace(
        reward=to_the_corner
    )
    system = SimulatedSystem(problem, walk)
    flow, motion = system.reveal()
    moves = MoveFlow(flow, motion, problem.actions.points(3))
    found = MirrorAscent(sweeps=60).solve(moves)
    mass = moves.rollout(found.weights).mass
    assert bool(jnp.all(mass >= 0))
    assert float(mass.max()) > 0.3  # it went where it could
    learner = M3UCRL(problem, planner=MirrorPlanner(points=3, sweeps=40))
    seen = []
    result = learn(
        system,
        learner,
        episodes=2,
        agents=5,
        progress=False,
        watch=lambda state, plan, episode, row: seen.append((plan, episode)),
    )
    for planned, episode in seen:
        assert bool(jnp.all(episode.mass >= 0))
        # A plan that would have made negative mass is none, and the note says why.
        possible = bool(jnp.all(planned.mass >= 0))
        assert possible or re.search(r"not finite.* chance of a trip .*at step", planned.note)
        assert not bool(jnp.any(planned.mass < 0))
    assert all(np.isfinite(row.value) for row in result.metrics)
    # From a start at which every plan is impossible, there is none.
    crowd = SimulatedSystem(problem, walk).reveal()[0].from_step(0, point_mass(SMALL, 0, 0))
    with pytest.raises(UserError, match=r"no plan .* chance of a trip .* in cell 0, .*at step 0"):
        MirrorAscent(sweeps=2).solve(MoveFlow(crowd, motion, problem.actions.points(3)))


TABLE = np.arange(16.0).reshape(4, 4)


def looks_up(state, action, mu):
    return TABLE[int(state[0]), 0]


def looks_up_cell(state, action, mu):
    return np.arange(16.0)[mu.grid.index_of(state)]


def branches(state, action, mu):
    return 1.0 if state[0] > 3 else 0.0


def counts(state, action, mu):
    return np.sqrt(np.asarray(state)).sum()


def too_few(state, action):
    return 0.0


@pytest.mark.parametrize(
    ("function", "remedy"),
    [
        (looks_up, r"x.astype\(int\) in place of int\(x\).* jnp.asarray\(table\)\[index\]"),
        (looks_up_cell, r"jnp.asarray\(table\)\[index\]"),
        (counts, r"use jax.numpy in place of numpy"),
        (branches, r"use jnp.where\(condition, one, other\) in place of if"),
        (too_few, r"called as function\(state, action, mu\)"),
    ],
)
def test_habits_of_numpy_are_answered_with_the_remedy(function, remedy):
    with pytest.raises(UserError, match=remedy) as caught:
        Problem(
            space=SMALL,
            actions=Box(-1.0, 1.0, dim=2),
            reward=function,
            horizon=2,
            initial=uniform(SMALL),
            noise=0.2,
            max_move=1.0,
        )
    if function is not too_few:
        assert "test_numbers.py" in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: walking_problem(
            SMALL, constraints=Constraint(lambda mass: 1.0 if mass[0] > 0.5 else 0.5)
        ),
        lambda: walking_problem(
            SMALL, trips=Trips(lambda state, mu: 1.0 if state[0] > 3 else 0.0, np.eye(16))
        ),
        lambda: Seen(lambda state, mu: state if state[0] > 3 else -state).size(SMALL),
    ],
)
def test_limits_chances_and_features_are_answered_in_the_same_words(make):
    with pytest.raises(UserError, match=r"use jnp.where\(condition, one, other\) in place of if"):
        make()


def test_a_policy_that_lacks_an_argument_is_told_which_there_are():
    system = SimulatedSystem(walking_problem(SMALL, horizon=2), walk)
    with pytest.raises(UserError, match=r"called as function\(state, mu, step\)"):
        system.evaluate(lambda state, mu: jnp.zeros(2))
