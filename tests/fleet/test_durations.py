"""Trips that take several steps: nobody is lost under way, and agents, flow and programme agree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fleet import rows_of, write
from scipy import stats

import mufield as mf
from mufield.adapters.parallel import as_simulated
from mufield.finite.system import FiniteSystem
from mufield.io.checks import Asked
from mufield.io.episode import read_episode
from mufield.io.observed import read_mass

GRID = mf.Grid.box(0.0, (1.5, 2.0), (3, 4))
CELLS, HORIZON = GRID.n_cells, 6
RNG = np.random.default_rng(0)
MATRIX = RNG.dirichlet(np.ones(CELLS), size=CELLS)
LASTS = 1 + 2.6 * RNG.random((CELLS, CELLS))
DEMAND = 0.5 * RNG.dirichlet(np.ones(CELLS), size=HORIZON)


def walk(state, action, mu):
    return state + 0.5 * action


def problem_with(durations=LASTS, demand=DEMAND, matrix=MATRIX):
    passengers = mf.fleet.Passengers(GRID, demand)
    return mf.Problem(
        space=GRID,
        horizon=HORIZON,
        actions=mf.Box(-1.0, 1.0, dim=2),
        reward=mf.fleet.Earnings(passengers),
        trips=mf.fleet.Trips(passengers, matrix, durations),
        initial=mf.uniform(GRID),
        noise=0.1,
        max_move=0.5,
    )


PROBLEM = problem_with()
SYSTEM = mf.SimulatedSystem(PROBLEM, walk)
MOVES = mf.MoveFlow(*SYSTEM.reveal(), PROBLEM.actions.points(3))
WEIGHTS = jax.nn.softmax(2 * jax.random.normal(jax.random.key(0), MOVES.uniform().shape))
PROFILE = MOVES.profile(WEIGHTS)


def under_way(mass):
    """Vehicles under way at each step, by when and where they arrive, counted with NumPy."""
    away = np.zeros((HORIZON + 1, 3, CELLS))
    for step in range(HORIZON):
        taken = np.minimum(mass[step], DEMAND[step])[:, None] * MATRIX
        away[step + 1, :-1] = away[step, 1:]
        for extra in range(3):
            share = np.maximum(1 - np.abs(LASTS - (2 + extra)), 0.0)
            away[step + 1, extra] += (taken * share).sum(axis=0)
    return away


def test_nobody_is_lost_under_way():
    mass = np.asarray(MOVES.rollout(WEIGHTS).mass, dtype=float)
    total = mass.sum(axis=1) + under_way(mass).sum(axis=(1, 2))
    np.testing.assert_allclose(total, 1.0, atol=1e-5)
    assert mass[2:].sum(axis=1).max() < 0.75  # many are under way
    quiet = problem_with(demand=np.where(np.arange(HORIZON)[:, None] < 2, DEMAND, 0.0))
    back = mf.SimulatedSystem(quiet, walk).evaluate(PROFILE)
    np.testing.assert_allclose(np.asarray(back.mass[5:]).sum(axis=1), 1.0, atol=1e-5)


def test_values_of_moves_are_the_derivatives_of_j():
    logits = jax.random.normal(jax.random.key(1), WEIGHTS.shape)
    slopes = jax.grad(lambda z: MOVES.rollout(jax.nn.softmax(z)).value)(logits)
    weights = jax.nn.softmax(logits)
    sweep = MOVES.sweep(weights)
    mean = jnp.sum(weights * sweep.action_values, axis=-1, keepdims=True)
    found = sweep.rollout.mass[:-1, :, None] * weights * (sweep.action_values - mean)
    np.testing.assert_allclose(found, slopes, atol=1e-6 + 1e-4 * float(jnp.abs(slopes).max()))


def test_agents_are_where_the_flow_says():
    agents = 40_000
    system = FiniteSystem.of(SYSTEM, agents, centred=True)
    mass = np.asarray(system.evaluate(PROFILE, jax.random.key(0)).mass[0], dtype=float)
    flow = np.asarray(SYSTEM.evaluate(PROFILE).mass, dtype=float)
    for step in (1, 3, HORIZON):
        seen, expected = (np.append(each[step], 1 - each[step].sum()) for each in (mass, flow))
        assert stats.chisquare(agents * seen, agents * expected).pvalue > 1e-3
    episode = SYSTEM.run(PROFILE, jax.random.key(1), agents=4000)
    episode.check(PROBLEM)
    free = np.asarray(episode.present).mean(axis=0)
    np.testing.assert_allclose(free, flow[:-1].sum(axis=1), atol=0.04)


def test_trips_of_one_step_are_as_before():
    plain = mf.SimulatedSystem(problem_with(None), walk).evaluate(PROFILE)
    ones = problem_with(np.ones((CELLS, CELLS)))
    assert ones.trips.stages == 0
    assert float(mf.SimulatedSystem(ones, walk).evaluate(PROFILE).value) == float(plain.value)


def test_the_rest_of_a_day_goes_on_with_those_under_way():
    whole = MOVES.rollout(WEIGHTS)
    mass = np.asarray(whole.mass, dtype=float)
    now = np.concatenate([mass[2][None], under_way(mass)[2]])
    rest = mf.MoveFlow(MOVES.flow.from_step(2, now), walk, PROBLEM.actions.points(3))
    np.testing.assert_allclose(rest.rollout(WEIGHTS).mass[2:], whole.mass[2:], atol=1e-6)
    agents = FiniteSystem.of(SYSTEM.from_step(2, now), 20_000, centred=True)
    seen = agents.evaluate(PROFILE, jax.random.key(0)).mass[0]
    np.testing.assert_allclose(seen[2:], whole.mass[2:], atol=0.015)
    asked = []

    def replan(step, mu, profile):
        asked.append(mu)
        return profile

    FiniteSystem.of(SYSTEM, 100).evaluate(PROFILE, jax.random.key(0), replan=replan)
    assert {np.shape(mu) for mu in asked} == {(4, CELLS)}
    np.testing.assert_allclose([np.sum(mu) for mu in asked], 1.0, rtol=1e-5)


def test_the_fluid_programme_is_still_a_bound():
    plan = mf.fleet.fluid_plan(MOVES)
    assert plan.upper == pytest.approx(plan.optimum, rel=1e-4)
    assert plan.value <= plan.upper + 1e-5
    found = mf.MirrorAscent(60, bound=False).solve(MOVES)
    assert 0.97 * plan.upper < float(found.value) <= plan.upper
    for key in jax.random.split(jax.random.key(2), 3):
        weights = jax.nn.softmax(9 * jax.random.normal(key, WEIGHTS.shape))
        assert float(MOVES.rollout(weights).value) <= plan.upper
    short = mf.fleet.fluid_plan(
        mf.MoveFlow(mf.Flow(problem_with(None)), walk, PROBLEM.actions.points(3))
    )
    assert short.optimum > plan.optimum + 0.1  # who is away longer serves less


def test_learners_are_told_days_with_trips_that_last(tmp_path):
    episode = FiniteSystem.of(SYSTEM, 200).run(PROFILE, jax.random.key(3), agents=200)
    present, carried = np.asarray(episode.present), np.asarray(episode.carried)
    rows = [
        row | {"carried": int(carried[row["agent"], row["step"]])}
        for row in rows_of(episode)
        if present[row["agent"], row["step"]]
    ]
    asked = Asked(PROBLEM, PROFILE, "r", 1, "p")
    told = read_episode(write(tmp_path / "day.csv", rows), asked)
    # Only how many are under way at the end is not in the rows.
    np.testing.assert_allclose(told.mass[:-1], episode.mass[:-1], atol=1e-5)
    np.testing.assert_allclose(told.rewards, episode.rewards, rtol=1e-4)
    learner = mf.M3UCRL(PROBLEM, planner=mf.MirrorPlanner(points=3, sweeps=10))
    state = learner.init(jax.random.key(0))
    state = learner.tell(state, told, learner.ask(state))
    assert len(state.data) == (present & ~carried).sum()


@pytest.mark.parametrize(
    ("durations", "told"),
    [
        (np.ones((2, 2)), "must have the shape"),
        (np.full((CELLS, CELLS), 2000.0), "got values from 2000 to 2000"),
        (np.zeros((CELLS, CELLS)), "from 1 to 1,000"),
        (np.full((CELLS, CELLS), np.nan), "from 1 to 1,000"),
    ],
)
def test_durations_that_cannot_be(durations, told):
    with pytest.raises(mf.UserError, match=told):
        problem_with(durations)


def test_records_say_how_long_trips_take(tmp_path):
    city = mf.fleet.CityMap(-73.98, 40.75, 0.0, GRID)
    ends = city.to_earth(GRID.centres[RNG.integers(CELLS, size=600)])
    rows = []
    for begin, end in zip(ends[:300], ends[300:], strict=True):
        far = np.abs(city.to_plane(*begin) - city.to_plane(*end)).sum()
        names = ("pickup_longitude", "pickup_latitude", "dropoff_longitude", "dropoff_latitude")
        rows.append(dict(zip(names, (*begin, *end), strict=True)) | {"hour": 7})
        rows[-1]["minutes"] = max(6 * far, 2.0)  # 10 km/h
    records = mf.fleet.read_trips(write(tmp_path / "trips.csv", rows))
    found = records.model(city, start=7.0, steps=2, minutes=5.0)
    apart = np.abs(GRID.centres[:, None] - GRID.centres).sum(axis=-1)
    np.testing.assert_allclose(found.durations, np.maximum(6 * apart / 5, 1), atol=0.4)
    for row in rows:
        del row["minutes"]
    records = mf.fleet.read_trips(write(tmp_path / "trips.csv", rows))
    assert records.model(city, start=7.0, steps=2).durations is None
    by_speed = records.model(city, start=7.0, steps=2, minutes=5.0, speed=10.0).durations
    np.testing.assert_allclose(by_speed, np.maximum(6 * apart / 5, 1), atol=1e-9)


def test_adapters_which_know_nobody_under_way_refuse_the_system():
    with pytest.raises(mf.UserError, match="know no agents under way"):
        as_simulated(SYSTEM, {})


def test_masses_of_a_file_are_shares_of_those_who_are_free(tmp_path):
    """Of four vehicles two are under way at step 1; nobody else's share is known without rows."""
    centre = GRID.centres[0]
    rows = [
        {"step": step, "state_0": centre[0], "state_1": centre[1]}
        for step in range(HORIZON + 1)
        for _ in range(2 if step == 1 else 4)
    ]
    found = read_mass(write(tmp_path / "all.csv", rows), PROBLEM)
    assert found.sum(axis=1) == pytest.approx([1.0, 0.5, *[1.0] * (HORIZON - 1)])
    masses = [
        {"step": step, "cell_0": 0, "cell_1": 0, "mass": float(share)}
        for step, share in enumerate(found.sum(axis=1))
    ]
    path = write(tmp_path / "mass.csv", masses)
    np.testing.assert_allclose(read_mass(path, PROBLEM), found, atol=1e-6)
    with pytest.raises(mf.UserError, match=r"sum to 1 at every time, got 0\.5"):
        read_mass(path, problem_with(durations=None))


def test_what_policies_say_to_agents_under_way_is_not_checked():
    demand = np.zeros((HORIZON, CELLS))
    demand[0] = 1.0  # everybody is taken, for three steps
    problem = problem_with(np.full((CELLS, CELLS), 3.0), demand)
    system = mf.SimulatedSystem(problem, walk)

    def policy(wild):
        return lambda state, mu, step: jnp.where(step == wild, 9.0, 0.5) * jnp.ones(2)

    few = FiniteSystem.of(system, 200)
    for each in (system, few):
        assert not np.asarray(each.run(policy(1), jax.random.key(0), agents=9).present)[:, 1].any()
        with pytest.raises(mf.UserError, match="at step 3"):
            each.run(policy(3), jax.random.key(0), agents=9)
