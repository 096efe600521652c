"""Mirror ascent, the certificate, and the flow of finitely many moves behind them."""

import logging
from functools import lru_cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import random_walls, walk, walking_problem
from hypothesis import given, settings
from hypothesis import strategies as st
from night import at_night

from mufield import (
    Box,
    Flow,
    Grid,
    MirrorAscent,
    MoveFlow,
    Profile,
    TablePolicy,
    certify,
    log_mass,
    make,
    point_mass,
)
from mufield.environments.four_rooms import MOVES
from mufield.planning.concavity import OutsideClassError, why_unbounded
from mufield.policies import uniform_policy

pytestmark = pytest.mark.slow

SMALL = Grid.from_map("...\n.#.\n...")
ACTIONS = Box(-1.0, 1.0, 2).points(3)


def small_flow(grid=SMALL, horizon=4, **options):
    start = point_mass(grid, *(0,) * grid.dim)
    return Flow(walking_problem(grid, horizon=horizon, initial=start, pay_end=True, **options))


def crowded_walk(state, action, mu):
    return state + action * (1.0 - 0.5 * mu.here)


def jammed_walk(state, action, mu):
    """A walk that becomes slower where the neighbourhood is crowded."""
    distance = jnp.sum((jnp.asarray(mu.grid.centres) - state) ** 2, axis=1)
    return state + action / (1.0 + jnp.vdot(jnp.exp(-distance), mu.mass))


INTERPOLATES = {walk: False, crowded_walk: True, jammed_walk: None}
"""Whether kernels are interpolated; None if the motion sees more of mu than the own cell."""


@eqx.filter_jit
def roll(moves, weights):
    return moves.rollout(weights)


def random_weights(flow, seed, moves=9):
    shape = (flow.problem.horizon, flow.problem.grid.n_cells)
    weights = np.random.default_rng(seed).dirichlet(np.ones(moves), size=shape)
    return jnp.asarray(weights)


@pytest.mark.parametrize("motion", INTERPOLATES)
def test_the_flow_of_moves_equals_the_flow_of_their_policy(motion):
    flow = small_flow()
    moves = MoveFlow(flow, motion, ACTIONS)
    assert (None if moves.bank is None else moves.bank.interpolates) == INTERPOLATES[motion]
    weights = random_weights(flow, 0)
    ours = roll(moves, weights)
    plain = eqx.filter_jit(lambda f, p: f.rollout(p, motion))(flow, moves.profile(weights))
    assert np.asarray(ours.mass) == pytest.approx(np.asarray(plain.mass), abs=1e-12)
    assert np.asarray(ours.rewards) == pytest.approx(np.asarray(plain.rewards), abs=1e-10)


@pytest.mark.parametrize("motion", INTERPOLATES)
def test_action_values_are_the_gradient_by_the_weights(motion):
    flow = small_flow()
    moves = MoveFlow(flow, motion, ACTIONS)
    weights = random_weights(flow, 1)
    sweep = eqx.filter_jit(lambda m, w: m.sweep(w))(moves, weights)
    value = lambda w: moves.sweep(w, bound=False).rollout.value  # noqa: E731
    gradient = jax.jit(jax.grad(value))(weights)
    joint = sweep.rollout.mass[:-1, :, None]
    assert np.asarray(gradient) == pytest.approx(np.asarray(joint * sweep.action_values), abs=1e-9)


def test_values_behind_a_wall_s_end_are_the_same_with_and_without_the_kernel():
    # Also for moves that nobody takes, whose joint mass is zero.
    flow = small_flow(Grid.from_map(".....\n..#..\n....."), horizon=3)
    weights = jnp.zeros((3, 14, 9)).at[..., 0].set(1.0)
    with_kernel = eqx.filter_jit(lambda m, w: m.sweep(w))(MoveFlow(flow, walk, ACTIONS), weights)
    no_kernel = MoveFlow(flow, walk, ACTIONS, bank_bytes=0)
    assert no_kernel.bank is None
    without = eqx.filter_jit(lambda m, w: m.sweep(w))(no_kernel, weights)
    difference = np.asarray(with_kernel.action_values - without.action_values)
    assert np.abs(difference).max() < 1e-8
    assert float(with_kernel.gap) == pytest.approx(float(without.gap))
    # The plan's own actions go through the flow itself.
    profile = MoveFlow(flow, walk, ACTIONS).profile(weights)
    assert certify(flow, walk, profile, ACTIONS).gap == pytest.approx(float(with_kernel.gap))


def test_a_second_ascent_compiles_nothing(caplog):
    moves = MoveFlow(small_flow(), walk, ACTIONS)
    MirrorAscent(3, bound=False).solve(moves)
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        MirrorAscent(3, bound=False).solve(moves)
    assert not [text for text in caplog.messages if text.startswith("Compiling")]


