"""Runs, read from their files: one of them, or many at a glance. Nothing is written here; no JAX.

A glance looks at names and small files only, and damaged runs raise no error there; the contents of
episodes and policies are checked when a run is opened.
"""

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError
from ..io import disk
from ..io.atomic import unusable
from ..io.sealed import digest, read_lines
from ..learning.metrics import Earned, best_episode
from . import layout
from .config import RunConfig, read_config, short_digest
from .layout import LAYOUT, Record


class RunFiles:
    """A run, read from its files; `records` are its episodes so far, `logs` its further data."""

    def __init__(self, directory: Path):
        """Reads a run; raises if a file is missing or damaged, and names it."""
        self.directory = directory
        self.config: RunConfig = read_config(directory)
        logs = range(1, max(layout.numbered(directory / LAYOUT.logs), default=0) + 1)
        self.logs = [self._read(self.log_path(n), LAYOUT.log, {}, log=n) for n in logs]
        self.records: list[Record] = []
        for number in layout.check_parts(directory)["episodes"]:
            path, data = self.path("episodes", number), self.data_id(number)
            record = self._read(path, LAYOUT.episode, {}, episode=number, data=data)
            self.records.append(record)
            there = [each["id"] for each in self.replans(number)]
            if record.document.get("replans", []) != there:
                raise unusable(path, "plans/ lacks a change of its policy within the day, or more")

    @property
    def episodes(self) -> int:
        """Number of episodes so far."""
        return len(self.records)

    @property
    def historical(self) -> int:
        """Number of transitions from logs."""
        return sum(len(log.arrays["states"]) for log in self.logs)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The metrics of all episodes."""
        return [record["metrics"] for record in self.records]

    @property
    def earned(self) -> list[Earned]:
        """What the episodes earned, and what later ones are compared with besides."""
        return [Earned(row["value"], row.get("elsewhere"), row.get("finding")) for row in self.rows]

    @property
    def best_episode(self) -> int:
        """Number of the best episode: the one with the highest J of those that compare."""
        return best_episode(self.earned) + 1

    @property
    def asked(self) -> bool:
        """Whether the next episode is planned, but not observed yet."""
        return bool(disk.kind(self.path("plans", self.episodes + 1)))

    def path(self, part: str, number: int) -> Path:
        """The file of an episode."""
        return layout.part_path(self.directory, part, number)

    def episode_number(self, which: str, *, planned: bool = False) -> int:
        """The episode that a user means by ``"best-episode"``, ``"last"`` or a number.

        With ``planned``, one that is planned but not observed yet counts, too, as ``"asked"``.
        """
        count, asked = self.episodes, planned and self.asked
        if count and which in ("best-episode", "last"):
            return self.best_episode if which == "best-episode" else count
        if asked and which == "asked":
            return count + 1
        if which.isdecimal() and 1 <= int(which) <= count + asked:
            return int(which)
        there = ["asked"] if asked else []
        there += ["best-episode", "last", f"a number from 1 to {count}"] if count else []
        raise UserError(
            f"{self.directory} has no episode {which!r}: expected "
            + (" or ".join(there) or "an episode first; `mufield ask` plans one")
        )

    def plan_id(self, number: int) -> str:
        """Names an episode's plan, as it was before any change within the day."""
        if number <= self.episodes:
            return str(self.records[number - 1].document.get("plan"))
        return str(self.read_plan_file(number)["id"])

    def data_id(self, number: int) -> str:
        """Names what an episode's plan knew: a digest of the run and of all that it observed."""
        before = [record.content for record in self.records[: number - 1]]
        known = [log for log in self.logs if log["since"] <= number]
        before += [f"log {log['since']} {log.content}" for log in known]
        return short_digest(self.config.identity, str(number), *before)

    def replans(self, number: int) -> list[Record]:
        """The changes of an episode's plan within the day, in their order."""
        found: list[Record] = []
        for change in layout.changes(self.directory, number):
            path = layout.part_path(self.directory, "plans", number, change)
            record = self._read(path, LAYOUT.plan, {"step": int, "options": dict}, episode=number)
            step, mass = record["step"], record.arrays["mass"]
            if not 0 <= step < len(mass):
                raise unusable(path, f"it has no step {step}")
            last = found[-1]["id"] if found else self.plan_id(number)
            given = record["options"], record.document.get("shock")
            self._check_owner(record, id=replan_id(last, step, mass, *given))
            found.append(record)
        return found

    def policy_id(self, number: int) -> str:
        """Names the policy that an episode was ended with."""
        return str(self.last_plan(number)["id"])

    def policy_path(self, number: int) -> Path:
        """The file of the policy that an episode was ended with."""
        return layout.policy_path(self.directory, number)

    def best_id(self, kind: str) -> str:
        """Names the policy of a kind that all data make best; it changes with them."""
        # One later than the next plan, which may not know the last logs.
        return short_digest(f"{kind} {self.data_id(self.episodes + 2)}")

    def read_plan_file(self, number: int) -> Record:
        """What a planner expected of an episode at first, and its memory afterwards."""
        about: dict[str, Any] = {"episode": number, "data": self.data_id(number)}
        if number <= self.episodes:
            about["id"] = self.plan_id(number)
        return self._read(self.path("plans", number), LAYOUT.plan, {}, **about)

    def last_plan(self, number: int) -> Record:
        """The plan that an episode was ended with."""
        return (self.replans(number) or [self.read_plan_file(number)])[-1]

    def log_path(self, number: int) -> Path:
        """The file of a log."""
        return self.directory / LAYOUT.logs / f"{number:04d}.safetensors"

    def _read(self, path: Path, kind: str, more: dict[str, type], **wanted: Any) -> Record:
        """Reads a file; raises unless it is of this run, and what else is wanted."""
        record = layout.read_record(path, kind, **more)
        self._check_owner(record, run=self.config.identity, **wanted)
        return record

    def _check_owner(self, record: Record, **wanted: Any) -> None:
        for name, value in wanted.items():
            if (found := record.document.get(name)) != value:
                what = f"expected the {name} {value}, got {found}"
                raise unusable(record.path, f"it belongs to another run, episode or plan: {what}")


def replan_id(last: str, step: int, mass: np.ndarray, options: Any, shock: int | None) -> str:
    """Names a changed plan: by the last one, the step, the mass of then, and for what problem."""
    start = digest("", {"start": np.asarray(mass[step])})
    given = options if shock is None else [options, shock]
    return short_digest(last, str(step), start, json.dumps(given, sort_keys=True))


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
    filled = (any((directory / part).iterdir()) for part in LAYOUT.parts)
    return names.issuperset(LAYOUT.parts) and any(filled)


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
    done = len(layout.part_numbers(directory, "episodes"))
    earned: list[Earned] = []
    try:
        # Damaged lines are left out; they are written again when the run goes on.
        rows = read_lines(directory / LAYOUT.metrics)[:done]
        numbers = [row for row in rows if isinstance(row.get("value"), int | float)]
        earned = [Earned(row["value"], row.get("elsewhere")) for row in numbers]
        config = read_config(directory)
        layout.check_parts(directory)
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
    pending = done + 1 in layout.part_numbers(directory, "plans")
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
