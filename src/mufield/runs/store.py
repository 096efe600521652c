"""A run's directory: all that is needed to go on, in files that are never half written.

```
config.json       what the run is
versions.json     what it was begun with
policies/0001.policy       the policy of episode 1, ready to deploy
plans/0001.safetensors     what the planner expected of it, and what it starts from next
episodes/0001.safetensors  what was observed, and the episode's row of the metrics
metrics.jsonl     one row for each episode, the same whenever the run is repeated
metrics.parquet   the same by columns; only with the extra ``parquet``
timings.jsonl     seconds, which differ from run to run
last.policy       a copy of the last episode's policy
best.policy       a copy of the policy with the highest J so far
tensorboard/      events, if they were asked for
```

The first five are the run; a plan counts once its file is there, and so does an episode. The
metrics and the copies follow from them and are written again wherever they differ.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from .. import _files as files
from ..episode import Episode
from ..errors import UserError
from ..learning.metrics import EpisodeMetrics
from ..learning.plan import Plan
from ..policies.base import Profile
from ..policies.files import load_policy, save_policy
from .config import RunConfig, read_config
from .lock import locked
from .memory import fill_tree, tree_arrays
from .metrics_file import write_columns
from .precision import check_precision
from .versions import changes_since, versions

PLAN, EPISODE = "plan of a run", "episode of a run"
"""What the sealed files of a run are."""

PARTS = ("policies", "plans", "episodes")
OBSERVED = ("states", "actions", "next_states", "stopped", "mass", "rewards")
EARNED = "earned"
"""Observed only where the problem hides its reward."""


@dataclass(frozen=True)
class Told:
    """One episode that is part of the run.

    Attributes:
        episode: What was observed.
        content: Stands for all that was observed.
        row: Its row of the metrics.
        source: Where it comes from.
    """

    episode: Episode
    content: str
    row: dict[str, Any]
    source: dict[str, Any]


class RunStore:
    """The files of one run; only whoever holds the lock may write.

    Attributes:
        directory: The run's directory.
        config: What the run is.
        told: The episodes so far.
    """

    def __init__(self, directory: Path):
        """Reads a run; raises if a file is missing or damaged, and names it."""
        self.directory = directory
        self.config: RunConfig = read_config(directory)
        check_precision(self.config)
        self.told: list[Told] = []
        count = len(self._numbers("episodes"))
        for number in range(1, count + 1):
            self.told.append(self._read_episode(number))
        for part in ("policies", "plans"):
            beyond = [number for number in self._numbers(part) if number > count + 1]
            if beyond:
                raise files.unusable(
                    self.path("episodes", count + 1),
                    f"it is missing, though {self.path(part, beyond[0])} is there",
                )

    @classmethod
    def create(cls, directory: Path, config: RunConfig, imported: Path | None = None) -> "RunStore":
        """Begins a run in a directory that is new or empty."""
        directory.mkdir(parents=True, exist_ok=True)
        with locked(directory):
            check_vacant(directory)
            files.remove_leftovers(directory)
            for part in PARTS:
                (directory / part).mkdir(exist_ok=True)
            files.write_json(directory / "versions.json", versions(imported))
            # Last, because it makes the directory a run.
            files.write_json(directory / "config.json", config.document())
        return cls(directory)

    @classmethod
    @contextmanager
    def writing(cls, directory: Path) -> Iterator["RunStore"]:
        """Opens a run to write to it, and mends what a crash left undone."""
        read_config(directory)  # raises, before a lock is made where there is no run
        with locked(directory):
            files.remove_leftovers(directory)
            store = cls(directory)
            store.derive()
            yield store

    @property
    def episodes(self) -> int:
        """Number of episodes so far."""
        return len(self.told)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The metrics of all episodes."""
        return [told.row for told in self.told]

    @property
    def best(self) -> int:
        """Number of the episode with the highest J; of several, the first."""
        values = [row["value"] for row in self.rows]
        return values.index(max(values)) + 1

    def path(self, part: str, number: int) -> Path:
        """The file of an episode."""
        suffix = "policy" if part == "policies" else "safetensors"
        return self.directory / part / f"{number:04d}.{suffix}"

    def plan_id(self, number: int) -> str:
        """Stands for an episode's plan: for the run, and all that it was told before."""
        parts = [self.config.identity, str(number), *(t.content for t in self.told[: number - 1])]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    def set_target(self, episodes: int) -> None:
        """Changes the number of episodes that the run is to have."""
        if episodes != self.config.episodes:
            self.config = replace(self.config, episodes=episodes)
            files.write_json(self.directory / "config.json", self.config.document())

    def write_plan(self, plan: Plan) -> None:
        """Keeps the plan of the next episode; it counts once its second file is there."""
        number = self.episodes + 1
        policy = self.path("policies", number)
        about = {"run": self.config.identity, "episode": number, "id": self.plan_id(number)}
        save_policy(policy, plan.profile, info=about)
        arrays = {name: getattr(plan, name) for name in ("mass", "value", "control", "spread")}
        files.write_sealed(
            self.path("plans", number),
            about | {"note": plan.note, "policy_sha256": files.file_digest(policy)},
            arrays | tree_arrays(plan.memory),
            kind=PLAN,
        )

    def has_plan(self, number: int) -> bool:
        """Whether an episode has been planned."""
        return self.path("plans", number).exists()

    def read_plan(self, number: int, template: Any) -> Plan:
        """A plan as it was written.

        Args:
            number: The episode.
            template: A planner's memory of the same structure.
        """
        path = self.path("plans", number)
        about, arrays = files.read_sealed(path, PLAN)
        self._check_about(path, about, number, "id")
        policy = self.path("policies", number)
        files.check_file(policy)
        if files.file_digest(policy) != about["policy_sha256"]:
            raise files.unusable(policy, "it is not the policy that was planned")
        profile = load_policy(policy)
        assert isinstance(profile, Profile)
        return Plan(
            profile=profile,
            memory=fill_tree(template, arrays, path),
            value=jnp.asarray(arrays["value"]),
            mass=jnp.asarray(arrays["mass"]),
            control=jnp.asarray(arrays["control"]),
            spread=jnp.asarray(arrays["spread"]),
            note=about["note"],
        )

    def write_episode(
        self, episode: Episode, metrics: EpisodeMetrics, source: dict[str, Any]
    ) -> None:
        """Makes an episode part of the run, at one stroke; then what follows from it."""
        number = self.episodes + 1
        row = metrics.row()
        row["notes"] = list(row["notes"])
        about = {
            "run": self.config.identity,
            "episode": number,
            "plan": self.plan_id(number),
            "source": source,
            "metrics": row,
        }
        files.write_sealed(self.path("episodes", number), about, _observed(episode), kind=EPISODE)
        self.told.append(Told(episode, content_of(episode), row, source))
        self.derive()

    def derive(self) -> None:
        """Writes what follows from the episodes, where it is missing or differs."""
        files.write_lines(self.directory / "metrics.jsonl", self.rows)
        write_columns(self.directory / "metrics.parquet", self.rows)
        if not self.told:
            return
        for name, number in (("last", self.episodes), ("best", self.best)):
            source, copy = self.path("policies", number), self.directory / f"{name}.policy"
            files.check_file(source)
            files.write_changed(copy, source.read_bytes())

    def note_seconds(self, number: int, **seconds: float) -> None:
        """Keeps how long something took."""
        path = self.directory / "timings.jsonl"
        new = {"episode": number} | {name: round(value, 4) for name, value in seconds.items()}
        files.write_lines(path, [*files.read_lines(path), new])

    @property
    def changes(self) -> list[str]:
        """What is installed otherwise than when the run began, for people."""
        path = self.directory / "versions.json"
        if not path.exists():
            return []
        then = files.read_json(path)
        if not isinstance(then, dict):
            raise files.unusable(path, "it holds no versions by name")
        return changes_since(then)

    def _numbers(self, part: str) -> list[int]:
        """The numbers of a part's files; raises if one between them is missing."""
        directory = self.directory / part
        if not directory.is_dir():
            raise files.unusable(directory, "it is missing")
        numbers = sorted(int(p.stem) for p in directory.glob("[0-9]*.*") if p.stem.isdigit())
        for expected, number in enumerate(numbers, start=1):
            if number != expected:
                raise files.unusable(self.path(part, expected), "it is missing")
        return numbers

    def _read_episode(self, number: int) -> Told:
        path = self.path("episodes", number)
        about, arrays = files.read_sealed(path, EPISODE)
        self._check_about(path, about, number, "plan")
        missing = [name for name in OBSERVED if name not in arrays]
        if missing:
            raise files.unusable(path, f"it lacks {', '.join(missing)}")
        known = {*OBSERVED, EARNED} & arrays.keys()
        episode = Episode(**{name: jnp.asarray(arrays[name]) for name in known})
        return Told(episode, content_of(episode), about["metrics"], about["source"])

    def _check_about(self, path: Path, about: dict[str, Any], number: int, key: str) -> None:
        wanted = {"run": self.config.identity, "episode": number, key: self.plan_id(number)}
        for name, value in wanted.items():
            if about.get(name) != value:
                raise files.unusable(
                    path,
                    f"it belongs to another run or episode: expected the {name} {value}, got "
                    f"{about.get(name)}",
                )


def content_of(episode: Episode) -> str:
    """Stands for all that was observed in an episode."""
    return files.digest("", _observed(episode))


def _observed(episode: Episode) -> dict[str, np.ndarray]:
    arrays = {name: np.asarray(getattr(episode, name)) for name in OBSERVED}
    return arrays if episode.earned is None else arrays | {EARNED: np.asarray(episode.earned)}


def check_vacant(directory: Path) -> None:
    """Raises if a directory holds a run or anything else."""
    if not directory.exists():
        return
    if (directory / "config.json").exists():
        raise UserError(
            f"{directory} holds a run already; go on with `mufield resume {directory}`, or choose "
            "another directory"
        )
    # What a process that was killed while it began a run may have left.
    own = {"lock", "versions.json", *PARTS}
    others = sorted(p.name for p in directory.iterdir() if p.name not in own and p.suffix != ".tmp")
    others += [part for part in PARTS if any((directory / part).glob("*"))]
    if others:
        raise UserError(
            f"expected a new or empty directory for the run, but {directory} holds {others[0]}; "
            "choose another"
        )
