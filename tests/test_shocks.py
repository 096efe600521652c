"""Shocks: laws of J over paths, plans that do not know the future, systems and learners."""

from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.sparse import csr_array

import mufield as mf
from mufield.adapters.parallel import as_simulated
from mufield.constraints import mass_at_most
from mufield.deploy.export import export_policy
from mufield.finite.populations import margin_figures, play_populations
from mufield.finite.system import FiniteSystem
from mufield.flow import over_paths
from mufield.flow.paths import sees_shock
from mufield.jobs.compute import system_of
from mufield.learning.safety import ModelSamples, sampled_outcomes
from mufield.models.base import AbstractModel, ModelByShock, Prediction
from mufield.models.data import Transitions
from mufield.planning import plan_over_paths
from mufield.planning.constrained import make_feasible
from mufield.planning.shocks import PathMoves
from mufield.policies.base import checked_profile
from mufield.policies.shocks import ByShock, profile_on_path
from mufield.policies.tables import TablePolicy

SIDES = mf.Nodes(["left", "right"])
KEY = jax.random.key(0)
COIN = mf.Shocks([0, 1], [0.5, 0.5])


def go(node, action, mu):
    return jnp.full(2, 0.1).at[action].add(0.8)


def bet(node, action, mu):
    """Who stands on the side that the present shock names is paid."""
    return 1.0 * (node == mu.shock)


def crowded_bet(node, action, mu):
    return bet(node, action, mu) - mu.here


def betting(shocks=COIN, **changes):
    settings = {
        "space": SIDES,
        "actions": ["left", "right"],
        "reward": bet,
        "horizon": 3,
        "initial": [0.5, 0.5],
        "shocks": shocks,
    }
    return mf.Problem(**(settings | changes))


def test_paths_are_all_there_are_with_their_probabilities_or_drawn_from_them():
    chain = mf.Shocks([0.0, 1.0, 2.0], [0.2, 0.3, 0.5], [[0.9, 0.1, 0], [0, 0.5, 0.5], [1, 0, 0]])
    every = chain.paths(3)
    assert every.exact
    assert len(every.chances) == 27
    assert jnp.sum(every.chances) == pytest.approx(1.0)
    row = int(np.flatnonzero((np.asarray(every.numbers[:, :3]) == [2, 0, 1]).all(axis=1))[0])
    assert every.chances[row] == pytest.approx(0.5 * 1.0 * 0.1)
    drawn = chain.paths(3, samples=20)
    assert not drawn.exact
    np.testing.assert_array_equal(drawn.numbers, chain.paths(3, samples=20).numbers)
    often = chain.paths(2, samples=8, key=jax.random.key(1))
    assert set(map(int, np.asarray(often.numbers).ravel())) <= {0, 1, 2}
    now = chain.known_now(1, 2).paths(3)
    assert jnp.sum(jnp.where(now.numbers[:, 1] == 2, now.chances, 0)) == pytest.approx(1.0)


def test_a_plan_does_not_know_the_future():
    """The coin of the next step decides what a side is worth: nobody who is honest gains."""
    problem = betting()
    plan = plan_over_paths(mf.Flow(problem), go, sweeps=60)
    assert float(plan.value) == pytest.approx(1.5, abs=1e-6)  # whatever one does
    assert plan.proved
    # Who knows the path is on the right side with 0.9 after each move.
    assert float(plan.upper) == pytest.approx(0.5 + 2 * 0.9, abs=1e-3)
    tables = plan.profile.join(plan.profile.per_step).policy.weights
    assert float(jnp.max(tables)) < 0.6  # it has nothing to go by


def test_paths_with_the_same_past_have_the_same_policies():
    plan = plan_over_paths(mf.Flow(betting(horizon=4)), go, memory=2, sweeps=5, perfect=False)
    shocks, one, other = COIN, jnp.array([0, 1, 1, 0, 0]), jnp.array([0, 1, 1, 1, 1])
    first, second = (profile_on_path(plan.profile, shocks, path) for path in (one, other))
    for step in range(3):
        np.testing.assert_array_equal(first.at(step).weights, second.at(step).weights)
    assert plan.profile.join(plan.profile.per_step).policy.weights.shape == (4, 4, 2, 2)


