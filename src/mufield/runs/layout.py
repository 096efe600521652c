"""The files of a run's directory and how they are read. Nothing is written here; no JAX.

```
config.json       what the run is
versions.json     versions of Python and packages that it was begun with
policies/0001.policy       the policy of episode 1, ready to deploy
plans/0001.safetensors     what the planner expected of it, and what it starts from next
episodes/0001.safetensors  what was observed, and the episode's row of the metrics
logs/0001.safetensors      transitions that belong to no episode, if there are any
replans/0001-0002.policy   the policy of episode 1 as it was changed for the second time
replans/0001-0002.safetensors  from which step on, and what the planner expected then
metrics.jsonl     one row for each episode, the same whenever the run is repeated
timings.jsonl     seconds, which differ from run to run
last.policy       a copy of the last episode's policy
best_episode.policy   a copy of the policy of the best episode so far
best.policy       the policy that all data make best, and cautious.policy: once they were asked for
```

The first eight are the run; a plan, an episode or a log is part of it once its file is there. The
metrics and the copies are derived from them, and written again where they differ.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ..io import disk
from ..io.sealed import digest, is_a, read_json, read_lines, read_sealed, require, unusable


class Layout:
    """Names in a run's directory.

    Attributes:
        config, versions, timings, metrics: Files.
        logs: Directory with one file for each log; runs without logs have none.
        replans: Directory with two files for each change of a policy within a day.
        parts: Directories with one file for each episode, and how the names of the files end.
        plan_kind, episode_kind, log_kind: Kinds of sealed files.
        observed: Arrays of every episode, named as the fields of `Episode`.
        sometimes: Arrays of episodes whose problem hides its reward, of which moves are missing,
            or with trips.
        logged: Arrays of every log, named as the fields of `Transitions`; also "earned" if rewards
            are hidden.
        planned: Arrays of every plan; others belong to the planner's memory.
        policy_of: Fields of every plan, besides those that say whose it is.
    """

    config, versions = "config.json", "versions.json"
    timings, metrics = "timings.jsonl", "metrics.jsonl"
    logs, replans = "logs", "replans"
    parts: ClassVar = {"policies": "policy", "plans": "safetensors", "episodes": "safetensors"}
    plan_kind, episode_kind, log_kind = "plan of a run", "episode of a run", "log of a run"
    observed = ("states", "actions", "next_states", "stopped", "mass", "rewards")
    sometimes = ("earned", "present", "carried")
    logged = ("states", "actions", "next_states", "observed", "mass", "moment", "step")
    planned = ("mass", "value", "control")
    policy_of: ClassVar[dict[str, type]] = {"id": str, "note": str, "policy_sha256": str}


LAYOUT = Layout()


@dataclass(frozen=True)
class EpisodeRecord:
    """One episode that is part of a run.

    Attributes:
        arrays: What was observed.
        content: Digest of the arrays.
        row: The episode's row of the metrics.
        source: Where it comes from: a simulator or a file.
        plan: The id of its plan, as it was before any change within the day.
    """

    arrays: dict[str, np.ndarray]
    content: str
    row: dict[str, Any]
    source: dict[str, Any]
    plan: str


@dataclass(frozen=True)
class LogRecord:
    """Transitions that belong to no episode.

    Attributes:
        arrays: The transitions.
        content: Digest of the arrays.
        since: The first episode whose plan knows them.
        source: Where they come from, and notes on what was left out or assumed.
    """

    arrays: dict[str, np.ndarray]
    content: str
    since: int
    source: dict[str, Any]

    def __len__(self) -> int:
        return len(self.arrays["states"])


@dataclass(frozen=True)
class PlanRecord:
    """A plan of an episode: the day's first, or one as it was changed within the day.

    Attributes:
        path: Its file.
        document: What the file says of it: ``id`` names the policy, and of a changed one ``step``
            is the first step that was planned anew.
        arrays: What the planner expected; the distributions are those of the whole episode.
    """

    path: Path
    document: dict[str, Any]
    arrays: dict[str, np.ndarray]

    @property
    def id(self) -> str:
        """Names the policy."""
        return str(self.document["id"])

    @property
    def policy(self) -> Path:
        """The file of the policy, for all steps of the episode."""
        return policy_of_plan(self.path)


def part_path(directory: Path, part: str, number: int) -> Path:
    """The file of an episode in one of the `LAYOUT.parts` of a run."""
    return directory / part / f"{number:04d}.{LAYOUT.parts[part]}"


def replan_path(directory: Path, number: int, count: int) -> Path:
    """The file of an episode's plan as it was changed for the first, second, ... time."""
    return directory / LAYOUT.replans / f"{number:04d}-{count:04d}.safetensors"


def replan_paths(directory: Path, number: int) -> list[Path]:
    """The files of all changes of an episode's plan, in their order."""
    changes = numbered(directory / LAYOUT.replans, before=f"{number:04d}-")
    return [replan_path(directory, number, count) for count in changes]


def policy_path(directory: Path, number: int) -> Path:
    """The file of the policy that an episode was ended with."""
    plans = [part_path(directory, "plans", number), *replan_paths(directory, number)]
    return policy_of_plan(plans[-1])


def policy_of_plan(path: Path) -> Path:
    """The file of the policy that belongs to the file of a plan."""
    place = path.parent
    return (place.with_name("policies") if place.name == "plans" else place) / f"{path.stem}.policy"


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


def read_record(path: Path) -> tuple[dict[str, Any], EpisodeRecord]:
    """Reads the file of an episode; returns its whole document, and the record made from it."""
    document, arrays = sealed = read_sealed(path, LAYOUT.episode_kind)
    require(path, sealed, {"metrics": dict, "source": dict}, LAYOUT.observed)
    for name, found in ({"value": None, "best": None} | document["metrics"]).items():
        wanted = _wanted(name, found)
        if wanted:
            raise unusable(path, f"expected {wanted} as its {name}, got {found!r:.200}")
    kept = {name: arrays[name] for name in (*LAYOUT.observed, *LAYOUT.sometimes) if name in arrays}
    about, plan = (document["metrics"], document["source"]), str(document.get("plan"))
    return document, EpisodeRecord(kept, digest("", kept), *about, plan)


def read_versions(directory: Path) -> dict[str, Any]:
    """The versions that a run was begun with; empty if their file was lost."""
    path = directory / LAYOUT.versions
    found = read_json(path) if disk.kind(path) else {}
    if not isinstance(found, dict):
        raise unusable(path, "it holds no versions by name")
    return found


def read_seconds(directory: Path) -> list[dict[str, Any]]:
    """The run's timings: rows with the number of an episode, and seconds by the part's name."""
    return read_lines(directory / LAYOUT.timings)


def _wanted(name: str, value: Any) -> str:
    """What a figure of the metrics should be, in words; empty if it is, whoever wrote it."""
    if name == "notes":
        right = isinstance(value, list) and all(isinstance(each, str) for each in value)
        return "" if right else "a list of texts"
    if name == "finding":
        return "" if value is None or isinstance(value, str) else "a text"
    if name == "margins":
        right = value is None or (
            isinstance(value, dict)
            and all(
                isinstance(each, list) and all(m is None or is_a(m, float) for m in each)
                for each in value.values()
            )
        )
        return "" if right else "lists of numbers by name"
    whole = name in ("episode", "transitions")
    # Without these numbers a run cannot be gone on with, or drawn.
    needed = whole or name in ("value", "best")
    right = not needed if value is None else is_a(value, int if whole else float)
    return "" if right else "a number"
