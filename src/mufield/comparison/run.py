"""The comparison itself: every contender plays, unless its result is there already."""

from collections.abc import Callable
from pathlib import Path

from .arena import Arena, make_arena
from .config import LEARNERS, Q_LEARNERS, ComparisonConfig
from .contenders import AbstractContender, KnownMotion, ModelLearner, RandomPolicy
from .result import Comparison, Result
from .store import Store

Say = Callable[[str], None]
"""Called with a line for people."""


def compare(
    config: ComparisonConfig,
    directory: Path | None = None,
    *,
    progress: bool = True,
    say: Say | None = None,
) -> Comparison:
    """Compares contenders in one system.

    All arguments are checked before the first contender plays.

    Args:
        config: What to compare.
        directory: Where results are kept, to be used again by the same comparison, and where
            ``comparison.json`` and ``comparison.csv`` are written; nowhere if none is given.
        progress: Whether to show bars.
        say: Told who plays, and why a kept result cannot be used.
    """
    store = None if directory is None else Store(directory)
    arena = make_arena(config)
    if store is not None:
        store.check_environment(config.environment)
    contenders = [enter(name, arena) for name in config.contenders]
    results = []
    for number, contender in enumerate(contenders, start=1):
        tell = _numbered(say, f"{contender.name} ({number} of {len(contenders)})")
        results.append(_result_of(contender, store, progress, tell))
    settings = {contender.name: contender.settings() for contender in contenders}
    comparison = Comparison(config, tuple(results), settings, arena.versions)
    if store is not None:
        store.write(comparison)
    return comparison


def enter(name: str, arena: Arena) -> AbstractContender:
    """The contender of a name; raises if it cannot play in the arena."""
    if name in LEARNERS:
        return ModelLearner(name, arena)
    if name in Q_LEARNERS:
        from .qlearning import QLearner

        return QLearner(name, arena)
    return RandomPolicy(name, arena) if name == "random" else KnownMotion(name, arena)


def _result_of(
    contender: AbstractContender, store: Store | None, progress: bool, tell: Say
) -> Result:
    """The kept result of a contender, or a new one."""
    if store is None:
        tell("plays")
        return contender.timed(progress=progress)
    settings = contender.settings()
    kept, why = store.find(contender.name, settings)
    if kept is not None:
        tell(f"taken from {store.path(contender.name)}")
        return kept
    tell(f"plays anew: {why}" if why else "plays")
    result = contender.timed(progress=progress)
    store.keep(result, settings)
    return result


def _numbered(say: Say | None, name: str) -> Say:
    return lambda line: None if say is None else say(f"{name}: {line}")