def test_a_chain_is_foreseen_as_far_as_its_probabilities_go():
    chain = mf.Shocks([0, 1], [0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]])
    problem = betting(chain)
    plan = plan_over_paths(mf.Flow(problem), go, sweeps=200)
    # At the side of the present shock with 0.9, which is then the same with 0.9.
    assert float(plan.value) == pytest.approx(0.5 + 2 * (0.81 + 0.01), abs=2e-3)
    blind = plan_over_paths(mf.Flow(problem), go, memory=0, sweeps=60, perfect=False)
    assert float(blind.value) == pytest.approx(1.5, abs=1e-6)
    seen = over_paths(mf.Flow(problem), lambda s, mu, step: 1.0 * mu.shock, go)
    assert float(seen.value) == pytest.approx(0.5 + 2 * 0.82, abs=1e-6)
    drawn = over_paths(mf.Flow(problem), plan.profile, go, samples=6)
    assert float(drawn.standard_error) > 0
    assert abs(float(drawn.value - plan.value)) < 5 * float(drawn.standard_error)


def test_one_value_of_the_shock_is_bit_for_bit_no_shock():
    def crowded(node, action, mu):
        return -mf.log_mass(mu.here) - 0.1 * action

    plain = mf.Flow(betting(None, reward=crowded, initial=[0.9, 0.1]))
    one = mf.Flow(betting(mf.Shocks([7], [1.0]), reward=crowded, initial=[0.9, 0.1]))
    known = mf.MirrorAscent(sweeps=20, bound=False).solve(mf.MoveFlow(plain, go))
    plan = plan_over_paths(one, go, sweeps=20, perfect=False)
    weights = plan.profile.join(plan.profile.per_step).policy.weights
    np.testing.assert_array_equal(weights[:, 0], known.weights)
    assert float(plan.value) == float(plain.value(known.profile, go))


def test_episodes_record_their_shocks_and_agents_see_them():
    system = mf.SimulatedSystem(betting(), go)
    policy = lambda state, mu, step: 1.0 * mu.shock  # noqa: E731
    episode = system.run(policy, jax.random.key(0), agents=5)
    episode.check(system.problem)
    np.testing.assert_array_equal(episode.actions[..., 0], np.tile(episode.shocks, (5, 1)))
    mean = system.evaluate(policy)
    assert float(mean.value) == pytest.approx(1.5, abs=1e-6)
    with pytest.raises(mf.UserError, match="over_paths"):
        mf.Flow(betting()).rollout(policy, go)
    many = FiniteSystem.of(system, 2_000)
    values, calls = many.evaluate(policy, jax.random.key(1), episodes=2).values, []
    assert np.isfinite(values).all()

    def replan(step, mass, profile, shock):
        calls.append(shock)
        return profile

    again = many.evaluate(policy, jax.random.key(1), episodes=2, replan=replan).values
    np.testing.assert_array_equal(values, again)
    assert set(calls) <= {0, 1}
    assert many.run(policy, jax.random.key(2), agents=2).shocks.shape == (3,)


def test_shocks_that_make_no_sense_are_refused():
    with pytest.raises(mf.UserError, match="2 probabilities"):
        mf.Shocks([0, 1], [0.2, 0.3, 0.5])
    with pytest.raises(mf.UserError, match="sum"):
        mf.Shocks([0, 1], [0.2, 0.3])
    with pytest.raises(mf.UserError, match="hidden reward"):
        betting(reward=None)
    with pytest.raises(mf.UserError, match="how likely"):
        mf.SimulatedSystem(betting(mf.Shocks([0, 1])), go)
    with pytest.raises(mf.UserError, match="unknown"):
        plan_over_paths(mf.Flow(betting(mf.Shocks([0, 1]))), go)


