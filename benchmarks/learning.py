"""What M3-UCRL learns, and how fast: the four rooms, the swarm, and where optimism pays.

Sections, each a table and claims; name some to run only those:

- ``rooms``: the four rooms with the defaults: by which episode the slowest seed reaches 99% of the
  certified optimum, and how deep seeds relapse after that.
- ``network``: the same with the paper's class, deterministic networks planned with hallucinated
  control, in percent of the networks planned with known motion. The paper's are at 99.49% after
  30 episodes; J itself cannot be compared with the paper's, which prints no noise.
- ``swarm``: a Gaussian process on the swarm, both motions and both starts, against the plan with
  known motion, with one tracked agent as in the paper; as a share of the way to it from agents at
  rest, because J can be negative.
- ``hidden``: the swarm with its reward hidden: a Gaussian process of the motion and one of the
  reward, optimistic in both, against the plan with known motion and reward, and against learning
  with the reward known. The reward is -a^2/2, what a place is worth, and minus the logarithm of the
  density: a sum of three functions, of which the learner only knows that rewards are nearly sums
  and that the logarithm may matter.
- ``optimism``: the walkway, where greedy learners fail.
- ``time``: an episode (plan and fit) in the four rooms beside one with the paper's ensemble, late
  against early, ten seeds beside one; a fit to 6,000 transitions.

Run ``python benchmarks/learning.py [section ...]``; ``--quick`` has one seed of the rooms and
three episodes of a coarser swarm with its reward hidden. ``--out DIR`` keeps the curves.
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
import suite
from _report import Report, duration, learn_many, options_of, run_sections

import mufield
from mufield import (
    M3UCRL,
    Bonus,
    DeepEnsemble,
    GaussianProcess,
    GradientPlanner,
    Greedy,
    Hallucinated,
    MirrorAscent,
    MirrorPlanner,
    MoveFlow,
    Network,
    Table,
    Thompson,
)
from mufield.fleet import stay
from mufield.learning import LearnResult
from mufield.models.base import predict_rows
from mufield.models.data import Transitions
from mufield.planning import BPTT
from mufield.planning.planner import AbstractPlanner
from mufield.policies import Unseen

NEAR = 0.99
"""Share of the best plan from which a seed counts as having learned."""
SWARM_SCALE = 0.3
BRACKET = 0.03
FIT_AGENTS = 300
LAST = 5
"""The final policy is judged by its last episodes."""
HIDDEN_FROM = 11
"""The episode from which every policy of the learner without the reward must be good."""


def curves(results: list[LearnResult]) -> np.ndarray:
    """Realised J, seeds by episodes."""
    return np.array([[row.value for row in result.metrics] for result in results])


def bracket(system: mufield.SimulatedSystem) -> tuple[float, float]:
    """The certified interval of the global optimum."""
    flow, motion = system.reveal()
    moves = MoveFlow(flow, motion, system.problem.actions.points(9))
    found = MirrorAscent(sweeps=2000, gap=BRACKET).solve(moves)
    return float(found.value), float(found.upper)


def first_above(values: np.ndarray, bar: float) -> float:
    """The first episode that reaches the bar, from 1; infinite if none does."""
    above = np.flatnonzero(values >= bar)
    return float(above[0] + 1) if len(above) else float("inf")


def relapse(values: np.ndarray, after: float) -> float:
    """Deepest fall below the best so far, from an episode on, counted from 1."""
    if not after <= len(values):
        return float("inf")
    late = values[int(after) - 1 :]
    return float(np.max(np.maximum.accumulate(late) - late))


def rooms(report: Report, options: argparse.Namespace) -> None:
    quick = options.quick
    system = mufield.make("four-rooms")
    low, high = bracket(system)
    seeds, episodes = (options.seeds or 1, 10) if quick else (options.seeds or 10, 30)
    began = time.perf_counter()
    results = learn_many(system, seeds=range(seeds), episodes=episodes, reference=low)
    seconds = time.perf_counter() - began
    values = curves(results)
    median = np.median(values, axis=0)
    report.row("rooms: certified optimum", f"{low:.3f} to {high:.3f}")
    report.row(f"rooms: median J of {seeds} seeds", " ".join(f"{v:.2f}" for v in median))
    report.row("rooms: worst seed", " ".join(f"{v:.2f}" for v in values.min(axis=0)))
    report.row("rooms: time", duration(seconds))
    reached = [first_above(row, NEAR * high) for row in values]
    report.row(f"rooms: {NEAR:.0%} in episode", " ".join(f"{each:g}" for each in reached))
    report.claim(f"rooms: slowest seed at {NEAR:.0%}", max(reached), 10, side="at most")
    falls = [relapse(row, each) for row, each in zip(values, reached, strict=True)]
    report.claim("rooms: deepest relapse after that", max(falls), 0.3, side="at most")
    if not quick:
        last = values[:, -LAST:].mean(axis=1)
        report.claim("rooms: worst seed's end / optimum", last.min() / high, NEAR, side="at least")
    save(options.out, "rooms", values)


def network(report: Report, options: argparse.Namespace) -> None:
    system = mufield.make("four-rooms")
    flow, motion = system.reveal()
    known = float(mufield.plan(flow, motion, Network()).value)
    seeds, episodes = options.seeds or 10, 30
    learner = M3UCRL(system.problem, planner=GradientPlanner())
    began = time.perf_counter()
    results = learn_many(system, learner, seeds=range(seeds), episodes=episodes, reference=known)
    values = curves(results)
    shares = values / known
    median = np.median(shares, axis=0)
    family, optimism = type(learner.family).__name__, learner.optimism
    report.row("network: model and optimism, the defaults", f"{family}, {optimism}")
    report.row("network: J with known motion, in the same class", f"{known:.2f}")
    report.row(
        f"network: percent of that, median of {seeds} seeds",
        " ".join(f"{share:.2%}" for share in median),
    )
    report.row("network: time", duration(time.perf_counter() - began))
    ends = shares[:, -LAST:].mean(axis=1)
    report.row("network: ends of the seeds", " ".join(f"{share:.2%}" for share in ends))
    report.claim("network: median end", float(np.median(ends)), 0.995, side="at least")
    report.claim("network: worst end", ends.min(), NEAR, side="at least")
    soon = first_above(median, NEAR)
    report.claim(f"network: episode whose median is {NEAR:.0%}", soon, 15, side="at most")
    falls = [relapse(row, 15) for row in values]
    report.claim("network: deepest relapse after episode 15", max(falls), 0.5, side="at most")
    save(options.out, "network", values)


def swarm(report: Report, options: argparse.Namespace) -> None:
    episodes = 20
    cases = [(motion, start) for motion in ("free", "congested") for start in ("normal", "uniform")]
    for motion, initial in cases:
        system = mufield.make("swarm", motion=motion, initial=initial)
        flow, true_motion = system.reveal()
        ascent = BPTT(steps=200, learning_rate=0.1)
        plan = mufield.plan(flow, true_motion, ascent=ascent)
        known, end = float(plan.value), system.evaluate(plan.profile).mass[-1]
        learner = swarm_learner(system, motion)
        began = time.perf_counter()
        result = learn_many(system, learner, seeds=[0], episodes=episodes, reference=known)[0]
        seconds = time.perf_counter() - began
        values = curves([result])[0]
        # J can be negative, so that a share of it says little.
        resting = float(system.evaluate(stay(system.problem)).value)
        name = f"swarm {motion}, {initial}"
        report.row(f"{name}: agents at rest, known motion", f"{resting:.1f}, {known:.1f}")
        report.row(f"{name}: J", " ".join(f"{v:.0f}" for v in values))
        w1 = float(
            mufield.wasserstein(system.problem.grid, system.evaluate(result.profile).mass[-1], end)
        )
        report.row(f"{name}: W1 of the ends, time", f"{w1:.4f}, {duration(seconds)}")
        worst = float(np.abs(values[9:] - known).max())
        share = f"{worst / abs(known):.2%}"
        report.row(f"{name}: worst distance from episode 10, of |J|", share)
        report.claim(
            f"{name}: worst distance from episode 10, of the way from rest",
            worst / (known - resting),
            0.01,
            side="at most",
        )
        report.claim(f"{name}: W1 of the ends", w1, 0.02, side="at most")
        report.claim(f"{name}: minutes", seconds / 60, 10, side="at most")
        save(options.out, name.replace(" ", "-").replace(",", ""), values)


def swarm_learner(system: mufield.SimulatedSystem, motion: str) -> M3UCRL:
    """A Gaussian process that knows that actions steer, and gradient ascent on tables.

    One agent's noise is at least twice its farthest move in a step: without that prior, a
    place-dependent drift of half the farthest move would fit the data as well.
    """
    family = GaussianProcess(
        prior=mufield.models.ControlAffine(),
        mu=mufield.policies.Here() if motion == "congested" else mufield.policies.Unseen(),
    )
    planner = GradientPlanner(Table(), steps=60)
    optimism = Hallucinated(SWARM_SCALE)
    return M3UCRL(system.problem, family, planner, optimism=optimism, random_first=1.0)


def learned(
    system: mufield.SimulatedSystem, planner: AbstractPlanner, episodes: int, reference: float
) -> LearnResult:
    """M3-UCRL with the models of the paper's swarm figures."""
    family = GaussianProcess(prior=mufield.models.ControlAffine())
    optimism = Hallucinated(SWARM_SCALE)
    learner = M3UCRL(system.problem, family, planner, optimism=optimism, random_first=1.0)
    return learn_many(system, learner, seeds=[0], episodes=episodes, reference=reference)[0]