def earning(reward, grid, actions, horizon=2):
    from mufield import Problem

    return Flow(
        Problem(
            space=grid,
            actions=Box(-1.0, 1.0, dim=grid.dim),
            reward=reward,
            horizon=horizon,
            initial=point_mass(grid, *(0,) * grid.dim),
            noise=0.25,
            max_move=1.0,
            pay_end=True,
        )
    )


def test_more_moves_than_fit_at_once_are_added_up_in_chunks():
    flow = small_flow()
    many = Box(-1.0, 1.0, 2).points(9)  # 81, in chunks of 64
    weights = random_weights(flow, 2, moves=81)
    for motion in (walk, crowded_walk):
        chunks = roll(MoveFlow(flow, motion, many, bank_bytes=0), weights).mass
        profile = MoveFlow(flow, motion, many).profile(weights)
        whole = eqx.filter_jit(lambda f, p, m=motion: f.rollout(p, m))(flow, profile).mass
        assert np.asarray(chunks) == pytest.approx(np.asarray(whole), abs=1e-12)
    without_kernel = MoveFlow(flow, walk, ACTIONS, bank_bytes=0)
    assert np.isfinite(float(without_kernel.sweep(random_weights(flow, 2)).gap))


def test_the_ascent_climbs_and_its_bracket_narrows():
    moves = MoveFlow(small_flow(), walk, ACTIONS)
    result = MirrorAscent(sweeps=60).solve(moves)
    value, gap = np.asarray(result.history).T
    assert (np.diff(value) >= -1e-12).all()
    running = np.minimum.accumulate(value + gap)
    # The running minimum does shrink, again and again.
    assert (running[[10, 20, 40]] < running[[0, 10, 20]]).all()
    assert running[-1] - value[-1] < 0.1 * (running[0] - value[0])
    assert float(result.upper) == pytest.approx(running[-1], abs=1e-9)
    assert result.outcome == "plateau"
    assert result.note == ""
    assert repr(result) == (
        f"MirrorResult(J={float(result.value):.6g}, gap={float(result.gap):.3g}, "
        "proof='moves', sweeps=60, outcome='plateau')"
    )


def test_an_ascent_that_still_gains_says_so():
    moves = MoveFlow(small_flow(), walk, ACTIONS)
    result = MirrorAscent(sweeps=2).solve(moves)
    assert result.outcome == "gaining"
    assert "more sweeps" in result.note


@pytest.mark.parametrize("motion", [walk, crowded_walk])
def test_plans_do_not_depend_on_the_unit_of_the_reward(motion):
    flow = small_flow()
    figures = []
    for unit in at_night((1e-6, 1e-3, 1.0, 1e3, 1e6), (1e-6, 1e6)):

        def reward(state, action, mu, unit=unit):
            return unit * (state[0] - log_mass(mu.here))

        moves = MoveFlow(flow.of_problem(flow.problem.replace(reward=reward)), motion, ACTIONS)
        figures.append(float(MirrorAscent(sweeps=60, bound=False).solve(moves).value) / unit)
    assert figures == pytest.approx([figures[0]] * len(figures), rel=1e-3)


def test_the_history_is_of_true_values_and_no_plan_is_worse_than_its_start():
    moves = MoveFlow(small_flow(), crowded_walk, ACTIONS)
    assert moves.bank.interpolates
    first = MirrorAscent(sweeps=40, bound=False, sweeps_at_once=10).solve(moves)
    assert first.history.shape == (4, 2)
    assert float(first.history[-1, 0]) == pytest.approx(float(first.value), abs=1e-12)
    assert float(first.value) == pytest.approx(float(roll(moves, first.weights).value), abs=1e-9)
    # From the optimum of sweeps, where nothing is left to gain, interpolation must not lead away.
    again = MirrorAscent(sweeps=3, bound=False).solve(moves, first.weights)
    assert float(again.value) >= float(first.value) - 1e-9


def test_the_ascent_climbs_with_motions_that_see_all_of_mu():
    moves = MoveFlow(small_flow(), jammed_walk, ACTIONS)
    result = MirrorAscent(sweeps=40, bound=False).solve(moves)
    value = np.asarray(result.history)[:, 0]
    assert (np.diff(value) >= -1e-12).all()
    assert value[-1] > float(roll(moves, moves.uniform()).value) + 1.5
    assert float(result.value) == pytest.approx(float(roll(moves, result.weights).value), rel=1e-9)
    assert int(result.state.sweeps) == 40
    assert not np.isfinite(float(result.upper))