def test_paths_and_memories_that_make_no_sense_are_refused():
    system = mf.SimulatedSystem(betting(), go)
    for path in ([0, 1], [0, 1, 2], [0.0, 1.0, 1.0], [0, -1, 0]):
        with pytest.raises(mf.UserError, match="0 to 1, for each of 3 steps"):
            system.on_path(path)
    episode = system.run(lambda state, mu, step: 1.0 * mu.shock, jax.random.key(0))
    with pytest.raises(mf.UserError, match="0 to 1, for each of 3 steps"):
        replace(episode, shocks=jnp.asarray([0, 1, 7])).check(system.problem)
    for settings in ({"memory": -1}, {"samples": 0}):
        with pytest.raises(mf.UserError, match="whole number"):
            plan_over_paths(mf.Flow(betting()), go, sweeps=2, **settings)
    learner = mf.M3UCRL(betting())
    blind = Transitions.empty(betting(None, reward=lambda node, action, mu: 1.0 * action))
    with pytest.raises(mf.UserError, match="without these shocks"):
        learner.init(jax.random.key(0), blind)


def test_what_contradicts_the_shocks_is_refused():
    unknown, steady = (
        betting(mf.Shocks([0, 1])),
        betting(mf.Shocks([0, 1], [0.5, 0.5], moves=False)),
    )
    with pytest.raises(mf.UserError, match="finite"):
        mf.Shocks([0, np.nan], [0.5, 0.5])
    for other in (mf.Shocks([5, 9], [0.2, 0.8]), [0.2, 0.8]):
        with pytest.raises(mf.UserError, match="the same values"):
            mf.SimulatedSystem(unknown, go, shocks=other)
    with pytest.raises(mf.UserError, match="moves=False"):
        mf.SimulatedSystem(steady, windy)
    with pytest.raises(mf.UserError, match="no shocks; leave out"):
        mf.Flow(betting(None, reward=over_there)).from_step(1, [0.5, 0.5], shock=1)
    with pytest.raises(mf.UserError, match="no step or shock"):
        limited(shocks=[])


def test_policies_and_motions_that_go_wrong_on_one_path_are_named():
    with pytest.raises(mf.UserError, match="outside"):
        mf.SimulatedSystem(betting(), go).evaluate(lambda s, mu, step: 3.0 * mu.shock)
    ill = lambda node, action, mu: jnp.where(mu.shock * mu.step == 1, jnp.nan, go(node, action, mu))  # noqa: E731
    with pytest.raises(mf.UserError, match="not finite"):
        over_paths(mf.Flow(betting()), lambda s, mu, step: 0.0 * s, ill, key=3)
    with pytest.raises(mf.UserError, match="sum to 1"):
        plan_over_paths(mf.Flow(betting()), lambda node, action, mu: jnp.ones(2))
    with pytest.raises(mf.UserError, match="number of sweeps"):
        plan_over_paths(mf.Flow(betting()), go, sweeps=0)


def test_policies_whose_shocks_cannot_be_told_are_refused():
    learner = mf.M3UCRL(betting(), planner=mf.MirrorPlanner(sweeps=2), random_first=True)
    state = learner.init(jax.random.key(0))
    with pytest.raises(mf.UserError, match="only if its first plan sees shocks"):
        learner.replan(state, learner.ask(state), [0.5, 0.5], 1, shock=0)
    table = TablePolicy(jnp.zeros((2, 1, 1, 1)), jnp.ones((2, 1, 1)))
    with pytest.raises(mf.UserError, match="a part for each of 2 cases"):
        mf.SimulatedSystem(betting(), go).run(ByShock(table), jax.random.key(0))


def test_bands_are_quantiles_and_means_by_the_probabilities_of_the_paths():
    """Who always stays right is paid 1 at each step whose shock is 1, which 96% are."""
    problem = betting(mf.Shocks([0, 1], [0.04, 0.96]), initial=[0, 1], horizon=2)
    flow, stay = mf.Flow(problem), lambda node, action, mu: jnp.array([0.0, 1.0])
    found = over_paths(flow, lambda s, mu, step: 1.0 + 0 * s, stay).bands
    np.testing.assert_allclose(found.rewards, [[1, 1], [0.96, 0.96], [1, 1]], atol=1e-6)
    np.testing.assert_allclose(found.value, [1, 1.92, 2], atol=1e-6)  # 0.04^2 + 0.08 above 5%
    np.testing.assert_array_equal(found.entropy, np.zeros((3, 3)))
    assert float(found.standard_error) == 0
    drawn = over_paths(flow, lambda s, mu, step: 1.0 + 0 * s, stay, samples=3)
    assert float(drawn.bands.standard_error) == pytest.approx(float(drawn.standard_error))


