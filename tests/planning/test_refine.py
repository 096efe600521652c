"""Plans whose actions lie anywhere in the box, and certificates over the whole box."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import walk, walking_problem
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from night import at_night

from mufield import (
    Box,
    Flow,
    Grid,
    MirrorAscent,
    MoveFlow,
    MoveSet,
    Problem,
    Profile,
    TablePolicy,
    certify,
    load_policy,
    log_mass,
    make,
    save_policy,
)
from mufield.flow.motions import degree_in_action
from mufield.planning import MirrorPlanner

pytestmark = pytest.mark.slow

LINE = Grid.box(-2.0, 2.0, (24,))
LINE_CENTRES = jnp.asarray(LINE.centres[:, 0])


class Linear(eqx.Module):
    """s + b a + k (m - s), where m is the population's mean."""

    numbers: jax.Array

    def __call__(self, state, action, mu):
        mean = jnp.dot(mu.mass, jnp.asarray(LINE.centres[:, 0]))
        return state + self.numbers[0] * action + self.numbers[1] * (mean - state)


class Quadratic(eqx.Module):
    """-(q (s - m)^2 + c m^2 + r a^2 + d a), times a unit, and a constant."""

    numbers: jax.Array
    unit: jax.Array
    shift: jax.Array

    def __call__(self, state, action, mu):
        mean, (q, c, r, d) = jnp.dot(mu.mass, jnp.asarray(LINE.centres[:, 0])), self.numbers
        cost = q * (state[0] - mean) ** 2 + c * mean**2 + r * action[0] ** 2 + d * action[0]
        return self.shift - self.unit * cost


def quadratic_flow(numbers, unit=1.0, shift=0.0):
    return earning_flow(Quadratic(jnp.asarray(numbers), jnp.asarray(unit), jnp.asarray(shift)))


def earning_flow(reward, bounds=(-1.5, 1.5)):
    problem = Problem(
        space=LINE,
        actions=Box(*bounds),
        reward=reward,
        horizon=3,
        initial=normal_around(-0.6),
        noise=0.3,
        max_move=2.5,
    )
    return Flow(problem)


def normal_around(middle):
    mass = np.exp(-2.0 * (LINE.centres[:, 0] - middle) ** 2)
    return mass / mass.sum()


def motion_of(b, k):
    return Linear(jnp.asarray([b, k]))


ASCENT = MirrorAscent(sweeps=20, sweeps_at_once=20, bound=False)


def value_of(flow, policy, motion):
    return float(eqx.filter_jit(Flow.value)(flow, policy, motion))


def still(flow, motion):
    return value_of(flow, TablePolicy.deterministic(jnp.zeros((1, 1))), motion)


class Varied(eqx.Module):
    """Random rewards by cell, of the own crowd, of effort, and of the distance from the mean."""

    by_cell: jax.Array
    numbers: jax.Array

    def __call__(self, state, action, mu):
        mean, (crowd, effort, push, away) = jnp.dot(mu.mass, LINE_CENTRES), self.numbers
        paid = self.by_cell[mu.grid.index_of(state)] - crowd * log_mass(mu.here)
        return paid - effort * action[0] ** 2 + push * action[0] - away * (state[0] - mean) ** 2


@eqx.filter_jit
def planned(flow, motion):
    """The learner's planner."""
    planner = MirrorPlanner(sweeps=20)
    return planner.plan(flow, motion, flow.problem.actions, jax.random.key(0), None)


numbers = st.floats(-1.0, 1.0)


@settings(max_examples=at_night(12, 3), deadline=None, phases=[Phase.generate])
@given(st.floats(0.2, 1.0), st.floats(-0.3, 0.4), *[numbers] * 4, st.integers(0, 10_000))
def test_plans_earn_no_less_than_rest_or_their_start_and_their_history_is_true(
    b, k, crowd, effort, push, away, seed
):
    by_cell = jnp.asarray(np.random.default_rng(seed).normal(size=LINE.n_cells))
    reward = Varied(by_cell, jnp.asarray([crowd, effort, push, away]))
    flow, motion = earning_flow(reward), motion_of(b, k)
    moves = MoveFlow(flow, motion)
    found = ASCENT.solve(moves)
    value = value_of(flow, found.profile, motion)
    slack = 1e-9 * (1 + abs(value))
    assert value == pytest.approx(float(found.value), abs=slack)
    assert float(found.history[-1, 0]) == pytest.approx(value, abs=slack)
    start, rest = value_of(flow, moves.profile(moves.uniform()), motion), still(flow, motion)
    assert value >= max(start, rest) - slack
    assert np.asarray(flow.problem.actions.contains(found.moves.actions)).all()
    plan = planned(flow, motion)
    assert float(plan.value) == pytest.approx(value_of(flow, plan.profile, motion), abs=slack)
    assert float(plan.value) >= max(start, rest) - slack


