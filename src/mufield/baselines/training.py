"""Training by Q-learning, with a curve."""

import time
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from .._progress import progress_bar
from ..errors import UserError
from ..policies.base import Profile
from ..systems import SimulatedSystem
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