def test_plans_of_learners_say_how_far_paths_are_apart():
    learner = mf.M3UCRL(betting(reward=crowded_bet), planner=mf.MirrorPlanner(sweeps=5))
    state = learner.init(jax.random.key(0))
    plan = learner.ask(state)
    low, mean, high = plan.bands.value
    assert low < mean < high
    assert float(mean) == pytest.approx(float(plan.value), abs=1e-5)
    np.testing.assert_allclose(jnp.sum(plan.bands.rewards[1]), plan.value, atol=1e-5)
    again = learner.replan(state, plan, [0.5, 0.5], 1, shock=0)
    np.testing.assert_array_equal(again.bands.value, plan.bands.value)  # of the whole day


def test_unknown_chances_are_the_means_of_dirichlet_posteriors():
    unknown = mf.Shocks([0, 1])
    counts = unknown.counted(np.array([[0, 1, 1], [0, 0, 1]]))
    np.testing.assert_array_equal(counts, [[2, 0], [1, 2], [0, 1]])
    learned = unknown.learned(counts)
    np.testing.assert_allclose(learned.initial, [2.5 / 3, 0.5 / 3])
    np.testing.assert_allclose(learned.transition, [[1.5 / 4, 2.5 / 4], [0.5 / 2, 1.5 / 2]])
    chain = mf.Shocks([0, 1], [0.9, 0.1], [[0.8, 0.2], [0.4, 0.6]])
    keys = jax.random.split(jax.random.key(0), 400)
    paths = np.asarray(jax.vmap(lambda key: chain.draw(key, 20))(keys))[:, :20]
    found = unknown.learned(unknown.counted(paths))
    np.testing.assert_allclose(found.initial, chain.initial, atol=0.05)
    np.testing.assert_allclose(found.transition, chain.transition, atol=0.03)


def test_a_motion_that_ignores_the_shock_has_its_kernels_once():
    assert sees_shock(betting(), windy)
    assert not sees_shock(betting(), go)
    flow, paths = mf.Flow(betting()), COIN.paths(3)
    once, twice = (PathMoves(flow, motion, paths).cases.own for motion in (go, windy))
    assert once.bank.kernels is None
    assert len(twice.bank.kernels) == 2


def test_what_knows_no_shocks_refuses_them():
    system = mf.SimulatedSystem(betting(), go)
    with pytest.raises(mf.UserError, match="on_path"):
        as_simulated(system, {})
    assert as_simulated(system.on_path([0, 1, 1, 1]), {}).problem.shocks is None
    mf.register("betting", "on a coin")(lambda: mf.SimulatedSystem(betting(), go))
    with pytest.raises(mf.UserError, match="comparisons do not know"):
        system_of({"environment": "betting", "options": {}})
    plan = plan_over_paths(mf.Flow(betting()), go, sweeps=2, perfect=False)
    with pytest.raises(mf.UserError, match="ByShock"):
        export_policy(plan.profile, betting(), Path("unused"))


def windy(node, action, mu):
    """Under the shock 1 agents go where they do not want to."""
    return jnp.full(2, 0.1).at[jnp.where(mu.shock == 1, 1 - action, action)].add(0.8)


def test_learning_under_one_value_of_the_shock_is_bit_for_bit_that_without_shocks():
    def still(node, action, mu):
        return blown(node, action, replace(mu, shock=0))

    plans = []
    for chain in (None, mf.Shocks([1], [1.0])):
        system = mf.SimulatedSystem(limited(chain), still)
        few = {"planner": mf.MirrorPlanner(sweeps=4), "pessimism": ModelSamples(2)}
        learner = mf.M3UCRL(system.problem, **few)
        state = learner.init(KEY)
        plan = learner.ask(state)
        state = learner.tell(state, system.run(plan.profile, KEY, agents=400), plan)
        plans.append(learner.ask(state))
    np.testing.assert_array_equal(
        plans[0].profile.per_step.weights, plans[1].profile.per_step.weights
    )
    np.testing.assert_array_equal(plans[0].margins, plans[1].margins)
    assert plans[0].note == plans[1].note


