"""A fleet between regions, in the macroscopic simulator of RL4AMOD and in our own by its rules.

- ``own``: a town made from a seed, written as a scenario file of RL4AMOD and simulated by
  `Regions.simulate`. Profit of plans that are made anew at every step, as a share of what somebody
  earns who knows all requests of the day; of the morning's plan for the expected demand; and after
  five days of which nothing was known before.
- ``theirs``: with ``--rl4amod DIR``, a checkout of github.com/StanfordASL/RL4AMOD (its simulator
  needs PuLP and networkx), the same in their simulator, in the mean of ten episodes with their
  seeds. Rebalancing alone is ours and passengers are matched by them, as for their learned
  policies, or both are ours, as for their MPC. The ceiling is MPC with perfect forecast: the
  network-flow programme with all requests known, to the end of the day, solved at each step;
  beside it, with their default of six steps ahead. SAC's profit is that of their tutorial, for
  Brooklyn alone; it was trained for 10,000 episodes by their settings.

Travel times, fares and demand are unknown when learning starts; first day: vehicles serve and stay.
Tuned on Brooklyn, and the variance of who can be served (`network_flow.py`) on Rome; on no others.

Run ``python benchmarks/regions.py [section ...] [--rl4amod DIR] [--cities nyc_brooklyn,...]``;
``--cities all`` runs all that it has.
"""

import argparse
import json
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _report import Report, options_of, run_sections
from scipy import sparse, stats
from scipy.optimize import linprog

import mufield as mf
from mufield.fleet import FleetState, Orders, RegionDay, Regions

SAC = {"nyc_brooklyn": 56_743.0}
"""Mean profit of ten episodes in RL4AMOD's tutorial."""

SAC_EPISODES = 10_000
"""Of its training, by their settings."""

Dispatcher = Callable[[FleetState], Orders]
Day = Callable[[Dispatcher, int], RegionDay]


def stay(state: FleetState) -> Orders:
    """Serves whom it can, and drives nowhere."""
    return _serving(state, np.zeros_like(state.requests))


