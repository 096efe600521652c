"""Runs that differ only in their seed belong together; others are told apart by what differs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from .config import TABLES, RunConfig

IGNORED = ("seed", "label", "episodes", "reference", "imports", "format")
"""Settings that may differ within a group."""

MOST_DIFFERENCES = 3
"""Groups that differ in more settings are called by their directories."""


@dataclass(frozen=True)
class RunMetrics:
    """What a run was and what came of it.

    Attributes:
        directory: Where it is.
        config: What it is.
        rows: The metrics of its episodes, at least one.
    """

    directory: Path
    config: RunConfig
    rows: list[dict[str, Any]]


@dataclass(frozen=True)
class RunGroup:
    """Runs of one configuration.

    Attributes:
        name: What tells them from other groups.
        runs: The runs, at least one.
    """

    name: str
    runs: tuple[RunMetrics, ...]

    def column(self, key: str) -> Float[np.ndarray, "runs episodes"]:
        """A column of the metrics, as far as all runs go; NaN where there is no value."""
        count = min(len(run.rows) for run in self.runs)
        values = [[run.rows[i].get(key) for i in range(count)] for run in self.runs]
        return np.array(values, dtype=float)


def group_runs(runs: Sequence[RunMetrics]) -> list[RunGroup]:
    """Puts runs of one configuration together, in the order in which they come."""
    groups: list[tuple[dict[str, Any], list[RunMetrics]]] = []
    for run in runs:
        settings = _settings(run.config)
        for known, members in groups:
            if known == settings:
                members.append(run)
                break
        else:
            groups.append((settings, [run]))
    names = _names([settings for settings, _ in groups])
    return [
        RunGroup(name or str(members[0].directory), tuple(members))
        for name, (_, members) in zip(names, groups, strict=True)
    ]


def _settings(config: RunConfig) -> dict[str, Any]:
    """The settings that tell groups apart, options one by one."""
    document = config.document()
    flat: dict[str, Any] = {}
    for name, value in document.items():
        if name in TABLES.values():
            flat |= {f"{name}.{key}": option for key, option in value.items()}
        elif name not in IGNORED:
            flat[name] = value
    return flat


def _names(groups: list[dict[str, Any]]) -> list[str]:
    """What differs, in words; empty where that is too much or not enough."""
    if len(groups) == 1:
        return [str(groups[0]["environment"])]
    keys = list(dict.fromkeys(key for settings in groups for key in settings))
    differing = [k for k in keys if any(s.get(k) != groups[0].get(k) for s in groups)]
    for name, options in TABLES.items():
        if name in differing:  # then its options differ, too
            differing = [key for key in differing if not key.startswith(f"{options}.")]
    if len(differing) > MOST_DIFFERENCES:
        return [""] * len(groups)
    names = [", ".join(_words(key, s.get(key)) for key in differing) for s in groups]
    return [name if names.count(name) == 1 else "" for name in names]


def _words(key: str, value: Any) -> str:
    if isinstance(value, str) and "." not in key:
        return value
    return f"{key.rpartition('.')[2]} = {value}"
