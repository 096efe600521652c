"""A fleet between regions: the programme, days, what is learned from them, files and nodes."""

import gzip
import json

import numpy as np
import pytest
from fleet import region_scenario, write

import mufield as mf
from mufield.fleet.network_flow import FleetState, Orders, _tangent, whole
from mufield.fleet.regions import Regions


def town(seed: int = 0, horizon: int = 6, count: int = 3) -> Regions:
    """A small town with random tables."""
    rng = np.random.default_rng(seed)
    shape = (horizon, count, count)
    return Regions(
        demand=rng.gamma(1.0, 4.0, shape),
        pay=rng.uniform(5, 15, shape),
        trip_steps=rng.integers(1, 4, shape),
        drive_steps=rng.integers(1, 4, shape),
        drive_cost=rng.uniform(0, 2, shape),
        vehicles=np.full(count, 20.0),
    )


def test_two_regions_are_planned_as_by_hand():
    """All trips begin in region 1 and last long; driving there takes two steps and costs 1."""
    demand = np.zeros((4, 2, 2))
    demand[2:, 1, 1] = 5.0
    regions = Regions(demand, np.full((2, 2), 10.0), np.full((2, 2), 9), np.full((2, 2), 2),
                      np.full((2, 2), 1.0), np.array([7.0, 0.0]))  # fmt: skip
    plan = regions.plan(margins=False)
    assert plan.value == pytest.approx(7 * (10 - 1))
    assert plan.driven[:2, 0, 1].sum() == pytest.approx(7)
    certain = FleetState(1, np.array([7.0, 0.0]), np.zeros((1, 2)), np.zeros((2, 2)))
    assert regions.plan(certain, margins=False).value == pytest.approx(5 * 9)  # step 3 only
    arriving = certain._replace(free=np.zeros(2), arriving=np.array([[0.0, 3.0]]))
    assert regions.plan(arriving, margins=False).value == pytest.approx(30)


@pytest.mark.parametrize("replanned", [True, False])
def test_no_vehicle_is_lost_or_made(replanned):
    regions = town()
    plan = regions.plan()
    counted = []

    def watched(state):
        counted.append(state.free.sum() + state.arriving.sum())
        return regions.dispatch(state) if replanned else plan.follow(state)

    day = regions.simulate(watched, 3)
    assert counted == pytest.approx([60.0] * 6)
    assert (day.served <= day.requests).all()
    assert (np.concatenate([day.served, day.driven]) % 1 == 0).all()
    earned = np.sum(day.served * regions.pay) - np.sum(day.driven * regions.drive_cost)
    assert day.profit == pytest.approx(earned)


def test_no_dispatcher_that_knew_all_requests_earns_more_than_the_programme():
    regions = town(1)
    day = regions.simulate(regions.dispatch, 5)
    known = Regions(**{**vars(regions), "demand": day.requests})
    assert day.profit <= known.plan(margins=False).value + 1e-6


def test_impossible_orders_are_refused():
    regions = town()
    with pytest.raises(ValueError, match="more vehicles or requests than there are"):
        regions.simulate(lambda state: Orders(np.zeros((3, 3)), np.full((3, 3), 50.0)))


def test_tangents_lie_above_the_served_demand_and_touch_it():
    rng = np.random.default_rng(0)
    for mean in (0.3, 4.0, 37.5):
        drawn = rng.negative_binomial(mean / 0.5, 1 / 1.5, 200_000)  # 1.5 times its mean
        vehicles = np.arange(0, int(3 * mean) + 4)
        served = np.minimum(vehicles[:, None], drawn).mean(axis=1)
        lines = [_tangent(np.array([mean]), z) for z in (-2, -1, 0, 1, 2)]
        above = np.array([slope * vehicles + constant - served for slope, constant in lines])
        assert above.min() > -0.02 * mean
        assert (above.min(axis=1) < 0.02 * mean + 1e-3).all()


def test_margins_earn_more_than_plans_for_the_expected_demand():
    regions = town(2, horizon=8)
    margins = np.mean([regions.simulate(regions.dispatch, seed).profit for seed in range(12)])
    without = np.mean(
        [
            regions.simulate(lambda state: regions.plan(state, margins=False).orders, seed).profit
            for seed in range(12)
        ]
    )
    assert margins > without


def test_whole_numbers_keep_each_sum():
    table = np.random.default_rng(0).dirichlet(np.ones(5), 7) * np.arange(7)[:, None]
    rounded = whole(table)
    assert (rounded.sum(axis=1) == np.arange(7)).all()
    assert np.abs(rounded - table).max() < 1


def test_tables_that_cannot_be_are_refused():
    good = vars(town())
    for name, bad in (("trip_steps", 0), ("drive_steps", 1.5), ("demand", -1.0), ("pay", np.nan)):
        with pytest.raises(ValueError, match=name):
            Regions(**{**good, name: np.full((6, 3, 3), bad)})
    with pytest.raises(ValueError, match="vehicles must be finite, of the shape"):
        Regions(**{**good, "vehicles": np.ones(2)})