def reward_error(system: mufield.SimulatedSystem, result: LearnResult) -> tuple[float, float]:
    """Of rewards in a new episode of the last policy: the mean's error, and the band's coverage.

    The error is a root mean square over the standard deviation of the rewards.
    """
    episode = system.run(result.profile, jax.random.key(1), agents=20)
    data = mufield.models.Transitions.of(system.problem, [episode]).of_rewards()
    model = result.state.reward_model
    assert model is not None
    assert data.earned is not None
    found = predict_rows(model, data)
    inside = np.abs(found.error) <= float(model.beta) * found.epistemic
    return float(np.sqrt(np.mean(found.error**2)) / data.earned.std()), float(inside.mean())


def show_curve(
    report: Report, kind: str, result: LearnResult, best: float, seconds: float
) -> np.ndarray:
    """The curve of J."""
    values = np.array([row.value for row in result.metrics])
    off = 100 * np.abs(values - best) / abs(best)
    report.row(f"reward {kind}: J", " ".join(f"{v:.1f}" for v in values))
    report.row(f"reward {kind}: distance, %", " ".join(f"{v:.2f}" for v in off))
    report.row(f"reward {kind}: time", duration(seconds))
    return values


def show_model(report: Report, system: mufield.SimulatedSystem, result: LearnResult) -> None:
    """How well the reward is known in the end."""
    error, coverage = reward_error(system, result)
    report.row("reward's model, new episode: error / spread of the rewards", f"{error:.4f}")
    report.claim("rewards inside the band", coverage, 0.95, side="at least")