def test_the_ascent_stops_at_the_bracket_and_can_go_on_from_its_weights():
    moves = MoveFlow(small_flow(), walk, ACTIONS)
    first = MirrorAscent(sweeps=500, gap=0.1).solve(moves)
    assert first.outcome == "gap"
    assert float(first.gap) <= 0.1
    again = MirrorAscent(sweeps=20).solve(moves, first.weights)
    assert float(again.value) >= float(first.value) - 1e-9


def test_stepping_by_hand_is_what_the_driver_does():
    moves = MoveFlow(small_flow(), walk, ACTIONS)
    planner = MirrorAscent(sweeps=7, sweeps_at_once=3)
    state = planner.init(moves)
    for _ in range(7):
        state, _ = planner.step(moves, state)
    result = planner.solve(moves)
    assert float(state.value) == pytest.approx(float(result.value), abs=1e-12)
    assert int(state.sweeps) == 7


def test_discrete_rooms_are_bracketed():
    system = make("discrete-rooms", horizon=8)
    flow, motion = system.reveal()
    moves = MoveFlow(flow, motion, system.problem.actions.moves)
    result = MirrorAscent(sweeps=1500, gap=0.005).solve(moves)
    assert result.outcome == "gap"
    certificate = certify(flow, motion, result.profile, jnp.asarray(MOVES, dtype=float))
    assert certificate.value == pytest.approx(float(result.value))
    assert certificate.gap == pytest.approx(float(result.state.sweep.gap), abs=1e-9)


@lru_cache
def moves_on_a_map(share):
    """The same for all examples, so that they share what is compiled."""
    grid = Grid.box(0.0, 3.0, (3, 3), walls=random_walls((3, 3), share, 7))
    return MoveFlow(small_flow(grid, horizon=3), walk, ACTIONS)


@given(seed=st.integers(0, 10_000), share=st.sampled_from([0.0, 0.4]))
@settings(max_examples=at_night(16, 4))
def test_no_policy_earns_more_than_the_certificate_allows(seed, share):
    moves = moves_on_a_map(share)
    flow, grid = moves.flow, moves.flow.problem.grid
    rng = np.random.default_rng(seed)
    table = jnp.asarray(rng.uniform(-1, 1, (3, grid.n_cells, 2)))
    plans = [
        Profile.stacked(TablePolicy.deterministic(table), 3),
        moves.profile(random_weights(flow, seed)),
        uniform_policy(ACTIONS),
        MirrorAscent(sweeps=20).solve(moves).profile,
    ]
    certificates = [certify(flow, walk, plan, ACTIONS) for plan in plans]
    assert all(c.gap >= 0 for c in certificates)
    # The table's own actions are not among the moves, so only its own certificate covers it.
    values = [c.value for c in certificates[1:]]
    for certificate in certificates:
        assert max(values) <= certificate.upper + 1e-9
    pure = np.eye(9)[rng.integers(9, size=(3, grid.n_cells))]
    value = float(roll(moves, jnp.asarray(pure)).value)
    assert value <= min(c.upper for c in certificates) + 1e-9


def test_certificates_are_refused_outside_their_class():
    flow = small_flow()
    plan = uniform_policy(ACTIONS)
    with pytest.raises(OutsideClassError, match="motion depends on mu"):
        certify(flow, crowded_walk, plan, ACTIONS)

    ring = Grid.box(0.0, 20.0, 20, periodic=True)
    line = Box(-1.0, 1.0).points(3)

    def neighbours(state, action, mu):
        return -mu.here + 0.62 * (mu.at(state + 1.0) + mu.at(state - 1.0))

    for grid, actions, reward in (
        (SMALL, ACTIONS, lambda state, action, mu: mu.here),
        (SMALL, ACTIONS, lambda state, action, mu: 1e4 + mu.here),
        (SMALL, ACTIONS, lambda state, action, mu: -log_mass(mu.here) + 3.0 * mu.here),
        (ring, line, neighbours),
    ):
        convex = earning(reward, grid, actions)
        with pytest.raises(OutsideClassError, match="not concave"):
            certify(convex, walk, uniform_policy(actions), actions)
        result = MirrorAscent(sweeps=3).solve(MoveFlow(convex, walk, actions))
        assert not np.isfinite(float(result.upper))
    for reward in (
        lambda state, action, mu: state[0],
        lambda state, action, mu: -log_mass(mu.here) - jnp.sum(action**2),
    ):
        assert certify(earning(reward, SMALL, ACTIONS), walk, plan, ACTIONS).gap >= 0
    assert not np.isfinite(
        float(MoveFlow(flow, crowded_walk, ACTIONS).sweep(random_weights(flow, 0)).gap)
    )


