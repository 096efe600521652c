"""Many runs at a glance: found and summarised. No JAX, and damaged runs raise no error.

Only names and small files are looked at; the contents of episodes and policies are checked when a
run is opened.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..io.sealed import read_lines
from ..learning.metrics import Earned, best_episode
from .config import RunConfig, read_config
from .layout import LAYOUT, check_parts, part_numbers


def find_runs(directories: Iterable[Path], *, depth: int = 5) -> Iterator[Path]:
    """The run directories in some directories and up to ``depth`` levels below, each once."""
    seen: set[Path] = set()
    for top in directories:
        for run in _runs_below(top, depth):
            if (place := run.resolve()) not in seen:
                seen.add(place)
                yield run


def _runs_below(top: Path, depth: int) -> Iterator[Path]:
    skipped = ("__pycache__", "node_modules", "site-packages")
    for name, directories, files in os.walk(top):
        directory = Path(name)
        if _is_run({*directories, *files}, directory):
            yield directory
            directories.clear()
            continue
        if len(directory.parts) - len(top.parts) >= depth:
            directories.clear()
        directories[:] = sorted(d for d in directories if d[0] != "." and d not in skipped)


def _is_run(names: set[str], directory: Path) -> bool:
    if LAYOUT.config in names:  # other programs write files of that name, too
        return any(name in names for name in (LAYOUT.versions, LAYOUT.metrics, *LAYOUT.parts))
    # A run that was killed while it began has these directories, but nothing in them.
    return names.issuperset(LAYOUT.parts) and any(
        any((directory / part).iterdir()) for part in LAYOUT.parts
    )


def short_names(directories: Sequence[Path]) -> list[str]:
    """The names of directories, or the whole paths of those that share a name."""
    names = [directory.resolve().name for directory in directories]
    pairs = zip(names, directories, strict=True)
    return [name if names.count(name) == 1 else str(path) for name, path in pairs]


def summarise(directory: Path) -> dict[str, Any]:
    """One run at a glance, for tables and JSON, with all settings under ``config``.

    ``best`` and ``last`` are J of these episodes so far. If the run is damaged, its ``state`` says
    so, and ``reason`` why; ``began`` is by the time of its files.
    """
    config, reason = None, ""
    done = len(part_numbers(directory, "episodes"))
    earned: list[Earned] = []
    try:
        # Damaged lines are left out; they are written again when the run goes on.
        rows = read_lines(directory / LAYOUT.metrics)[:done]
        numbers = [row for row in rows if isinstance(row.get("value"), int | float)]
        earned = [Earned(row["value"], row.get("elsewhere")) for row in numbers]
        config = read_config(directory)
        check_parts(directory)
    except (ValueError, OSError) as error:
        there = (directory / LAYOUT.config).exists()
        reason = " ".join(str(error).split()) if there else f"{LAYOUT.config} is missing"
    names = ("environment", "model", "planner", "optimism", "seed", "label")
    return {
        "directory": str(directory),
        **{name: getattr(config, name, None) for name in names},
        "episodes": done,
        "target": None if config is None else config.episodes,
        "best": earned[best_episode(earned)].value if earned else None,
        "last": earned[-1].value if earned else None,
        "state": "damaged" if reason or config is None else _state(directory, config, done),
        "reason": reason,
        "began": _began(directory),
        "config": None if config is None else config.document(),
    }


def _state(directory: Path, config: RunConfig, done: int) -> str:
    # A plan without an episode waits for a real system; on a simulator it was interrupted. Only
    # `mufield new` gives runs a label, and no simulator plans beyond the last episode.
    pending = done + 1 in part_numbers(directory, "plans")
    if pending and (config.label or done >= config.episodes):
        return "waiting for tell"
    return "complete" if done >= config.episodes else "unfinished"


def _began(directory: Path) -> str | None:
    # Not the configuration, which is written again when the number of episodes changes.
    for path in (directory / LAYOUT.versions, directory):
        with contextlib.suppress(OSError):
            began = datetime.fromtimestamp(path.stat().st_mtime, UTC)
            return began.isoformat(timespec="seconds")
    return None
