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

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from .._files import read_json, unusable, write_json
from ..errors import UserError
from .config import TABLES, RunConfig, parse_config, read_settings
from .overview import RunSummary, State, summarise

FORMAT = 1
RECORD = "sweep.json"
FOLDER = re.compile(r"run-[0-9a-f]{10}")
"""Names of the directories of a sweep's jobs."""

GRID, RANDOM = "grid", "random"
DRAWS, DRAW_SEED = "draws", "draw_seed"
"""Entries of the table ``random`` that are no settings."""

MOST_RUNS = 10_000
MOST_GROUPS = 6
"""Numbers with more different values are put into four groups of about equal size."""

Values = dict[str, Any]
"""Values of the settings that differ, by their names in the file, such as model.beta."""


@dataclass(frozen=True)
class Trial:
    """One run of a sweep: what is special about it, and its whole configuration."""

    values: Values
    config: RunConfig

    @property
    def label(self) -> str:
        """The trial in a few words."""
        return label_of(self.values)


def label_of(values: Values) -> str:
    """Values of settings in a few words."""
    return ", ".join(f"{short(name)}={value_text(v)}" for name, v in values.items())


def short(name: str) -> str:
    """A setting's name without its table."""
    table, _, own = name.partition(".")
    return table if own in ("", "name") else own


def value_text(value: Any) -> str:
    """A value for people."""
    return value if isinstance(value, str) else json.dumps(value)


def read_trials(path: Path, imports: str | None = None) -> list[Trial]:
    """The runs that a sweep's file describes, each of them checked; equal ones are left out.

    ``imports`` is the user's own file; a sweep's file cannot name one, so that it runs no code.
    """
    shared = {"judge": False} | read_settings(path)
    tables = [shared.pop(name, {}) for name in (GRID, RANDOM)]
    counts = dict.fromkeys((DRAWS, DRAW_SEED), 0)
    if isinstance(tables[1], dict):
        counts = {name: _whole(tables[1].pop(name, 0), f"{path}: {name}") for name in counts}
    grid = _choices(tables[0], f"{path}: {GRID}")
    drawn = _choices(tables[1], f"{path}: {RANDOM}")
    if "imports" in {*shared, *grid, *drawn}:
        raise UserError(f"{path} names Python code as imports; name it with --import instead")
    draws, rng = counts[DRAWS], np.random.default_rng(counts[DRAW_SEED])
    twice = sorted(grid.keys() & drawn.keys())
    if twice or not (grid or drawn) or (drawn and not draws):
        raise UserError(
            f"{path}: expected lists of values in [{GRID}], or in [{RANDOM}] with the number of "
            f"{DRAWS}, and no setting in both, got {', '.join((*grid, *drawn)) or 'none'} and "
            f"{draws} draws; correct it"
        )
    for name, values in grid.items():
        if not isinstance(values, list):
            raise UserError(f"{path}: {GRID}.{name} must be a list, got {values}; list its values")
    count = math.prod(map(len, grid.values())) * max(draws, 1)
    if count > MOST_RUNS:
        raise UserError(f"{path} describes {count:,} runs; at most {MOST_RUNS:,} are possible")
    trials: dict[str, Trial] = {}
    random = [{name: _draw(rng, each) for name, each in drawn.items()} for _ in range(draws)]
    for chosen, *rest in itertools.product(random or [{}], *grid.values()):
        values = dict(zip(grid, rest, strict=True)) | chosen
        document: Any = json.loads(json.dumps(shared)) | {"imports": imports}
        for name, value in values.items():
            _set(document, name, value, path)
        about = ", ".join(f"{name} = {value_text(value)}" for name, value in values.items())
        config = parse_config(document, f"{path}, with {about}")
        trials.setdefault(json.dumps(config.document()), Trial(values, config))
    return list(trials.values())


