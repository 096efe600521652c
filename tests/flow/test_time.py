"""Motions and rewards that depend on the step: ``mu.step``."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mufield as mf
from mufield.finite.system import FiniteSystem
from mufield.policies.base import as_profile

KEY = jax.random.key(0)

GRID = mf.Grid.from_map("""
    ....#...
    ........
    ....#...
""")
PACE = jnp.array([0.9, 0.1, 0.6, 0.3])
DEMAND = jnp.asarray(np.random.default_rng(0).dirichlet(np.ones(GRID.n_cells), size=5))


def paced(state, action, mu):
    return state + PACE[mu.step] * action


def crowded_and_paced(state, action, mu):
    return state + PACE[mu.step] * action / (1 + 3 * mu.here)


def same_pace(state, action, mu):
    return state + 0.6 * action


def near_demand(state, action, mu):
    """The demand of the hour, also of the one after the last move; crowds pay less."""
    wanted = DEMAND[mu.step, GRID.index_of(state)]
    return wanted - 0.1 * mf.log_mass(mu.here) - 0.05 * jnp.sum(action**2)


def problem_with(reward=near_demand, **options):
    return mf.Problem(
        space=GRID,
        actions=mf.Box(-1.0, 1.0, dim=2),
        reward=reward,
        horizon=4,
        initial=mf.point_mass(GRID, 1, 1),
        noise=0.2,
        max_move=0.9,
        pay_end=True,
        **options,
    )


MOVES = problem_with().actions.points(3)


def policy(state, mu, step):
    return jnp.array([0.8, 0.4]) * jnp.cos(step + state[0])


def test_the_flow_takes_each_step_by_its_own_motion_and_reward():
    problem = problem_with()
    flow = mf.Flow(problem)
    found = flow.rollout(policy, paced)
    mass, earned = problem.initial, 0.0
    for step in range(4):
        law = as_profile(policy, 4).at(step).at_cells(GRID, mass, step)
        still = problem_with(lambda s, a, mu, h=step: near_demand(s, a, replace(mu, step=h)))
        earned += float(jnp.sum(mass[:, None] * law.weights * mf.Flow(still).rewards(mass, law)))
        mass = flow.step(mass, law, lambda s, a, mu, h=step: s + PACE[h] * a)
    np.testing.assert_allclose(found.mass[-1], mass, atol=1e-12)
    last = jnp.vdot(mass, DEMAND[4] - 0.1 * mf.log_mass(mass))
    assert float(found.value) == pytest.approx(earned + float(last), abs=1e-10)


def test_what_is_constant_in_time_changes_nothing():
    clock, even = jnp.full(4, 0.6), jnp.full((5, GRID.n_cells), 0.1)

    def timed_reward(state, action, mu):
        return even[mu.step, 0] * mf.log_mass(mu.here)

    def reward(state, action, mu):
        return 0.1 * mf.log_mass(mu.here)

    results = [
        mf.MirrorAscent(30).solve(mf.MoveFlow(mf.Flow(problem_with(pays)), motion, MOVES))
        for pays, motion in (
            (reward, same_pace),
            (timed_reward, lambda s, a, mu: s + clock[mu.step] * a),
        )
    ]
    assert [len(found.moves.bank.kernels) for found in results] == [1, 4]
    np.testing.assert_allclose(results[0].weights, results[1].weights, atol=1e-9)
    assert float(results[0].upper) == pytest.approx(float(results[1].upper), abs=1e-9)


@pytest.mark.parametrize("motion", [same_pace, paced, crowded_and_paced])
def test_derivatives_of_a_sweep_are_those_of_j(motion):
    # Kernels between which mu decides would be interpolated.
    moves = mf.MoveFlow(mf.Flow(problem_with()), motion, MOVES, interpolate=False)
    weights = jax.random.dirichlet(KEY, jnp.ones(len(MOVES)), (4, GRID.n_cells))
    sweep = moves.sweep(weights)
    assert float(sweep.rollout.value) == pytest.approx(
        float(moves.flow.value(moves.profile(weights), motion)), abs=1e-9
    )
    # J is also a function of weights that do not sum to one: of joint mass.
    slope = jax.grad(lambda w: moves.rollout(w).value)(weights)
    np.testing.assert_allclose(
        sweep.rollout.mass[:-1, :, None] * sweep.action_values, slope, atol=1e-8
    )


def test_a_plan_with_a_clock_is_certified_and_beats_one_without():
    flow = mf.Flow(problem_with())
    found = mf.MirrorAscent(300).solve(mf.MoveFlow(flow, paced, MOVES))
    assert 0 <= float(found.gap) < 1e-3 * abs(float(found.value))
    mean = float(jnp.mean(PACE))
    blind = mf.MirrorAscent(300).solve(mf.MoveFlow(flow, lambda s, a, mu: s + mean * a, MOVES))
    assert float(flow.value(blind.profile, paced)) < float(found.value)
    certificate = mf.certify(flow, paced, blind.profile, MOVES)
    assert certificate.upper >= float(found.value)


def test_plans_of_motions_that_see_mu_and_the_step_are_those_of_the_flow():
    flow = mf.Flow(problem_with())
    moves = mf.MoveFlow(flow, crowded_and_paced, MOVES)
    assert moves.bank.interpolates
    found = mf.MirrorAscent(60).solve(moves)
    assert float(found.value) == pytest.approx(
        float(flow.value(found.profile, crowded_and_paced)), abs=1e-9
    )
    start = float(flow.value(moves.profile(moves.uniform()), crowded_and_paced))
    assert float(found.value) > start


def test_agents_move_and_are_paid_by_the_clock():
    problem = problem_with(reward=lambda s, a, mu: jnp.asarray(mu.step, dtype=s.dtype))
    episode = FiniteSystem(problem, paced, agents=50).run(policy, KEY, agents=50)
    np.testing.assert_allclose(episode.rewards, np.arange(5.0))
    tracked = mf.SimulatedSystem(problem, paced).run(policy, KEY, agents=400)
    np.testing.assert_allclose(tracked.rewards, np.arange(5.0))
    moved = np.asarray(tracked.next_states - tracked.states)
    free = ~np.asarray(tracked.stopped).any(axis=-1)
    aimed = np.asarray(PACE)[:, None] * np.asarray(tracked.actions)
    error = [np.abs((moved - aimed)[:, h][free[:, h]].mean(axis=0)).max() for h in range(4)]
    assert max(error) < 0.12  # of 0.9, where walls stop the rest


def test_models_can_look_at_the_clock():
    problem = problem_with()
    system = mf.SimulatedSystem(problem, paced)
    episode = system.run(mf.random_policy(problem), KEY, agents=60)
    data = mf.models.Transitions.of(problem, [episode])
    np.testing.assert_array_equal(data.step[:5], [0, 1, 2, 3, 0])
    clock = mf.policies.Seen(lambda state, mu: jax.nn.one_hot(mu.step, 4))

    def error(family):
        model = family.fit(data, KEY)
        state, action = jnp.array([2.5, 1.5]), jnp.array([1.0, 0.0])
        mean = problem.initial
        return max(
            abs(
                float(
                    model.predict(state, action, mf.MeanField(mean, mean[0], GRID, h)).mean[0]
                    - state[0]
                    - PACE[h]
                )
            )
            for h in range(4)
        )

    assert error(mf.GaussianProcess(mu=clock)) < 0.15
    assert error(mf.GaussianProcess()) > 0.3


def test_loose_rows_name_their_steps():
    rows = (np.full((3, 2), 1.5), np.zeros((3, 2)), np.full((3, 2), 1.5))
    problem = problem_with()
    data = mf.as_transitions(problem, *rows, mass="unknown", step=[0, 3, 1])
    np.testing.assert_array_equal(data.step, [0, 3, 1])
    for wrong in ([0, 4, 1], [0, 0.5, 1]):
        with pytest.raises(mf.UserError, match="row 1 of step must be a whole number from 0 to 3"):
            mf.as_transitions(problem, *rows, mass="unknown", step=wrong)
