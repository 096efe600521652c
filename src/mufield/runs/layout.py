"""The files of a run's directory and how they are read. Nothing is written here; no JAX.

```
config.json       what the run is
versions.json     versions of Python and packages that it was begun with
policies/0001.policy       the policy of episode 1, ready to deploy
plans/0001.safetensors     what the planner expected of it, and what it starts from next
episodes/0001.safetensors  what was observed, and the episode's row of the metrics
logs/0001.safetensors      transitions that belong to no episode, if there are any
replans/0001-0004.policy   the policy of episode 1 as it was changed at step 4, if it was
replans/0001-0004.safetensors  what the planner expected from then on
metrics.jsonl     one row for each episode, the same whenever the run is repeated
metrics.parquet   the same by columns; only with the extra ``parquet``
timings.jsonl     seconds, which differ from run to run
last.policy       a copy of the last episode's policy
luckiest.policy   a copy of the policy of the luckiest episode so far
best.policy       the policy that all data make best, and cautious.policy: once they were asked for
tensorboard/      events, if they were asked for
```

The first eight are the run; a plan, an episode or a log is part of it once its file is there. The
metrics and the copies are derived from them, and written again where they differ.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .._files import Sealed, digest, read_json, read_lines, read_sealed, require, unusable
from ..errors import UserError
from ..learning.luck import Earned, luckiest
from .config import RunConfig, read_config
from .metrics_files import may_be, wanted

PARTS = {"policies": "policy", "plans": "safetensors", "episodes": "safetensors"}
"""Directories with one file for each episode, and how the names of the files end."""

CONFIG, VERSIONS, TIMINGS = "config.json", "versions.json", "timings.jsonl"
METRICS, COLUMNS = "metrics.jsonl", "metrics.parquet"

LOGS = "logs"
"""Directory with one file for each log; runs without logs have none."""

REPLANS = "replans"
"""Directory with two files for each change of a policy within a day; most runs have none."""

PLAN, EPISODE, LOG = "plan of a run", "episode of a run", "log of a run"
REPLAN = "changed plan of a run"
"""Kinds of sealed files."""

OBSERVED = ("states", "actions", "next_states", "stopped", "mass", "rewards")
"""Arrays of every episode, named as the fields of `Episode`."""

SOMETIMES = ("earned", "present", "carried")
"""Arrays of episodes whose problem hides its reward, of which moves are missing, or with trips."""

LOGGED = ("states", "actions", "next_states", "observed", "mass", "moment", "step")
"""Arrays of every log, named as the fields of `Transitions`; "earned" if rewards are hidden."""

POLICY_OF = {"note": str, "policy_sha256": str}
"""Fields of every plan, besides those that say whose it is."""

PLANNED = ("mass", "value", "control")
"""Arrays of every plan; others belong to the planner's memory."""


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
class ReplanRecord:
    """A plan that was changed within a day.

    Attributes:
        path: Its file.
        step: The first step that was planned anew.
        id: Names the changed policy.
        document: What else the file says of it.
        arrays: What the planner expected; the distributions are those of the whole episode.
    """

    path: Path
    step: int
    id: str
    document: dict[str, Any]
    arrays: dict[str, np.ndarray]

    @property
    def policy(self) -> Path:
        """The file of the policy, for all steps of the episode."""
        return self.path.with_suffix(".policy")


