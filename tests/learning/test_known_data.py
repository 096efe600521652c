"""Data at hand: rows of logs teach what the same rows of an episode teach, but are no episode."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import walking_problem
from small import MIRROR, SureFamily, corridor

from mufield import GaussianProcess, Grid, UserError, as_transitions, random_policy
from mufield.learning.diagnostics import measure
from mufield.learning.m3ucrl import M3UCRL
from mufield.learning.run import learn
from mufield.learning.state import Use
from mufield.models.base import predict_rows
from mufield.models.data import Transitions

pytestmark = pytest.mark.slow

KEY = jax.random.key(3)
GP = GaussianProcess(fit_kernel=False)


@pytest.fixture(scope="module")
def learner():
    return M3UCRL(corridor().problem, GP, MIRROR)


@pytest.fixture(scope="module")
def episode():
    return corridor().run(random_policy(corridor().problem), jax.random.key(0), agents=12)


@pytest.fixture(scope="module")
def told(learner, episode):
    return learner.tell(learner.init(KEY), episode)


def loose(episode, order=None, **changes):
    """The episode's rows as a log, in any order."""
    agents, steps = episode.states.shape[:2]
    order = np.arange(agents * steps) if order is None else order
    rows = {
        name: np.asarray(getattr(episode, name)).reshape(agents * steps, -1)[order]
        for name in ("states", "actions", "next_states")
    }
    given = rows | {"mass": episode.mass, "moment": np.tile(np.arange(steps), agents)[order]}
    return as_transitions(corridor().problem, **given | changes)


def same_model(one, other, data, atol=1e-9):
    ours, theirs = (predict_rows(state.model, data) for state in (one, other))
    np.testing.assert_allclose(ours.error, theirs.error, atol=atol)
    np.testing.assert_allclose(ours.epistemic, theirs.epistemic, atol=atol)
    assert not np.allclose(ours.epistemic, predict_rows(GP.fit(data.first(0), KEY), data).epistemic)


def test_rows_of_a_log_teach_what_an_episode_teaches(learner, episode, told):
    known = learner.init(KEY, loose(episode))
    assert (known.episode, len(known.data)) == (0, 48)
    same_model(known, told, told.data, atol=0)
    added = learner.add(learner.init(KEY), loose(episode))
    assert (added.episode, len(added.data)) == (0, 48)
    same_model(added, told, told.data, atol=0)


def test_the_order_of_rows_does_not_matter(learner, episode, told):
    order = np.random.default_rng(0).permutation(48)
    # Not to the last digit: the points that the posterior goes through are chosen in another order.
    same_model(learner.init(KEY, loose(episode, order)), told, told.data, atol=1e-4)


def test_data_may_come_between_episodes_and_count_as_none(learner, episode, told):
    more = corridor().run(random_policy(corridor().problem), jax.random.key(1), agents=3)
    state = learner.add(told, loose(more))
    assert (state.episode, state.ends, len(state.data)) == (1, (48,), 60)
    assert state.key_for(Use.FIT) == told.key_for(Use.FIT)
    twice = learner.tell(told, more)
    same_model(state, twice, twice.data, atol=0)
    back = learner.restore(KEY, state.data, state.ends, state.memory, state.profile)
    same_model(back, state, state.data, atol=0)


def test_restored_without_episodes_a_learner_keeps_its_data(learner, episode, told):
    state = learner.restore(KEY, told.data, (), None, None)
    assert len(state.data) == 48
    same_model(state, told, told.data, atol=0)
    assert np.isfinite(float(learner.ask(state).value))


def test_the_figures_of_an_episode_are_not_those_of_the_log(learner, episode):
    state = learner.init(KEY, loose(episode))
    plan = learner.ask(state)
    run = corridor().run(plan.profile, jax.random.key(5), agents=2)
    row = measure(state, plan, run)
    assert (row.episode, row.transitions) == (1, 48)
    result = learn(corridor(), learner, episodes=1, data=loose(episode), progress=False)
    assert (result.metrics[0].transitions, len(result.state.data)) == (48, 52)


