"""Scouts: tracked agents that follow another policy than the population."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import MIRROR, SureFamily, corridor

import mufield as mf
from mufield.episode import AbstractSystem
from mufield.finite.system import FiniteSystem

KEY = jax.random.key(0)
SYSTEM = corridor()


def go(state, mu, step):
    return jnp.ones(1)


def rest(state, mu, step):
    return jnp.zeros(1)


def test_scouts_go_their_way_in_the_population_of_others():
    alone, sent = SYSTEM.run(rest, KEY, agents=3), SYSTEM.run(rest, KEY, agents=3, scouts=go)
    np.testing.assert_array_equal(sent.mass, alone.mass)
    np.testing.assert_array_equal(sent.rewards, alone.rewards)
    assert np.all(np.asarray(alone.actions) == 0)
    assert np.all(np.asarray(sent.actions) == 1)


def test_in_a_finite_population_scouts_count():
    system = FiniteSystem.of(SYSTEM, 8)
    for scouts in (1, 3):
        found = system.run(rest, KEY, agents=scouts, scouts=go)
        np.testing.assert_allclose(jnp.sum(found.mass, axis=1), 1.0, rtol=1e-6)
        assert np.all(np.asarray(found.actions) == 1)
        ends = np.asarray(found.next_states)[:, -1, 0] // 1
        far = float(jnp.sum(found.mass[-1][3:]))  # noise leads nobody else there
        assert far == pytest.approx(np.sum(ends >= 3) / 8, abs=1e-6)


def test_everybody_a_scout_is_the_population():
    system = FiniteSystem.of(SYSTEM, 5)
    as_scouts, as_all = (
        system.run(one, KEY, agents=5, scouts=two) for one, two in ((rest, go), (go, None))
    )
    np.testing.assert_array_equal(as_scouts.mass, as_all.mass)
    np.testing.assert_array_equal(as_scouts.next_states, as_all.next_states)


@pytest.fixture(scope="module")
def learner():
    return mf.M3UCRL(SYSTEM.problem, SureFamily(), MIRROR, scouts=mf.Hallucinated())


def test_the_population_is_greedy_once_something_is_known_and_scouts_are_optimistic(learner):
    state = learner.init(KEY)
    plan = learner.ask(state)
    # Before the first data all follow the optimistic plan, scouts with many small random moves.
    small = 0.5 * np.array([0, 0.5, 0, 0.5, 0])
    np.testing.assert_allclose(
        plan.scouts.per_step.weights, 0.5 * plan.profile.per_step.weights + small, atol=0.02
    )
    episode = SYSTEM.run(plan.profile, KEY, agents=4)
    after = learner.tell(state, episode, plan)
    then = learner.ask(after)
    optimist = mf.M3UCRL(SYSTEM.problem, SureFamily(), MIRROR)
    known = (KEY, after.data, after.ends)
    bold = optimist.ask(optimist.restore(*known, after.memory[1], plan.profile))
    for one, two in zip(*map(jax.tree.leaves, (then.scouts, bold.profile)), strict=True):
        np.testing.assert_allclose(one, two, atol=1e-6)
    greedy = mf.M3UCRL(SYSTEM.problem, SureFamily(), MIRROR, optimism=mf.Greedy())
    alone = greedy.ask(greedy.restore(*known, after.memory[0], plan.profile))
    assert float(then.value) == pytest.approx(float(alone.value), rel=1e-5)
    anew = learner.replan(after, then, episode.mass[2], 2)
    assert anew.scouts is then.scouts


def test_learning_with_scouts_is_learning(learner):
    rows = mf.learn(SYSTEM, learner, episodes=2, agents=4, progress=False).metrics
    assert rows[1].value > float(SYSTEM.evaluate(rest).value) + 1.0
    assert rows[1].control == 0  # no hallucinated control in the population's plan


class Unaware(AbstractSystem):
    """A user's system that knows of no scouts."""

    problem: mf.Problem

    def run(self, policy, key, *, agents=1):
        raise AssertionError


def test_a_system_that_takes_no_scouts_is_refused(learner):
    with pytest.raises(mf.UserError, match="takes no argument scouts"):
        mf.learn(Unaware(SYSTEM.problem), learner, episodes=1, progress=False)
