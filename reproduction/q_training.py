"""Training by Q-learning, with a curve: as a job, and as a contender of comparisons."""

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from mufield._progress import progress_bar
from mufield.compare import contender
from mufield.errors import UserError
from mufield.jobs.compute import KINDS, simulated
from mufield.jobs.job import JobResult
from mufield.policies.base import Profile
from mufield.systems import SimulatedSystem

from . import q_learning, q_tables
from .q_learning import QLearning, QState


@dataclass(frozen=True, eq=False)
class Curve:
    """The course of a training, one entry for each evaluation.

    Attributes:
        episodes: Episodes done.
        training: The summed rewards -log nu_h(x_h) of an episode as the algorithm saw them, with
            its own nu and its random choices; averaged over the episodes since the last entry.
        estimate: max Q_0(x, .) averaged over the initial distribution.
        evaluation: J of the greedy policy, by the exact flow.
        seconds: Time spent on episodes, without compilation and evaluations.
    """

    episodes: Int[np.ndarray, "entries"]
    training: Float[np.ndarray, "entries"]
    estimate: Float[np.ndarray, "entries"]
    evaluation: Float[np.ndarray, "entries"]
    seconds: Float[np.ndarray, "entries"]


@dataclass(frozen=True, eq=False)
class QResult:
    """The result of a training: its curve, the last state and that state's greedy policies."""

    curve: Curve
    state: QState
    profile: Profile


def train(
    system: SimulatedSystem,
    *,
    omega_q: float = 0.7,
    omega_nu: float = 0.05,
    epsilon: float = 0.15,
    episodes: int = 10_000_000,
    evaluate_every: int = 1_000_000,
    seed: int = 0,
    progress: bool = True,
) -> QResult:
    """Learns for a number of episodes and regularly evaluates the greedy policy.

    The same seed gives the same result.

    Args:
        system: A system of finitely many options, whose reward is -log mu.
        omega_q: As in `QLearning`.
        omega_nu: As in `QLearning`.
        epsilon: As in `QLearning`.
        episodes: Number of episodes, a multiple of ``evaluate_every``.
        evaluate_every: Episodes between two evaluations.
        seed: Seed of the random numbers.
        progress: Whether to show a bar.
    """
    if evaluate_every < 1 or episodes < 1 or episodes % evaluate_every:
        raise UserError(
            "episodes must be a positive multiple of evaluate_every, got "
            f"episodes={episodes} and evaluate_every={evaluate_every}"
        )
    learner = QLearning(system, omega_q=omega_q, omega_nu=omega_nu, epsilon=epsilon)
    state, seconds = learner.init(seed), 0.0
    rows: list[tuple[float, ...]] = []
    learner.advance(state, 0)  # Compiles.
    with progress_bar("Q-learning", episodes, shown=progress) as report:
        while state.episodes < episodes:
            earned, end = state.earned, state.episodes + evaluate_every
            while state.episodes < end:
                began = time.perf_counter()
                state = learner.advance(state, min(learner.episodes_at_once, end - state.episodes))
                seconds += time.perf_counter() - began
                report(state.episodes, **({"J": rows[-1][3]} if rows else {}))
            training = (state.earned - earned) / evaluate_every
            profile = learner.profile(state)
            value = float(system.evaluate(profile).value)
            report(state.episodes, J=value, training=training)
            rows.append((state.episodes, training, learner.estimate(state), value, seconds))
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    return QResult(Curve(*columns), state, profile)


KIND = "qlearning"


def job_settings(episodes: int, evaluate_every: int) -> dict[str, Any]:
    """Settings of a job that trains with the paper's rates; they change with the algorithm."""
    code = hashlib.sha256()
    for module in (q_learning, q_tables):
        code.update(Path(module.__file__).read_bytes())
    contender = str(Path(__file__).with_name("contender.py"))
    shared = {"imports": contender, "code": code.hexdigest()[:16], "seed": 0}
    return shared | {"episodes": episodes, "evaluate_every": evaluate_every}


def _job(settings: dict[str, Any], directory: Path) -> dict[str, Any]:
    names = ("episodes", "evaluate_every", "seed")
    given = {name: settings[name] for name in names}
    found = train(simulated(settings), **given, progress=False)
    columns = vars(found.curve)
    more = {"values": found.curve.evaluation, "entries": int(found.state.q.size)}
    return {**columns, **more, "seconds": float(columns["seconds"][-1])}


KINDS[KIND] = _job
JobResult.needed[KIND] = ({}, ("episodes", "training", "evaluation"))


@contender("u2mfqlfh")
def compete(system: SimulatedSystem, *, episodes: int, agents: int, seed: int) -> dict[int, float]:
    """J after each hundred thousand of a million episodes; it follows one agent."""
    curve = train(
        system, episodes=1_000_000, evaluate_every=100_000, seed=seed, progress=False
    ).curve
    seen = system.problem.horizon * curve.episodes
    return dict(zip(seen.tolist(), curve.evaluation.tolist(), strict=True))