def test_moves_that_were_not_seen_are_left_out_and_said(learner, episode, told):
    present = jnp.ones((12, 4), bool).at[2, 1:].set(False).at[7, 0].set(False)
    holes = jnp.where(present[..., None], episode.states, jnp.nan)
    part = dataclasses.replace(episode, states=holes, present=present)
    state = learner.tell(learner.init(KEY), part)
    assert len(state.data) == 44
    kept = told.data.rows(np.flatnonzero(np.asarray(present).reshape(-1)))
    same_model(state, learner.init(KEY, kept), kept, atol=0)
    plan = learner.ask(learner.init(KEY))
    notes = measure(learner.init(KEY), plan, part).notes
    assert "4 of 48 moves of tracked agents were not seen, by 2 of 12 agents" in notes
    with pytest.raises(UserError, match="no agent is present"):
        learner.tell(told, dataclasses.replace(episode, present=jnp.zeros((12, 4), bool)))
    with pytest.raises(
        UserError, match="states must be finite, but is NaN or infinite at agent 2, step 1"
    ):
        learner.tell(told, dataclasses.replace(part, present=None))


def test_rows_alone_tell_where_walls_stopped_agents(episode):
    stopped = np.asarray(episode.stopped).reshape(-1, 1)
    np.testing.assert_array_equal(loose(episode).observed, ~stopped)
    assert stopped.any()


def test_the_population_is_given_or_made_from_rows_or_unknown(episode):
    problem = corridor().problem
    made = loose(episode, mass=None)
    first = np.bincount(problem.grid.index_of(np.asarray(episode.states[:, 2])), minlength=6) / 12
    np.testing.assert_allclose(made.mass[made.moment[2]], first)
    even = loose(episode, mass="unknown", moment=None)
    np.testing.assert_allclose(even.mass[even.moment], 1 / 6)
    one = loose(episode, mass=episode.mass[1], moment=None)
    np.testing.assert_allclose(one.mass[one.moment[9]], episode.mass[1])
    each = loose(episode, mass=made.mass[made.moment], moment=None)
    np.testing.assert_allclose(each.mass[each.moment], made.mass[made.moment])
    with pytest.raises(UserError, match="nothing says how the population was spread"):
        loose(episode, mass=None, moment=None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"states": np.full((48, 1), 7.0)}, "row 0 of states: expected a position between 0.0"),
        ({"states": np.full((48, 1), np.nan)}, "row 0 of states holds NaN"),
        ({"states": np.zeros((48, 2))}, r"states must have the shape \(rows, 1\), got \(48, 2\)"),
        ({"actions": np.zeros((47, 1))}, r"actions must have the shape \(48, 1\), got \(47, 1\)"),
        ({"actions": np.full((48, 1), 2.0)}, "row 0 of actions: the action .* is outside"),
        ({"next_states": np.full((48, 1), 5.9)}, "of next_states: the agent moved by"),
        ({"moment": np.full(48, 9)}, "row 0 of moment must be a row of mass, from 0 to 4, got 9"),
        ({"moment": np.zeros(3)}, "moment needs an entry for each of 48 rows"),
        ({"mass": np.ones((5, 6))}, "each row of mass must sum to 1, but sums to 6 at index 0"),
        ({"mass": np.ones((5, 7)) / 7}, "mass must have one entry for each of the 6 cells"),
        ({"mass": "even"}, "must be distributions or 'unknown', got 'even'"),
    ],
)
def test_wrong_rows_are_named(episode, changes, message):
    with pytest.raises(UserError, match=message):
        loose(episode, **changes)


def test_data_of_another_problem_are_refused(learner):
    elsewhere = walking_problem(Grid.box(0.0, 5.0, 5))
    with pytest.raises(UserError, match="of a problem with another grid"):
        learner.init(KEY, Transitions.empty(elsewhere))


def test_a_fit_that_fails_goes_back_to_the_data_before(episode):
    learner = M3UCRL(corridor().problem, SureFamily(fails_from=60), MIRROR)
    state = learner.add(learner.tell(learner.init(KEY), episode), loose(episode))
    assert "fit to 96 transitions is not finite; going on with that to the first 48" in str(
        state.notes
    )