def test_scenario_files_are_read_by_the_simulators_rules(tmp_path):
    path = tmp_path / "scenario.json.gz"
    path.write_bytes(gzip.compress(json.dumps(region_scenario()).encode()))
    read = mf.fleet.regions_from_scenario(path, hour=8, minutes=4, steps=3, demand_ratio=6)
    assert read.demand[:, 0, 1] == pytest.approx([3, 3, 0])
    assert read.trip_steps[0, 0, 1] == 3  # two steps under way, free at the step after
    assert read.drive_steps[0, 0, 1] == 3
    assert read.pay[:2, 0, 1] == pytest.approx([20 - 0.5 * 8, 30 - 0.5 * 8])
    assert read.drive_cost[0, 0, 1] == pytest.approx(0.5 * 8)
    assert read.vehicles.tolist() == [5, 5]
    with pytest.raises(ValueError, match="no scenario of RL4AMOD for the hour 7"):
        mf.fleet.regions_from_scenario(path, hour=7, minutes=4, steps=3)


ZONES = [
    {"origin": "a", "destination": "b", "hour": 7.2, "minutes": 10, "fare": 8.0},
    {"origin": "a", "destination": "b", "hour": 7.9, "minutes": 20, "fare": 12.0},
    {"origin": "b", "destination": "c", "hour": 7.5, "minutes": 15, "fare": 9.0},
    {"origin": "a", "destination": "b", "hour": 9.0, "minutes": 15, "fare": 50.0},
]


def test_trips_between_zones_are_counted(tmp_path):
    clock = {"start": 7.0, "steps": 2, "minutes": 30}
    records = mf.fleet.read_trips(write(tmp_path / "trips.csv", ZONES))
    read = mf.fleet.regions_from_trips(records, vehicles=8, days=2, cost=0.1, **clock)
    assert read.names == ("a", "b", "c")
    assert read.demand[:, 0, 1] == pytest.approx([0.5, 0.5])  # two trips, half hours, two days
    assert read.pay[0, 0, 1] == pytest.approx(10 - 0.1 * 15)
    assert read.drive_cost[0, 0, 2] == pytest.approx(0.1 * 30)  # by b
    assert read.vehicles.tolist() == [0, 6, 2]
    with pytest.raises(mf.UserError, match="zones have no coordinates"):
        records.city(cell=500)
    few = [{k: v for k, v in row.items() if k != "fare"} for row in ZONES]
    unpaid = mf.fleet.read_trips(write(tmp_path / "trips.csv", few))
    with pytest.raises(mf.UserError, match="expected records with the columns origin"):
        mf.fleet.regions_from_trips(unpaid, vehicles=8, **clock)
    by_minute = mf.fleet.regions_from_trips(unpaid, vehicles=8, fare=2.0, cost=0.5, **clock)
    assert by_minute.pay[0, 0, 1] == pytest.approx(1.5 * 15)


def test_days_teach_demand_times_and_pay():
    truth = town(3)
    flat = Regions(**{**vars(truth), **{
        name: np.tile(getattr(truth, name)[:1], (6, 1, 1))
        for name in ("demand", "pay", "trip_steps", "drive_steps", "drive_cost")}})  # fmt: skip
    days = [flat.simulate(flat.dispatch, seed) for seed in range(40)]
    learned = mf.fleet.regions_from_days(days, vehicles=flat.vehicles, cost=1.0, optimism=0.0)
    assert learned.demand.sum() == pytest.approx(flat.demand.sum(), rel=0.05)
    assert learned.demand == pytest.approx(flat.demand, abs=1.0)
    used = np.sum([day.driven for day in days], axis=(0, 1)) > 0
    assert used.any()
    assert (learned.drive_steps[0] == flat.drive_steps[0])[used].all()
    served = np.sum([day.served for day in days], axis=(0, 1)) > 0
    assert learned.pay[0][served] == pytest.approx(flat.pay[0][served])
    hopeful = mf.fleet.regions_from_days(days[:1], vehicles=flat.vehicles, cost=1.0, optimism=2.0)
    sure = mf.fleet.regions_from_days(days[:1], vehicles=flat.vehicles, cost=1.0, optimism=0.0)
    assert (hopeful.demand > sure.demand).all()


def test_on_nodes_the_same_fleet_earns_at_most_what_the_programme_does():
    """In the limit vehicles cannot choose among passengers, so the programme is an upper bound."""
    regions = town(4, horizon=5)
    problem = regions.problem()
    system = mf.SimulatedSystem(problem, regions.motion)
    moves = mf.MoveFlow(*system.reveal(), problem.actions.points())
    plan = mf.MirrorAscent(sweeps=60).solve(moves)
    bound = regions.plan(margins=False).value / regions.vehicles.sum()
    assert 0.8 * bound < plan.value <= bound * (1 + 1e-5)
    mass = np.asarray(moves.rollout(plan.weights).mass)
    assert mass.sum(axis=1) == pytest.approx(np.ones(len(mass)), abs=1e-5)


def test_on_nodes_a_fleet_that_stays_earns_as_by_hand():
    regions = Regions(np.full((3, 1, 1), 4.0), np.full((1, 1), 2.0), np.full((1, 1), 2),
                      np.ones((1, 1)), np.zeros((1, 1)), np.array([10.0]))  # fmt: skip
    problem = regions.problem()
    system = mf.SimulatedSystem(problem, regions.motion)
    # 4 of 10 leave for two steps, 4 of the other 6, then 4 of the 2 + 4 who are there.
    assert system.evaluate(mf.random_policy(problem)).value == pytest.approx(2 * 12 / 10, rel=1e-5)
