"""Within a day: the rest of an episode, planned anew from where the population is."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import MIRROR, NETWORK, SureFamily, corridor

import mufield as mf
from mufield.finite.system import FiniteSystem
from mufield.policies.joined import followed_by

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
        "grid": grid,
        "actions": mf.Box(-1.0, 1.0),
        "reward": lambda state, action, mu: (
            served(state, mu) * (1 + mu.step) - 0.1 * action[0] ** 2
        ),
        "horizon": HORIZON,
        "initial": mf.point_mass(grid, 0),
        "noise": 0.3,
        "max_move": 1.0,
        "pay_end": True,
        "trips": mf.Trips(served, rng.dirichlet(np.ones(6), size=(HORIZON, 6))),
    }
    problem = mf.Problem(**(options | changes))
    return mf.SimulatedSystem(problem, lambda s, a, mu: s + a * (1.0 - 0.1 * mu.step))


def assert_rest(system, whole, rest, step):
    found = system.from_step(step, whole.mass[step]).evaluate(rest)
    np.testing.assert_allclose(found.rewards, whole.rewards[step:], atol=1e-6)
    np.testing.assert_allclose(found.mass, whole.mass[step:], atol=1e-6)


def test_the_rest_of_an_episode_is_its_rest():
    system, step = taxis(), 2
    flow, motion = system.reveal()
    by_clock = lambda state, mu, step: jnp.full(1, 0.1) * step  # noqa: E731
    assert_rest(system, system.evaluate(by_clock), by_clock, step)
    rest = system.problem.from_step(step, system.problem.initial)
    assert (rest.first, rest.horizon, rest.end) == (step, HORIZON - step, HORIZON)
    assert rest.from_step(HORIZON - 1, rest.initial).steps.tolist() == [HORIZON - 1]
    # Planning and its sweeps see the same clock as the flow.
    moves = mf.MoveFlow(flow.from_step(step, mf.uniform(rest.grid)), motion, rest.actions.points(3))
    planned = mf.MirrorAscent(sweeps=10).solve(moves)
    again = system.from_step(step, mf.uniform(rest.grid)).evaluate(planned.profile)
    np.testing.assert_allclose(planned.value, again.value, rtol=1e-4)


def test_many_agents_keep_the_clock():
    system = taxis(reward=lambda state, action, mu: 1.0 * mu.step, pay_end=False)
    rest = system.from_step(3, mf.uniform(system.problem.grid))
    few = FiniteSystem.of(rest, 50, lost=0.1)
    policy = mf.random_policy(rest.problem)
    assert few.evaluate(policy, KEY).rewards.tolist() == [[3.0, 4.0, 5.0]]
    episode = rest.run(policy, KEY, agents=2)
    assert episode.states.shape == (2, 3, 1)


@pytest.mark.parametrize("step", [-1, HORIZON, True])
def test_a_rest_needs_a_step_of_the_episode(step):
    problem = taxis().problem
    with pytest.raises(mf.UserError, match="begins at a step from 0 to 5"):
        problem.from_step(step, problem.initial)


def test_limits_keep_their_steps():
    grid = mf.Grid.box(0.0, 6.0, 6)
    late = mf.mass_at_most(grid, [(5,)], 0.5, name="late", steps=(5, 6))
    early = mf.mass_at_most(grid, [(4,)], 0.5, name="early", steps=(1,))
    problem = taxis(constraints=(late, early)).problem
    rest = problem.from_step(3, mf.uniform(grid))
    assert rest.constraints.active.T.tolist() == [[False, True, True], [False] * 3]


@pytest.mark.parametrize("kinds", ["same", "networks", "rows"])
def test_policies_of_all_kinds_follow_each_other(kinds):
    system = taxis()
    problem = system.problem
    grid = problem.grid
    weights = jax.random.dirichlet(KEY, jnp.ones(3), (HORIZON, grid.n_cells))
    table = mf.Profile.stacked(mf.TablePolicy.mixing(problem.actions.points(3), weights), HORIZON)
    other = {
        "same": lambda: eqx.tree_at(lambda p: p.per_step.weights, table, weights[::-1]),
        "networks": lambda: mf.network_profile(problem, KEY, width=4, depth=1),
        "rows": lambda: mf.Profile.stationary(
            mf.TablePolicy.deterministic(jnp.linspace(-1, 1, 6)[:, None]), HORIZON
        ),
    }[kinds]()
    early, late = (other, table) if kinds == "rows" else (table, other)
    before = system.evaluate(early)
    after = system.from_step(2, before.mass[2]).evaluate(late.from_step(2))
    seen = jnp.concatenate([before.mass[:2], after.mass])
    both = followed_by(grid, early.until(2), late.from_step(2), seen[:-1])
    assert (both.horizon, type(both.at(0))) == (HORIZON, mf.TablePolicy)
    whole = system.evaluate(both)
    np.testing.assert_allclose(whole.mass, seen, atol=1e-6)
    np.testing.assert_allclose(whole.rewards[:2], before.rewards[:2], atol=1e-6)
    np.testing.assert_allclose(whole.rewards[2:], after.rewards, atol=1e-6)


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
    kept = float(rest.evaluate(plan.profile.from_step(2)).value)
    assert float(rest.evaluate(fresh.profile.from_step(2)).value) > kept
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


@pytest.mark.slow
def test_a_learner_is_the_dispatcher_of_n_agents():
    system = corridor()
    learner = mf.M3UCRL(system.problem, SureFamily(spread=0.01), MIRROR)
    state = learner.init(KEY)
    plan = learner.ask(state)
    moved = jnp.zeros(system.problem.grid.n_cells).at[-1].set(1.0)  # nobody expected agents there
    few = FiniteSystem.of(system.starting_from(moved), 50)
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
    other = problem.with_reward(lambda state, action, mu: -state[0])
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
    problem = corridor().problem
    return problem.from_step(problem.horizon - horizon, problem.initial)


def test_limits_hold_in_the_rest_of_a_day():
    grid = mf.Grid.box(0.0, 6.0, 6)
    base = corridor().problem
    problem = mf.Problem(
        grid=grid,
        actions=base.actions,
        reward=lambda state, action, mu: state[0],
        horizon=4,
        initial=base.initial,
        noise=base.noise,
        max_move=base.max_move,
        constraints=mf.mass_at_most(grid, [(5,)], 0.4),
    )
    learner = mf.M3UCRL(problem, SureFamily(spread=0.01), MIRROR)
    state = learner.init(KEY)
    plan = learner.ask(state)
    fresh = learner.replan(state, plan, mf.point_mass(grid, 3), 1)
    assert fresh.least.shape == plan.least.shape == (4, 1)
    assert float(jnp.min(fresh.least[1:])) >= -1e-3
    assert float(fresh.mass[-1, 5]) > 0.2