@pytest.mark.nightly
def test_a_learned_plan_violates_its_limit_on_no_path():
    problem = limited(mf.Shocks([0, 1]), shocks=[1])
    system = mf.SimulatedSystem(problem, blown, shocks=STORMS)
    learner = mf.M3UCRL(problem, planner=mf.MirrorPlanner(sweeps=20), pessimism=ModelSamples(6))
    state, (flow, motion) = learner.init(KEY), system.reveal()
    for number in range(4):
        plan = learner.ask(state)
        found = over_paths(flow, plan.profile, motion)
        assert float(jnp.min(found.margin)) > -0.01
        run = system.run(plan.profile, jax.random.key(number), agents=400)
        state = learner.tell(state, run, plan)
    rest = over_paths(flow, lambda s, mu, step: 0.0 * s, motion)
    assert float(found.value) > float(rest.value) + 0.1
    assert plan.margins.shape == (3, 1)
    again = learner.replan(state, plan, [0.6, 0.4], 1, shock=0)
    assert isinstance(again.profile.shared, ByShock)


@pytest.mark.nightly
@pytest.mark.parametrize("optimism", [mf.Greedy(), mf.Hallucinated()])
def test_a_learner_finds_what_each_shock_does_and_how_likely_it_is(optimism):
    problem = betting(mf.Shocks([0, 1]), reward=lambda node, action, mu: 1.0 * (node == 1))
    system = mf.SimulatedSystem(problem, windy, shocks=mf.Shocks([0, 1], [0.3, 0.7]))
    learner = mf.M3UCRL(problem, optimism=optimism)
    result = mf.learn(system, learner, episodes=4, agents=10, progress=False)
    flow, motion = system.reveal()
    plan = learner.greedy_plan(result.state)
    assert float(over_paths(flow, plan.profile, motion).value) > 0.97 * (0.5 + 2 * 0.9)
    counts = problem.shocks.counted(result.state.data.shocks.reshape(-1, 3))
    assert counts.sum() == 12
    again = learner.replan(result.state, plan, [0.2, 0.8], 1, shock=1)
    assert float(again.value) == pytest.approx(0.8 + 0.9, abs=0.1)
    found = result.best()
    assert found.lower <= float(over_paths(flow, found.profile, motion).value) <= found.upper


def blown(node, action, mu):
    """Who goes is over there with 0.9; in the storm, 1, who stays is there with 0.5."""
    there = jnp.where(action == 1, 0.9, jnp.where(mu.shock == 1, 0.5, 0.05))
    return jnp.where(jnp.arange(2) == node, 1 - there, there)


def over_there(node, action, mu):
    return 1.0 * (node == 1)


STORMS = mf.Shocks([0, 1], [0.3, 0.7], [[0.6, 0.4], [0.2, 0.8]])


def limited(chain=STORMS, **when):
    limits = (mass_at_most(SIDES, ["right"], 0.6, **when),)
    settings = {"actions": ["stay", "go"], "reward": over_there, "initial": [0.9, 0.1]}
    return betting(chain, constraints=limits, **settings)


def best_by_linear_program(after):
    """The optimum over policies that know all past shocks, with the limit ``after`` some shocks."""
    first, chain, horizon = *(np.asarray(x) for x in (STORMS.initial, STORMS.transition)), 3
    pasts = [past for h in range(horizon) for past in product((0, 1), repeat=h + 1)]
    place = {key: i for i, key in enumerate(product(pasts, (0, 1), (0, 1)))}
    law = np.zeros((2, 2, 2, 2))  # by shock, node, action and successor
    for shock, node, action in product((0, 1), repeat=3):
        there = 0.9 if action else (0.05, 0.5)[shock]
        law[shock, node, action] = np.where(np.arange(2) == node, 1 - there, there)
    gain, flows, starts, limits = np.zeros(len(place)), [], [], []
    for past in pasts:
        chance = first[past[0]] * np.prod([chain[a, b] for a, b in pairwise(past)])
        limit = np.zeros(len(place))
        for node in (0, 1):
            row = np.zeros(len(place))
            for action in (0, 1):
                row[place[past, node, action]] = 1
                gain[place[past, node, action]] = -chance * node
                limit[place[past, node, action]] = law[past[-1], node, action, 1]
                for before in (0, 1) if len(past) > 1 else ():
                    came = law[past[-2], before, action, node]
                    row[place[past[:-1], before, action]] -= came
            flows.append(row)
            starts.append((0.9, 0.1)[node] if len(past) == 1 else 0.0)
        if past[-1] in after:
            limits.append(limit)
    return -linprog(gain, limits, [0.6] * len(limits), flows, starts, bounds=(0, 1)).fun


