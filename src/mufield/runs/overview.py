"""What stands in many run directories, at a glance: no JAX, nothing written, nothing refused.

Only names and small files are looked at. Whether the contents of episodes and policies are sound
is checked when a run is opened.
"""

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from ..errors import UserError
from .config import RunConfig, read_config

PARTS = {"episodes": "safetensors", "plans": "safetensors", "policies": "policy"}
"""The directories of a run and the ends of the names in them."""

_OTHERS = ("versions.json", "metrics.jsonl", *PARTS)
"""One of them makes a directory with a config.json a run; other programs write such files too."""

_SKIPPED = ("__pycache__", "node_modules", "site-packages")

State = Literal["complete", "unfinished", "waiting for tell", "damaged"]


@dataclass(frozen=True)
class RunSummary:
    """One run.

    Attributes:
        directory: Where it is.
        config: What it is; None if that cannot be read.
        episodes: Number of episodes so far.
        best: Highest J so far.
        last: J of the last episode.
        state: How far it is.
        reason: What is damaged.
        began: When it began, by the time of its files.
    """

    directory: Path
    config: RunConfig | None
    episodes: int
    best: float | None
    last: float | None
    state: State
    reason: str
    began: datetime | None

    def row(self) -> dict[str, Any]:
        """The figures under short names, and all settings."""
        names = ("environment", "model", "planner", "optimism", "seed", "label")
        return {
            "directory": str(self.directory),
            **{name: getattr(self.config, name, None) for name in names},
            "episodes": self.episodes,
            "target": None if self.config is None else self.config.episodes,
            "best": self.best,
            "last": self.last,
            "state": self.state,
            "reason": self.reason,
            "began": None if self.began is None else self.began.isoformat(timespec="seconds"),
            "config": None if self.config is None else self.config.document(),
        }


def find_runs(directories: Iterable[Path], *, depth: int) -> Iterator[Path]:
    """The run directories at or below some directories, each once.

    Args:
        directories: Where to look.
        depth: How many directories deep.
    """
    seen: set[Path] = set()
    for top in directories:
        for run in _runs_below(top, depth):
            place = run.resolve()
            if place not in seen:
                seen.add(place)
                yield run


def _runs_below(top: Path, depth: int) -> Iterator[Path]:
    for name, directories, files in os.walk(top):
        directory = Path(name)
        if _is_run({*directories, *files}, directory):
            yield directory
            directories.clear()
            continue
        if len(directory.parts) - len(top.parts) >= depth:
            directories.clear()
        directories[:] = sorted(d for d in directories if d[0] != "." and d not in _SKIPPED)


def _is_run(names: set[str], directory: Path) -> bool:
    if "config.json" in names:
        return any(name in names for name in _OTHERS)
    # Where a run was only about to begin, these are empty.
    return all(part in names for part in PARTS) and any(
        any((directory / part).iterdir()) for part in PARTS
    )


def summarise(directory: Path) -> RunSummary:
    """Looks at a run; what is wrong with it becomes its state."""
    config, reason, done, pending = None, "", 0, False
    rows: list[dict[str, Any]] = []
    try:
        rows = _rows(directory)
        numbers = {part: _numbers(directory, part) for part in PARTS}
        done = len(numbers["episodes"])
        pending = done + 1 in numbers["plans"]
        config = read_config(directory)
        _check(numbers)
    except (ValueError, OSError) as error:
        there = (directory / "config.json").exists()
        reason = " ".join(str(error).split()) if there else "config.json is missing"
    values = [row["value"] for row in rows[:done]]
    return RunSummary(
        directory=directory,
        config=config,
        episodes=done,
        best=max(values, default=None),
        last=values[-1] if values else None,
        state="damaged" if reason or config is None else _state(config, done, pending),
        reason=reason,
        began=_began(directory),
    )


def _state(config: RunConfig, done: int, pending: bool) -> State:
    # A plan without an episode waits for a real system; on a simulator it was interrupted. Only
    # `mufield new` gives runs a label, and no simulator plans beyond the last episode.
    if pending and (config.label or done >= config.episodes):
        return "waiting for tell"
    return "complete" if done >= config.episodes else "unfinished"


def _rows(directory: Path) -> list[dict[str, Any]]:
    """The metrics that can be read; what is torn is written again when the run goes on."""
    path = directory / "metrics.jsonl"
    rows = []
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not isinstance(row, dict) or not isinstance(row.get("value"), int | float):
            break
        rows.append(row)
    return rows


def _numbers(directory: Path, part: str) -> list[int]:
    """The numbers of a part's files; raises if one of them is empty."""
    place = directory / part
    if not place.is_dir():
        raise UserError(f"the directory {part} is missing")
    numbers = []
    for path in place.iterdir():
        stem, _, end = path.name.partition(".")
        if end == PARTS[part] and stem.isdigit():
            numbers.append(int(stem))
            if path.stat().st_size == 0:
                raise UserError(f"{part}/{path.name} is empty")
    return sorted(numbers)


def _check(numbers: dict[str, list[int]]) -> None:
    """Raises if a file is missing."""
    done = len(numbers["episodes"])
    for part, end in PARTS.items():
        found = numbers[part]
        # There may be a plan, or only its policy, for the episode after the last.
        most = done if part == "episodes" else done + 1
        wanted = range(1, max(done, len(found)) + 1)
        lost = next((n for n in wanted if n not in found), None)
        if lost is not None:
            raise UserError(f"{part}/{lost:04d}.{end} is missing")
        if len(found) > most:
            raise UserError(f"episodes/{done + 1:04d}.{PARTS['episodes']} is missing")


def _began(directory: Path) -> datetime | None:
    # Written once; the configuration is written again when the number of episodes changes.
    for path in (directory / "versions.json", directory):
        with contextlib.suppress(OSError):
            return datetime.fromtimestamp(path.stat().st_mtime, UTC)
    return None


def matches(config: RunConfig | None, wanted: Sequence[tuple[str, Any]]) -> bool:
    """Whether a configuration has all these values.

    Args:
        config: The configuration; without one nothing matches but an empty request.
        wanted: Names of settings, those of options as in ``model_options.beta``, with values.
    """
    if config is None:
        return not wanted
    document = config.document()
    return all(_value(document, name) == value for name, value in wanted)


def _value(document: dict[str, Any], name: str) -> Any:
    first, _, rest = name.partition(".")
    value = document.get(first, _ABSENT)
    if not rest:
        return value
    return _value(value, rest) if isinstance(value, dict) else _ABSENT


_ABSENT = object()