def hidden_quickly(report: Report) -> None:
    """A coarser swarm, three episodes and mirror ascent, which compiles faster."""
    system = mufield.make("swarm", reward="hidden", horizon=50, cells=50)
    flow, motion = system.reveal()
    box = system.problem.actions
    moves = MoveFlow(flow, motion, box.points(9))
    best = float(MirrorAscent(sweeps=30).solve(moves).value)
    report.row("known motion and reward: J", f"{best:.2f}")
    began = time.perf_counter()
    result = learned(system, MirrorPlanner(points=9, sweeps=30), 3, best)
    values = show_curve(report, "hidden", result, best, time.perf_counter() - began)
    show_model(report, system, result)
    off = abs(values[-1] - best) / abs(best)
    report.row("hidden: last distance from known motion and reward", f"{off:.2%}")


def hidden(report: Report, options: argparse.Namespace) -> None:
    if options.quick:
        hidden_quickly(report)
        return
    systems = {kind: mufield.make("swarm", reward=kind) for kind in ("hidden", "known")}
    flow, motion = systems["hidden"].reveal()
    climber = BPTT(steps=200, learning_rate=0.1)
    best = float(mufield.plan(flow, motion, ascent=climber).value)
    report.row("known motion and reward: J", f"{best:.2f}")
    values = {}
    for kind, system in systems.items():
        began = time.perf_counter()
        result = learned(system, GradientPlanner(Table(), steps=60), 20, best)
        values[kind] = show_curve(report, kind, result, best, time.perf_counter() - began)
        if kind == "hidden":
            show_model(report, system, result)
    off = np.abs(values["hidden"] - best) / abs(best)
    report.claim(
        f"hidden: worst distance from known motion and reward, from episode {HIDDEN_FROM}",
        off[HIDDEN_FROM - 1 :].max(),
        0.01,
        side="at most",
    )
    ends = {kind: curve[-LAST:].mean() for kind, curve in values.items()}
    cost = (ends["known"] - ends["hidden"]) / abs(best)
    report.claim("hidden: what hiding costs at the end", cost, 0.005, side="at most")