@pytest.mark.parametrize("after", [(0, 1), (1,)])
def test_limits_hold_on_every_path_at_the_optimum_of_a_linear_program(after):
    problem = limited(**({} if after == (0, 1) else {"shocks": after}))
    plan = plan_over_paths(mf.Flow(problem), blown, memory=3, sweeps=300)
    optimum = best_by_linear_program(after)
    assert optimum - 2e-3 < float(plan.value) <= optimum + 1e-4
    assert plan.outcome != "violated"
    assert float(jnp.min(plan.outcomes.margin)) >= -1e-5
    assert plan.proved
    assert float(plan.upper) >= optimum - 1e-4
    free = plan_over_paths(mf.Flow(problem.replace(constraints=None)), blown, perfect=False)
    found = over_paths(mf.Flow(problem), free.profile, blown)
    for path, margin in zip(found.paths.numbers, found.margin, strict=True):
        system = mf.SimulatedSystem(problem, blown).on_path(path)
        mass = system.evaluate(profile_on_path(free.profile, STORMS, path)).mass
        held = [h for h in range(3) if int(path[h]) in after]
        least = min(((0.6 - float(mass[h + 1, 1])) / 0.6 for h in held), default=np.inf)
        assert float(margin) == pytest.approx(least, abs=1e-6)


def test_limits_under_one_value_of_the_shock_are_bit_for_bit_those_without_shocks():
    def motion(node, action, mu):
        return go(node, action, mu)

    one, plain = limited(mf.Shocks([1], [1.0])), limited(None)
    moves = mf.MoveFlow(mf.Flow(plain), motion)
    ascent = mf.MirrorAscent(sweeps=40, bound=False)
    known = make_feasible(moves, eqx.filter_jit(ascent.ascend)(moves)[0])
    plan = plan_over_paths(mf.Flow(one), motion, sweeps=40, perfect=False)
    weights = plan.profile.join(plan.profile.per_step).policy.weights
    np.testing.assert_array_equal(weights[:, 0], known.weights)


def test_limits_do_not_hold_on_paths_that_cannot_occur_and_are_counted_on_those_that_came():
    never = mf.Shocks([0, 1], [1.0, 0.0], [[1.0, 0.0], [0.0, 1.0]])
    problem = limited(never, shocks=1)
    plan = plan_over_paths(mf.Flow(problem), blown, sweeps=40, perfect=False)
    assert float(plan.value) > 1.8  # all go, and stay
    assert bool(jnp.all(jnp.isinf(plan.outcomes.margin)))
    everywhere = lambda state, mu, step: 1.0 + 0 * state  # noqa: E731
    storm = mf.SimulatedSystem(limited(mf.Shocks([0, 1], [0.0, 1.0]), shocks=[0]), blown)
    played = FiniteSystem.of(storm, 1_000).evaluate(everywhere, jax.random.key(0))
    assert np.isinf(played.margin).all()
    both = FiniteSystem.of(mf.SimulatedSystem(limited(), blown), 1_000)
    assert float(both.evaluate(everywhere, jax.random.key(0)).margin[0]) < -0.1
    with pytest.raises(mf.UserError, match="2; give their numbers"):
        limited(shocks=[2])
    with pytest.raises(mf.UserError, match="0; give their numbers"):
        limited(None, shocks=[0])


