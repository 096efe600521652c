"""Training by Q-learning, with a curve and checkpoints."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from .._progress import Report, progress_bar
from ..errors import UserError
from ..io.sealed import Sealed, read_sealed, require, unusable, write_sealed
from ..policies.base import Profile
from ..systems import SimulatedSystem
from .q_learning import QLearning, QState

Rows = Float[np.ndarray, "entries columns"]
"""A `Curve` as a table, with a column for each attribute; stored in checkpoints."""


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

    @classmethod
    def of(cls, rows: Float[np.ndarray, "entries columns"]) -> "Curve":
        """The curve from its table."""
        return cls(rows[:, 0].astype(np.int64), *rows[:, 1:].T)


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
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> QResult:
    """Learns for a number of episodes and regularly evaluates the greedy policy.

    The same seed gives the same result, however often the training was stopped and resumed.

    Args:
        system: A system of finitely many options, whose reward is -log mu.
        omega_q: As in `QLearning`.
        omega_nu: As in `QLearning`.
        epsilon: As in `QLearning`.
        episodes: Number of episodes, those of a checkpoint included; a multiple of
            ``evaluate_every``.
        evaluate_every: Episodes between two evaluations.
        seed: Seed of the random numbers.
        checkpoint: File that is written at every evaluation. If it exists, training goes on from
            it; it must be of the same system, rates and seed.
        progress: Whether to show a bar.
    """
    if evaluate_every < 1 or episodes < 1 or episodes % evaluate_every:
        raise UserError(
            "episodes must be a positive multiple of evaluate_every, got "
            f"episodes={episodes} and evaluate_every={evaluate_every}"
        )
    learner = QLearning(system, omega_q=omega_q, omega_nu=omega_nu, epsilon=epsilon)
    # As Python's own numbers, for JSON.
    own = {"seed": int(seed), "evaluate_every": int(evaluate_every)}
    settings = {**learner.settings(), **own}
    path = None if checkpoint is None else Path(checkpoint)
    state, rows = _begin(learner, settings, seed, path)
    if state.episodes > episodes:
        raise UserError(
            f"expected a checkpoint of at most {episodes} episodes, got one of {state.episodes} "
            f"in {path}; raise episodes or name another file"
        )
    learner.advance(state, 0)  # Compiles.
    with progress_bar("Q-learning", episodes, shown=progress) as report:
        while state.episodes < episodes:
            state, row = _next_entry(learner, state, rows, evaluate_every, report)
            rows = np.vstack([rows, row])
            if path is not None:
                numbers = {name: getattr(state, name) for name in QState.numbers}
                arrays = {name: getattr(state, name) for name in QState.arrays} | {"curve": rows}
                write_sealed(path, {"settings": settings, **numbers}, arrays, kind=QState.kind)
    return QResult(Curve.of(rows), state, learner.profile(state))


def _begin(
    learner: QLearning, settings: Mapping[str, Any], seed: int, path: Path | None
) -> tuple[QState, Rows]:
    """The state and the curve of the checkpoint, or those before the first episode."""
    state, rows = learner.init(seed), np.zeros((0, len(fields(Curve))))
    if path is None:
        return state, rows
    if not path.parent.is_dir():
        # Checked now rather than after the first million episodes.
        raise UserError(f"there is no directory {path.parent} to write {path.name} to; make it")
    if not os.path.lexists(path):  # a link to nowhere is no checkpoint, either
        return state, rows

    def layout(document: dict[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
        _check_kinds(path, document)
        _check_settings(path, settings, document["settings"])
        entries = document["episodes"] // settings["evaluate_every"]
        shapes = {name: getattr(state, name) for name in QState.arrays}
        expected = {name: (array.dtype.name, array.shape) for name, array in shapes.items()}
        return expected | {"curve": (rows.dtype.name, (entries, rows.shape[1]))}

    document, arrays = read_sealed(path, QState.kind, layout=layout)
    parts = {name: document[name] for name in QState.numbers} | {
        name: arrays[name] for name in QState.arrays
    }
    return replace(state, **parts), arrays["curve"]


def _check_kinds(path: Path, document: Mapping[str, Any]) -> None:
    """Raises unless a checkpoint's numbers are numbers, and its generator one of NumPy's."""
    numbers = dict.fromkeys(QState.numbers, float) | {
        "episodes": int,
        "settings": dict,
        "generator": dict,
    }
    require(path, Sealed(dict(document), {}), numbers)
    try:
        np.random.PCG64().state = document["generator"]
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise unusable(path, "its random numbers cannot be gone on with") from error


def _check_settings(path: Path, expected: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    for name in sorted(expected.keys() | found.keys()):
        want, got = expected.get(name, "no such setting"), found.get(name, "no such setting")
        if want != got:
            raise UserError(
                f"cannot go on from {path}: expected {name} = {want}, got a checkpoint of "
                f"{name} = {got}; name another file to begin anew, or ask for what the file holds"
            )


def _next_entry(
    learner: QLearning, state: QState, rows: Rows, evaluate_every: int, report: Report
) -> tuple[QState, tuple[float, ...]]:
    """Runs the episodes up to the next evaluation; returns the state and the curve's new entry."""
    earned, end = state.earned, state.episodes + evaluate_every
    last = Curve.of(rows)
    seconds = float(last.seconds[-1]) if len(rows) else 0.0
    shown = {"J": float(last.evaluation[-1])} if len(rows) else {}
    while state.episodes < end:
        began = time.perf_counter()
        state = learner.advance(state, min(learner.episodes_at_once, end - state.episodes))
        seconds += time.perf_counter() - began
        if state.episodes < end:
            report(state.episodes, **shown)
    training = (state.earned - earned) / evaluate_every
    evaluation = float(learner.system.evaluate(learner.profile(state)).value)
    report(state.episodes, J=evaluation, training=training)
    return state, (state.episodes, training, learner.estimate(state), evaluation, seconds)
