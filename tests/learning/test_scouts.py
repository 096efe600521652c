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


def test_as_long_as_nothing_is_known_the_population_rests_and_scouts_explore(learner):
    state = learner.init(KEY)
    plan = learner.ask(state)
    assert "rest" in plan.note
    assert float(SYSTEM.evaluate(plan.profile).value) == pytest.approx(
        float(SYSTEM.evaluate(rest).value)
    )
    episode = SYSTEM.run(plan.profile, KEY, agents=4, scouts=plan.scouts)
    assert np.any(np.asarray(episode.actions) != 0)
    after = learner.tell(state, episode, plan)
    then = learner.ask(after)
    greedy = mf.M3UCRL(SYSTEM.problem, SureFamily(), MIRROR, optimism=mf.Greedy())
    alone = greedy.ask(greedy.restore(KEY, after.data, after.ends, after.memory[0], plan.profile))
    assert float(then.value) == pytest.approx(float(alone.value), rel=1e-5)
    anew = learner.replan(after, then, episode.mass[2], 2)
    assert anew.scouts is then.scouts


def test_learning_with_scouts_is_learning(learner):
    rows = mf.learn(SYSTEM, learner, episodes=2, agents=4, progress=False).metrics
    still = float(SYSTEM.evaluate(rest).value)
    assert rows[0].value == pytest.approx(still)
    assert rows[1].value > still + 1.0


class Unaware(AbstractSystem):
    """A user's system that knows of no scouts."""

    problem: mf.Problem

    def run(self, policy, key, *, agents=1):
        raise AssertionError


def test_a_system_that_takes_no_scouts_is_refused(learner):
    with pytest.raises(mf.UserError, match="takes no argument scouts"):
        mf.learn(Unaware(SYSTEM.problem), learner, episodes=1, progress=False)
