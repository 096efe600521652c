"""Many runs at a glance: found, summarised and grouped. No JAX, and damaged runs raise no error.

Only names and small files are looked at; the contents of episodes and policies are checked when a
run is opened.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from ..io.sealed import read_lines
from ..learning.best_episode import Earned, best_episode
from .config import TABLES, RunConfig, read_config
from .layout import LAYOUT, check_parts, part_numbers

State = Literal["complete", "unfinished", "waiting for tell", "damaged"]


@dataclass(frozen=True)
class RunSummary:
    """One run at a glance.

    Attributes:
        config: None if it cannot be read.
        episodes: Number of episodes so far.
        best: J of the best episode so far.
        last: J of the last episode.
        final: Mean J of the last episodes, of as many as are `judged`.
        reason: What is damaged; empty if nothing is.
        began: When the run began, by the time of its files.
    """

    directory: Path
    config: RunConfig | None
    episodes: int
    best: float | None
    last: float | None
    final: float | None
    state: State
    reason: str
    began: datetime | None

    def row(self) -> dict[str, Any]:
        """The summary for tables and JSON, with all settings under ``config``."""
        names = ("environment", "model", "planner", "optimism", "seed", "label")
        return {
            "directory": str(self.directory),
            **{name: getattr(self.config, name, None) for name in names},
            "episodes": self.episodes,
            "target": None if self.config is None else self.config.episodes,
            "best": self.best,
            "last": self.last,
            "final": self.final,
            "state": self.state,
            "reason": self.reason,
            "began": None if self.began is None else self.began.isoformat(timespec="seconds"),
            "config": None if self.config is None else self.config.document(),
        }


def find_runs(directories: Iterable[Path], *, depth: int) -> Iterator[Path]:
    """The run directories in some directories and up to ``depth`` levels below, each once."""
    seen: set[Path] = set()
    for top in directories:
        for run in _runs_below(top, depth):
            place = run.resolve()
            if place not in seen:
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


def summarise(directory: Path) -> RunSummary:
    """Summarises a run; if it is damaged, its state says so."""
    config, reason = None, ""
    done = len(part_numbers(directory, "episodes"))
    pending = done + 1 in part_numbers(directory, "plans")
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
    values = [each.value for each in earned]
    return RunSummary(
        directory=directory,
        config=config,
        episodes=done,
        best=values[best_episode(earned)] if earned else None,
        last=values[-1] if values else None,
        final=float(np.mean(values[-judged(len(values)) :])) if values else None,
        state="damaged" if reason or config is None else _state(config, done, pending),
        reason=reason,
        began=_began(directory),
    )


def judged(episodes: int) -> int:
    """Number of a learner's last episodes whose mean J counts."""
    # The mean J of a learner's last episodes counts: of a third of them, at most of five, so
    # that its first attempts never do.
    last, share = 5, 3
    return max(1, min(last, episodes // share))


def _state(config: RunConfig, done: int, pending: bool) -> State:
    # A plan without an episode waits for a real system; on a simulator it was interrupted. Only
    # `mufield new` gives runs a label, and no simulator plans beyond the last episode.
    if pending and (config.label or done >= config.episodes):
        return "waiting for tell"
    return "complete" if done >= config.episodes else "unfinished"


def _began(directory: Path) -> datetime | None:
    # Not the configuration, which is written again when the number of episodes changes.
    for path in (directory / LAYOUT.versions, directory):
        with contextlib.suppress(OSError):
            return datetime.fromtimestamp(path.stat().st_mtime, UTC)
    return None


def matches(config: RunConfig | None, wanted: Mapping[str, Any]) -> bool:
    """Whether a configuration has all wanted values; options are named ``model_options.beta``."""
    if config is None:
        return not wanted
    document = config.document()
    return all(_value(document, name) == value for name, value in wanted.items())


def _value(document: dict[str, Any], name: str) -> Any:
    value: Any = document
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            return object()  # equal to no value
        value = value[part]
    return value


@dataclass(frozen=True)
class RunMetrics:
    """A run's configuration and the metrics of its episodes, at least one."""

    directory: Path
    config: RunConfig
    rows: list[dict[str, Any]]


@dataclass(frozen=True)
class RunGroup:
    """Runs that differ only in their seed, at least one; the name tells groups apart."""

    name: str
    runs: tuple[RunMetrics, ...]

    def column(self, key: str) -> Float[np.ndarray, "runs episodes"]:
        """A column of the metrics, up to the shortest run's end; NaN where there is no value."""
        count = min(len(run.rows) for run in self.runs)
        values = [[run.rows[i].get(key) for i in range(count)] for run in self.runs]
        return np.array(values, dtype=float)


def group_runs(runs: Sequence[RunMetrics]) -> list[RunGroup]:
    """Groups runs that differ only in seed, label and the like; keeps their order."""
    groups: list[tuple[dict[str, Any], list[RunMetrics]]] = []
    for run in runs:
        settings = _settings(run.config)
        for known, members in groups:
            if known == settings:
                members.append(run)
                break
        else:
            groups.append((settings, [run]))
    names = _group_names([settings for settings, _ in groups])
    return [
        RunGroup(name or str(members[0].directory), tuple(members))
        for name, (_, members) in zip(names, groups, strict=True)
    ]


def _settings(config: RunConfig) -> dict[str, Any]:
    """The settings that tell groups apart, with one entry for each option."""
    flat: dict[str, Any] = {}
    # Settings that may differ within a group.
    ignored = ("seed", "label", "episodes", "reference", "judge", "imports", "format")
    for name, value in config.document().items():
        if name in TABLES.values():
            flat |= {f"{name}.{key}": option for key, option in value.items()}
        elif name not in ignored:
            flat[name] = value
    return flat


def _group_names(groups: list[dict[str, Any]]) -> list[str]:
    """Names groups after the settings in which they differ; empty if too many do, or none."""
    if len(groups) == 1:
        return [str(groups[0]["environment"])]
    keys = list(dict.fromkeys(key for settings in groups for key in settings))
    differing = [k for k in keys if any(s.get(k) != groups[0].get(k) for s in groups)]
    for name, options in TABLES.items():
        if name in differing:  # then its options differ anyway
            differing = [key for key in differing if not key.startswith(f"{options}.")]
    # Groups that differ in more settings are named after their directories.
    most_differences = 3
    if len(differing) > most_differences:
        return [""] * len(groups)
    names = [", ".join(_words(key, s.get(key)) for key in differing) for s in groups]
    return [name if names.count(name) == 1 else "" for name in names]


def _words(key: str, value: Any) -> str:
    if isinstance(value, str) and "." not in key:
        return value
    return f"{key.rpartition('.')[2]} = {value}"
