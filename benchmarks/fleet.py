"""Manhattan's taxis: plans with known motion, learned plans, and fleets of N vehicles.

Loads of 0.6 and 0.9, episodes of 12 and 36 steps. Sections, each with its claims:

- ``plans``: J of vehicles that stay, that go towards demand, of the fluid linear programme's plan
  and of mirror ascent with known motion, as shares of the programme's bound. Mirror ascent: at
  least 97% at a load of 0.6, 94% at 0.9.
- ``loose``: the same in a city whose crowds do not slow down, where the programme is right about
  the motion: which side is loose, the bound or the plan?
- ``lasting``: the same where trips take as long as they are far, at 12 km/h, so that vehicles are
  away for several steps; and how many are under way.
- ``clock``: plans for a motion that stands still at the middle of the episode, in the city as it
  is: what is lost by a model that does not see the hour.
- ``learn``: the defaults with 50 tracked vehicles, 15 episodes, three seeds. The mean of the last
  three episodes, at least 97% of the plan with known motion.
- ``population``: N vehicles that follow that plan, or one that was made for N vehicles
  (`for_fleet`), or that a dispatcher sends anew at every step, who sees where they are; 1,000 earn
  at least 97% of the limit, and so do 10,000.
- ``promised``: a town of 64 cells, learned by commands in three days of 50 tracked vehicles with
  the size of the fleet as a setting (``--population``): the interval that ``export`` prints,
  against what a simulator in plain NumPy earns with 500, 2,000 and 10,000 vehicles. It must hold
  what 18 of 20 days earn.
- ``commands``: processor and wall seconds of ``ask``, ``ask --step``, ``tell`` and ``export`` on
  256 cells and 12 steps in the third episode, when all programs are compiled: ``ask`` at most 10,
  and with a constraint or ``--population`` at most twice that.
- ``replan``: what it gains to plan the rest of a day anew when something happens at 7:40, after
  four of twelve steps: nothing, which must not lose anything; a third of the fleet is at a depot in
  the south (``depot``); 70% of the vehicles in the south go home (``lost``); a quarter of demand
  moves to a place in the north (``concert``); the demand is that of a weekend (``holiday``). The
  rest of the day is earned by the morning's plan; by plans from where vehicles are with the demand
  that the morning expected, once or at every second step; and with the demand of the day. The
  motion is known, or what a learner knows of it after five episodes.
- ``time``: 36 steps at 185 cells are planned in 20 s after compilation, and 1,024 cells with a
  dense matrix in a minute with it.

Run ``python benchmarks/fleet.py [section ...]``; ``--quick`` has plans of a short episode, a fleet
of 10,000 and known surprises. With ``--out DIR`` results are kept as soon as they are there,
with pictures, and taken from there by the next run.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _report import (
    Report,
    duration,
    learn_many,
    names_of,
    options_of,
    processor_seconds,
    run_sections,
)

import mufield as mf
from mufield.finite.system import FiniteSystem, Replan
from mufield.fleet import stay, towards_demand

LOADS, HORIZONS = (0.6, 0.9), (12, 36)
BARS = {0.6: 0.97, 0.9: 0.94}
POINTS, FLUID_POINTS, SWEEPS = 9, 5, 240
TIMED_SWEEPS, SPEED = 60, 12.0
AGENTS, EPISODES, SEEDS, LAST = 50, 15, 3, 3
SIZES, GAP_EPISODES = (100, 300, 1000, 3000, 10_000), 16
PLANS = ("for the limit", "for N vehicles", "anew at every step")
WINDOW, WINDOW_SWEEPS, WINDOW_EPISODES = 4, 96, 3
"""A dispatcher looks so many steps ahead, with so many sweeps; the episodes that are played so."""

KEY = jax.random.key(0)


@dataclass(frozen=True)
class Case:
    """One load and horizon."""

    load: float
    horizon: int
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        more = "".join(f"-{key}{value}" for key, value in self.options)
        return f"load{self.load}-steps{self.horizon}{more}"

    def system(self) -> mf.SimulatedSystem:
        options = {"load": self.load, "horizon": self.horizon, **dict(self.options)}
        return mf.make("manhattan", **options)


class Clock(eqx.Module):
    """A motion whose clock begins at another step, and stands still or goes on from there."""

    motion: Any
    first: Any
    runs: bool = eqx.field(static=True)

    def __call__(self, state: Any, action: Any, mu: mf.MeanField) -> Any:
        step = self.first + mu.step if self.runs else self.first
        return self.motion(state, action, mf.MeanField(mu.mass, mu.here, mu.grid, step))


@dataclass
class Bench:
    """The run's options, and the files that it keeps."""

    options: argparse.Namespace
    report: Report

    @property
    def cases(self) -> list[Case]:
        if self.options.quick:
            return [Case(0.6, 4)]
        chosen = self.options.cases
        every = [Case(load, horizon) for horizon in HORIZONS for load in LOADS]
        return [case for case in every if not chosen or case.name in chosen]

    @property
    def sweeps(self) -> int:
        return 40 if self.options.quick else SWEEPS

    @property
    def points(self) -> int:
        return FLUID_POINTS if self.options.quick else POINTS

    def kept(self, name: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """A result, computed unless an earlier run kept it."""
        path = self.options.out / f"{name}.json" if self.options.out else None
        if path and path.is_file():
            return json.loads(path.read_text())
        sys.stderr.write(f"{name}\n")
        began = time.perf_counter()
        found = compute()
        found["seconds"] = time.perf_counter() - began
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(found))
        jax.clear_caches()  # programs of this case are of no use to others
        return found

    def known(self, case: Case) -> tuple[float, mf.Profile]:
        """J and the policy of mirror ascent with known motion."""
        path = self.options.out / f"{case.name}.policy" if self.options.out else None
        system = case.system()
        if path and path.is_file():
            profile = mf.load_policy(path)
        else:
            moves = mf.MoveFlow(*system.reveal(), system.problem.actions.points(self.points))
            ascent = mf.MirrorAscent(sweeps=self.sweeps, bound=False)
            profile = ascent.solve(moves, progress=sys.stderr.isatty()).profile
            if path:
                path.parent.mkdir(parents=True, exist_ok=True)
                mf.save_policy(path, profile)
        return float(system.evaluate(profile).value), profile

    def values(self, case: Case) -> dict[str, Any]:
        """J of all that do not learn, and the bound."""

        def compute() -> dict[str, Any]:
            system = case.system()
            problem, points = system.problem, system.problem.actions.points
            few, tried = (
                mf.MoveFlow(*system.reveal(), points(n)) for n in (FLUID_POINTS, self.points)
            )
            fluid = mf.fleet.fluid_plan(few, tried=tried)
            return {
                "stay": float(system.evaluate(stay(problem)).value),
                "demand": float(system.evaluate(towards_demand(problem)).value),
                "fluid": fluid.value,
                "optimum": fluid.optimum,
                "upper": fluid.upper,
                "refused": fluid.refused,
                "known": self.known(case)[0],
                "wanted": float(jnp.sum(problem.trips.chance.demand)),
            }

        return self.kept(case.name, compute)