def optimism(report: Report, options: argparse.Namespace) -> None:
    system = suite.walkway()
    best = bracket(system)[0]
    seeds, episodes = 10, 15
    for each in (Hallucinated(), Greedy(), Bonus(), Thompson()):
        kind = type(each).__name__.lower()
        learner = M3UCRL(system.problem, optimism=each)
        results = learn_many(system, learner, seeds=range(seeds), episodes=episodes)
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
        save(options.out, f"optimism-{kind}", curves(results))


def timing(report: Report, options: argparse.Namespace) -> None:
    system, episodes = mufield.make("four-rooms"), 30
    families = {"default": None, "the paper's ensemble": DeepEnsemble(mu=Unseen())}
    learners = {name: M3UCRL(system.problem, family) for name, family in families.items()}
    spent = {name: episode_seconds(system, learner, episodes) for name, learner in learners.items()}
    for name, seconds in spent.items():
        report.row(f"time: episodes, {name}", " ".join(f"{s:.2f}" for s in seconds))
    # The first ones compile, and larger buffers of the data compile again.
    usual = {name: statistics.median(seconds[1:]) for name, seconds in spent.items()}
    ratio = usual["default"] / usual["the paper's ensemble"]
    report.claim("time: episode, default / the paper's ensemble", ratio, 1.5, side="at most")
    late = statistics.median(spent["default"][-3:]) / statistics.median(spent["default"][1:4])
    report.claim("time: episode, late / early", late, 1.5, side="at most")
    learner = learners["default"]
    data = Transitions.of(
        system.problem,
        [system.run(mufield.random_policy(system.problem), jax.random.key(0), agents=FIT_AGENTS)],
    )
    learner.family.fit(data, jax.random.key(0))
    began = time.perf_counter()
    learner.family.fit(data, jax.random.key(1))
    taken = time.perf_counter() - began
    report.claim(f"time: seconds for a fit to {len(data):,} moves", taken, 10, side="at most")
    one = sum(spent["default"])
    began = time.perf_counter()
    learn_many(system, learner, seeds=range(10), episodes=episodes)
    ten = time.perf_counter() - began
    report.row("time: one seed, ten seeds", f"{duration(one)}, {duration(ten)}")
    report.claim("time: ten seeds / one seed", ten / one, 5, side="at most")


def episode_seconds(system: mufield.SimulatedSystem, learner: M3UCRL, episodes: int) -> list[float]:
    """Seconds of plan and fit of each episode."""
    spent: list[float] = []
    state = learner.init(jax.random.key(0))
    for number in range(episodes):
        began = time.perf_counter()
        plan = learner.ask(state)
        planned = time.perf_counter() - began
        run = system.run(plan.profile, jax.random.key(number))
        began = time.perf_counter()
        state = jax.block_until_ready(learner.tell(state, run, plan))
        spent.append(planned + time.perf_counter() - began)
    return spent


def save(store: Path | None, name: str, values: np.ndarray) -> None:
    if store is not None:
        store.mkdir(parents=True, exist_ok=True)
        (store / f"{name}.json").write_text(json.dumps(np.round(values, 4).tolist()))


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--seeds", type=int, help="of rooms and network, in place of ten")
    sections = {
        "rooms": rooms,
        "network": network,
        "swarm": swarm,
        "hidden": hidden,
        "optimism": optimism,
        "time": timing,
    }
    run_sections("learning", parser, sections, quick=("rooms", "hidden"))


if __name__ == "__main__":
    main()