class RunFiles:
    """A run, read from its files; `records` are its episodes so far, `logs` its further data."""

    def __init__(self, directory: Path):
        """Reads a run; raises if a file is missing or damaged, and names it."""
        self.directory = directory
        self.config: RunConfig = read_config(directory)
        self.logs = self._read_logs()
        self.records: list[EpisodeRecord] = []
        for number in check_parts(directory)["episodes"]:
            path = self.path("episodes", number)
            document, record = read_record(path)
            self._check_owner(path, document, number, record.plan)
            self.records.append(record)
            self._check_replans(path, document, number)

    @property
    def episodes(self) -> int:
        """Number of episodes so far."""
        return len(self.records)

    @property
    def historical(self) -> int:
        """Number of transitions from logs."""
        return sum(map(len, self.logs))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The metrics of all episodes."""
        return [record.row for record in self.records]

    @property
    def earned(self) -> list[Earned]:
        """What the episodes earned, and which of them began elsewhere than the problem says."""
        return [Earned(row["value"], row.get("elsewhere")) for row in self.rows]

    @property
    def luckiest(self) -> int:
        """Number of the luckiest episode: the one with the highest J of those that compare."""
        return luckiest(self.earned) + 1

    @property
    def asked(self) -> bool:
        """Whether the next episode is planned, but not observed yet."""
        return self.path("plans", self.episodes + 1).exists()

    def path(self, part: str, number: int) -> Path:
        """The file of an episode."""
        return part_path(self.directory, part, number)

    def episode_number(self, which: str, *, planned: bool = False) -> int:
        """The episode that a user means by ``"luckiest"``, ``"last"`` or a number.

        With ``planned``, one that is planned but not observed yet counts, too, as ``"asked"``.
        """
        count, asked = self.episodes, planned and self.asked
        if count and which in ("luckiest", "last"):
            return self.luckiest if which == "luckiest" else count
        if asked and which == "asked":
            return count + 1
        if which.isdecimal() and 1 <= int(which) <= count + asked:
            return int(which)
        there = ["asked"] if asked else []
        there += ["luckiest", "last", f"a number from 1 to {count}"] if count else []
        raise UserError(
            f"{self.directory} has no episode {which!r}: expected "
            + (" or ".join(there) or "an episode first; `mufield ask` plans one")
        )

    def plan_id(self, number: int) -> str:
        """Names an episode's plan, as it was before any change within the day."""
        if number <= self.episodes:
            return self.records[number - 1].plan
        return str(self.read_plan_file(number).document["id"])

    def new_plan_id(self, number: int, policy: str, mass: np.ndarray) -> str:
        """Names a plan by what it is: its policy's digest, where it leads, and what it knew."""
        text = "\n".join([self.data_id(number), policy, digest("", {"mass": mass})])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def data_id(self, number: int) -> str:
        """Names what an episode's plan knew: a digest of the run and of all that it had observed.

        Plans of early versions had this as their id, whatever they started from.
        """
        before = [record.content for record in self.records[: number - 1]]
        before += [f"log {log.since} {log.content}" for log in self.logs if log.since <= number]
        text = "\n".join([self.config.identity, str(number), *before])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def replans(self, number: int) -> list[ReplanRecord]:
        """The changes of an episode's plan within the day, in their order."""
        found: list[ReplanRecord] = []
        for path in replan_paths(self.directory, number):
            document, arrays = sealed = read_sealed(path, REPLAN)
            require(path, sealed, {"step": int, "options": dict, **POLICY_OF}, PLANNED)
            step = document["step"]
            if not 0 <= step < len(arrays["mass"]):
                raise unusable(path, f"it has no step {step}")
            name = self.replan_id(number, found, step, arrays["mass"], document["options"])
            for key, value in {"run": self.config.identity, "episode": number, "id": name}.items():
                if document.get(key) != value:
                    raise unusable(
                        path,
                        f"it belongs to another run, episode or plan: expected the {key} {value}, "
                        f"got {document.get(key)}",
                    )
            found.append(ReplanRecord(path, step, name, document, arrays))
        return found

    def replan_id(
        self,
        number: int,
        before: list[ReplanRecord],
        step: int,
        mass: np.ndarray,
        options: dict[str, Any],
    ) -> str:
        """Names a changed plan: by what it changes, when, from where, and for what problem."""
        start = digest("", {"start": np.asarray(mass[step])})
        last = before[-1].id if before else self.plan_id(number)
        text = "\n".join([last, str(step), start, json.dumps(options, sort_keys=True)])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def policy_id(self, number: int) -> str:
        """Names the policy that an episode was ended with."""
        changed = self.replans(number)
        return changed[-1].id if changed else self.plan_id(number)

    def policy_path(self, number: int) -> Path:
        """The file of the policy that an episode was ended with."""
        return policy_path(self.directory, number)

    def _check_replans(self, path: Path, document: dict[str, Any], number: int) -> None:
        told = document.get("replans", [])
        there = [each.id for each in self.replans(number)]
        if told != there:
            raise unusable(
                path,
                f"its policy was changed {len(told)} times within the day, but {REPLANS}/ has "
                f"{len(there)} changes for it, or others",
            )

    def best_id(self, kind: str) -> str:
        """Names the policy of a kind that all data make best; it changes with them."""
        # One later than the next plan, which may not know the last logs.
        text = f"{kind} {self.data_id(self.episodes + 2)}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def read_plan_file(self, number: int) -> Sealed:
        """What a planner expected of an episode, and its memory afterwards."""
        path = self.path("plans", number)
        plan = read_sealed(path, PLAN)
        require(path, plan, {"id": str, **POLICY_OF}, PLANNED)
        self._check_owner(path, plan.document, number, plan.document["id"])
        if number <= self.episodes and plan.document["id"] != self.records[number - 1].plan:
            raise unusable(
                path,
                f"its episode belongs to another plan: expected the id "
                f"{self.records[number - 1].plan}, got {plan.document['id']}",
            )
        return plan

    def _read_logs(self) -> list[LogRecord]:
        found = (self.directory / LOGS).glob("*.safetensors")
        numbers = sorted(int(path.stem) for path in found if path.stem.isdecimal())
        logs = []
        for number in range(1, max(numbers, default=0) + 1):
            path = self.log_path(number)
            document, arrays = sealed = read_sealed(path, LOG)
            require(path, sealed, {"since": int, "source": dict}, LOGGED)
            for name, value in {"run": self.config.identity, "log": number}.items():
                if document.get(name) != value:
                    raise unusable(
                        path,
                        f"it belongs to another run: expected the {name} {value}, got "
                        f"{document.get(name)}",
                    )
            content = digest("", arrays)
            logs.append(LogRecord(arrays, content, document["since"], document["source"]))
        return logs

    def log_path(self, number: int) -> Path:
        """The file of a log."""
        return self.directory / LOGS / f"{number:04d}.safetensors"

    def _check_owner(self, path: Path, document: dict[str, Any], number: int, plan: str) -> None:
        """Raises unless a file is of this run, this episode and these data."""
        wanted = {"run": self.config.identity, "episode": number, "data": self.data_id(number)}
        # In early versions a plan's id was that of its data.
        found = {"data": plan} | document
        for name, value in wanted.items():
            if found.get(name) != value:
                raise unusable(
                    path,
                    f"it belongs to another run or episode: expected the {name} {value}, got "
                    f"{found.get(name)}",
                )