def plans(report: Report, options: argparse.Namespace) -> None:
    bench = Bench(options, report)
    for case in bench.cases:
        found = bench.values(case)
        show(bench.report, case, found)
        name = f"{case.name}: known motion, share of the bound"
        bench.report.claim(name, found["known"] / found["upper"], BARS[case.load], side="at least")
        best = max(found["stay"], found["demand"])
        name = f"{case.name}: known motion against staying or going towards demand"
        bench.report.claim(name, found["known"] / best, 1.1, side="at least")


def show(report: Report, case: Case, found: dict[str, Any]) -> None:
    names = ("stay", "demand", "fluid", "known", "upper", "wanted")
    text = " | ".join(f"{found[name]:.3f}" for name in names)
    report.row(f"{case.name}: {' | '.join(names)}", text)
    shares = " | ".join(f"{found[name] / found['upper']:.1%}" for name in names[:4])
    report.row(f"{case.name}: shares of the bound", shares)


def loose(report: Report, options: argparse.Namespace) -> None:
    bench = Bench(options, report)
    for plain in bench.cases[:2]:
        case = Case(plain.load, plain.horizon, (("congestion", 0.0),))
        found, crowded = bench.values(case), bench.values(plain)
        show(bench.report, case, found)
        share = found["known"] / found["upper"]
        bench.report.claim(
            f"{case.name}: known motion, share of the bound", share, 0.97, side="at least"
        )
        bench.report.row(
            f"{case.name}: bound with crowds, without",
            f"{crowded['upper']:.3f}, {found['upper']:.3f}",
        )
        bench.report.row(f"{case.name}: refused in the programme", f"{found['refused']:.2%}")


def lasting(report: Report, options: argparse.Namespace) -> None:
    bench = Bench(options, report)
    for plain in bench.cases:
        case = Case(plain.load, plain.horizon, (("speed", SPEED),))
        found = bench.values(case)
        show(bench.report, case, found)
        system, (_, profile) = case.system(), bench.known(case)
        mass = np.asarray(system.evaluate(profile).mass, dtype=float)
        served = system.problem.trips.served(mass)
        away = f"{1 - mass.sum(axis=1)[1:].mean():.1%} under way, {served:.1%} of the demand served"
        bench.report.row(f"{case.name}: known plan", away)
        name = f"{case.name}: known motion, share of the bound"
        bench.report.claim(name, found["known"] / found["upper"], 0.94, side="at least")
        best = max(found["stay"], found["demand"])
        name = f"{case.name}: known motion against staying or going towards demand"
        bench.report.claim(name, found["known"] / best, 1.05, side="at least")


