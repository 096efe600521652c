"""What a learner does that is told nothing of the motion, on all motions of the suite.

The systems are those of ``docs/motions.md``. For each of them:

- the *reference*, J with known motion: mirror ascent's certified upper bound where the motion does
  not depend on mu, else the best value that mirror ascent finds;
- *rest*: J of agents at rest;
- the learner's curve over seeds, as the share of the reference, or where J can be negative as the
  share of the way from rest to the reference;
- in every episode the root mean square error of the model that it was planned with, and the share
  of the true motion inside the band ``mean +- beta * epistemic``: over all cells, a spread of
  actions, both axes, and the populations of five moments of the episode.

Sections, each with its claims:

- ``ten``: the defaults with ten tracked agents and 10 episodes. The mean of the last three, at
  least 98.5% on every motion and 99% in the median over motions. From episode 2 on the band holds
  at least 99% of the true motion in every run, and its mean half-width is at most six times the
  error.
- ``one``: one tracked agent and 30 episodes. The mean of the last five, at least 97% on every
  motion and 98% in the median.
- ``city``: at least 95% of the way within ten episodes in every seed; plan and fit take at most
  10 s.
- ``ensemble``: the band of deep ensembles holds at least 95% on every motion.
- ``inputs``: what the default model finds that the motion looks at. Fits to six random episodes of
  ten agents find the step and nothing else in two tides, the crowd ahead on a road, the
  population's mean where agents follow it, and nothing but the own cell's mass in the suite. A fit
  that finds nothing takes at most 1.3 times as long as one that is told what to see. Learning the
  tides for eight episodes ends at 98% of the way or above. Settings were chosen on the first tide.

Run ``python benchmarks/motions.py [section ...]``; ``--quick`` has one motion and two episodes.
With ``--out DIR`` every motion's result is kept as soon as it is there, with a picture, and
``--resume`` goes on after them. References that are there already are always taken from there.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _report import Report, learn_many, names_of, options_of, run_sections
from suite import SUITE

import mufield
from mufield import M3UCRL, DeepEnsemble, GaussianProcess, Hallucinated, MirrorAscent, MoveFlow
from mufield.flow.motions import dependence
from mufield.models import AbstractModel, Transitions
from mufield.policies import Around, Centre, Clock, Here
from mufield.space.measure import at_all_cells

SIGNED = ("torus-vortex", "city")
"""Systems whose J can be negative."""

FAMILIES = {"default": None, "gp": GaussianProcess(), "ensemble": DeepEnsemble()}
MOMENTS = 5
ACTIONS = 5
"""Moments of an episode, and actions on each axis, at which models are asked for the motion."""

SWEEPS, SWEEPS_WITH_MU = 1500, 500
NARROW = 5e-4
"""Width of the reference's bracket, as a share of the way, at which the ascent may stop."""

ENDS = {"ten": (0.985, 0.99), "one": (0.97, 0.98)}
"""Claimed of the last episodes, by section: on every motion, and in the median over motions."""

INPUTS = ("tide", "tide-drift", "road", "follow")
"""Systems outside of the suite, whose motions look at the step, the crowd or its mean."""

INSIDE, ENSEMBLE_INSIDE = 0.99, 0.95
"""Claimed share of the true motion in the band: of the default, and of deep ensembles."""


@dataclass(frozen=True)
class Setting:
    """How a learner is run on a motion."""

    section: str
    agents: int
    episodes: int
    seeds: int
    family: str = "default"
    scale: float | None = None

    def learner(self, problem: mufield.Problem) -> M3UCRL:
        """The learner; the library's own choice where nothing is set."""
        optimism = None if self.scale is None else Hallucinated(self.scale)
        return M3UCRL(problem, FAMILIES[self.family], optimism=optimism)