def test_played_populations_are_inside_their_limits_on_every_path_or_not():
    everywhere = lambda state, mu, step: 1.0 + 0 * state  # noqa: E731
    system = mf.SimulatedSystem(limited(shocks=[1]), blown)
    profile = checked_profile(everywhere, system.problem)
    flow, agents = play_populations(system, profile, [50], episodes=4)
    worst = over_paths(mf.Flow(system.problem), everywhere, blown).margin
    assert flow["margin"] == pytest.approx(float(jnp.min(worst)))
    assert flow["satisfied"] == 0
    assert np.isfinite(agents["margin"])
    assert margin_figures([np.inf, np.inf]) == {"satisfied": 1.0, "margin": None}


class Blown(AbstractModel):
    """A model that knows `blown` under one shock; its draws are exact."""

    staying: float
    beta: float = 2.0

    def predict(self, state, action, mu):
        there = jnp.where(action[0] == 1, 0.9, self.staying)
        chances = jnp.where(jnp.arange(2) == state[0], 1 - there, there)
        return Prediction(chances, jnp.zeros(2), jnp.zeros(2))

    def draw(self, key):
        return lambda state, action, mu: self.predict(state, action, mu).mean


@pytest.mark.parametrize("after", [None, (1,)])
def test_exact_draws_have_the_margins_of_every_path_that_can_occur(after):
    never = mf.Shocks([0, 1], [0.3, 0.7], [[1.0, 0.0], [0.2, 0.8]])
    problem = limited(never, shocks=after)
    flow, paths = mf.Flow(problem), never.paths(3)
    moves = jnp.array([[0.0], [1.0]])
    known = ModelByShock(2.0, (Blown(0.05), Blown(0.5)))
    models = sampled_outcomes(ModelSamples(2), flow, known, problem.initial, moves, KEY)
    models = replace(models, paths=paths)
    weights = jax.random.dirichlet(KEY, jnp.ones(2), (3, 2, 2))  # by step, shock and node
    profile = mf.Profile.stacked(ByShock(TablePolicy.mixing(moves, weights)), 3)
    truth = over_paths(flow, profile, blown)
    flat = weights.reshape(3, 4, 2)
    np.testing.assert_allclose(models.checked(flat), truth.margins, atol=1e-5)
    assert bool(jnp.isinf(models.checked(flat)[never.paths(3).chances == 0]).all())
    joint = models.expected(flat).reshape(4, 2, 2)
    np.testing.assert_allclose(joint.sum(axis=1), truth.mean().mass, atol=1e-6)
    # Half of the agents by another policy: whoever is where, under which shock, is known.
    rest = jnp.broadcast_to(jnp.array([1.0, 0.0]), flat.shape)
    shares, away = joint[:3, ..., None], models.expected(rest).reshape(joint.shape)[:3, ..., None]
    both = (shares * weights + away * rest.reshape(weights.shape)) / (shares + away)
    mixed = models.expected(both.reshape(flat.shape)).sum(axis=1)
    np.testing.assert_allclose(mixed, 1.0, atol=1e-6)


@pytest.mark.parametrize("kind", [np.asarray, csr_array])
def test_trips_may_look_at_the_shock(kind):
    """Under the shock 1 half of the left are carried to the right, under 0 nobody is."""
    nodes, move = mf.Nodes(30), np.eye(30)
    move[0] = np.eye(30)[1]
    chance = lambda node, mu: jnp.where((node == 0) & (mu.shock == 1), 0.5, 0.0)  # noqa: E731
    problem = betting(
        space=nodes,
        reward=lambda node, action, mu: 1.0 * (node == 1),
        initial=np.eye(30)[0],
        trips=mf.fleet.Trips(chance, kind(move)),
    )
    stay = lambda node, action, mu: jnp.eye(30)[node]  # noqa: E731
    found = over_paths(mf.Flow(problem), lambda s, mu, step: 0.0 * s, stay)
    left = np.prod(np.where(np.asarray(found.paths.numbers[:, :3]) == 1, 0.5, 1.0), axis=1)
    np.testing.assert_allclose(found.rollouts.mass[:, 3, 0], left, atol=1e-6)
    plan = plan_over_paths(mf.Flow(problem), stay, sweeps=2, perfect=False)
    assert float(plan.value) == pytest.approx(float(found.value), abs=1e-6)