def equal(regions: Regions) -> Dispatcher:
    """Serves whom it can, and spreads idle vehicles equally, by the shortest ways."""

    def dispatch(state: FleetState) -> Orders:
        serve, _ = stay(state)
        idle, count = state.free - serve.sum(axis=1), len(state.free)
        out = np.kron(np.eye(count), np.ones(count))
        gained = np.tile(np.eye(count), count) - out
        found = linprog(
            (regions.drive_steps[state.step] * (1 - np.eye(count))).reshape(-1),
            A_ub=np.concatenate([-gained, out]),
            b_ub=np.concatenate([idle - idle.sum() // count, idle]),
            method="highs",
        )
        drive = np.round(found.x.reshape(count, count)) * (1 - np.eye(count))
        return Orders(serve, drive)

    return dispatch


def _serving(state: FleetState, drive: np.ndarray) -> Orders:
    """Passengers in the order of their destinations, as many as there are vehicles."""
    before = np.cumsum(state.requests, axis=1) - state.requests
    return Orders(np.clip(state.free[:, None] - before, 0.0, state.requests), drive)


def knowing(regions: Regions, requests: np.ndarray, ahead: int | None = None) -> Dispatcher:
    """MPC with perfect forecast: all requests are known, or those of some steps ahead."""

    def dispatch(state: FleetState) -> Orders:
        last = None if ahead is None else state.step + ahead
        others = (getattr(regions, name)[:last] for name in RegionDay.tables())
        known = Regions(requests[:last], *others, regions.vehicles)
        return known.plan(state, margins=False).orders

    return dispatch


def ceiling(regions: Regions) -> float:
    """A bound on the mean profit of whoever does not know requests before their step.

    With m vehicles in a region, which earlier steps decide, those who serve destinations S are at
    most min(m, D_S). Its mean over Poisson numbers D_S is concave in m, so by Jensen's inequality
    the means of all flows satisfy every tangent to it: a network-flow programme without luck. S are
    the destinations that pay best, one, two, three and so on.
    """
    demand, (steps, count) = regions.demand, regions.demand.shape[:2]
    asked = demand > 1e-9
    step, origin, goal = (
        np.concatenate([one, other.reshape(-1)])
        for one, other in zip(np.nonzero(asked), np.indices(demand.shape), strict=True)
    )
    trips, each, inner = int(asked.sum()), np.arange(len(step)), origin == goal
    stay = inner & (each >= trips)
    pay, lasts = regions.pay[asked], regions.trip_steps[asked]
    cost = np.where(stay, 0.0, np.concatenate([-pay, regions.drive_cost.reshape(-1)]))
    end = step + np.where(stay, 1, np.concatenate([lasts, regions.drive_steps.reshape(-1)]))
    inside, size = end < steps, (steps * count, len(step))
    ones, place = np.ones(len(step)), step * count + origin
    leave = sparse.csr_array((ones, (place, each)), shape=size)
    ends = (end * count + goal)[inside], each[inside]
    arrive = sparse.csr_array((ones[inside], ends), shape=size)
    rows, above = [], []
    for where in np.unique(place[:trips]):
        own = np.flatnonzero(place[:trips] == where)
        best = own[np.argsort(-pay[own], kind="stable")]
        for mean, last in zip(np.cumsum(demand[asked][best]), range(1, len(best) + 1), strict=True):
            tried = mean + np.sqrt(mean) * np.array([-9.0, -1.0, 0.0, 1.0, 2.0, 3.0])
            for at in np.unique(np.maximum(np.floor(tried), 0.0)):
                serves = sparse.csr_array(
                    (ones[:last], (0 * best[:last], best[:last])), shape=(1, size[1])
                )
                rows.append(serves - stats.poisson.sf(at, mean) * leave[[where]])
                above.append(mean * stats.poisson.cdf(at - 1, mean))
    most = np.concatenate([demand[asked], np.full(len(step) - trips, np.inf)])
    starts = np.concatenate([regions.vehicles, np.zeros((steps - 1) * count)])
    found = linprog(
        cost, sparse.vstack(rows), above, leave - arrive, starts,
        np.stack([np.zeros_like(most), most], axis=1), method="highs",
    )  # fmt: skip
    return -float(found.fun)


def learned(regions: Regions, day: Day, cost: float, days: int = 5) -> tuple[Regions, list[float]]:
    """What is known after some days, each planned with what the days before have shown."""
    seen = [day(stay, 1000)]
    for each in range(1, days):
        known = mf.fleet.regions_from_days(seen, vehicles=regions.vehicles, cost=cost)
        seen.append(day(known.dispatch, 1000 + each))
    known = mf.fleet.regions_from_days(seen, vehicles=regions.vehicles, cost=cost)
    return known, [one.profit for one in seen]


def compare(
    report: Report,
    where: str,
    regions: Regions,
    day: Day,
    matched: Day | None,
    cost: float,
    seeds: range,
) -> dict[str, float]:
    """Mean profits of all dispatchers; in ``matched`` days the simulator matches passengers."""

    def mean(run: Day, dispatcher: Dispatcher) -> float:
        return float(np.mean([run(dispatcher, seed).profit for seed in seeds]))

    def mpc(ahead: int | None) -> float:
        profits = []
        for seed in seeds:
            requests = (matched or day)(stay, seed).requests
            profits.append(day(knowing(regions, requests, ahead), seed).profit)
        return float(np.mean(profits))

    known, first = learned(regions, day, cost)
    found = {
        "all stay": mean(matched or day, stay),
        "equal distribution": mean(matched or day, equal(regions)),
        "plan for the expected demand, made once": mean(day, regions.plan().follow),
        "replanned": mean(day, regions.dispatch),
        "learned in five days": mean(day, known.dispatch),
        "MPC with perfect forecast, six steps": mpc(6),
        "MPC with perfect forecast": mpc(None),
    }
    if matched:
        found["replanned, rebalancing only"] = mean(matched, regions.dispatch)
    for name, value in found.items():
        share = value / found["MPC with perfect forecast"]
        report.row(f"{where}: {name}", f"{value:,.0f} ({share:.1%})")
    share = ceiling(regions) / found["MPC with perfect forecast"]
    report.row(f"{where}: bound of the mean without a forecast, of MPC with it", f"{share:.1%}")
    report.row(f"{where}: the five days", ", ".join(f"{each:,.0f}" for each in first))
    print(where, {name: round(value) for name, value in found.items()}, file=sys.stderr, flush=True)
    return found


def own(report: Report, options: argparse.Namespace) -> None:
    """A town made from a seed, by our own statement of the rules."""
    rng, count = np.random.default_rng(11), 8
    places, popular = rng.uniform(0, 12, (count, 2)), rng.dirichlet(np.ones(count), 2)
    way = 2 + np.abs(places[:, None] - places).sum(axis=-1)
    pairs = [(i, j) for i in range(count) for j in range(count) if i != j]
    scenario = {
        "nlat": count,
        "nlon": 1,
        "demand": [
            {
                "time_stamp": 480 + minute, "origin": i, "destination": j,
                "demand": 20 * popular[0, i] * popular[1, j],
                "travel_time": float(way[i, j]), "price": float(5 + 2 * way[i, j]),
            }
            for minute in range(60) for i, j in pairs
        ],
        "rebTime": [
            {"time_stamp": 8, "origin": i, "destination": j, "reb_time": float(way[i, j])}
            for i, j in pairs
        ],
        "totalAcc": [{"hour": hour, "acc": 400} for hour in (8, 9)],
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "town.json"
        path.write_text(json.dumps(scenario))
        regions = mf.fleet.regions_from_scenario(path, hour=8, minutes=3)
    seeds = range(2 if options.quick else 10)
    found = compare(report, "town", regions, regions.simulate, None, 1.5, seeds)
    best = found["MPC with perfect forecast"]
    report.claim("town: replanned, of MPC that knows all", found["replanned"] / best, 0.97,
                 side="at least")  # fmt: skip
    report.claim("town: learned in five days, of MPC that knows all",
                 found["learned in five days"] / best, 0.9, side="at least")  # fmt: skip


def theirs(report: Report, options: argparse.Namespace) -> None:
    """Cities of RL4AMOD in its own simulator."""
    if options.rl4amod is None:
        report.row("RL4AMOD's simulator", "not run: give --rl4amod DIR")
        return
    data = options.rl4amod / "src" / "envs" / "data" / "macro"
    settings = json.loads((data / "calibrated_parameters.json").read_text())
    simulator = _simulator(options.rl4amod)
    every = [city for city in settings if (data / f"scenario_{city}.json").exists()]
    for city in every if options.cities == "all" else options.cities.split(","):
        its, path = settings[city], data / f"scenario_{city}.json"
        minutes = its.get("test_tstep", 3)
        regions = mf.fleet.regions_from_scenario(
            path, hour=its["json_hr"], minutes=minutes, demand_ratio=its["demand_ratio"],
            cost=its["beta"],
        )  # fmt: skip
        scenario = simulator.Scenario(
            json_file=str(path), demand_ratio=its["demand_ratio"], json_hr=its["json_hr"], sd=10,
            json_tstep=minutes, tf=regions.horizon,
        )  # fmt: skip
        town = simulator.AMoD(scenario, types.SimpleNamespace(cplexpath="None"), beta=its["beta"])
        _same_tables(town, regions)
        fleet = TheirFleet(town, regions)
        seeds = range(10, 12 if options.quick else 20)
        cost = its["beta"] * minutes
        found = compare(report, city, regions, fleet.day, fleet.matched_day, cost, seeds)
        report.row(f"{city}: vehicles that vanish in a day", f"{fleet.lost:.0f} (the last)")
        best = found["MPC with perfect forecast"]
        report.claim(f"{city}: replanned, of MPC with perfect forecast",
                     found["replanned"] / best, 0.97, side="at least")  # fmt: skip
        if city in SAC:
            trained = f"{SAC[city]:,.0f}, after {SAC_EPISODES:,} episodes"
            report.row(f"{city}: SAC, in their tutorial", trained)
            report.claim(f"{city}: replanned, of SAC", found["replanned"] / SAC[city], 1.03,
                         side="at least")  # fmt: skip
            report.claim(f"{city}: rebalancing only, of SAC",
                         found["replanned, rebalancing only"] / SAC[city], 1.03,
                         side="at least")  # fmt: skip
            report.claim(f"{city}: learned in five days, of SAC",
                         found["learned in five days"] / SAC[city], 1.0,
                         side="at least")  # fmt: skip


def _simulator(checkout: Path) -> Any:
    """Their simulator's module, without torch, which only their networks need."""
    sys.path.insert(0, str(checkout))
    absent = {"torch": {}, "torch_geometric": {}, "torch_geometric.data": {"Data": object}}
    absent["pandas"] = {}
    for name, contents in absent.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(contents)
    try:
        from src.envs.sim import macro_env  # type: ignore[import-not-found]
    finally:
        for name in absent:  # SciPy looks whether torch is loaded
            del sys.modules[name]
    return macro_env


def _same_tables(town: Any, regions: Regions) -> None:
    """Raises if their simulator has other tables than were read from its file."""
    steps, pairs = range(regions.horizon), town.edges
    for i, j in pairs:
        for step in steps:
            asked = town.scenario.demand_input[i, j][step]
            assert np.isclose(asked, regions.demand[step, i, j])
            if asked:
                lasts = town.demandTime[i, j][step]
                assert lasts + 1 == regions.trip_steps[step, i, j]
                pay = town.scenario.p[i, j][step] - town.beta * lasts
                assert np.isclose(pay, regions.pay[step, i, j])
        if i != j:
            assert town.rebTime[i, j][0] + 1 == regions.drive_steps[0, i, j]
    assert [town.G.nodes[i]["accInit"] for i in town.region] == regions.vehicles.tolist()


class TheirFleet:
    """Days of their simulator, for our dispatchers.

    ``lost`` are vehicles that vanished: of trips between two regions that begin at different steps
    and end at the same one, their simulator keeps the last.
    """

    def __init__(self, town: Any, regions: Regions):
        self.town, self.regions, self.lost = town, regions, 0.0

    def day(self, dispatcher: Dispatcher, seed: int) -> RegionDay:
        """A day whose passengers the dispatcher matches."""
        return self._day(dispatcher, seed, matched=False)

    def matched_day(self, dispatcher: Dispatcher, seed: int) -> RegionDay:
        """A day whose passengers the simulator matches, by the highest fares."""
        return self._day(dispatcher, seed, matched=True)

    def _day(self, dispatcher: Dispatcher, seed: int, matched: bool) -> RegionDay:
        town, shape = self.town, self.regions.demand.shape
        np.random.seed(seed)  # noqa: NPY002, their simulator draws from it
        town.reset_old()
        profit, (asked, served, driven) = 0.0, np.zeros((3, *shape))
        for step in range(len(asked)):
            asked[step] = self._table(lambda i, j, step=step: town.demand[i, j][step])
            if matched:
                profit += town.pax_step(CPLEXPATH="None")[1]
                orders = dispatcher(self._state(step, step + 1, np.zeros(shape[1:])))
            else:
                orders = dispatcher(self._state(step, step, asked[step]))
                profit += town.pax_step(paxAction=[orders.serve[pair] for pair in town.edges])[1]
            served[step] = self._table(lambda i, j, step=step: town.servedDemand[i, j][step])
            if step + 1 < len(asked):
                profit += town.reb_step([orders.drive[pair] for pair in town.edges])[1]
                driven[step] = orders.drive
        free = sum(town.acc[i][len(asked)] for i in town.region)
        self.lost = self.regions.vehicles.sum() - free - self._arriving(len(asked) - 1).sum()
        seen = (getattr(self.regions, name) for name in RegionDay.tables())
        return RegionDay(profit, asked, served, driven, *seen)

    def _table(self, entry: Callable[[int, int], float]) -> np.ndarray:
        count = len(self.regions.names)
        return np.array([[entry(i, j) for j in range(count)] for i in range(count)], dtype=float)

    def _state(self, step: int, counted: int, requests: np.ndarray) -> FleetState:
        free = np.array([self.town.acc[i][counted] for i in self.town.region], dtype=float)
        return FleetState(step, free, self._arriving(step), requests)

    def _arriving(self, step: int) -> np.ndarray:
        """Vehicles that will be free at the next step and later, by region."""
        found = np.zeros((self.regions.longest, len(self.regions.names)))
        for flows in (self.town.paxFlow, self.town.rebFlow):
            for (_, goal), numbers in flows.items():
                for when, number in numbers.items():
                    if step <= when < step + len(found):
                        found[int(when) - step, goal] += number
        return found


def main() -> None:
    """Runs the sections."""
    parser = options_of(__doc__)
    parser.add_argument("--rl4amod", type=Path, metavar="DIR", help="checkout of RL4AMOD")
    parser.add_argument("--cities", default="nyc_brooklyn,san_francisco", help="its cities, or all")
    run_sections("regions", parser, {"own": own, "theirs": theirs})


if __name__ == "__main__":
    main()