def _choices(table: Any, where: str) -> dict[str, Any]:
    """Lists and ranges by the dotted names of their settings."""
    if not isinstance(table, dict):
        raise UserError(f"{where} must be a table, got {table!r}; write [{where.split()[-1]}]")
    found: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, list):
            texts = [json.dumps(each) for each in value]
            if not value or len({*texts}) < len(texts):
                raise UserError(
                    f"{where}.{name}: expected different values, at least one, got {value}"
                )
        if isinstance(value, dict) and not {"low", "high"} <= value.keys():
            found |= {f"{name}.{k}": v for k, v in _choices(value, f"{where}.{name}").items()}
        elif isinstance(value, list | dict):
            found[name] = _range(value, f"{where}.{name}") if isinstance(value, dict) else value
        else:
            raise UserError(
                f"{where}.{name}: expected a list of values, or {{low = ..., high = ...}}, got "
                f"{value!r}; correct it"
            )
    return found


def _range(value: dict[str, Any], where: str) -> dict[str, Any]:
    low, high, log = value["low"], value["high"], value.get("log", False)
    known = {"low", "high", "log"}
    numbers = all(isinstance(end, int | float) and not isinstance(end, bool) for end in (low, high))
    # A range may be wider than any number.
    sound = numbers and low < high and math.isfinite(float(high) - float(low))
    if not sound or not isinstance(log, bool) or value.keys() - known:
        raise UserError(f"{where}: expected low below high, and perhaps log = true, got {value}")
    if log and low <= 0:
        raise UserError(f"{where}: a range with log = true must be above zero, got {value}")
    return value


def _whole(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_RUNS:
        raise UserError(f"{where} must be a whole number up to {MOST_RUNS:,}, got {value!r}")
    return value


def _draw(rng: np.random.Generator, choice: Any) -> Any:
    if isinstance(choice, list):
        return choice[int(rng.integers(len(choice)))]
    low, high = choice["low"], choice["high"]
    if choice.get("log"):
        found = math.exp(rng.uniform(math.log(low), math.log(high)))
    else:
        found = float(rng.uniform(low, high))
    if isinstance(low, int) and isinstance(high, int):
        return round(found)
    return min(max(float(f"{found:.4g}"), low), high)  # so that people can read it


def _set(document: Values, name: str, value: Any, path: Path) -> None:
    """Sets one of the settings that differ, where a run's configuration has it."""
    first, *rest = name.split(".")
    place = document
    keys = [first] if rest == ["name"] else [TABLES.get(first, first) if rest else first, *rest]
    for key in keys[:-1]:
        place = place.setdefault(key, {})
        if not isinstance(place, dict):
            raise UserError(f"{path}: {name} cannot be set, as {key} is {place!r}; correct it")
    place[keys[-1]] = value


def write_record(directory: Path, runs: Mapping[str, Values]) -> None:
    """Writes which runs a sweep consists of: the values of each, by its directory's name."""
    entries = [{"folder": folder, "values": values} for folder, values in runs.items()]
    write_json(directory / RECORD, {"format": FORMAT, "runs": entries})


def is_sweep(directory: Path) -> bool:
    """Whether a directory is a sweep's."""
    return (directory / RECORD).is_file()


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
    if not numeric or len({*values}) <= MOST_GROUPS:
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
    path = directory / RECORD
    document = read_json(path)
    found = document.get("runs") if isinstance(document, dict) else None
    if not isinstance(found, list) or document.get("format") != FORMAT:
        raise unusable(path, f"expected the runs of a sweep in version {FORMAT} of its format")
    for each in found:
        folder, values = (each.get(k) if isinstance(each, dict) else None for k in _ENTRY)
        if not (isinstance(folder, str) and FOLDER.fullmatch(folder) and isinstance(values, dict)):
            raise unusable(path, f"expected the folder and the values of a run, got {each!r:.80}")
        yield directory / "jobs" / folder / "run", values


_ENTRY = ("folder", "values")
