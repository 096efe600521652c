"""Sweeps: many runs that differ in chosen settings, and which of these matter. No JAX.

A sweep's file has the settings that all runs share, as the file of one run has them, and tables of
those that differ:

```toml
episodes = 10

[environment]
name = "four-rooms"

[grid]                          # every combination of these
model.name = ["gp", "ensemble"]
seed = [0, 1, 2]

[random]                        # each with every one of 8 draws of these
draws = 8
environment.noise_std = { low = 0.1, high = 0.3 }
optimism = ["hallucinated", "greedy"]
```

Its directory has a job for each run, and ``sweep.json``, which says what each is.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..io.sealed import read_json, unusable, write_json
from .overview import RunSummary, State, summarise
from .trials import Values, label_of, value_text


def write_record(directory: Path, runs: Mapping[str, Values]) -> None:
    """Writes which runs a sweep consists of: the values of each, by its directory's name."""
    entries = [{"folder": folder, "values": values} for folder, values in runs.items()]
    write_json(directory / "sweep.json", {"format": 1, "runs": entries})


def is_sweep(directory: Path) -> bool:
    """Whether a directory is a sweep's."""
    return (directory / "sweep.json").is_file()


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep: the values of what differs, and how far it has come."""

    values: Values
    summary: RunSummary

    @property
    def label(self) -> str:
        """The run in a few words."""
        return label_of(self.values)

    def row(self) -> dict[str, Any]:
        """The run as JSON; its final J is the mean of its last episodes."""
        about = self.summary
        state: State | str = about.state if about.directory.exists() else "missing"
        return {
            "final": about.final,
            "best": about.best,
            "episodes": about.episodes,
            "state": state,
            "values": [{"name": name, "value": value} for name, value in self.values.items()],
            "directory": str(about.directory),
        }


@dataclass(frozen=True)
class Group:
    """Runs that share a value of a setting, or, as a text, have values in a range."""

    value: Any
    mean: float
    runs: int


@dataclass(frozen=True)
class Effect:
    """How much a setting matters.

    Attributes:
        name: The setting.
        share: Share of the variance of J between runs that goes with the setting alone, less what
            chance would explain (epsilon squared); None if there are too few runs to tell.
        groups: Its values with the mean J of their runs, the best first.
    """

    name: str
    share: float | None
    groups: tuple[Group, ...]


@dataclass(frozen=True)
class Sweep:
    """A sweep as its directory has it; runs that earned most come first."""

    directory: Path
    runs: tuple[SweepRun, ...]

    @cached_property
    def names(self) -> list[str]:
        """The settings that differ."""
        return list(dict.fromkeys(name for run in self.runs for name in run.values))

    @cached_property
    def complete(self) -> list[SweepRun]:
        """Runs with all their episodes, which alone can be compared."""
        return [each for each in self.runs if each.summary.state == "complete"]

    def effects(self) -> list[Effect]:
        """What matters, the most important setting first."""
        found = [self._effect(name) for name in self.names]
        return sorted(found, key=lambda each: -(-1.0 if each.share is None else each.share))

    def _effect(self, name: str) -> Effect:
        runs = [each for each in self.complete if name in each.values]
        groups: dict[str, list[float]] = {}
        labels = group_labels([each.values[name] for each in runs])
        known = {value_text(each.values[name]): each.values[name] for each in runs}
        for label, run in zip(labels, runs, strict=True):
            assert run.summary.final is not None
            groups.setdefault(label, []).append(run.summary.final)
        means = [
            Group(known.get(label, label), float(np.mean(g)), len(g)) for label, g in groups.items()
        ]
        means.sort(key=lambda group: -group.mean)
        return Effect(name, explained(list(groups.values())), tuple(means))

    def document(self) -> dict[str, Any]:
        """The sweep as JSON."""
        effects = [asdict(each) for each in self.effects()]
        return {"runs": [run.row() for run in self.runs], "effects": effects}


def group_labels(values: list[Any]) -> list[str]:
    """For each value the name of its group: the value itself, or a range if there are many."""
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    # Numbers with more different values are put into four groups of about equal size.
    most_groups = 6
    if not numeric or len({*values}) <= most_groups:
        return [value_text(value) for value in values]
    edges = np.quantile(values, [0.25, 0.5, 0.75])
    places = np.searchsorted(edges, values)
    ends = {
        int(place): [v for v, p in zip(values, places, strict=True) if p == place]
        for place in {*places}
    }
    return [f"{min(ends[int(p)]):g} to {max(ends[int(p)]):g}" for p in places]


def explained(groups: list[list[float]]) -> float | None:
    """Share of the variance between groups, less what chance would explain (epsilon squared)."""
    everything = np.array([value for group in groups for value in group])
    count, kinds = len(everything), len(groups)
    if kinds < 2 or count <= kinds:
        return None
    total = float(np.sum((everything - everything.mean()) ** 2)) / (count - 1)
    within = sum(float(np.sum((np.asarray(g) - np.mean(g)) ** 2)) for g in groups)
    if total == 0:
        return 0.0
    return max(0.0, 1.0 - within / (count - kinds) / total)


def read_sweep(directory: Path) -> Sweep:
    """Reads a sweep, whose runs may still be going on."""
    runs = [SweepRun(values, summarise(run)) for run, values in _entries(directory)]
    runs.sort(key=lambda each: -math.inf if each.summary.final is None else each.summary.final)
    return Sweep(directory, tuple(reversed(runs)))


def _entries(directory: Path) -> Iterator[tuple[Path, Values]]:
    path = directory / "sweep.json"
    document = read_json(path)
    found = document.get("runs") if isinstance(document, dict) else None
    if not isinstance(found, list) or document.get("format") != 1:
        raise unusable(path, "expected the runs of a sweep in version 1 of its format")
    for each in found:
        folder, values = (
            each.get(k) if isinstance(each, dict) else None for k in ("folder", "values")
        )
        if not (
            isinstance(folder, str)
            and re.fullmatch(r"run-[0-9a-f]{10}", folder)
            and isinstance(values, dict)
        ):
            raise unusable(path, f"expected the folder and the values of a run, got {each!r:.80}")
        yield directory / "jobs" / folder / "run", values