def part_path(directory: Path, part: str, number: int) -> Path:
    """The file of an episode in one of the `PARTS` of a run."""
    return directory / part / f"{number:04d}.{PARTS[part]}"


def replan_path(directory: Path, number: int, step: int) -> Path:
    """The file of an episode's plan as it was changed at a step."""
    return directory / REPLANS / f"{number:04d}-{step:04d}.safetensors"


def replan_paths(directory: Path, number: int) -> list[Path]:
    """The files of all changes of an episode's plan, by step."""
    found = (directory / REPLANS).glob(f"{number:04d}-*.safetensors")
    named = [path for path in found if path.stem.partition("-")[2].isdecimal()]
    return sorted(named, key=lambda path: int(path.stem.partition("-")[2]))


def policy_path(directory: Path, number: int) -> Path:
    """The file of the policy that an episode was ended with."""
    changed = replan_paths(directory, number)
    if changed:
        return changed[-1].with_suffix(".policy")
    return part_path(directory, "policies", number)


def part_numbers(directory: Path, part: str) -> list[int]:
    """The numbers of the files of one of the `PARTS`."""
    found = (directory / part).glob(f"*.{PARTS[part]}")
    return sorted(int(path.stem) for path in found if path.stem.isdecimal())


def check_parts(directory: Path) -> dict[str, list[int]]:
    """The numbers of all files by part; raises if one is missing or empty.

    There may be a plan, or only its policy, for the episode after the last.
    """
    for part in PARTS:
        if not (directory / part).is_dir():
            raise unusable(directory / part, "the directory is missing")
    numbers = {part: part_numbers(directory, part) for part in PARTS}
    done = len(numbers["episodes"])
    for part, found in numbers.items():
        for number in range(1, max(done, len(found)) + 1):
            path = part_path(directory, part, number)
            if number not in found:
                raise unusable(path, "it is missing")
            if path.is_file() and path.stat().st_size == 0:
                raise unusable(path, "it is empty")
            if number > done + 1:
                lost = part_path(directory, "episodes", done + 1)
                raise unusable(lost, f"it is missing, though there is {path}")
    return numbers


def read_record(path: Path) -> tuple[dict[str, Any], EpisodeRecord]:
    """Reads the file of an episode; returns its whole document, and the record made from it."""
    document, arrays = sealed = read_sealed(path, EPISODE)
    require(path, sealed, {"metrics": dict, "source": dict}, OBSERVED)
    for name, found in ({"value": None, "best": None} | document["metrics"]).items():
        if not may_be(name, found):
            raise unusable(path, f"expected {wanted(name)} as its {name}, got {found!r:.200}")
    kept = {name: arrays[name] for name in (*OBSERVED, *SOMETIMES) if name in arrays}
    about, plan = (document["metrics"], document["source"]), str(document.get("plan"))
    return document, EpisodeRecord(kept, digest("", kept), *about, plan)


def read_versions(directory: Path) -> dict[str, Any]:
    """The versions that a run was begun with; empty if their file was lost."""
    path = directory / VERSIONS
    found = read_json(path) if path.exists() else {}
    if not isinstance(found, dict):
        raise unusable(path, "it holds no versions by name")
    return found


def read_seconds(directory: Path) -> list[dict[str, Any]]:
    """The run's timings: rows with the number of an episode, and seconds by the part's name."""
    return read_lines(directory / TIMINGS)
