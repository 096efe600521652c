"""Training by Q-learning, with a curve and checkpoints."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from .._files import read_sealed, write_sealed
from .._progress import Report, progress_bar
from ..errors import UserError
from ..policies.base import Profile
from ..systems import SimulatedSystem
from .q_learning import QLearning, QState

KIND = "checkpoint of Q-learning"
_CURVE = "curve."
_ARRAYS = ("q", "visits", "weights")
_NUMBERS = ("scale", "episodes", "earned", "generator")

EPISODES_AT_ONCE = 100_000
"""Episodes between two looks at the clock and the keyboard."""


@dataclass(frozen=True, eq=False)
class Curve:
    """What was seen on the way, one entry for each evaluation.

    Attributes:
        episodes: Episodes done.
        training: What the algorithm itself saw: the summed rewards -log nu_h(x_h) of an episode,
            with its own nu and its random choices, averaged over the episodes since the entry
            before.
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
    def empty(cls) -> "Curve":
        """A curve without entries."""
        none = {field.name: np.zeros(0) for field in fields(cls)}
        return cls(**{**none, "episodes": np.zeros(0, dtype=np.int64)})

    def columns(self) -> dict[str, np.ndarray]:
        """The arrays by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def extended(self, **entry: float) -> "Curve":
        """The curve with one entry more."""
        columns = self.columns().items()
        return Curve(**{name: np.append(old, old.dtype.type(entry[name])) for name, old in columns})


@dataclass(frozen=True, eq=False)
class QResult:
    """What a training ends with.

    Attributes:
        curve: What was seen on the way.
        state: The last state.
        profile: Its greedy policies.
    """

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
    """Learns for a number of episodes and evaluates the greedy policy now and then.

    The same seed gives the same result, however often the training was stopped and resumed.

    Args:
        system: A system of finitely many options, whose reward is -log mu.
        omega_q: How fast the learning rate of Q falls.
        omega_nu: How fast that of the distributions falls.
        epsilon: Share of random choices.
        episodes: Number of episodes, those of a checkpoint included; a multiple of
            ``evaluate_every``.
        evaluate_every: Episodes between two evaluations.
        seed: Of the random numbers.
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
    # As Python's own numbers, which JSON knows.
    own = {"seed": int(seed), "evaluate_every": int(evaluate_every)}
    settings = {**learner.settings(), **own}
    path = None if checkpoint is None else Path(checkpoint)
    state, curve = _begin(learner, settings, seed, path)
    if state.episodes > episodes:
        raise UserError(
            f"expected a checkpoint of at most {episodes} episodes, got one of {state.episodes} "
            f"in {path}; raise episodes or name another file"
        )
    learner.advance(state, 0)  # Compiles.
    with progress_bar("Q-learning", episodes, shown=progress) as report:
        while state.episodes < episodes:
            state, curve = _next_entry(learner, state, curve, evaluate_every, report)
            if path is not None:
                _write(path, state, settings, curve)
    return QResult(curve, state, learner.profile(state))


def _begin(
    learner: QLearning, settings: Mapping[str, Any], seed: int, path: Path | None
) -> tuple[QState, Curve]:
    """The state and the curve of the checkpoint, or those before the first episode."""
    state, curve = learner.init(seed), Curve.empty()
    if path is None:
        return state, curve
    if not path.parent.is_dir():
        # Found out now, not after the first million episodes.
        raise UserError(f"there is no directory {path.parent} to write {path.name} to; make it")
    if not path.exists():
        return state, curve
    return _read(path, state, settings)


def _write(path: Path, state: QState, settings: Mapping[str, Any], curve: Curve) -> None:
    arrays = {name: getattr(state, name) for name in _ARRAYS}
    arrays |= {_CURVE + name: values for name, values in curve.columns().items()}
    numbers = {name: getattr(state, name) for name in _NUMBERS}
    write_sealed(path, {"settings": dict(settings), **numbers}, arrays, kind=KIND)


def _read(path: Path, like: QState, settings: Mapping[str, Any]) -> tuple[QState, Curve]:
    """What `_write` wrote; raises UserError if that is damaged or of other settings.

    Args:
        path: The file.
        like: A state of the arrays' shapes.
        settings: What the state must belong to.
    """

    def layout(document: dict[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
        _check_settings(path, settings, document["settings"])
        expected = {name: getattr(like, name) for name in _ARRAYS}
        entries = document["episodes"] // settings["evaluate_every"]
        empty = Curve.empty().columns()
        curve = {_CURVE + name: np.resize(column, entries) for name, column in empty.items()}
        return {name: (a.dtype.name, a.shape) for name, a in (expected | curve).items()}

    document, arrays = read_sealed(path, KIND, layout=layout)
    parts = {name: document[name] for name in _NUMBERS} | {name: arrays[name] for name in _ARRAYS}
    columns = {name: arrays[_CURVE + name] for name in Curve.empty().columns()}
    return replace(like, **parts), Curve(**columns)


def _check_settings(path: Path, expected: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    for name in sorted(expected.keys() | found.keys()):
        want, got = expected.get(name, "no such setting"), found.get(name, "no such setting")
        if want != got:
            raise UserError(
                f"cannot go on from {path}: expected {name} = {want}, got a checkpoint of "
                f"{name} = {got}; name another file to begin anew, or ask for what the file holds"
            )


def _next_entry(
    learner: QLearning, state: QState, curve: Curve, evaluate_every: int, report: Report
) -> tuple[QState, Curve]:
    """The episodes up to the next evaluation, and the curve with it."""
    earned, end = state.earned, state.episodes + evaluate_every
    seconds = float(curve.seconds[-1]) if len(curve.seconds) else 0.0
    shown = {"J": float(curve.evaluation[-1])} if len(curve.evaluation) else {}
    while state.episodes < end:
        began = time.perf_counter()
        state = learner.advance(state, min(EPISODES_AT_ONCE, end - state.episodes))
        seconds += time.perf_counter() - began
        if state.episodes < end:
            report(state.episodes, **shown)
    training = (state.earned - earned) / evaluate_every
    evaluation = float(learner.system.evaluate(learner.profile(state)).value)
    report(state.episodes, J=evaluation, training=training)
    return state, curve.extended(
        episodes=state.episodes,
        training=training,
        estimate=learner.estimate(state),
        evaluation=evaluation,
        seconds=seconds,
    )