class Convex(eqx.Module):
    """Rewards for how far the mean is from the middle, and from the mean; effort costs."""

    numbers: jax.Array

    def __call__(self, state, action, mu):
        mean, (together, apart, effort) = jnp.dot(mu.mass, LINE_CENTRES), self.numbers
        away = apart * (state[0] - mean) ** 2
        return together * mean**2 + away - effort * action[0] ** 2


@settings(max_examples=at_night(12, 3), deadline=None, phases=[Phase.generate])
@given(*[st.floats(0.0, 1.0)] * 2, st.floats(0.0, 0.2), st.floats(0.2, 1.0), st.floats(-0.2, 0.3))
@example(1.0, 0.0, 0.01, 1.0, 0.0)  # symmetric: all moves of the uniform policy gain alike
def test_plans_earn_no_less_than_any_constant_move_where_rewards_bend_upwards(
    together, apart, effort, b, k
):
    flow = earning_flow(Convex(jnp.asarray([together, apart, effort])))
    start = jnp.asarray(normal_around(0.0), flow.problem.initial.dtype)
    flow = flow.of_problem(flow.problem.replace(initial=start))
    motion = motion_of(b, k)
    constants = [
        value_of(flow, TablePolicy.deterministic(jnp.full((1, 1), move)), motion)
        for move in np.linspace(-1.5, 1.5, 9)
    ]
    slack = 1e-9 * (1 + max(map(abs, constants)))
    found = ASCENT.solve(MoveFlow(flow, motion))
    assert value_of(flow, found.profile, motion) >= max(constants) - slack
    assert (np.diff(np.asarray(found.history)[:, 0]) >= -slack).all()
    assert float(planned(flow, motion).value) >= max(constants) - slack


def test_a_plan_goes_on_from_a_constant_move_that_earns_more():
    # Together to either side: there is nothing to gain around the uniform policy or rest, and who
    # is at the border pays for nothing by moving on.
    flow = earning_flow(Convex(jnp.asarray([1.0, 0.0, 0.01])))
    start = jnp.asarray(normal_around(0.0), flow.problem.initial.dtype)
    flow, motion = flow.of_problem(flow.problem.replace(initial=start)), motion_of(1.0, 0.0)
    best = max(
        value_of(flow, TablePolicy.deterministic(jnp.full((1, 1), move)), motion)
        for move in np.linspace(-1.5, 1.5, 9)
    )
    for value in (
        MirrorAscent(sweeps=40, bound=False).solve(MoveFlow(flow, motion)).value,
        planned(flow, motion).value,
    ):
        assert float(value) > best + 0.01 > 1.0


def test_a_plan_is_no_worse_than_rest_after_a_single_sweep():
    # Every move costs so much more than it brings that the uniform policy is far below rest.
    reward = Varied(jnp.zeros(LINE.n_cells), jnp.asarray([0.0, 1e3, 0.0, 1e-3]))
    flow, motion = earning_flow(reward, (-1.0, 2.0)), motion_of(0.5, 0.3)
    found = MirrorAscent(sweeps=1, sweeps_at_once=20, bound=False).solve(MoveFlow(flow, motion))
    uniform = float(MoveFlow(flow, motion).rollout(MoveFlow(flow, motion).uniform()).value)
    # No weight is below 1e-12, and moves cost thousands.
    assert uniform < -1e3 < -1e-3 < still(flow, motion) - 1e-7 < float(found.value)


def test_a_plan_is_near_the_closed_form_where_nine_moves_are_not():
    # One step more would not be paid: a = -b k m / (r + b^2 k) and so on; here by fine moves.
    flow, motion = quadratic_flow([0.3, 0.8, 0.5, 0.0]), motion_of(0.9, 0.2)
    coarse = ASCENT.solve(MoveFlow(flow, motion, flow.problem.actions.points(9)))
    fine = MirrorAscent(60, bound=False).solve(
        MoveFlow(flow, motion, flow.problem.actions.points(65))
    )
    free = ASCENT.solve(MoveFlow(flow, motion))
    assert free.moves.actions.shape == (3, 24, 8, 1)
    assert float(free.value) > float(fine.value)
    assert float(coarse.value) < float(fine.value) * 1.02  # costs: the coarse plan pays more
    assert free.history.shape[0] == 20 + ASCENT.refinement.sweeps


