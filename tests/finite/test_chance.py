"""What N agents can expect of a policy: the interval holds what they earn."""

import jax
import numpy as np
import pytest

import mufield as mf
from mufield.finite.populations import with_chance
from mufield.finite.system import FiniteSystem
from mufield.learning.best import likely_motion
from mufield.runs.build import for_population
from mufield.runs.config import RunConfig, parse_config

GRID = mf.Grid.box(0.0, (1.5, 2.0), (3, 4))
RNG = np.random.default_rng(0)
PASSENGERS = mf.fleet.Passengers(GRID, 0.5 * RNG.dirichlet(np.ones(12), size=4))
PROBLEM = mf.Problem(
    space=GRID,
    horizon=4,
    actions=mf.Box(-1.0, 1.0, dim=2),
    reward=mf.fleet.Earnings(PASSENGERS),
    trips=mf.fleet.Trips(PASSENGERS, RNG.dirichlet(np.ones(12), size=12)),
    initial=mf.uniform(GRID),
    noise=0.1,
    max_move=0.6,
)


def test_the_interval_holds_what_a_small_fleet_earns():
    size = 60
    learner = mf.M3UCRL(
        for_population(PROBLEM, size), planner=mf.MirrorPlanner(points=3, sweeps=10)
    )
    fleet = FiniteSystem(PROBLEM, lambda s, a, mu: s + 0.5 * a, agents=size)
    state = learner.init(jax.random.key(0))
    plan = learner.ask(state)
    state = learner.tell(state, fleet.run(plan.profile, jax.random.key(1), agents=20), plan)
    limit = learner.best(state, draws=5)
    likely, key = likely_motion(learner, state, PROBLEM), jax.random.key(3)
    found = with_chance(limit, FiniteSystem(*likely, agents=size), key)
    earned = np.asarray(fleet.evaluate(found.profile, jax.random.key(2), episodes=20).values)
    assert ((earned >= found.lower) & (earned <= found.upper)).sum() >= 18
    assert found.upper - found.lower > limit.upper - limit.lower
    assert "60 agents, with chance" in found.how
    many = with_chance(limit, FiniteSystem(*likely, agents=20_000), key)
    assert many.upper - many.lower < found.upper - found.lower


def test_a_run_plans_for_the_size_of_its_fleet():
    for_ten = for_population(PROBLEM, 10, seen=2)
    assert (float(for_ten.trips.chance.vehicles), int(for_ten.trips.chance.seen)) == (10.0, 2)
    assert for_population(PROBLEM, None) is PROBLEM
    plain = mf.make("four-rooms", horizon=3).problem
    assert for_population(plain, 10) is plain  # without passengers there is nothing to change
    limited = PROBLEM.replace(
        constraints=mf.Problem(
            space=GRID,
            horizon=4,
            actions=PROBLEM.actions,
            reward=PROBLEM.reward,
            initial=PROBLEM.initial,
            noise=0.1,
            max_move=0.6,
            constraints=mf.constraints.cells_at_most(GRID, 0.5),
        ).constraints
    )
    assert for_population(limited, 10).constraints is not None
    usual = RunConfig(environment="manhattan")
    assert parse_config({"environment": "manhattan"}, "here").population is None
    assert RunConfig(environment="manhattan", population=500).identity != usual.identity
    with pytest.raises(mf.UserError, match="population must be 1 or more"):
        RunConfig(environment="manhattan", population=0)
