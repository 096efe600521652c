"""Hidden rewards: who may know them, what is believed of them, and that they are learned."""

from functools import lru_cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import walk
from small import MIRROR, SureFamily, sure

import mufield
from mufield import (
    M3UCRL,
    Bonus,
    Box,
    DeepEnsemble,
    Flow,
    GaussianProcess,
    Greedy,
    Grid,
    Hallucinated,
    MirrorAscent,
    MoveFlow,
    Problem,
    SimulatedSystem,
    Thompson,
    certify,
    learn,
    log_mass,
    make,
    point_mass,
    random_policy,
)
from mufield.environments.swarm import closed_form_policy
from mufield.errors import UserError
from mufield.finite.system import FiniteSystem
from mufield.flow.rollout import end_reward
from mufield.models.base import AbstractModel, Prediction, predict_rows
from mufield.models.data import Transitions
from mufield.planning.moves import regular_moves
from mufield.policies import Unseen
from mufield.space.measure import mean_field_at

pytestmark = pytest.mark.slow

KEY = jax.random.key(0)
STATE, ACTION = jnp.array([2.5]), jnp.array([0.5])
GP = GaussianProcess()
ENSEMBLE = DeepEnsemble(members=3, width=16, steps=150, mu=Unseen())


def truth(state, action, mu):
    """Linear in the features but for the effort."""
    return 0.5 * state[0] - 0.3 * action[0] ** 2 - log_mass(mu.density_here)


def problem_with(reward, **options):
    grid = Grid.box(0.0, 6.0, 6)
    return Problem(
        space=grid,
        actions=Box(-1.0, 1.0),
        reward=reward,
        horizon=4,
        initial=point_mass(grid, 0),
        noise=0.25,
        max_move=1.0,
        **({"pay_end": True} | options),
    )


@lru_cache
def hidden():
    return SimulatedSystem(problem_with(None), walk, truth)


@lru_cache
def known():
    return SimulatedSystem(problem_with(truth), walk)


def mu_at(state=STATE):
    grid = hidden().problem.grid
    return mean_field_at(grid, mufield.uniform(grid), state)


def random_data(agents=20):
    problem = hidden().problem
    return Transitions.of(problem, [hidden().run(random_policy(problem), KEY, agents=agents)])


class SureReward(AbstractModel):
    """A model of the reward that is 1 + s off the truth by nothing, with an even spread."""

    beta: jnp.ndarray
    spread: jnp.ndarray

    def predict(self, state, action, mu):
        mean = 1.0 + state[:1] + 0.1 * action[:1]
        spread = jnp.broadcast_to(self.spread, (1,))
        return Prediction(mean=mean, epistemic=spread, aleatoric=jnp.zeros(1))


REWARD_MODEL = SureReward(jnp.asarray(2.0), jnp.asarray(0.25))


def imagined(optimism, reward_model=REWARD_MODEL, key=KEY):
    """The flow and the motion that are planned with."""
    problem = hidden().problem
    flow = Flow(optimism.joint(problem))
    return optimism.imagine(problem, flow, sure(spread=0.1), reward_model, key)


# Who may know it.


def test_the_learner_cannot_reach_the_true_reward():
    problem = hidden().problem
    assert problem.hides_reward
    assert not known().problem.hides_reward
    assert truth not in jax.tree.leaves(problem)
    assert truth not in jax.tree.leaves(vars(M3UCRL(problem, GP, MIRROR)))
    with pytest.raises(UserError, match="the reward is hidden"):
        problem.reward(STATE, ACTION, mu_at())


def test_whatever_needs_a_known_reward_is_refused():
    flow = Flow(hidden().problem)
    moves = Box(-1.0, 1.0).points(3)
    still = mufield.as_profile(lambda state, mu, step: jnp.zeros(1), 4)
    for use in (
        lambda: flow.value(still, walk),
        lambda: end_reward(flow.problem, flow.problem.initial),
        lambda: certify(flow, walk, still, moves),
        lambda: MirrorAscent(sweeps=2).solve(MoveFlow(flow, walk, moves)),
        lambda: mufield.plan(flow, walk),
    ):
        with pytest.raises(UserError, match=r"system\.reveal\(\), which has it"):
            use()


def test_the_system_pays_by_the_true_reward():
    policy = random_policy(known().problem)
    ours, theirs = hidden().evaluate(policy), known().evaluate(policy)
    np.testing.assert_array_equal(ours.rewards, theirs.rewards)
    flow, motion = hidden().reveal()
    assert float(flow.value(policy, motion)) == pytest.approx(float(theirs.value))
    assert known().run(policy, KEY).earned is None


