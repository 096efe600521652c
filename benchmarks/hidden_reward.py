"""What it costs to learn the reward too: the swarm with its reward hidden, one tracked agent.

A Gaussian process of the motion and one of the reward, optimistic in both, against the plan with
known motion and reward, and against learning with the reward known; the same seed, settings and
planner. The reward is -a^2/2, what a place is worth, and minus the logarithm of the density: a sum
of three functions, of which the learner only knows that rewards are nearly sums and that the
logarithm may matter.

Run ``python benchmarks/hidden_reward.py``; ``--quick`` takes a coarser swarm, three episodes and
mirror ascent, which compiles faster.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import time

import jax
import numpy as np
from _report import Report, duration, parse_quick

import mufield
from mufield import (
    M3UCRL,
    GaussianProcess,
    GradientPlanner,
    Hallucinated,
    MirrorAscent,
    MirrorPlanner,
    MoveFlow,
    SimulatedSystem,
    Table,
)
from mufield.learning.run import LearnResult, learn_many
from mufield.models.calibration import predict_rows
from mufield.planning import BPTT
from mufield.planning.planner import AbstractPlanner

SWARM_SCALE = 0.3
"""Share of the bands that optimism uses, of the motion's and the reward's: as in `learning.py`."""

FROM, LAST = 11, 5
"""The episode from which every policy must be good, and how many the end is judged by."""


def learned(
    system: SimulatedSystem, planner: AbstractPlanner, episodes: int, reference: float
) -> LearnResult:
    """M3-UCRL with the models of the paper's swarm figures."""
    family = GaussianProcess(prior=mufield.models.Steered())
    optimism = Hallucinated(SWARM_SCALE)
    learner = M3UCRL(system.problem, family, planner, optimism=optimism, random_first=True)
    return learn_many(system, learner, seeds=[0], episodes=episodes, reference=reference)[0]


def reward_error(system: SimulatedSystem, result: LearnResult) -> tuple[float, float]:
    """Of rewards in a new episode of the last policy: the mean's error, and the band's coverage.

    The error is a root mean square over the standard deviation of the rewards.
    """
    episode = system.run(result.profile, jax.random.key(1), agents=20)
    data = mufield.Transitions.of(system.problem, [episode]).of_rewards()
    model = result.state.reward_model
    assert model is not None
    assert data.earned is not None
    found = predict_rows(model, data)
    inside = np.abs(found.error) <= float(model.beta) * found.epistemic
    return float(np.sqrt(np.mean(found.error**2)) / data.earned.std()), float(inside.mean())


def show(report: Report, kind: str, result: LearnResult, best: float, seconds: float) -> np.ndarray:
    """The curve of J."""
    values = np.array([row.value for row in result.metrics])
    off = 100 * np.abs(values - best) / abs(best)
    report.row(f"reward {kind}: J", " ".join(f"{v:.1f}" for v in values))
    report.row(f"reward {kind}: distance, %", " ".join(f"{v:.2f}" for v in off))
    report.row(f"reward {kind}: time", duration(seconds))
    return values


def show_model(report: Report, system: SimulatedSystem, result: LearnResult) -> None:
    """How well the reward is known in the end."""
    error, coverage = reward_error(system, result)
    report.row("reward's model, new episode: error / spread of the rewards", f"{error:.4f}")
    report.claim("rewards inside the band", coverage, 0.95, side="at least")


def quick_look(report: Report) -> None:
    system = mufield.make("swarm", reward="hidden", horizon=50, cells=50)
    flow, motion = system.reveal()
    box = system.problem.actions
    moves = MoveFlow(flow, motion, box.points(9))
    best = float(MirrorAscent(sweeps=30).solve(moves).value)
    report.row("known motion and reward: J", f"{best:.2f}")
    began = time.perf_counter()
    result = learned(system, MirrorPlanner(points=9, sweeps=30), 3, best)
    values = show(report, "hidden", result, best, time.perf_counter() - began)
    show_model(report, system, result)
    off = abs(values[-1] - best) / abs(best)
    report.claim("hidden: last distance from known motion and reward", off, 0.03, side="at most")


def whole(report: Report) -> None:
    systems = {kind: mufield.make("swarm", reward=kind) for kind in ("hidden", "known")}
    flow, motion = systems["hidden"].reveal()
    climber = BPTT(steps=200, learning_rate=0.1)
    best = float(mufield.plan(flow, motion, ascent=climber).value)
    report.row("known motion and reward: J", f"{best:.2f}")
    values = {}
    for kind, system in systems.items():
        began = time.perf_counter()
        result = learned(system, GradientPlanner(Table(), steps=60), 20, best)
        values[kind] = show(report, kind, result, best, time.perf_counter() - began)
        if kind == "hidden":
            show_model(report, system, result)
    off = np.abs(values["hidden"] - best) / abs(best)
    report.claim(
        f"hidden: worst distance from known motion and reward, from episode {FROM}",
        off[FROM - 1 :].max(),
        0.01,
        side="at most",
    )
    ends = {kind: curve[-LAST:].mean() for kind, curve in values.items()}
    cost = (ends["known"] - ends["hidden"]) / abs(best)
    report.claim("hidden: what hiding costs at the end", cost, 0.005, side="at most")


def main() -> None:
    quick = parse_quick(__doc__)
    report = Report("hidden_reward")
    (quick_look if quick else whole)(report)
    report.show()


if __name__ == "__main__":
    main()