@dataclass
class Figures:
    """What was found on one motion; the lists are by seed and episode."""

    name: str
    setting: dict[str, Any]
    rest: float
    reference: float
    value: list[list[float]] = field(default_factory=list)
    error: list[list[float]] = field(default_factory=list)
    coverage: list[list[float]] = field(default_factory=list)
    width: list[list[float]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def share(self) -> np.ndarray:
        """The curve in shares of the reference, or of the way to it."""
        start = self.rest if self.name in SIGNED else 0.0
        return (np.asarray(self.value) - start) / (self.reference - start)

    @property
    def early(self) -> np.ndarray:
        """Shares of the way from agents at rest to the reference in the first three episodes."""
        way = (np.asarray(self.value) - self.rest) / (self.reference - self.rest)
        return way[:, :3].mean(axis=0)

    def end(self, last: int) -> np.ndarray:
        """Mean of the last episodes of each seed."""
        return self.share[:, -last:].mean(axis=1)

    @property
    def least_coverage(self) -> float:
        """Over seeds and episodes, the first left out: its model has seen nothing."""
        return float(np.asarray(self.coverage)[:, 1:].min())

    @property
    def greatest_width(self) -> float:
        """Mean half-width over error, likewise."""
        return float((np.asarray(self.width) / np.asarray(self.error))[:, 1:].max())


@dataclass
class Bench:
    """The run's options, and the files that it keeps."""

    options: argparse.Namespace
    report: Report

    def setting(self, section: str, agents: int, episodes: int, seeds: int = 3) -> Setting:
        """A section's setting, with what the command line changes."""
        given = self.options
        return Setting(
            section=section,
            agents=agents,
            episodes=given.episodes or episodes,
            seeds=given.seeds or seeds,
            family="ensemble" if section == "ensemble" else given.family,
            scale=given.scale,
        )

    def figures(self, name: str, setting: Setting) -> Figures:
        """Runs the learner on a motion, or reads what an earlier run kept."""
        kept = self.read(f"{name}-{setting.section}")
        if kept is not None and kept["setting"] == asdict(setting):
            return Figures(**kept)
        sys.stderr.write(f"{name}, section {setting.section}\n")
        system = mufield.make(name)
        found = Figures(name, asdict(setting), *self.ends(name, system))
        began = time.perf_counter()
        run(system, setting, found)
        found.seconds = time.perf_counter() - began
        self.keep(f"{name}-{setting.section}", asdict(found))
        if self.options.out:
            draw(found, self.options.out / f"{name}-{setting.section}")
        jax.clear_caches()  # a program of this motion is of no use to others
        return found

    def ends(self, name: str, system: mufield.SimulatedSystem) -> tuple[float, float]:
        """J of agents at rest, and the reference."""
        most = 60 if self.options.quick else None
        problem = system.problem
        # A reference that was kept is of no use once the system's defaults have changed.
        of = {"sweeps": most, "noise": list(problem.noise.std), "horizon": problem.horizon}
        kept = self.read(f"{name}-reference", always=True)
        if kept is None or kept["of"] != of:
            kept = {"of": of, **reference(system, most)}
            self.keep(f"{name}-reference", kept)
        start = kept["rest"] if name in SIGNED else 0.0
        loose = (kept["reference"] - kept["value"]) / (kept["reference"] - start)
        text = f"{kept['rest']:.2f} | {kept['value']:.3f} | {kept['reference']:.3f} ({loose:.2%})"
        if (f"{name}: rest | known motion | reference", text) not in self.report.rows:
            self.report.row(f"{name}: rest | known motion | reference", text)
        return kept["rest"], kept["reference"]

    def read(self, name: str, *, always: bool = False) -> dict[str, Any] | None:
        """What was kept under a name; None unless the run is to go on after it."""
        if not self.options.out or not (always or self.options.resume):
            return None
        path = self.options.out / f"{name}.json"
        return json.loads(path.read_text()) if path.is_file() else None

    def keep(self, name: str, document: dict[str, Any]) -> None:
        """Writes a result."""
        if self.options.out:
            self.options.out.mkdir(parents=True, exist_ok=True)
            (self.options.out / f"{name}.json").write_text(json.dumps(document))


def reference(system: mufield.SimulatedSystem, most: int | None) -> dict[str, float]:
    """J at rest, of the best plan with known motion, and the most that any plan can earn."""
    flow, motion = system.reveal()
    actions = system.problem.actions
    still = jnp.asarray(actions.rest)
    rest = float(system.evaluate(lambda state, mu, step: still).value)
    sees_mu = dependence(system.problem, motion).mu
    sweeps = most or (SWEEPS_WITH_MU if sees_mu else SWEEPS)
    moves = MoveFlow(flow, motion, actions.points(9))
    # J is about as far from rest as a short ascent finds.
    way = abs(float(MirrorAscent(20).solve(moves).value) - rest)
    found = MirrorAscent(sweeps, gap=NARROW * way).solve(moves, progress=True)
    # Evaluated anew: the ascent may go by a table of a motion that depends on mu.
    value, upper = float(system.evaluate(found.profile).value), float(found.upper)
    return {"rest": rest, "value": value, "reference": upper if np.isfinite(upper) else value}


def run(system: mufield.SimulatedSystem, setting: Setting, found: Figures) -> None:
    """Learns, and asks the model of every episode for the motion that it would have to know."""
    motion = system.reveal()[1]
    actions = system.problem.actions.points(ACTIONS)
    columns = (found.value, found.error, found.coverage, found.width)
    for column in columns:
        column.extend([] for _ in range(setting.seeds))

    def watch(seed: int, state: Any, plan: Any, episode: Any, row: Any) -> None:
        steps = np.linspace(0, system.problem.horizon - 1, MOMENTS).round().astype(int)
        asked = ask(state.model, motion, system.problem.grid, episode.mass[steps], actions)
        for column, figure in zip(columns, (episode.value, *asked), strict=True):
            column[seed].append(round(float(figure), 5))

    learner = setting.learner(system.problem)
    learn_many(
        system,
        learner,
        seeds=range(setting.seeds),
        episodes=setting.episodes,
        agents=setting.agents,
        watch=watch,
    )


@eqx.filter_jit
def ask(
    model: AbstractModel, motion: Any, grid: mufield.Grid, masses: jax.Array, actions: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Root mean square error, share inside the band, mean half-width, over cells and actions."""
    everywhere = jnp.broadcast_to(actions.astype(masses.dtype), (grid.n_cells, *actions.shape))

    def one(state: jax.Array, action: jax.Array, mu: Any) -> jax.Array:
        found = model.predict(state, action, mu)
        # Not the shorter way round: neither is far from the state.
        return jnp.stack([found.mean - motion(state, action, mu), model.beta * found.epistemic])

    off, half = jnp.moveaxis(
        jax.lax.map(lambda mass: at_all_cells(grid, mass, one, everywhere), masses), -2, 0
    )
    # Rounding must not put the truth outside where both are exact.
    inside = jnp.mean(jnp.abs(off) <= half + 1e-4)
    return jnp.sqrt(jnp.mean(jnp.square(off))), inside, jnp.mean(half)


def draw(found: Figures, path: Path) -> None:
    """The curve, the model's error and its coverage by episode."""
    from mufield.viz import save_figure
    from reproduction.panels import Panel, band_of, panel_figure

    what = "way from rest to the reference" if found.name in SIGNED else "reference"
    section = found.setting["section"]
    ends = {"claimed": ENDS[section][0]} if section in ENDS else {}
    inside = {"claimed": ENSEMBLE_INSIDE if section == "ensemble" else INSIDE}
    rows = (
        (found.share, f"share of the {what}", ends),
        (np.asarray(found.error), "error of the model, in cells", {}),
        (np.asarray(found.coverage), "share of the true motion in the band", inside),
    )
    panels = [
        Panel({"median over seeds": band_of(values, place=0)}, "episode", label, references=lines)
        for values, label, lines in rows
    ]
    agents = found.setting["agents"]
    title = f"{found.name}: {agents} tracked agent{'s' if agents > 1 else ''}"
    save_figure(panel_figure([panels], title=title), path, kinds=("png",))


def suite(bench: Bench, setting: Setting, last: int) -> list[Figures]:
    """All motions with one setting, each with a row."""
    results = []
    for name in bench.options.only or SUITE:
        found = bench.figures(name, setting)
        ends = found.end(last)
        bench.report.row(
            f"{setting.section}, {name}: end (worst seed) | error | coverage | half-width / error",
            f"{ends.mean():.2%} ({ends.min():.2%}) | {np.mean(found.error, axis=0)[-1]:.3f} | "
            f"{found.least_coverage:.2%} | {found.greatest_width:.1f}",
        )
        curve = " ".join(f"{100 * share:.1f}" for share in found.share.mean(axis=0))
        bench.report.row(f"{setting.section}, {name}: % by episode", curve)
        early = " ".join(f"{100 * share:.1f}" for share in found.early)
        bench.report.row(f"{setting.section}, {name}: % of the way from rest, first three", early)
        results.append(found)
    return results


def claim_ends(bench: Bench, results: list[Figures], last: int) -> None:
    """Claims the least and the median over motions of the seeds' mean end."""
    section = results[0].setting["section"]
    ends = {found.name: float(found.end(last).mean()) for found in results}
    worst = min(ends, key=lambda name: ends[name])
    claim, bars = bench.report.claim, ENDS[section]
    claim(f"{section}: worst motion ({worst})", ends[worst], bars[0], side="at least")
    middle = float(np.median(list(ends.values())))
    claim(f"{section}: median over motions", middle, bars[1], side="at least")


def claim_coverage(bench: Bench, results: list[Figures], bar: float) -> None:
    """Claims the least coverage of any run and episode from the second on."""
    section = results[0].setting["section"]
    worst = min(results, key=lambda found: found.least_coverage)
    name = f"{section}: least coverage from episode 2 on ({worst.name})"
    bench.report.claim(name, worst.least_coverage, bar, side="at least")


def ten(report: Report, options: argparse.Namespace) -> None:
    bench = Bench(options, report)
    results = suite(bench, bench.setting("ten", agents=10, episodes=10), last=3)
    if bench.options.quick:
        return
    claim_ends(bench, results, 3)
    first = min(results, key=lambda found: float(found.early.min()))
    name = f"ten: least way from rest in the first three episodes ({first.name})"
    report.claim(name, float(first.early.min()), 0.0, side="at least")
    claim_coverage(bench, results, INSIDE)
    widest = max(results, key=lambda found: found.greatest_width)
    name = f"ten: greatest half-width / error ({widest.name})"
    bench.report.claim(name, widest.greatest_width, 6.0, side="at most")


def one(report: Report, options: argparse.Namespace) -> None:
    bench = Bench(options, report)
    results = suite(bench, bench.setting("one", agents=1, episodes=30), last=5)
    claim_ends(bench, results, 5)


def ensemble(report: Report, options: argparse.Namespace) -> None:
    bench = Bench(options, report)
    results = suite(bench, bench.setting("ensemble", agents=10, episodes=6, seeds=1), last=3)
    claim_coverage(bench, results, ENSEMBLE_INSIDE)


def city(report: Report, options: argparse.Namespace) -> None:
    bench = Bench(options, report)
    setting = bench.setting("ten", agents=10, episodes=10)
    found = bench.figures("city", setting)
    curve = " ".join(f"{100 * share:.1f}" for share in found.share.mean(axis=0))
    bench.report.row("city: % of the way by episode", curve)
    best = found.share[:, :10].max(axis=1).min()
    bench.report.claim("city: worst seed within ten episodes", best, 0.95, side="at least")
    system = mufield.make("city")
    spent = episode_seconds(system, setting.learner(system.problem), setting.episodes, agents=10)
    bench.report.row("city: seconds, by episode", " ".join(f"{s:.1f}" for s in spent))
    usual = float(np.median(spent[1:]))
    bench.report.claim("city: seconds of plan and fit", usual, 10.0, side="at most")


def looking(name: str) -> mufield.SimulatedSystem:
    """A system whose motion looks at more than state, action and the own cell's mass."""
    plane = mufield.Grid.box((0, 0), (11, 9), (11, 9))
    line = mufield.Grid.box(0.0, 30.0, 30)
    grid = plane if name.startswith("tide") else line
    east, north = jnp.array([1.0, 0.3]), jnp.array([0.4, 1.0])

    def motion(state: jax.Array, action: jax.Array, mu: Any) -> jax.Array:
        if name == "tide":
            return state + 0.6 * action + 0.5 * jnp.sin(2 * jnp.pi * mu.step / 16) * east
        if name == "tide-drift":
            tide = 0.35 * jnp.sin(2 * jnp.pi * mu.step / 9 + 0.5) * north
            return state + 0.6 * action + tide + 0.02 * mu.step * jnp.array([1.0, 0.0])
        if name == "road":
            return state + action / (1 + 8 * mu.at(state + 1.0))
        mean = mu.mass @ jnp.asarray(grid.centres[:, 0], dtype=mu.mass.dtype)
        return state + 0.8 * action + 0.05 * (mean - state)

    start = mufield.point_mass(grid, 2, 2) if grid is plane else None
    problem = mufield.Problem(
        space=grid,
        actions=mufield.Box(-1.0, 1.0, dim=grid.dim),
        initial=mufield.from_density(grid, lambda s: jnp.exp(-0.125 * (s[0] - 5) ** 2))
        if start is None
        else start,
        reward=lambda s, a, mu: -mufield.log_mass(mu.here) - 0.1 * jnp.sum(a**2),
        horizon=16 if grid is plane else 20,
        noise=0.25,
        max_move={"tide": 1.1, "tide-drift": 1.3, "road": 1.0, "follow": 2.3}[name],
    )
    return mufield.SimulatedSystem(problem, motion)


def random_data(system: mufield.SimulatedSystem, seed: int) -> Transitions:
    """Six episodes of ten agents, each towards another goal, with random actions mixed in."""
    problem, rng = system.problem, np.random.default_rng(seed)
    grid, shape = problem.grid, (problem.horizon, problem.grid.n_cells, problem.actions.dim)
    episodes = []
    for number in range(6):
        goal, share = rng.uniform(grid.lower, grid.upper), rng.uniform(0.2, 1.0)
        towards = np.tanh(goal - grid.centres)[..., : shape[-1]]
        actions = np.clip(share * towards + 0.8 * (1 - share) * rng.normal(size=shape), -1, 1)
        table = mufield.TablePolicy.deterministic(jnp.asarray(actions), grid)
        profile = mufield.Profile.stacked(table, problem.horizon)
        episodes.append(system.run(profile, jax.random.key(10 * seed + number), agents=10))
    return Transitions.of(problem, episodes)


def inputs(report: Report, options: argparse.Namespace) -> None:
    expected = dict(zip(INPUTS, (Clock, Clock, Around, Centre), strict=True))
    seeds, key, right = range(options.seeds or 2), jax.random.key(0), []
    for name, kind in list(expected.items())[: 1 if options.quick else None]:
        for seed in seeds:
            model = GaussianProcess().fit(random_data(looking(name), seed), key)
            right.append({type(each) for each in model.features.mu.inputs} - {Here} == {kind})
            report.row(f"inputs, {name}: found", model.finding or "nothing")
    report.claim("inputs: share found as it is", float(np.mean(right)), 1.0, side="at least")
    false, count, ratios = 0, 0, []
    for name in options.only or SUITE:
        for seed in seeds:
            data, spent = random_data(mufield.make(name), seed), []
            for family in (GaussianProcess(mu=Here()), GaussianProcess()) * 2:
                began = time.perf_counter()
                model = family.fit(data, key)
                spent.append(time.perf_counter() - began)
            sees = [each.words for each in model.features.mu.inputs if each != Here()]
            false, count = false + bool(sees), count + 1
            ratios.append(spent[3] / spent[2])  # after compilation
            report.row(f"inputs, {name}: found | fit, seconds", f"{sees} | {spent[3]:.2f}")
        jax.clear_caches()
    report.claim(f"inputs: false findings in {count} fits", false, 0, side="at most")
    ratio = float(np.median(ratios))
    report.claim("inputs: time of a fit, times one that is told", ratio, 1.3, side="at most")
    if options.quick:
        return
    for name in ("tide", "tide-drift"):
        system = looking(name)
        ends = reference(system, 200)
        found = learn_many(system, seeds=seeds, episodes=8, agents=10)
        values = np.array([[row.value for row in run.metrics] for run in found])
        share = (values - ends["rest"]) / (ends["value"] - ends["rest"])
        curve = " ".join(f"{100 * each:.1f}" for each in share.mean(axis=0))
        report.row(f"inputs, {name}: % of the way by episode", curve)
        last = float(share[:, -1].mean())
        report.claim(f"inputs, {name}: episode 8", last, 0.98, side="at least")


def episode_seconds(
    system: mufield.SimulatedSystem, learner: M3UCRL, episodes: int, agents: int = 1
) -> list[float]:
    """Seconds of plan and fit in each episode."""
    state, seconds = learner.init(jax.random.key(0)), []
    for number in range(episodes):
        began = time.perf_counter()
        plan = learner.ask(state)
        planned = time.perf_counter()
        episode = system.run(plan.profile, jax.random.key(number), agents=agents)
        ran = time.perf_counter()
        state = jax.block_until_ready(learner.tell(state, episode, plan))
        seconds.append(planned - began + time.perf_counter() - ran)
    return seconds


def main() -> None:
    parser = options_of(__doc__)
    add = parser.add_argument
    add("--episodes", type=int, help="in place of the sections' numbers")
    add("--seeds", type=int, help="likewise")
    add("--only", type=names_of(SUITE), help=f"motions, with commas; of {', '.join(SUITE)}")
    add("--family", choices=FAMILIES, default="default", help="model of the motion")
    add("--scale", type=float, help="share of the band, in place of the library's choice")
    add("--resume", action="store_true", help="skip motions whose results are in --out")
    options, _ = parser.parse_known_args()
    if options.episodes is not None and options.episodes < 2:
        parser.error("--episodes must be at least 2: in the first, nothing has been learned yet")
    if options.resume and not options.out:
        parser.error("--resume needs --out, the directory of the results so far")
    if options.quick:
        parser.set_defaults(only=("rooms-slow",), episodes=2, seeds=1)
    sections = {"ten": ten, "one": one, "city": city, "ensemble": ensemble, "inputs": inputs}
    run_sections("motions", parser, sections, quick=("ten", "inputs"))


if __name__ == "__main__":
    main()