def test_a_plan_s_own_actions_count_just_where_it_takes_them():
    """Where reward and motion ignore mu, the bound is the optimum over rest and what is taken."""
    line = Grid.box(0.0, 4.0, 4)
    right, rest, left = (jnp.full((4, 1), action) for action in (1.0, 0.0, -1.0))
    flow = earning(lambda state, action, mu: state[0] - 9.0, line, Box(-1.0, 1.0).points(3))

    def playing(*weights):
        table = jnp.broadcast_to(jnp.asarray(weights), (4, 3))
        return TablePolicy(jnp.stack([right, rest, left], axis=1), table)

    bound = certify(flow, walk, playing(0.5, 0.5, 0.0), jnp.zeros((1, 1)))
    assert bound.value < bound.upper
    assert bound.upper == pytest.approx(float(flow.value(playing(1.0, 0.0, 0.0), walk)))


def test_moves_of_the_wrong_size_are_refused():
    with pytest.raises(ValueError, match="each move must have 2 numbers"):
        MoveFlow(small_flow(), walk, jnp.zeros((3, 1)))


def test_randomised_profiles_track_agents_too():
    system = make("four-rooms", horizon=3)
    weights = jnp.full((3, 104, 9), 1 / 9)
    profile = Profile.stacked(TablePolicy.mixing(ACTIONS, weights), 3)
    episode = system.run(profile, jax.random.key(0), agents=50)
    assert len(np.unique(np.asarray(episode.actions).reshape(-1, 2), axis=0)) == 9


def test_a_certificate_is_never_made_of_numbers_that_are_not():
    def outside(state, action, mu):  # not a number at the corners of the box
        return jnp.sqrt(1.0 - jnp.sum(action**2)) - log_mass(mu.here)

    flow = earning(outside, SMALL, ACTIONS)
    still = jnp.zeros((2, SMALL.n_cells, 2))
    with pytest.raises(ValueError, match="no certificate"):
        certify(flow, walk, Profile.stacked(TablePolicy.deterministic(still), 2), ACTIONS)


def test_bad_weights_and_moves_are_refused():
    moves = MoveFlow(small_flow(), walk, ACTIONS)
    with pytest.raises(ValueError, match="sum to"):
        MirrorAscent(sweeps=2).solve(moves, 0.5 * moves.uniform())
    with pytest.raises(ValueError, match="number of sweeps"):
        MirrorAscent(sweeps=0).solve(moves)
    with pytest.raises(ValueError, match="outside the box"):
        MoveFlow(small_flow(), walk, 2.0 * ACTIONS)
    by_cell = MoveFlow(small_flow(), walk, jnp.broadcast_to(ACTIONS, (8, 9, 2)))
    assert by_cell.profile(moves.uniform()).at(0).actions.shape == (8, 9, 2)


def test_concavity_is_a_matter_of_the_actions_too():
    def crowd(state, action, mu):
        return jnp.where(action[0] > 0, 1.0, -1.0) * mu.here

    def flow_over(lower, upper):
        problem = earning(crowd, SMALL, ACTIONS).problem
        actions = Box((lower, -1.0), (upper, 1.0))
        return Flow(eqx.tree_at(lambda p: p.actions, problem, actions))

    for _ in range(2):
        assert not why_unbounded(flow_over(-1.0, -0.5), walk)
        assert why_unbounded(flow_over(0.5, 1.0), walk)


@pytest.mark.parametrize("dtype", at_night(["float32", "float64"], ["float32"]))
def test_kinks_count_as_curvature(dtype):
    """Piecewise linear rewards: those that bend downwards have a bound, the others none."""
    east = jnp.asarray(SMALL.centres[:, 0] > 2.0, dtype)

    def share(mu):
        return jnp.sum(east * mu.mass)

    def found(reward):
        flow = earning(reward, SMALL, ACTIONS)
        initial = flow.problem.initial.astype(dtype)
        return why_unbounded(Flow(eqx.tree_at(lambda p: p.initial, flow.problem, initial)), walk)

    for cap in (0.01, 0.3):
        assert not found(lambda s, a, mu, c=cap: (1.0 + s[0]) * jnp.minimum(1.0, c / mu.here))
    assert not found(lambda s, a, mu: -10.0 * jnp.maximum(share(mu) - 0.7, 0.0))
    for weight in (0.0, 0.05, 1.0):
        premium = found(
            lambda s, a, mu, w=weight: (
                10.0 * jnp.maximum(share(mu) - 0.7, 0.0) - w * log_mass(mu.here)
            )
        )
        assert "not concave" in premium
    assert "not concave" in found(lambda s, a, mu: jnp.maximum(mu.here, 0.2))
