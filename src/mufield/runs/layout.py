"""The files of a run's directory and how they are read. Nothing is written here; no JAX.

```
config.json       what the run is
versions.json     versions of Python and packages that it was begun with
policies/0001.policy       the policy of episode 1, ready to deploy
plans/0001.safetensors     what the planner expected of it, and what it starts from next
episodes/0001.safetensors  what was observed, and the episode's row of the metrics
logs/0001.safetensors      transitions that belong to no episode, if there are any
policies/0001-scouts.policy  that of its tracked agents, if they are scouts
policies/0001-0002.policy  the policy of episode 1 as it was changed for the second time
plans/0001-0002.safetensors  from which step on, and what the planner expected then
metrics.jsonl     one row for each episode, the same whenever the run is repeated
timings.jsonl     seconds, which differ from run to run
last.policy       a copy of the last episode's policy
best_episode.policy   a copy of the policy of the best episode so far
best.policy       the policy that all data make best, and cautious.policy: once they were asked for
```

The first nine are the run; a plan, an episode or a log is part of it once its file is there. The
metrics and the copies are derived from them, and written again where they differ.
"""

import json
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ..io import disk
from ..io.atomic import unusable
from ..io.sealed import digest, read_json, read_sealed, require
from ..learning.metrics import EpisodeMetrics


class Layout:
    """Names in a run's directory.

    Attributes:
        config, versions, timings, metrics: Files.
        logs: Directory with one file for each log; runs without logs have none.
        parts: Directories with one file for each episode, and how the names of the files end.
        plan, episode, log: Kinds of sealed files.
        observed: Arrays of every episode, named as the fields of `Episode`.
        sometimes: Arrays of episodes whose problem hides its reward, of which moves are missing,
            or with trips or shocks, or on nodes.
        logged: Arrays of every log, named as the fields of `Transitions`; also "earned" if rewards
            are hidden.
        planned: Arrays of every plan; others belong to the planner's memory.
        fields: What the document of each kind has, besides what says whose it is.
    """

    config, versions = "config.json", "versions.json"
    timings, metrics = "timings.jsonl", "metrics.jsonl"
    logs = "logs"
    parts: ClassVar = {"policies": "policy", "plans": "safetensors", "episodes": "safetensors"}
    plan, episode, log = "plan of a run", "episode of a run", "log of a run"
    observed = ("states", "actions", "next_states", "stopped", "mass", "rewards")
    sometimes = ("earned", "present", "carried", "shocks", "joint", "population")
    logged = ("states", "actions", "next_states", "observed", "mass", "moment", "step")
    planned = ("mass", "value", "control")
    fields: ClassVar[dict[str, dict[str, type]]] = {
        plan: {"id": str, "note": str, "policy_sha256": str},
        episode: {"metrics": dict, "source": dict},
        log: {"since": int, "source": dict},
    }


LAYOUT = Layout()


@dataclass(frozen=True)
class Record:
    """A sealed file of a run.

    Attributes:
        document: Of an episode: its row of ``metrics``, the ``source``, a simulator or a file, and
            the id of its ``plan`` before any change within the day. Of a log: the first episode
            whose plan knows it is ``since``. Of a plan: ``id`` names the policy, and of a changed
            one ``step`` is the first step that was planned anew.
        arrays: What was observed, or what the planner expected of the whole episode.
    """

    path: Path
    document: dict[str, Any]
    arrays: dict[str, np.ndarray]

    def __getitem__(self, name: str) -> Any:
        return self.document[name]

    @cached_property
    def content(self) -> str:
        """Digest of the arrays."""
        return digest("", self.arrays)

    def policy(self, who: str = "policy") -> Path:
        """The file of a plan's ``"policy"``, or that of its ``"scouts"``, for all steps."""
        name = self.path.stem + ("" if who == "policy" else f"-{who}")
        return self.path.parent.with_name("policies") / f"{name}.policy"


def read_record(path: Path, kind: str, **more: type) -> Record:
    """Reads a sealed file of a run, whose document must also have ``more`` fields."""
    needed = {LAYOUT.plan: LAYOUT.planned, LAYOUT.episode: LAYOUT.observed}.get(kind, LAYOUT.logged)
    sealed = read_sealed(path, kind)
    require(path, sealed, LAYOUT.fields[kind] | more, needed)
    record = Record(path, *sealed)
    if kind != LAYOUT.episode:
        return record
    try:
        row = _metrics().validate_json(json.dumps(record["metrics"]), strict=True).row()
    except ValueError as error:
        raise unusable(path, f"its metrics are no figures of an episode: {error}") from error
    if row | {"notes": list(row["notes"])} != record["metrics"]:
        raise unusable(path, "its metrics do not fit each other, or there are others")
    known = (*LAYOUT.observed, *LAYOUT.sometimes)
    return replace(record, arrays={n: each for n, each in record.arrays.items() if n in known})


@cache
def _metrics() -> Any:
    from pydantic import TypeAdapter  # slow to import

    return TypeAdapter(EpisodeMetrics)


def part_path(directory: Path, part: str, number: int, change: int = 0) -> Path:
    """The file of an episode in one of the `LAYOUT.parts` of a run.

    A plan and its policy may have been changed within the day, for the first, second, ... time.
    """
    changed = f"-{change:04d}" if change else ""
    return directory / part / f"{number:04d}{changed}.{LAYOUT.parts[part]}"


def changes(directory: Path, number: int) -> list[int]:
    """The changes of an episode's plan within the day, counted from 1."""
    return numbered(directory / "plans", before=f"{number:04d}-")


def policy_path(directory: Path, number: int) -> Path:
    """The file of the policy that an episode was ended with."""
    return part_path(directory, "policies", number, max(changes(directory, number), default=0))


def part_numbers(directory: Path, part: str) -> list[int]:
    """The numbers of the files of one of the `LAYOUT.parts`."""
    return numbered(directory / part, after=f".{LAYOUT.parts[part]}")


def numbered(directory: Path, *, before: str = "", after: str = ".safetensors") -> list[int]:
    """The numbers in a directory's names, sorted: those between the two texts."""
    found = (
        name.removeprefix(before).removesuffix(after)
        for name in disk.names(directory)
        if name.startswith(before) and name.endswith(after)
    )
    return sorted(int(number) for number in found if number.isdecimal())


def check_parts(directory: Path) -> dict[str, list[int]]:
    """The numbers of all files by part; raises if one is missing or empty.

    There may be a plan, or only its policy, for the episode after the last.
    """
    for part in LAYOUT.parts:
        if disk.kind(directory / part) != "directory":
            raise unusable(directory / part, "the directory is missing")
    numbers = {part: part_numbers(directory, part) for part in LAYOUT.parts}
    done = len(numbers["episodes"])
    for part, found in numbers.items():
        for number in range(1, max(done, len(found)) + 1):
            path = part_path(directory, part, number)
            if number not in found:
                raise unusable(path, "it is missing")
            if disk.kind(path) == "file" and disk.size(path) == 0:
                raise unusable(path, "it is empty")
            if number > done + 1:
                lost = part_path(directory, "episodes", done + 1)
                raise unusable(lost, f"it is missing, though there is {path}")
    return numbers


def read_versions(directory: Path) -> dict[str, Any]:
    """The versions that a run was begun with; empty if their file was lost."""
    path = directory / LAYOUT.versions
    found = read_json(path) if disk.kind(path) else {}
    if not isinstance(found, dict):
        raise unusable(path, "it holds no versions by name")
    return found
