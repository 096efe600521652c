"""Runs that share a curve: those that differ only in their seed."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from ..runs.config import TABLES, RunConfig


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
