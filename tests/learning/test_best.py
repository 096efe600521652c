"""The policy to use: what is expected of it, how sure that is, and what it earns."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import FAMILY, MIRROR, NETWORK, TABLE, Sure, SureFamily, corridor, sure

from mufield import (
    Flow,
    GaussianProcess,
    Greedy,
    MirrorPlanner,
    Profile,
    TablePolicy,
    Thompson,
    UserError,
    as_profile,
    random_policy,
)
from mufield.learning.best import Forecast
from mufield.learning.m3ucrl import M3UCRL
from mufield.learning.optimism import MeanMotion, draw_width
from mufield.learning.run import learn
from mufield.learning.state import Use

pytestmark = pytest.mark.slow

KEY = jax.random.key(3)
PROBLEM = corridor().problem
RANDOM = as_profile(random_policy(PROBLEM), PROBLEM.horizon)


@eqx.filter_jit
def earned(profile, motion):
    return Flow(PROBLEM).value(profile, motion)


@eqx.filter_jit
def under_mean(profile, model):
    return earned(profile, MeanMotion(model, PROBLEM.max_move))


@pytest.fixture(scope="module")
def unsure():
    """A learner that takes agents to be slower than they are, and says so; it has one episode."""
    learner = M3UCRL(PROBLEM, SureFamily(gain=0.7, spread=0.2), MIRROR)
    return learner, after_an_episode(learner)


def after_an_episode(learner):
    """With a random policy, so that no optimistic plan need be compiled."""
    state = learner.tell(learner.init(KEY), corridor().run(RANDOM, KEY))
    return eqx.tree_at(lambda s: s.profile, state, RANDOM, is_leaf=lambda x: x is None)


@pytest.mark.parametrize("planner", [MIRROR, TABLE, NETWORK])
def test_what_is_expected_is_j_under_the_mean(planner):
    learner = M3UCRL(PROBLEM, SureFamily(gain=0.7), planner)
    state = after_an_episode(learner)
    best = learner.best(state, draws=3)
    assert best.expected == pytest.approx(float(under_mean(best.profile, state.model)), rel=1e-9)
    assert best.lower < best.expected < best.upper
    assert best.expected - best.lower == pytest.approx(best.upper - best.expected)
    # Agents' own actions alone: the system refuses others.
    assert np.isfinite(float(corridor().evaluate(best.profile).value))
    assert best.transitions == len(state.data) == 4
    # The last policy is a candidate.
    assert best.expected >= float(under_mean(state.profile, state.model)) - 1e-9


def test_it_is_a_function_of_the_state_and_changes_nothing(unsure):
    learner, state = unsure
    first = learner.best(state)
    asked = learner.ask(state)
    assert eqx.tree_equal(first, learner.best(state))
    assert eqx.tree_equal(asked, learner.ask(state))


def test_a_restored_learner_recommends_the_same():
    learner = M3UCRL(PROBLEM, FAMILY, MIRROR)
    state = after_an_episode(learner)
    back = learner.restore(KEY, state.data, state.ends, state.memory, state.profile)
    assert eqx.tree_equal(learner.best(back), learner.best(state))


def test_the_interval_is_as_wide_as_the_doubt(unsure):
    learner, state = unsure
    widths = []
    for spread in (0.0, 0.05, 0.2):
        model = sure(0.7, spread)
        best = learner.best(eqx.tree_at(lambda s: s.model, state, model))
        widths.append(best.upper - best.lower)
    assert widths[0] == pytest.approx(0.0, abs=1e-9)
    assert widths[0] < widths[1] < widths[2]
    # A model that widens its band widens the interval.
    wide = eqx.tree_at(lambda s: s.model, state, sure(0.7, 0.05, beta=6.0))
    best = learner.best(wide)
    assert best.upper - best.lower > 1.5 * widths[1]


def test_the_interval_holds_what_the_policy_earns_if_the_model_is_right(unsure):
    learner, state = unsure
    best = learner.best(state)
    shifts = jax.random.normal(jax.random.key(8), (60, 1), PROBLEM.initial.dtype)

    @jax.vmap
    def truth(shift):
        def motion(s, a, mu):
            return PROBLEM.grid.cut(s, s + 0.7 * a + 0.2 * shift, PROBLEM.max_move)

        return earned(best.profile, motion)

    values = np.asarray(truth(shifts))
    inside = (best.lower <= values) & (values <= best.upper)
    assert inside.mean() >= 0.85
    # And it is not wide for nothing: that of a model that is too sure holds far less.
    sure_of_it = learner.best(eqx.tree_at(lambda s: s.model.spread, state, jnp.asarray(0.02)))
    inside = (sure_of_it.lower <= values) & (values <= sure_of_it.upper)
    assert inside.mean() < 0.6


class Slowed(Sure):
    """Crowds slow agents down, as much as the mass of their cell says."""

    def predict(self, state, action, mu):
        slower = eqx.tree_at(lambda m: m.gain, self, self.gain * (1 - 0.5 * mu.here))
        return Sure.predict(slower, state, action, mu)


@pytest.mark.nightly
def test_models_that_see_mu_give_nearly_the_same_interval_for_any_form_of_a_policy(unsure):
    learner, state = unsure
    slowed = eqx.tree_at(lambda s: s.model, state, Slowed(*map(jnp.asarray, (2.0, 0.9, 0.2))))
    best = learner.best(slowed)
    assert best.expected == pytest.approx(float(under_mean(best.profile, slowed.model)), rel=1e-9)
    # As a table with moves of its own in every cell, it is evaluated by polynomials of the action.
    policy = best.profile.join(best.profile.per_step)
    shape = (*policy.weights.shape, policy.actions.shape[-1])
    table = TablePolicy(jnp.broadcast_to(policy.actions, shape), policy.weights)
    keys = jax.random.split(slowed.key_for(Use.DRAW), 19)
    forecast = Forecast(Flow(PROBLEM), slowed.model, None, keys)
    other = forecast.of_policy(Profile.stacked(table, PROBLEM.horizon), "by polynomials")
    assert other.expected == pytest.approx(best.expected)
    assert other.upper - other.lower == pytest.approx(best.upper - best.lower, rel=1e-4)

    # Drawn models are asked at a few masses; by mu itself the interval is nearly as wide.
    @jax.jit
    @jax.vmap
    def drawn(key):
        world = Thompson(draw_width(slowed.model))
        flow, motion = world.imagine(PROBLEM, Flow(PROBLEM), slowed.model, None, key)
        return flow.value(best.profile, motion)

    width = float(jnp.max(jnp.abs(drawn(keys) - best.expected)))
    assert best.upper - best.expected == pytest.approx(width, rel=1e-3)


@pytest.mark.nightly
def test_the_interval_holds_what_learned_policies_earn():
    learner = M3UCRL(PROBLEM, GaussianProcess(), MIRROR)
    held = 0
    for seed in range(6):
        best = learn(corridor(), learner, episodes=2, seed=seed, progress=False).best()
        held += best.lower <= float(corridor().evaluate(best.profile).value) <= best.upper
    assert held >= 5


def test_the_cautious_choice_goes_by_the_lower_end(unsure):
    learner, state = unsure
    expected, cautious = (learner.best(state, cautious=c) for c in (False, True))
    assert cautious.lower >= expected.lower
    # What was earned is certain, so it is worth more than a promise with doubt.
    ran = (RANDOM, cautious.lower + 0.1)
    known = learner.best(state, cautious=True, best_run=ran)
    assert known.how == "the best episode's policy, by what it earned"
    assert known.lower == known.expected == known.upper == ran[1]
    worse = (RANDOM, cautious.lower - 0.1)
    assert eqx.tree_equal(learner.best(state, cautious=True, best_run=worse), cautious)


def test_a_better_policy_that_is_at_hand_is_taken(unsure):
    state = unsure[1]
    poor = M3UCRL(PROBLEM, SureFamily(gain=0.7, spread=0.2), MirrorPlanner(points=3, sweeps=1))
    good = unsure[0].greedy_plan(state)
    best = poor.best(state, best_run=(good.profile, 0.0))
    assert best.how == "the best episode's policy"
    assert best.expected == pytest.approx(float(good.value))


def test_judging_adds_two_figures_and_changes_no_other():
    learner = M3UCRL(PROBLEM, SureFamily(gain=0.7, spread=0.2), MIRROR)
    plain = learn(corridor(), learner, episodes=2, progress=False)
    result = learn(corridor(), learner, episodes=2, judge=True, progress=False)
    assert result.metrics[0] == plain.metrics[0]  # without data there is nothing to judge
    state = after_an_episode(learner)
    greedy = learner.greedy_plan(state)
    row = result.metrics[1].row()
    earned = float(corridor().evaluate(greedy.profile).value)
    assert row.pop("greedy") == pytest.approx(earned)
    assert row.pop("greedy_expected") == pytest.approx(float(greedy.value))
    assert row == plain.metrics[1].row()


def test_the_best_profile_is_that_of_the_best_episode():
    learner = M3UCRL(PROBLEM, SureFamily(gain=0.7, spread=0.2), MIRROR)
    result = learn(corridor(), learner, episodes=2, progress=False)
    found = float(corridor().evaluate(result.best_profile).value)
    assert found == pytest.approx(max(row.value for row in result.metrics))
    best = result.best()
    assert best.expected >= float(under_mean(result.best_profile, result.state.model)) - 1e-9


def test_greedy_learners_use_what_they_explore_with():
    learner = M3UCRL(PROBLEM, SureFamily(), MIRROR, optimism=Greedy())
    state = learner.init(KEY)
    best = learner.best(state)
    assert best.expected == pytest.approx(float(learner.ask(state).value))
    assert best.how == "planned under the model's mean"


def test_no_draws_are_refused(unsure):
    with pytest.raises(
        UserError, match="the number of drawn models must be a whole number of at least 1"
    ):
        unsure[0].best(unsure[1], draws=0)


def test_optimism_is_run_where_it_promises_more_than_it_costs():
    found = set()
    for spread in (0.005, 0.1, 0.4):
        learner = M3UCRL(PROBLEM, SureFamily(gain=0.7, spread=spread), MIRROR)
        state = after_an_episode(learner)
        optimistic = M3UCRL(PROBLEM, learner.family, MIRROR, greedy_fallback=False).ask(state)
        greedy = learner.greedy_plan(state)
        likely, known = (under_mean(plan.profile, state.model) for plan in (optimistic, greedy))
        alike = bool(eqx.tree_equal(learner.ask(state).profile, optimistic.profile))
        small = optimistic.value - likely < 0.05 * abs(optimistic.value)
        assert alike == bool(small or optimistic.value - known >= known - likely), spread
        found.add(alike)
    assert found == {True, False}
