"""Within a day: the rest of an episode, planned anew from where the population is."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import walking_problem
from small import MIRROR, NETWORK, SureFamily, corridor

import mufield as mf
from mufield.finite.system import FiniteSystem
from mufield.interfaces import HiddenReward
from mufield.policies.tables import switched_at

KEY = jax.random.key(0)
HORIZON = 6


def taxis(**changes):
    """Six cells in which reward, trips and motion all depend on the time of day."""
    grid = mf.Grid.box(0.0, 6.0, 6)
    rng = np.random.default_rng(0)
    demand = jnp.asarray(rng.dirichlet(np.ones(6), size=HORIZON))

    def served(state, mu):
        here = demand[jnp.minimum(mu.step, HORIZON - 1), grid.index_of(state)]
        return jnp.minimum(0.9, 0.5 * here / jnp.maximum(mu.here, 1e-9))

    options = {
        "space": grid,
        "actions": mf.Box(-1.0, 1.0),
        "reward": lambda state, action, mu: (
            served(state, mu) * (1 + mu.step) - 0.1 * action[0] ** 2
        ),
        "horizon": HORIZON,
        "initial": mf.point_mass(grid, 0),
        "noise": 0.3,
        "max_move": 1.0,
        "pay_end": True,
        "trips": mf.fleet.Trips(served, rng.dirichlet(np.ones(6), size=(HORIZON, 6))),
    }
    problem = mf.Problem(**(options | changes))
    return mf.SimulatedSystem(problem, lambda s, a, mu: s + a * (1.0 - 0.1 * mu.step))


def assert_rest(system, whole, rest, step):
    found = system.from_step(step, whole.mass[step]).evaluate(rest)
    np.testing.assert_allclose(found.rewards[step:], whole.rewards[step:], atol=1e-6)
    np.testing.assert_allclose(found.mass[step:], whole.mass[step:], atol=1e-6)
    # Before that nothing happens.
    np.testing.assert_array_equal(found.rewards[:step], 0.0)
    np.testing.assert_array_equal(found.mass[:step], np.tile(found.mass[step], (step, 1)))
    np.testing.assert_allclose(found.value, jnp.sum(whole.rewards[step:]), atol=1e-5)


def test_the_rest_of_an_episode_pays_the_true_reward_where_it_is_hidden():
    seen = taxis()
    problem = seen.problem.replace(reward=HiddenReward())
    hidden = mf.SimulatedSystem(problem, seen.reveal()[1], reward=seen.problem.reward)
    rest = [each.from_step(2, seen.problem.initial).evaluate(still) for each in (seen, hidden)]
    np.testing.assert_allclose(rest[1].rewards, rest[0].rewards, atol=1e-6)


def still(state, mu, step):
    return jnp.zeros(1)


def test_the_rest_of_an_episode_is_its_rest():
    system, step = taxis(), 2
    flow, motion = system.reveal()
    by_clock = lambda state, mu, step: jnp.full(1, 0.1) * step  # noqa: E731
    assert_rest(system, system.evaluate(by_clock), by_clock, step)
    rest = system.problem.from_step(step, system.problem.initial)
    assert (int(rest.first), rest.horizon) == (step, HORIZON)
    assert rest.begun.tolist() == [False] * step + [True] * (HORIZON - step)
    last = rest.from_step(HORIZON - 1, rest.initial)
    assert last.begun.tolist() == [False] * (HORIZON - 1) + [True]
    assert last.from_step(0, rest.initial).first is None
    # Planning and its sweeps see the same clock as the flow.
    moves = mf.MoveFlow(flow.from_step(step, mf.uniform(rest.grid)), motion, rest.actions.points(3))
    planned = mf.MirrorAscent(sweeps=10).solve(moves)
    again = system.from_step(step, mf.uniform(rest.grid)).evaluate(planned.profile)
    np.testing.assert_allclose(planned.value, again.value, rtol=1e-4)


@pytest.mark.nightly
def test_certificates_of_a_rest_see_the_clock():
    grid = mf.Grid.box(0.0, 6.0, 6)
    system = taxis(
        reward=lambda state, action, mu: -mf.log_mass(mu.here) + mu.step * state[0],
        trips=None,
        initial=mf.uniform(grid),
    )
    flow, motion = system.reveal()
    by_clock = lambda state, mu, step: jnp.full(1, 0.3) * (step - 2)  # noqa: E731
    whole = system.evaluate(by_clock)
    moves = system.problem.actions.points(3)
    for step in (0, 2, 4):
        rest = flow.from_step(step, whole.mass[step])
        found = mf.certify(rest, motion, by_clock, moves)
        assert found.value == pytest.approx(float(jnp.sum(whole.rewards[step:])), rel=1e-6)
        best = mf.MirrorAscent(sweeps=60).solve(mf.MoveFlow(rest, motion, moves))
        assert found.value <= float(best.value) <= found.upper + 1e-6


def test_many_agents_keep_the_clock():
    system = taxis(reward=lambda state, action, mu: 1.0 * mu.step, pay_end=False)
    rest = system.from_step(3, mf.uniform(system.problem.grid))
    few = FiniteSystem.of(rest, 50)
    policy = mf.random_policy(rest.problem)
    assert few.evaluate(policy, KEY).rewards.tolist() == [[0.0, 0.0, 0.0, 3.0, 4.0, 5.0]]
    episode = rest.run(policy, KEY, agents=2)
    assert episode.states.shape == (2, HORIZON, 1)
    assert episode.present.tolist() == [[False] * 3 + [True] * 3] * 2
    # Only what happened is learned from.
    assert len(mf.models.Transitions.of(rest.problem, [episode])) == int(
        (~episode.carried[:, 3:]).sum()
    )


@pytest.mark.parametrize("step", [-1, HORIZON, True])
def test_a_rest_needs_a_step_of_the_episode(step):
    problem = taxis().problem
    with pytest.raises(mf.UserError, match=r"the rest (of an episode|begins at a step)"):
        problem.from_step(step, problem.initial)


def test_limits_keep_their_steps():
    grid = mf.Grid.box(0.0, 6.0, 6)
    late = mf.constraints.mass_at_most(grid, [(5,)], 0.5, name="late", steps=(5, 6))
    early = mf.constraints.mass_at_most(grid, [(4,)], 0.5, name="early", steps=(1,))
    problem = taxis(constraints=(late, early)).problem
    rest = problem.from_step(3, mf.uniform(grid))
    assert rest.constraints.active(rest.begun).T.tolist() == [[False] * 4 + [True] * 2, [False] * 6]


@pytest.mark.parametrize("kinds", ["same", "networks", "rows"])
def test_policies_of_all_kinds_follow_each_other(kinds):
    system = taxis()
    problem = system.problem
    grid = problem.grid
    weights = jax.random.dirichlet(KEY, jnp.ones(3), (HORIZON, grid.n_cells))
    table = mf.Profile.stacked(mf.TablePolicy.mixing(problem.actions.points(3), weights), HORIZON)
    other = {
        "same": lambda: eqx.tree_at(lambda p: p.per_step.weights, table, weights[::-1]),
        "networks": lambda: mf.policies.network_profile(problem, KEY, width=4, depth=1),
        "rows": lambda: mf.Profile.stationary(
            mf.TablePolicy.deterministic(jnp.linspace(-1, 1, 6)[:, None]), HORIZON
        ),
    }[kinds]()
    early, late = (other, table) if kinds == "rows" else (table, other)
    before = system.evaluate(early)
    after = system.from_step(2, before.mass[2]).evaluate(late)
    seen = jnp.concatenate([before.mass[:2], after.mass[2:]])
    both = switched_at(grid, 2, early, late, seen[:-1])
    assert (both.horizon, type(both.at(0))) == (HORIZON, mf.TablePolicy)
    whole = system.evaluate(both)
    np.testing.assert_allclose(whole.mass, seen, atol=1e-6)
    np.testing.assert_allclose(whole.rewards[:2], before.rewards[:2], atol=1e-6)
    np.testing.assert_allclose(whole.rewards[2:], after.rewards[2:], atol=1e-6)


@pytest.mark.nightly
@pytest.mark.parametrize("planner", [MIRROR, pytest.param(NETWORK, marks=pytest.mark.slow)])
def test_a_plan_from_elsewhere_is_better_there(planner):
    system = corridor()
    problem, cells = system.problem, system.problem.grid.n_cells
    learner = mf.M3UCRL(problem, SureFamily(spread=0.01), planner)
    state = learner.init(KEY)
    plan = learner.ask(state)
    moved = jnp.zeros(cells).at[-1].set(1.0)  # nobody expected agents there
    fresh = learner.replan(state, plan, moved, 2)
    rest = system.from_step(2, moved)
    kept = float(rest.evaluate(plan.profile).value)
    assert float(rest.evaluate(fresh.profile).value) > kept
    np.testing.assert_array_equal(fresh.mass[:2], plan.mass[:2])
    np.testing.assert_allclose(fresh.mass[2], moved)
    early, late = system.evaluate(plan.profile), system.evaluate(fresh.profile)
    np.testing.assert_allclose(early.mass[:3], late.mass[:3], atol=1e-6)
    # The same answer again, and the episode is told with it.
    again = learner.replan(state, plan, moved, 2)
    assert eqx.tree_equal(again.profile, fresh.profile)
    assert eqx.tree_equal(plan.memory, fresh.memory)
    after = learner.tell(state, system.run(fresh.profile, KEY, agents=2), fresh)
    assert len(after.data) == 8
    assert learner.ask(after).profile.horizon == 4


def test_a_second_step_compiles_nothing_new():
    problem = corridor().problem
    learner = mf.M3UCRL(problem, SureFamily(spread=0.01), MIRROR)
    state = learner.init(KEY)
    plan = learner.ask(state)
    moved = [mf.point_mass(problem.grid, cell) for cell in (2, 4)]
    compiled = []

    def listen(event, duration, **details):
        if event.startswith("/jax/core/compile"):
            compiled.append(details.get("fun_name", event))

    learner.replan(state, plan, moved[0], 1)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        fresh = learner.replan(state, plan, moved[1], 2)
        assert compiled == []
        jax.jit(lambda x: x + 1.0)(jnp.ones(3))  # else nothing would have been heard
        assert compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    np.testing.assert_allclose(fresh.mass[2], moved[1])


@pytest.mark.slow
def test_a_learner_is_the_dispatcher_of_n_agents():
    system = corridor()
    learner = mf.M3UCRL(system.problem, SureFamily(spread=0.01), MIRROR)
    state = learner.init(KEY)
    plan = learner.ask(state)
    moved = jnp.zeros(system.problem.grid.n_cells).at[-1].set(1.0)  # nobody expected agents there
    few = FiniteSystem.of(system.from_step(0, moved), 50)
    seen = few.evaluate(
        plan.profile,
        KEY,
        replan=lambda step, mu, profile: learner.replan(state, plan, mu, step).profile,
    )
    assert float(seen.values[0]) > float(few.evaluate(plan.profile, KEY).values[0])


def test_the_problem_of_today():
    system = corridor()
    problem = system.problem
    learner = mf.M3UCRL(problem, SureFamily(spread=0.01), MIRROR)
    state = learner.init(KEY)
    plan = learner.ask(state)
    other = problem.replace(reward=lambda state, action, mu: -state[0])
    here = mf.uniform(problem.grid)
    usual = learner.replan(state, plan, here, 1)
    turned = learner.replan(state, plan, here, 1, problem=other)
    ends = [float(each.mass[-1] @ problem.grid.centres[:, 0]) for each in (usual, turned)]
    assert ends[1] < ends[0] - 1.0
    with pytest.raises(mf.UserError, match="must have the horizon of the learner's, 4, got 3"):
        learner.replan(state, plan, here, 1, problem=corridor_of(3))
    with pytest.raises(mf.UserError, match="the distribution at the start must sum to 1"):
        learner.replan(state, plan, 0.5 * here, 1)


def corridor_of(horizon):
    initial = corridor().problem.initial
    return walking_problem(corridor().problem.grid, horizon=horizon, initial=initial, pay_end=True)


def test_limits_hold_in_the_rest_of_a_day():
    grid = mf.Grid.box(0.0, 6.0, 6)
    base = corridor().problem
    problem = mf.Problem(
        space=grid,
        actions=base.actions,
        reward=lambda state, action, mu: state[0],
        horizon=4,
        initial=base.initial,
        noise=base.noise,
        max_move=base.max_move,
        constraints=mf.constraints.mass_at_most(grid, [(5,)], 0.4),
    )
    learner = mf.M3UCRL(problem, SureFamily(spread=0.01), MIRROR)
    state = learner.init(KEY)
    plan = learner.ask(state)
    fresh = learner.replan(state, plan, mf.point_mass(grid, 3), 1)
    assert fresh.margins.shape == plan.margins.shape == (4, 1)
    assert float(jnp.min(fresh.margins[1:])) >= -1e-3
    assert float(fresh.mass[-2, 5]) > 0.2  # the last distribution that is paid