def clock(report: Report, options: argparse.Namespace) -> None:
    bench = Bench(options, report)
    for case in bench.cases:

        def compute(case: Case = case) -> dict[str, Any]:
            system = case.system()
            flow, motion = system.reveal()
            still = Clock(motion, case.horizon // 2, runs=False)
            moves = mf.MoveFlow(flow, still, system.problem.actions.points(bench.points))
            plan = mf.MirrorAscent(sweeps=bench.sweeps, bound=False).solve(moves)
            return {"value": float(system.evaluate(plan.profile).value)}

        value = bench.kept(f"{case.name}-clock", compute)["value"]
        share = value / bench.values(case)["known"]
        bench.report.claim(f"{case.name}: without the clock", share, 0.98, side="at least")


def learn(report: Report, options: argparse.Namespace) -> None:
    bench = Bench(options, report)
    for case in bench.cases:

        def compute(case: Case = case) -> dict[str, Any]:
            settings = {"episodes": options.episodes, "agents": AGENTS}
            runs = learn_many(case.system(), seeds=range(options.seeds), **settings)
            return {"values": [[row.value for row in run.metrics] for run in runs]}

        found, known = bench.kept(f"{case.name}-learn", compute), bench.values(case)["known"]
        shares = np.array(found["values"]) / known
        for seed, curve in enumerate(shares):
            bench.report.row(
                f"{case.name}, seed {seed}: share of known motion, by episode",
                " ".join(f"{100 * value:.1f}" for value in curve),
            )
        worst = float(shares[:, -LAST:].mean(axis=1).min())
        name = f"{case.name}: learned, share of known motion, worst of {len(shares)} seeds"
        bench.report.claim(name, worst, 0.97, side="at least")
        values = bench.values(case)
        best = max(values["stay"], values["demand"])
        name = f"{case.name}: learned against staying or going towards demand"
        bench.report.claim(name, worst * known / best, 1.1, side="at least")
        each = found["seconds"] / shares.size
        bench.report.row(f"{case.name}: an episode, with compilation", f"{each:.0f} s")


def population(report: Report, options: argparse.Namespace) -> None:
    bench = Bench(options, report)
    quick = bench.options.quick
    sizes, ways = ((1000, 10_000), PLANS[:1]) if quick else (SIZES, PLANS)
    found: dict[str, tuple[list[int], np.ndarray]] = {}
    for case in bench.cases[:2]:

        def compute(case: Case = case) -> dict[str, Any]:
            limit, profile = bench.known(case)
            system = case.system()
            usual = [
                FiniteSystem.of(system, size).evaluate(profile, key, episodes=GAP_EPISODES).values
                for size, key in zip(sizes, jax.random.split(KEY, len(sizes)), strict=True)
            ]
            values: dict[str, list[list[float]]] = {plan: [] for plan in ways[1:]}
            for size in () if quick else sizes:
                problem = mf.fleet.for_fleet(system.problem, size)
                points = problem.actions.points(FLUID_POINTS)
                moves = mf.MoveFlow(mf.Flow(problem), system.reveal()[1], points)
                plan = mf.MirrorAscent(sweeps=bench.sweeps, bound=False).solve(moves)
                play = partial(FiniteSystem.of(system, size).evaluate, plan.profile, KEY)
                values[PLANS[1]].append(play(episodes=GAP_EPISODES).values.tolist())
                seen = play(episodes=WINDOW_EPISODES, replan=dispatcher(system, size, plan))
                values[PLANS[2]].append(seen.values.tolist())
            return {
                "limit": limit,
                "sizes": list(sizes),
                PLANS[0]: np.array(usual).tolist(),
                **values,
            }

        kept = bench.kept(f"{case.name}-population", compute)
        reached: dict[int, float] = {}
        for plan in ways:
            shares = np.array(kept[plan]) / kept["limit"]
            found[f"load {case.load}, planned {plan}"] = kept["sizes"], shares
            for size, each in zip(kept["sizes"], shares, strict=True):
                text = f"{each.mean():.2%} of the limit, ± {each.std(ddof=1):.2%}"
                bench.report.row(f"{case.name}, N = {size:,}, plan {plan}: mean J", text)
                reached[size] = max(reached.get(size, 0.0), float(each.mean()))
        for size in (10_000,) if quick else (1000, 10_000):
            name = f"{case.name}: N = {size:,}, the best of these, share of the limit"
            bench.report.claim(name, reached[size], 0.97, side="at least")
    if bench.options.out:
        draw(found, bench.options.out / "population.png")


class UntilTheEnd(eqx.Module):
    """The reward of a window of an episode: at its end, what vehicles are worth there."""

    reward: mf.fleet.Earnings
    worth: Any
    steps: int = eqx.field(static=True)

    def __call__(self, state: Any, action: Any, mu: mf.MeanField) -> Any:
        there = self.worth[mu.grid.index_of(state)].astype(mu.mass.dtype)
        return jnp.where(mu.step == self.steps, there, self.reward(state, action, mu))


@eqx.filter_jit
def worths(moves: mf.MoveFlow, weights: Any) -> Any:
    """What one more vehicle in each cell is worth before each step: the derivative of J."""
    problem = moves.flow.problem

    def total(more: Any) -> Any:
        def step(mass: Any, inputs: Any) -> Any:
            now, here, number = inputs
            mass = mass + here
            arrivals, paid = moves.step(mass[:, None] * now, mass, number)
            return arrivals[0], paid

        return jnp.sum(jax.lax.scan(step, problem.initial, (weights, more, problem.steps))[1])

    return jax.grad(total)(jnp.zeros((problem.horizon, problem.grid.n_cells)))


def dispatcher(system: mf.SimulatedSystem, size: int, plan: Any) -> Replan:
    """Who plans the next steps anew at every step, from where the vehicles are.

    After `WINDOW` steps vehicles are worth what they are with the ``plan`` of the whole episode.
    Demand and trips of the window are cut out and the clock is put forward, so that all steps share
    one compiled program; after the end nobody waits.
    """
    whole = mf.fleet.for_fleet(system.problem, size, seen=0)  # the first step of a window
    motion = system.reveal()[1]
    ascent = mf.MirrorAscent(sweeps=WINDOW_SWEEPS, bound=False)
    points = whole.actions.points(FLUID_POINTS)
    trips, horizon = whole.trips, whole.horizon
    assert trips is not None
    later = worths(plan.moves, plan.weights)
    later = jnp.concatenate([later, jnp.zeros((WINDOW, later.shape[1]), dtype=later.dtype)])
    window = mf.Problem(
        space=whole.grid,
        actions=whole.actions,
        reward=UntilTheEnd(whole.reward, later[0], WINDOW),
        horizon=WINDOW,
        initial=whole.initial,
        noise=whole.noise,
        max_move=whole.max_move,
        trips=mf.fleet.Trips(trips.chance, np.asarray(trips.matrix)[:WINDOW]),
        pay_end=True,
    )
    ahead = mf.Flow(window)

    def replan(step: int, mass: Any, profile: mf.Profile) -> mf.Profile:
        steps = np.arange(step, step + WINDOW)
        rows = np.minimum(steps, horizon - 1)
        wanted = jnp.where((steps < horizon)[:, None], trips.chance.demand[rows], 0.0)
        problem = eqx.tree_at(
            lambda p: (
                p.initial,
                p.trips.matrix,
                p.trips.chance.demand,
                p.reward.reward.passengers.demand,
                p.reward.worth,
            ),
            window,
            (mass, trips.matrix[rows], wanted, wanted, later[step + WINDOW]),
        )
        moves = mf.MoveFlow(
            ahead.of_problem(problem), Clock(motion, jnp.asarray(step), True), points
        )
        new = ascent.solve(moves).profile
        changed = jax.tree.map(
            lambda old, now: old.at[step].set(now[0]), profile.per_step, new.per_step
        )
        return mf.Profile(changed, profile.shared, horizon)

    return replan


def draw(found: dict[str, tuple[list[int], np.ndarray]], path: Path) -> None:
    """N against the gap."""
    from matplotlib.figure import Figure

    from mufield._style import STYLE

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    for (name, (sizes, shares)), colour, marker in zip(
        found.items(), STYLE.colours, STYLE.markers, strict=False
    ):
        short, spread = 100 * (1 - shares.mean(axis=1)), 100 * shares.std(axis=1, ddof=1)
        axes.errorbar(sizes, short, spread, marker=marker, color=colour, capsize=3, label=name)
    axes.axhline(3.0, color="0.5", linestyle=":", linewidth=1, label="97% of the limit")
    axes.set(xscale="log", yscale="log", xlabel="vehicles N", ylabel="J below the limit's (%)")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.set_title("Manhattan: fleets of N vehicles against the mean field")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


# What a run with the size of its fleet promises.


TOWN = """
import sys
sys.path.insert(0, {path!r})
import mufield as mf
from fleet import wide

@mf.register("square-town", "a square city without walls")
def square_town(side: int = 16, district: float = 0.0):
    return wide(side, district)
"""


class Town:
    """A run of the city of `wide` that commands alone drive, each in a process of its own."""

    def __init__(self, folder: Path, side: int, *flags: str, district: float = 0.0):
        self.folder, self.system = folder, wide(side)
        (folder / "town.py").write_text(TOWN.format(path=str(Path(__file__).parent)))
        given = f"side={side},district={district}"
        self("new", "square-town", "--import", "town.py", "--options", given, *flags,
             "--out", "run")  # fmt: skip

    def __call__(self, *words: str) -> tuple[dict[str, Any], tuple[float, float]]:
        """What a command prints, and its seconds: of the processor, and on the wall."""
        began = time.perf_counter(), processor_seconds()
        done = subprocess.run(
            [sys.executable, "-m", "mufield", *words, "--json"],
            cwd=self.folder, env=os.environ | {"MUFIELD_TRUSTED": str(self.folder / "trusted")},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        seconds = processor_seconds() - began[1], time.perf_counter() - began[0]
        if done.returncode:
            raise RuntimeError(f"mufield {' '.join(words)}: {done.stderr}")
        return json.loads(done.stdout), seconds

    def day(
        self, size: int, seed: int, tracked: int = 50, *, again: bool = False
    ) -> dict[str, tuple[float, float]]:
        """Asks, plays a day of N vehicles, and tells it; perhaps its second half is replanned.

        The day goes on by the morning's plan.
        """
        problem, took = self.system.problem, {}
        _, took["ask"] = self("ask", "run", "--out", "asked.policy")
        profile = mf.load_policy(self.folder / "asked.policy")
        world = FiniteSystem.of(self.system, size)
        episode = world.run(profile, jax.random.key(seed), agents=size)
        middle = problem.horizon // 2
        places = np.asarray(episode.states, dtype=float)
        _table(self.folder / "now.csv", "state_0,state_1", places[:, middle])
        if again:
            _, took["replan"] = self("ask", "run", "--start", "now.csv", "--step", str(middle))
        ends = np.asarray(episode.next_states, dtype=float)
        every = np.concatenate([places, ends[:, -1:]], axis=1)
        steps = np.broadcast_to(np.arange(problem.horizon + 1), every.shape[:2])
        _table(self.folder / "all.csv", "step,state_0,state_1",
               np.concatenate([steps[..., None], every], axis=-1).reshape(-1, 3))  # fmt: skip
        agent, step = np.indices(places.shape[:2])[:, :tracked]
        some = [agent, step, *np.moveaxis(places[:tracked], -1, 0),
                *np.moveaxis(np.asarray(episode.actions)[:tracked], -1, 0),
                *np.moveaxis(ends[:tracked], -1, 0), episode.carried[:tracked]]  # fmt: skip
        _table(self.folder / "day.csv",
               "agent,step,state_0,state_1,action_0,action_1,next_0,next_1,carried",
               np.stack(some, axis=-1).reshape(-1, 9))  # fmt: skip
        _, took["tell"] = self("tell", "run", "day.csv", "--mass", "all.csv")
        return took


def _table(path: Path, names: str, rows: np.ndarray) -> None:
    np.savetxt(path, rows, delimiter=",", header=names, comments="", fmt="%.9g")


def promised(report: Report, options: argparse.Namespace) -> None:
    for size in (500,) if options.quick else (500, 2000, 10_000):
        with tempfile.TemporaryDirectory() as folder:
            town = Town(Path(folder), 8, "--population", str(size),
                        "--planner-options", "points=5,sweeps=60")  # fmt: skip
            for seed in range(3):
                town.day(size, seed)
            found = town("export", "run", "--out", "use.policy")[0]["identity"]
            profile = mf.load_policy(Path(folder) / "use.policy")
        lower, upper = found["lower"], found["upper"]
        earned = np.array(
            [numpy_day(town.system.problem, profile, size, seed) for seed in range(20)]
        )
        report.row(
            f"{size:,} vehicles: promised, earned",
            f"{found['expected']:.3f} in {lower:.3f} to {upper:.3f} | {earned.mean():.3f} "
            f"({earned.min():.3f} to {earned.max():.3f})",
        )
        inside = int(((earned >= lower) & (earned <= upper)).sum())
        name = f"{size:,} vehicles: days inside the interval, of 20"
        report.claim(name, inside, 18, side="at least")


def commands(report: Report, options: argparse.Namespace) -> None:
    size, rounds = 2000, 3
    settings: dict[str, dict[str, Any]] = {
        "plain": {"flags": ()},
        "constraint": {"flags": (), "district": 0.1},
        "population": {"flags": ("--population", str(size))},
    }
    found = {}
    for name, given in settings.items():
        with tempfile.TemporaryDirectory() as folder:
            town = Town(Path(folder), 16, *given.pop("flags"), **given)
            for seed in range(rounds):  # the last is warm: all programs are in the cache
                took = town.day(size, seed, again=seed > 0)
                if seed:
                    _, took["export"] = town("export", "run", "--out", "use.policy")
        # Of both the smaller, because others may use the machine.
        found[name] = {command: min(seconds) for command, seconds in took.items()}
        report.row(
            f"256 cells, 12 steps, {name}, episode {rounds}: processor seconds (on the wall)",
            ", ".join(f"{command} {one:.1f} ({wall:.1f})" for command, (one, wall) in took.items()),
        )
        print(name, took, file=sys.stderr, flush=True)
    report.claim("ask, seconds", found["plain"]["ask"], 10, side="at most")
    for name in ("constraint", "population"):
        ratio = found[name]["ask"] / found["plain"]["ask"]
        report.claim(f"ask with {name}, times that without", ratio, 2, side="at most")


def numpy_day(problem: mf.Problem, profile: mf.Profile, size: int, seed: int) -> float:
    """J of one day of N vehicles in the open town of `wide`, without mufield's simulator."""
    rng, grid = np.random.default_rng(seed), problem.grid
    side, (cost,) = grid.shape[0], np.asarray(problem.reward.cost)
    demand, matrix = demand_of(problem), np.asarray(problem.trips.matrix, dtype=float)
    place = rng.random((size, 2)) * side
    value = 0.0
    for step in range(problem.horizon):
        cell = np.minimum(place.astype(int), side - 1) @ (side, 1)
        mass = np.bincount(cell, minlength=side**2) / size
        law = profile.at(step).at_cells(grid, jnp.asarray(mass, dtype=problem.initial.dtype), step)
        weights, actions = np.asarray(law.weights, dtype=float), np.asarray(law.actions)
        sums = np.cumsum(weights, axis=1)[cell]
        choice = (sums < rng.random((size, 1)) * sums[:, -1:]).sum(axis=1)
        action = actions[cell, choice]
        chance = np.minimum(1.0, demand[step, cell] / mass[cell])
        driving = cost * np.abs(action).sum(axis=1)
        value += float(np.mean(chance - (1 - chance) * driving))
        speed = 2.0 / (1 + 10.0 * mass[cell, None])
        moved = place + speed * action + 0.25 * rng.normal(size=(size, 2))
        goal = (np.cumsum(matrix, axis=1)[cell] < rng.random((size, 1))).sum(axis=1)
        goal = np.stack(np.divmod(np.minimum(goal, side**2 - 1), side), axis=1)
        taken = (rng.random(size) < chance)[:, None]
        place = np.where(taken, goal + rng.random((size, 2)), np.clip(moved, 0, side - 1e-9))
    return value


# A day planned anew.


HAPPENS = 4
SOUTH, GO_HOME = 7.0, 0.7
CONCERT, NEARBY, MOVED = (2.75, 11.5), 1.0, 0.25
DEPOT, CHANGING = (3.0, 1.5), 1 / 3

Masses = Any
Planner = Callable[[mf.Problem, int, Masses, mf.Profile], mf.Profile]
"""Plans the rest of a day: problem, step, population, and the profile so far."""


def with_demand(problem: mf.Problem, wanted: np.ndarray) -> mf.Problem:
    """The problem with another demand."""
    new = jnp.asarray(wanted, dtype=problem.initial.dtype)
    changed: mf.Problem = eqx.tree_at(
        lambda p: (p.reward.passengers.demand, p.trips.chance.demand), problem, (new, new)
    )
    return changed


def demand_of(problem: mf.Problem) -> np.ndarray:
    assert problem.trips is not None
    return np.asarray(problem.trips.chance.demand, dtype=float)


def days(
    problem: mf.Problem, mass: np.ndarray, load: float
) -> dict[str, tuple[mf.Problem, np.ndarray]]:
    """What happens: the problem as it turns out to be, and where vehicles are then."""
    centres, usual = problem.grid.centres, demand_of(problem)
    south = centres[:, 1] < SOUTH
    left = np.where(south, 1 - GO_HOME, 1.0) * mass
    fewer = usual.copy()
    fewer[HAPPENS:] /= left.sum()
    there = np.linalg.norm(centres - np.asarray(CONCERT), axis=1) < NEARBY
    concert = usual.copy()
    crowd = there / there.sum() * usual.sum(axis=1, keepdims=True)
    concert[HAPPENS:] = ((1 - MOVED) * usual + MOVED * crowd)[HAPPENS:]
    depot = np.eye(len(mass))[np.argmin(np.linalg.norm(centres - np.asarray(DEPOT), axis=1))]
    weekend = mf.make("manhattan", load=load, day="weekend").problem
    return {
        "as planned": (problem, mass),
        "depot": (problem, (1 - CHANGING) * mass + CHANGING * depot),
        f"lost: {1 - left.sum():.0%} of the fleet": (
            with_demand(problem, fewer),
            left / left.sum(),
        ),
        "concert": (with_demand(problem, concert), mass),
        "holiday": (weekend, mass),
    }


_rollout = eqx.filter_jit(mf.Flow.rollout)


def rest(
    flow: mf.Flow, motion: Any, day: mf.Problem, step: int, mass: Any, profile: mf.Profile
) -> Any:
    """The course of a day from a step on."""
    return _rollout(flow.of_problem(day).from_step(step, mass), profile, motion)


def earned(
    system: mf.SimulatedSystem,
    day: mf.Problem,
    mass: np.ndarray,
    profile: mf.Profile,
    steps: list[int],
    replan: Planner,
    expected: mf.Problem,
) -> tuple[float, float]:
    """J of the rest of a day, planned anew at some steps, and the share of demand served."""
    flow, motion = system.reveal()
    horizon, now, value = system.problem.horizon, jnp.asarray(mass), 0.0
    wanted, served = demand_of(day), 0.0
    for first, after in zip([HAPPENS, *steps], [*steps, horizon], strict=True):
        if first in steps:
            profile = replan(expected, first, now, profile)
        if after == first:
            continue
        course = rest(flow, motion, day, first, now, profile)
        value += float(course.rewards[first:after].sum())
        masses = np.asarray(course.mass[first:after], dtype=float)
        served += float(np.minimum(masses, wanted[first:after]).sum())
        now = course.mass[after]
    return value, served / float(wanted[HAPPENS:].sum())


def known_plans(system: mf.SimulatedSystem, sweeps: int) -> tuple[mf.Profile, Planner]:
    """The morning's plan with known motion, and a way to plan anew."""
    flow, motion = system.reveal()
    points, ascent = (
        system.problem.actions.points(FLUID_POINTS),
        mf.MirrorAscent(sweeps, bound=False),
    )

    def replan(problem: mf.Problem, step: int, mass: Masses, profile: mf.Profile) -> mf.Profile:
        there = flow.of_problem(problem).from_step(step, mass)
        return ascent.solve(mf.MoveFlow(there, motion, points)).profile

    return ascent.solve(mf.MoveFlow(flow, motion, points)).profile, replan


def learned_plans(system: mf.SimulatedSystem, episodes: int) -> tuple[mf.Profile, Planner]:
    """A learner's plan of the day after some episodes with 50 tracked vehicles."""
    planner = mf.MirrorPlanner(points=FLUID_POINTS, sweeps=60)
    family = mf.GaussianProcess(mu=mf.policies.Here())
    learner = mf.M3UCRL(system.problem, family, planner)
    state = mf.learn(system, learner, episodes=episodes, agents=50).state
    plan = learner.ask(state)

    def replan(problem: mf.Problem, step: int, mass: Masses, profile: mf.Profile) -> mf.Profile:
        so_far = eqx.tree_at(lambda p: p.profile, plan, profile)
        return learner.replan(state, so_far, mass, step, problem=problem).profile

    return plan.profile, replan


def surprises(
    report: Report, name: str, load: float, plans: tuple[mf.Profile, Planner], *, quick: bool
) -> None:
    system = mf.make("manhattan", load=load)
    assert isinstance(system, mf.SimulatedSystem)
    profile, replan = plans
    whole = system.evaluate(profile)
    noon = np.asarray(whole.mass[HAPPENS], dtype=float)
    often = list(range(HAPPENS, system.problem.horizon, 2))
    found: dict[str, dict[str, tuple[float, float]]] = {}
    spent: list[float] = []
    for what, (day, mass) in days(system.problem, noon, load).items():
        ways: dict[str, tuple[list[int], mf.Problem]] = {
            "keep": ([], system.problem),
            "positions": ([HAPPENS], system.problem),
            "positions, often": (often, system.problem),
            "positions and demand": ([HAPPENS], day),
        }
        if quick:
            del ways["positions, often"]
        if what in ("as planned", "depot"):  # the demand is the expected one
            del ways["positions and demand"]
        if quick and what == "holiday":
            continue
        results = found.setdefault(what.partition(":")[0], {})
        for way, (steps, expected) in ways.items():
            began = time.perf_counter()
            results[way] = earned(system, day, mass, profile, steps, replan, expected)
            if len(steps) == 1:
                spent.append(time.perf_counter() - began)
        report.row(
            f"{name}, {what}: J of the rest (served) " + " | ".join(ways),
            " | ".join(f"{value:.3f} ({share:.1%})" for value, share in results.values()),
        )
    for what, results in found.items():
        kept = results["keep"][0]
        gains = {way: value / kept - 1 for way, (value, _) in results.items()}
        way = list(results)[-1] if what not in ("as planned", "depot") else "positions"
        bar = {"as planned": -0.01, "depot": 0.02, "lost": 0.02, "concert": 0.03, "holiday": 0.05}
        report.claim(f"{name}, {what}: gain by {way}", gains[way], bar[what], side="at least")
    report.row(f"{name}: seconds of a new plan, the fastest", duration(min(spent)))
    report.claim(f"{name}: seconds of a new plan", min(spent), 20.0, side="at most")


def replan(report: Report, options: argparse.Namespace) -> None:
    for load in (0.6,) if options.quick else LOADS:
        plans = known_plans(mf.make("manhattan", load=load), 20 if options.quick else 100)
        surprises(report, f"known, load {load}", load, plans, quick=options.quick)
    if not options.quick:
        learned = learned_plans(mf.make("manhattan"), 5)
        surprises(report, "learned, load 0.6", 0.6, learned, quick=True)


def timing(report: Report, options: argparse.Namespace) -> None:
    bench = Bench(options, report)
    ascent = mf.MirrorAscent(sweeps=TIMED_SWEEPS, bound=False)

    def timed(build: Callable[[], mf.SimulatedSystem], points: int) -> Callable[[], dict[str, Any]]:
        def compute() -> dict[str, Any]:
            system = build()
            began = time.perf_counter()
            moves = mf.MoveFlow(*system.reveal(), system.problem.actions.points(points))
            value = float(ascent.solve(moves).value)
            first = time.perf_counter() - began
            began = time.perf_counter()
            ascent.solve(moves)
            return {"first": first, "again": time.perf_counter() - began, "value": value}

        return compute

    horizon, side = 36, 32
    sides = {
        f"{horizon} steps at 185 cells": (Case(0.6, horizon).system, "again", 20.0),
        f"{side**2:,} cells, dense matrix, 12 steps": (lambda: wide(side), "first", 60.0),
    }
    jax.config.update("jax_enable_compilation_cache", False)
    for name, (build, which, bar) in sides.items():
        found = bench.kept(f"time-{name.replace(' ', '-')}", timed(build, bench.points))
        text = f"{found['first']:.1f} s, {found['again']:.1f} s"
        bench.report.row(f"{name}: with compilation, without", text)
        what = "with" if which == "first" else "after"
        bench.report.claim(
            f"{name}: seconds of a plan {what} compilation", found[which], bar, side="at most"
        )
    jax.config.update("jax_enable_compilation_cache", True)


def wide(side: int, district: float = 0.0) -> mf.SimulatedSystem:
    """A square city without walls, with a dense matrix of trips.

    Its western quarter may have to keep a share of the fleet, the ``district``.
    """
    grid = mf.Grid.box(0.0, float(side), (side, side))
    west = ()
    if district:
        west = mf.constraints.mass_at_least(grid, lambda s: s[0] < side / 4, district, name="west")
    rng = np.random.default_rng(0)
    demand = 0.6 * rng.dirichlet(np.full(grid.n_cells, 0.3), size=12)
    passengers = mf.fleet.Passengers(grid, demand)
    problem = mf.Problem(
        space=grid,
        actions=mf.Box(-1.0, 1.0, dim=2),
        reward=mf.fleet.Earnings(passengers),
        horizon=12,
        initial=mf.uniform(grid),
        noise=0.25,
        max_move=2.0,
        trips=mf.fleet.Trips(passengers, rng.dirichlet(np.ones(grid.n_cells), size=grid.n_cells)),
        constraints=west,
    )
    return mf.SimulatedSystem(problem, lambda s, a, mu: s + 2.0 * a / (1 + 10.0 * mu.here))


def main() -> None:
    parser = options_of(__doc__)
    every = [Case(load, horizon).name for horizon in HORIZONS for load in LOADS]
    listed = ", ".join(every)
    parser.add_argument("--cases", type=names_of(every), help=f"of {listed}; all by default")
    parser.add_argument("--episodes", type=int, default=EPISODES, help="of learners")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="of learners")
    sections = {
        "plans": plans,
        "loose": loose,
        "lasting": lasting,
        "clock": clock,
        "learn": learn,
        "population": population,
        "promised": promised,
        "commands": commands,
        "replan": replan,
        "time": timing,
    }
    run_sections("fleet", parser, sections, quick=("plans", "population", "replan"))


if __name__ == "__main__":
    main()