@pytest.mark.parametrize(("unit", "shift"), [(1e-6, 0.0), (1e6, 0.0), (1.0, 50.0)])
def test_plans_do_not_depend_on_the_unit_or_the_zero_of_the_reward(unit, shift):
    given, motion = [0.3, 0.8, 0.5, 0.1], motion_of(0.9, 0.2)
    plain = ASCENT.solve(MoveFlow(quadratic_flow(given), motion))
    other = ASCENT.solve(MoveFlow(quadratic_flow(given, unit, shift), motion))
    same = (float(other.value) - 3 * shift) / unit
    assert same == pytest.approx(float(plain.value), rel=1e-4)


def test_the_degree_in_the_action_is_read_from_the_program():
    problem = walking_problem(Grid.from_map("..."), horizon=2)
    cases = {
        0: lambda s, a, mu: log_mass(mu.here),
        1: lambda s, a, mu: jnp.where(s[0] > 0, 2.0 * a[0], -a[1] / (1.0 + s[0])),
        2: lambda s, a, mu: -jnp.sum(a**2) * mu.here + a[0] * a[1],
        3: lambda s, a, mu: a[0] ** 2 * a[1],
        math.inf: lambda s, a, mu: jnp.clip(a[0], -0.5, 0.5) + jnp.where(a[1] > 0, 1.0, 0.0),
    }
    for degree, function in cases.items():
        assert degree_in_action(problem, function) == degree
    assert degree_in_action(problem, walk) == 1


def entropy_and_effort(state, action, mu):
    return -log_mass(mu.here) - 0.3 * jnp.sum((action - 0.1 * state) ** 2)


SMALL = Grid.from_map("...\n.#.\n...")


def small_flow(grid, reward):
    return Flow(
        Problem(
            space=grid,
            actions=Box(-1.0, 1.0, 2),
            reward=reward,
            horizon=3,
            initial=np.eye(8)[0] * 0.5 + 0.5 / 8,
            noise=0.3,
            max_move=1.0,
            pay_end=True,
        )
    )


SMALL_FLOW = small_flow(SMALL, entropy_and_effort)


def random_plan(seed, moves=8, grid=SMALL):
    generator = np.random.default_rng(seed)
    actions = generator.uniform(-1, 1, (3, 8, moves, 2))
    weights = generator.dirichlet(np.ones(moves), (3, 8))
    return Profile.stacked(TablePolicy(jnp.asarray(actions), jnp.asarray(weights), grid), 3)


@eqx.filter_jit
def earned(profile):
    return SMALL_FLOW.value(profile, walk)


def test_the_bound_over_the_box_is_above_all_policies():
    found = MirrorAscent(60).solve(MoveFlow(SMALL_FLOW, walk))
    assert found.moves.actions.shape == (3, 8, 8, 2)
    assert found.proof == "box"
    assert "proof='box'" in repr(found)
    value, upper = float(found.value), float(found.upper)
    assert 0 <= upper - value < 0.01 * abs(value)
    for seed in range(50):
        assert float(earned(random_plan(seed))) <= upper
    # The bound of a poor plan holds as well: the best one is below it.
    poor = certify(SMALL_FLOW, walk, random_plan(0))
    assert poor.proof == "box"
    assert poor.upper >= value
    fine = certify(SMALL_FLOW, walk, random_plan(0), Box(-1.0, 1.0, 2).points(9))
    assert fine.proof == "moves"
    assert fine.upper <= poor.upper + 1e-9
    assert poor.gap < 1.2 * fine.gap


class Affine(eqx.Module):
    """s + A a + drift."""

    matrix: jax.Array
    drift: jax.Array

    def __call__(self, state, action, mu):
        return state + self.matrix @ action + self.drift


class Mixed(eqx.Module):
    """Random rewards by cell, of the own crowd, of effort and of direction; concave in mu."""

    by_cell: jax.Array
    crowd: jax.Array
    effort: jax.Array

    def __call__(self, state, action, mu):
        away = action - 0.5 * self.by_cell[:2]
        paid = self.by_cell[mu.grid.index_of(state)] - self.crowd * log_mass(mu.here)
        return paid - self.effort * jnp.sum(away**2)


