"""Episodes that start where the population is today."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fleet import rows_of, write
from small import FAMILY, MIRROR, corridor

import mufield as mf
from mufield.io.checks import Asked
from mufield.io.episode import read_episode
from mufield.io.log import read_log

KEY = jax.random.key(0)


def test_a_plan_from_today_is_for_today():
    system = corridor()
    problem, cells = system.problem, system.problem.grid.n_cells
    learner = mf.M3UCRL(problem, FAMILY, MIRROR, optimism=mf.Greedy())
    state = learner.init(KEY)
    for number in range(2):
        plan = learner.ask(state)
        episode = system.run(plan.profile, jax.random.key(number), agents=10)
        state = learner.tell(state, episode, plan)
    today = jnp.zeros(cells).at[-1].set(1.0)
    usual, fresh = learner.ask(state), learner.ask(state, initial=today)
    np.testing.assert_allclose(usual.mass[0], problem.initial)
    np.testing.assert_allclose(fresh.mass[0], today)
    there = system.from_step(0, today)
    assert float(there.evaluate(fresh.profile).value) > float(there.evaluate(usual.profile).value)
    # What is learned there is learned.
    episode = there.run(fresh.profile, KEY, agents=3)
    np.testing.assert_allclose(episode.mass[0], today)
    assert problem.grid.index_of(np.asarray(episode.states[:, 0])).tolist() == [cells - 1] * 3
    after = learner.tell(state, episode, fresh)
    assert len(after.data) == len(state.data) + 12
    with pytest.raises(mf.UserError, match="the distribution at the start must sum to 1"):
        learner.ask(state, initial=0.5 * today)


def test_files_say_who_was_carried(tmp_path):
    grid = mf.Grid.box(0.0, 6.0, 6)
    problem = mf.Problem(
        space=grid,
        actions=mf.Box(-1.0, 1.0),
        reward=lambda state, action, mu: state[0],
        horizon=3,
        initial=mf.uniform(grid),
        noise=0.1,
        max_move=1.0,
        trips=mf.fleet.Trips(lambda state, mu: 0.5, np.roll(np.eye(6), 3, axis=1)),
    )
    system = mf.SimulatedSystem(problem, lambda s, a, mu: s + a)
    profile = mf.as_profile(mf.random_policy(problem), 3)
    episode = system.run(profile, KEY, agents=30)
    rows = rows_of(episode)
    asked = Asked(problem, profile, run="abc", episode=1, policy="def")
    with pytest.raises(mf.UserError, match="expected a column carried"):
        read_episode(write(tmp_path / "e.csv", rows), asked)
    for row in rows:
        row["carried"] = int(episode.carried[int(row["agent"]), int(row["step"])])
    path = write(tmp_path / "e.csv", rows)
    found = read_episode(path, asked)
    np.testing.assert_array_equal(found.carried, episode.carried)
    logged = read_log(path, problem).data
    data = mf.models.Transitions.of(problem, [found])
    assert len(logged) == len(data) == int((~episode.carried).sum())
    assert sorted(logged.step.tolist()) == sorted(data.step.tolist())