def test_tracked_agents_report_what_they_were_paid():
    policy = random_policy(hidden().problem)
    episode = hidden().run(policy, KEY, agents=3)
    plain = known().run(policy, KEY, agents=3)
    np.testing.assert_array_equal(episode.next_states, plain.next_states)
    for agent, step in ((0, 0), (2, 3)):
        state = episode.states[agent, step]
        mu = mean_field_at(hidden().problem.grid, episode.mass[step], state)
        wanted = truth(state, episode.actions[agent, step], mu)
        assert float(episode.earned[agent, step]) == pytest.approx(float(wanted))


def test_rewards_may_be_observed_with_noise():
    noisy = SimulatedSystem(problem_with(None, reward_noise=0.5), walk, truth)
    policy = random_policy(noisy.problem)
    one, other = (s.run(policy, KEY, agents=500) for s in (noisy, hidden()))
    np.testing.assert_array_equal(one.states, other.states)
    assert float(jnp.std(one.earned - other.earned)) == pytest.approx(0.5, rel=0.05)


def test_finite_populations_keep_the_secret_too():
    few = FiniteSystem.of(hidden(), 50)
    assert few.problem.hides_reward
    policy = random_policy(few.problem)
    episode = few.run(policy, KEY, agents=2)
    assert episode.earned.shape == (2, 4)
    open_one = FiniteSystem.of(known(), 50).run(policy, KEY, agents=2)
    np.testing.assert_array_equal(episode.rewards, open_one.rewards)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SimulatedSystem(problem_with(None), walk), "needs the true one: pass reward"),
        (lambda: SimulatedSystem(problem_with(truth), walk, truth), "reward is known; leave out"),
        (lambda: SimulatedSystem(problem_with(None), walk, lambda s, a, mu: s), "the shape"),
        (lambda: problem_with(truth, reward_noise=0.1), "a known reward has no noise"),
        (lambda: problem_with(None, reward_noise=-0.1), "reward_noise must be one finite number"),
        (lambda: M3UCRL(known().problem, GP, MIRROR, reward_family=GP), "reward is known"),
        (lambda: M3UCRL(hidden().problem, SureFamily(), MIRROR), "pass reward_family"),
        (lambda: Transitions.empty(known().problem).of_rewards(), "reward is known"),
        (lambda: make("swarm", reward="secret"), "'known' or 'hidden'"),
    ],
)
def test_contradictions_are_named(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_a_family_that_fits_motions_only_is_refused():
    grid = Grid.box(0.0, 4.0, (2, 2))
    plane = Problem(
        space=grid,
        actions=Box(-1.0, 1.0, dim=2),
        reward=None,
        horizon=2,
        initial=mufield.uniform(grid),
        noise=0.2,
        max_move=1.0,
    )
    with pytest.raises(ValueError, match=r"have the shape \(1,\), got \(\(2,\)"):
        M3UCRL(plane, GP, MIRROR, reward_family=SureFamily()).init(KEY)


def test_an_episode_without_rewards_is_refused():
    episode = known().run(random_policy(known().problem), KEY)
    with pytest.raises(ValueError, match="does not say what agents were paid; give it earned"):
        Transitions.of(hidden().problem, [episode])


# What is believed of it.


@pytest.mark.parametrize(("family", "most"), [(GP, 0.02), (ENSEMBLE, 0.2)], ids=["gp", "ensemble"])
def test_both_families_model_the_reward_by_the_same_interface(family, most):
    data = random_data()
    model = family.for_rewards().fit(data.of_rewards(), KEY)
    found = model.predict(STATE, ACTION, mu_at())
    assert found.mean.shape == found.epistemic.shape == found.aleatoric.shape == (1,)
    errors = predict_rows(model, data.of_rewards()).error
    assert np.sqrt(np.mean(errors**2)) < most * np.std(data.earned)


def test_the_optimistic_reward_bounds_the_true_one_where_the_band_covers():
    data = random_data(agents=5)
    model = GP.for_rewards().fit(data.of_rewards(), KEY)
    reward = imagined(Hallucinated(1.0), model)[0].problem.reward
    fresh = Transitions.of(
        data.problem, [hidden().run(random_policy(data.problem), jax.random.key(7), agents=10)]
    )
    covered = above = 0
    for row in range(len(fresh)):
        state, action = jnp.asarray(fresh.states[row]), jnp.asarray(fresh.actions[row])
        mu = mean_field_at(fresh.problem.grid, jnp.asarray(fresh.mass[fresh.moment[row]]), state)
        found = model.predict(state, action, mu)
        wrong = abs(float(found.mean[0]) - fresh.earned[row])
        if wrong <= float(model.beta * found.epistemic[0]):
            covered += 1
            joint = jnp.concatenate([action, jnp.zeros(1)])
            above += float(reward(state, joint, mu)) >= fresh.earned[row] - 1e-9
    assert above == covered
    assert covered >= 0.9 * len(fresh)


def test_each_kind_of_optimism_believes_in_its_own_reward():
    mean, band = 1.0 + 2.5 + 0.05, 2.0 * 0.25

    def paid(optimism, key=KEY):
        flow, _ = imagined(optimism, key=key)
        joint = jnp.concatenate([ACTION, jnp.full(flow.problem.actions.dim - 1, 0.7)])
        return float(flow.problem.reward(STATE, joint, mu_at()))

    assert paid(Hallucinated(0.5)) == pytest.approx(mean + 0.5 * band)
    # The motion's uncertainty pays as well: beta times the spread, over the farthest move.
    assert paid(Bonus(0.5)) == pytest.approx(mean + 0.5 * band + 0.5 * 0.2)
    assert paid(Greedy()) == pytest.approx(mean)
    assert paid(Thompson()) != paid(Thompson(), jax.random.key(1))


def test_the_end_is_paid_with_the_believed_reward_at_rest():
    flow, _ = imagined(Hallucinated(0.5))
    mass = mufield.uniform(flow.problem.grid)
    assert float(end_reward(flow.problem, mass)) == pytest.approx(1.0 + 3.0 + 0.25)


def test_the_reward_is_computed_once_for_all_etas_of_an_action():
    flow, motion = imagined(Hallucinated())
    grouped = regular_moves(flow, motion, hidden().problem.actions, points=3, controls=3)
    joint = grouped.actions[0]
    plain = MoveFlow(flow, motion, joint)
    mass = mufield.uniform(flow.problem.grid)
    np.testing.assert_array_equal(grouped.rewards(mass, 0), plain.rewards(mass, 0))
    one, other = (moves.sweep(moves.uniform()) for moves in (plain, grouped))
    np.testing.assert_allclose(one.action_values, other.action_values, rtol=1e-12)
    with pytest.raises(ValueError, match="groups of 2"):
        MoveFlow(flow, motion, joint, group=2)


def test_rewards_that_are_all_equal_can_be_learned():
    data = eqx.tree_at(lambda d: d.earned, random_data(agents=2), np.full(8, -3.0))
    model = GP.for_rewards().fit(data.of_rewards(), KEY)
    assert float(model.predict(STATE, ACTION, mu_at()).mean[0]) == pytest.approx(-3.0, abs=1e-6)


# That it is learned.


@pytest.mark.nightly
@pytest.mark.parametrize("family", [GP, ENSEMBLE], ids=["gp", "ensemble"])
def test_learning_ends_near_the_plan_that_knows_everything(family):
    flow, motion = known().reveal()
    moves = MoveFlow(flow, motion, Box(-1.0, 1.0).points(5))
    best = float(MirrorAscent(sweeps=60).solve(moves).value)
    learner = M3UCRL(hidden().problem, family, MIRROR)
    found = learn(hidden(), learner, episodes=5, agents=4, progress=False)
    values = [row.value for row in found.metrics]
    assert max(values) > 0.97 * best
    assert values[0] < max(values)


def test_the_motion_is_learned_as_if_the_reward_were_known():
    """From the same episodes: what agents earn tells nothing of where they go."""
    policy = random_policy(hidden().problem)
    models = [
        GP.fit(Transitions.of(system.problem, [system.run(policy, KEY, agents=3)]), KEY)
        for system in (hidden(), known())
    ]
    ours, theirs = (jax.tree.leaves(eqx.filter(m, eqx.is_array)) for m in models)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_failed_fit_of_the_reward_falls_back_and_says_so():
    class Fails(SureFamily):
        def fit(self, data, key):
            super().fit(data, key)
            assert data.of_reward
            return REWARD_MODEL

    learner = M3UCRL(hidden().problem, SureFamily(), MIRROR, reward_family=Fails(fails_from=8))
    state = learner.init(KEY)
    for number in range(2):
        plan = learner.ask(state)
        state = learner.tell(state, hidden().run(plan.profile, jax.random.key(number)), plan)
    assert state.notes == (
        "the reward model's fit to 8 transitions is not finite; going on with that to the first 4",
    )
    assert state.reward_model is not None


@pytest.mark.nightly
def test_the_band_holds_many_exact_rewards_in_single_precision_too():
    """More inducing points than the precision can tell apart would put rounding into the mean."""
    with jax.enable_x64(False):
        swarm = make("swarm", reward="hidden", horizon=50, cells=20)
        random, closed = random_policy(swarm.problem), closed_form_policy
        seen = [swarm.run(random, KEY), swarm.run(closed, jax.random.key(1), agents=40)]
        model = GP.for_rewards().fit(Transitions.of(swarm.problem, seen).of_rewards(), KEY)
        fresh = swarm.run(closed, jax.random.key(2), agents=20)
        found = predict_rows(model, Transitions.of(swarm.problem, [fresh]).of_rewards())
        assert np.mean(np.abs(found.error) <= float(model.beta) * found.epistemic) > 0.95