EIGHT_CELLS = (
    SMALL,
    Grid.from_map("....\n....", periodic=(True, True)),
    Grid.from_map("..#.\n.#..\n.##."),
)


@settings(max_examples=5, deadline=None, phases=[Phase.generate])
@given(
    st.sampled_from(EIGHT_CELLS), st.floats(0.05, 1.0), st.floats(-0.5, 1.0), st.integers(0, 10_000)
)
def test_no_policy_with_actions_anywhere_earns_more_than_the_bound(grid, crowd, effort, seed):
    generator = np.random.default_rng(seed)
    matrix, drift = generator.uniform(-0.45, 0.45, (2, 2)), generator.uniform(-0.1, 0.1, 2)
    motion = Affine(jnp.asarray(matrix), jnp.asarray(drift))
    paid = jnp.asarray(generator.normal(size=8))
    reward = Mixed(paid, jnp.asarray(crowd), jnp.asarray(effort))
    flow = small_flow(grid, reward)
    certificate = certify(flow, motion, random_plan(seed, grid=grid))
    assert certificate.proof == "box"
    # One move in each cell, or few: deterministic policies, and randomised ones that are extreme.
    for other in range(12):
        plan = random_plan(seed + 1 + other, moves=1 + other % 3, grid=grid)
        assert value_of(flow, plan, motion) <= certificate.upper + 1e-9
    # A plan that is nearly optimal, and what it becomes if its actions are moved a little.
    best = ASCENT.solve(MoveFlow(flow, motion)).profile
    bounds = [certificate.upper, certify(flow, motion, best).upper]
    assert max(value_of(flow, best, motion), certificate.value) <= min(bounds) + 1e-9
    actions = best.per_step.actions
    for size in (0.01, 0.1):
        shaken = eqx.tree_at(
            lambda p: p.per_step.actions,
            best,
            jnp.clip(actions + size * generator.normal(size=actions.shape), -1.0, 1.0),
        )
        assert value_of(flow, shaken, motion) <= min(bounds) + 1e-9


def test_cells_out_of_reach_do_not_loosen_the_bound():
    # Far cells are empty at first, and -log mu is 57 there.
    found = MirrorAscent(60).solve(MoveFlow(*make("four-rooms", horizon=3).reveal()))
    assert found.proof == "box"
    assert 0 <= found.gap < 0.01 * found.value


def test_a_certificate_without_a_proof_says_so():
    def stepped(state, action, mu):
        return state + jnp.clip(action, -0.7, 0.7)

    assert certify(SMALL_FLOW, stepped, random_plan(1)).proof == "numerical"


def test_motions_with_derivatives_backwards_alone_have_a_numerical_bound():
    @jax.custom_vjp
    def sharp(state, action):
        return state + action

    sharp.defvjp(lambda s, a: (s + a, None), lambda _, slope: (slope, slope))
    found = certify(SMALL_FLOW, lambda s, a, mu: sharp(s, a), random_plan(1))
    assert found.proof == "numerical"


def test_a_refined_plan_is_a_table_that_files_keep(tmp_path):
    flow = quadratic_flow([0.3, 0.8, 0.5, 0.0])
    plan = eqx.filter_jit(
        lambda f, m: MirrorPlanner(sweeps=20).plan(f, m, Box(-1.5, 1.5), jax.random.key(0), None)
    )(flow, motion_of(0.9, 0.2))
    free = ASCENT.solve(MoveFlow(flow, motion_of(0.9, 0.2)))
    assert float(plan.value) == pytest.approx(float(free.value), rel=1e-3)
    save_policy(tmp_path / "plan.safetensors", plan.profile)
    loaded = load_policy(tmp_path / "plan.safetensors")
    value = eqx.filter_jit(Flow.value)(flow, loaded, motion_of(0.9, 0.2))
    assert float(value) == pytest.approx(float(plan.value), rel=1e-6)


def test_listed_moves_stay_as_they_are():
    problem = walking_problem(SMALL, horizon=2).replace(actions=MoveSet([[0, 0], [1, 0], [0, 1]]))
    moves = MoveFlow(Flow(problem), walk)
    assert not moves.free
    assert moves.actions.shape == (8, 3, 2)
    assert MirrorAscent(5).solve(moves).proof == "moves"
