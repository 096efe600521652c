"""What M3-UCRL learns, and how fast: the four rooms, the swarm, and where optimism pays.

Sections, each a table and claims; name some to run only those:

- ``rooms``: the four rooms with the defaults (deep ensemble, hallucinated control, mirror ascent
  over randomised policies). By which episode the median over seeds passes the paper's result
  after 30 episodes, 77.86, and its plan with known motion, 78.26; the worst seed's last five
  episodes against 99% of the certified optimum; the deepest relapse after that level was reached.
- ``network``: the same with the paper's class, deterministic networks, and less optimism.
- ``swarm``: a Gaussian process on the swarm, both motions and both starts, against the plan with
  known motion, with one tracked agent as in the paper.
- ``optimism``: the walkway, where greedy learners fail.
- ``time``: one seed of the four rooms, ten seeds side by side, planning late against early.

Run ``python benchmarks/learning.py [section ...]``; ``--quick`` takes fewer seeds and episodes.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import statistics
import time
from pathlib import Path

import jax
import numpy as np
from _report import Report, duration

import mufield
from mufield import (
    BPTT,
    M3UCRL,
    Bonus,
    GaussianProcess,
    GradientPlanner,
    Greedy,
    Hallucinated,
    MirrorAscent,
    MoveFlow,
    Network,
    Table,
    Thompson,
)
from mufield.learning.run import LearnResult, learn_many
from mufield.space.transport import wasserstein

PAPER_LEARNED, PAPER_KNOWN = 77.86, 78.26
NETWORK_SCALE = 0.1
"""Gradient ascent chases what wide bands promise into corners; mirror ascent does not."""
SWARM_SCALE = 0.3
LAST = 5
"""The final policy is judged by its last episodes."""
SECTIONS = ("rooms", "network", "swarm", "optimism", "time")


def curves(results: list[LearnResult]) -> np.ndarray:
    """Realised J, seeds by episodes."""
    return np.array([[row.value for row in result.metrics] for result in results])


def bracket(system: mufield.SimulatedSystem, sweeps: int) -> tuple[float, float]:
    """The certified interval of the global optimum."""
    flow, motion = system.reveal()
    box = system.problem.actions
    moves = MoveFlow(flow, motion, box.points(9))
    found = MirrorAscent(sweeps=sweeps).solve(moves)
    return float(found.value), float(found.upper)


def first_above(median: np.ndarray, bar: float) -> float:
    """The first episode whose median passes the bar, from 1; infinite if none does."""
    above = np.flatnonzero(median >= bar)
    return float(above[0] + 1) if len(above) else float("inf")


def relapse(values: np.ndarray, level: float) -> float:
    """Deepest fall below the best so far, after a seed first reached the level."""
    reached = np.flatnonzero(values >= level)
    if not len(reached):
        return float("inf")
    after = values[reached[0] :]
    return float(np.max(np.maximum.accumulate(after) - after))


def rooms(report: Report, quick: bool, store: Path | None) -> None:
    system = mufield.make("four-rooms")
    low, high = bracket(system, 300)
    seeds, episodes = (3, 8) if quick else (10, 30)
    began = time.perf_counter()
    results = learn_many(system, seeds=range(seeds), episodes=episodes, reference=low)
    seconds = time.perf_counter() - began
    values = curves(results)
    median = np.median(values, axis=0)
    report.row("rooms: certified optimum", f"{low:.3f} to {high:.3f}")
    report.row(f"rooms: median J of {seeds} seeds", " ".join(f"{v:.2f}" for v in median))
    report.row("rooms: worst seed", " ".join(f"{v:.2f}" for v in values.min(axis=0)))
    report.row("rooms: time", duration(seconds))
    report.claim(
        "rooms: episode where the median passes 77.86",
        first_above(median, PAPER_LEARNED),
        8,
        side="at most",
    )
    if not quick:
        last = values[:, -LAST:].mean(axis=1)
        report.claim(
            "rooms: episode where the median passes 78.26",
            first_above(median, PAPER_KNOWN),
            12,
            side="at most",
        )
        report.claim("rooms: worst seed's end / optimum", last.min() / high, 0.99, side="at least")
        falls = [relapse(row, 0.99 * high) for row in values]
        report.claim("rooms: deepest relapse", max(falls), 0.3, side="at most")
    save(store, "rooms", values)


def network(report: Report, quick: bool, store: Path | None) -> None:
    system = mufield.make("four-rooms")
    flow, motion = system.reveal()
    known = float(mufield.plan(flow, motion, Network()).value)
    seeds, episodes = (1, 2) if quick else (10, 30)
    optimism = Hallucinated(NETWORK_SCALE)
    learner = M3UCRL(system.problem, planner=GradientPlanner(), optimism=optimism)
    began = time.perf_counter()
    results = learn_many(system, learner, seeds=range(seeds), episodes=episodes, reference=known)
    values = curves(results)
    report.row("network: known motion", f"{known:.2f}")
    report.row(
        f"network: median J of {seeds} seeds",
        " ".join(f"{v:.2f}" for v in np.median(values, axis=0)),
    )
    report.row("network: time", duration(time.perf_counter() - began))
    if not quick:
        last = values[:, -LAST:].mean(axis=1)
        report.row("network: ends of the seeds", " ".join(f"{v:.2f}" for v in last))
        report.claim("network: median end", float(np.median(last)), PAPER_LEARNED, side="at least")
        report.claim("network: worst end", last.min(), 77.0, side="at least")
        best = values.max(axis=1).min() / known
        report.claim("network: worst seed's best / known", best, 0.99, side="at least")
    save(store, "network", values)


def swarm(report: Report, quick: bool, store: Path | None) -> None:
    cases = (
        [("free", "normal")]
        if quick
        else [
            (motion, initial)
            for motion in ("free", "congested")
            for initial in ("normal", "uniform")
        ]
    )
    episodes = 3 if quick else 20
    for motion, initial in cases:
        system = mufield.make("swarm", motion=motion, initial=initial)
        flow, true_motion = system.reveal()
        ascent = BPTT(steps=60 if quick else 200, learning_rate=0.1)
        plan = mufield.plan(flow, true_motion, ascent=ascent)
        known, end = float(plan.value), system.evaluate(plan.profile).mass[-1]
        learner = swarm_learner(system, motion)
        began = time.perf_counter()
        result = learn_many(system, learner, seeds=[0], episodes=episodes, reference=known)[0]
        seconds = time.perf_counter() - began
        values = curves([result])[0]
        off = np.abs(values - known) / abs(known)
        name = f"swarm {motion}, {initial}"
        report.row(f"{name}: known motion", f"{known:.1f}")
        report.row(f"{name}: J", " ".join(f"{v:.0f}" for v in values))
        w1 = float(wasserstein(system.problem.grid, system.evaluate(result.profile).mass[-1], end))
        report.row(f"{name}: W1 of the ends, time", f"{w1:.4f}, {duration(seconds)}")
        if not quick:
            report.claim(
                f"{name}: worst distance from episode 10", off[9:].max(), 0.01, side="at most"
            )
            report.claim(f"{name}: W1 of the ends", w1, 0.02, side="at most")
            report.claim(f"{name}: minutes", seconds / 60, 10, side="at most")
        save(store, name.replace(" ", "-").replace(",", ""), values)


def swarm_learner(system: mufield.SimulatedSystem, motion: str) -> M3UCRL:
    """A Gaussian process that knows that actions steer, and gradient ascent on tables.

    One agent's noise is at least twice its farthest move in a step: without that prior, a
    place-dependent drift of half the farthest move would fit the data as well.
    """
    family = GaussianProcess(
        prior=mufield.Steered(),
        exact_points=0,
        mu=mufield.Here() if motion == "congested" else mufield.Unseen(),
    )
    planner = GradientPlanner(Table(), steps=60)
    optimism = Hallucinated(SWARM_SCALE)
    return M3UCRL(system.problem, family, planner, optimism=optimism, random_first=True)


def optimism(report: Report, quick: bool, store: Path | None) -> None:
    system = mufield.make("walkway")
    best = bracket(system, 300)[0]
    seeds, episodes = (3, 8) if quick else (10, 15)
    for each in (Hallucinated(), Greedy(), Bonus(), Thompson()):
        kind = type(each).__name__.lower()
        learner = M3UCRL(system.problem, GaussianProcess(exact_points=0), optimism=each)
        results = learn_many(system, learner, seeds=range(seeds), episodes=episodes, progress=False)
        ends = curves(results)[:, -LAST:].mean(axis=1)
        won = int(np.sum(ends >= 0.95 * best))
        report.row(
            f"optimism: {kind}, mean of the last {LAST} episodes",
            " ".join(f"{v:.1f}" for v in ends),
        )
        if kind == "hallucinated":
            report.claim("optimism: seeds that succeed", won, round(0.9 * seeds), side="at least")
        elif kind == "greedy":
            report.claim("optimism: greedy ones", won, round(0.3 * seeds), side="at most")
        save(store, f"optimism-{kind}", curves(results))


def timing(report: Report, quick: bool, store: Path | None) -> None:
    system = mufield.make("four-rooms")
    episodes = 6 if quick else 30
    seconds = {}
    stamps: list[float] = []
    for seeds in (1,) if quick else (1, 10):
        began = time.perf_counter()
        learner = M3UCRL(system.problem)
        if seeds == 1:
            spent: list[float] = []
            state = learner.init(jax.random.key(0))
            for _ in range(episodes):
                start = time.perf_counter()
                plan = learner.ask(state)
                spent.append(time.perf_counter() - start)
                run = system.run(plan.profile, jax.random.key(len(spent)))
                state = learner.tell(state, run, plan)
            stamps = spent
        else:
            learn_many(system, learner, seeds=range(seeds), episodes=episodes)
        seconds[seeds] = time.perf_counter() - began
    report.row("time: one seed", duration(seconds[1]))
    report.row("time: planning, by episode", " ".join(f"{s:.2f}" for s in stamps))
    late = statistics.median(stamps[-3:]) / statistics.median(stamps[1:4])
    report.claim("time: planning late / early", late, 1.5, side="at most")
    if not quick:
        report.claim("time: minutes for one seed", seconds[1] / 60, 4, side="at most")
        report.claim("time: ten seeds / one seed", seconds[10] / seconds[1], 5, side="at most")


def save(store: Path | None, name: str, values: np.ndarray) -> None:
    if store is not None:
        store.mkdir(parents=True, exist_ok=True)
        (store / f"{name}.json").write_text(json.dumps(np.round(values, 4).tolist()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="*", help=f"of {', '.join(SECTIONS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="fewer seeds and episodes")
    parser.add_argument("--save", type=Path, help="directory for the curves")
    options = parser.parse_args()
    unknown = set(options.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"unknown sections {sorted(unknown)}; there are {SECTIONS}")
    default = ("rooms", "time") if options.quick else SECTIONS
    report = Report("learning")
    run = {
        "rooms": rooms,
        "network": network,
        "swarm": swarm,
        "optimism": optimism,
        "time": timing,
    }
    for name in options.sections or default:
        run[name](report, options.quick, options.save)
    report.show()


if __name__ == "__main__":
    main()
