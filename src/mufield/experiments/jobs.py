"""Jobs: what is computed once, kept in a directory of its own, and used by several figures.

A job's directory is named after the job and a digest of its settings, so that other settings are
another job and nothing is ever mixed up or overwritten.

```
runs/rooms-mirror-0-1a2b3c4d5e/
  job.json       what the job is
  log.txt        what was printed while it was computed, errors included
  run/           the run's directory, if it is one: `mufield show` reads it
  plan.policy    the policy, if it is a plan
  training.safetensors   the checkpoint, if it is Q-learning
  result.json    its figures; written last, because it makes the job done
```
"""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

FORMAT = 1
"""Of results. Raise it when the same settings give another result."""

State = Literal["done", "partly", "missing"]
Kind = Literal["learn", "plan", "bracket", "random", "qlearning"]


@dataclass(frozen=True)
class Job:
    """One thing to compute.

    Attributes:
        name: For people and for the directory.
        kind: How it is computed.
        settings: All that its result depends on.
        seconds: What it takes on one core, roughly.
    """

    name: str
    kind: Kind
    settings: dict[str, Any]
    seconds: float = field(default=1.0, compare=False)

    @property
    def identity(self) -> str:
        """Stands for all that the result depends on."""
        text = json.dumps([FORMAT, self.kind, self.settings], sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    @property
    def folder(self) -> str:
        """Name of the job's directory."""
        return f"{self.name}-{self.identity}"

    def document(self) -> dict[str, Any]:
        """The job as JSON has it."""
        return {"name": self.name, "kind": self.kind, "settings": self.settings}


class JobStore:
    """The directories of all jobs."""

    def __init__(self, out: Path):
        """Looks at a directory of results, which may not exist yet."""
        self.directory = out / "runs"

    def path(self, job: Job) -> Path:
        """The job's directory."""
        return self.directory / job.folder

    def begin(self, job: Job) -> Path:
        """Makes the job's directory and says in it what the job is."""
        from .._files import write_json

        path = self.path(job)
        path.mkdir(parents=True, exist_ok=True)
        write_json(path / "job.json", job.document())
        return path

    def state(self, job: Job) -> State:
        """Whether the job is done, was begun, or is still missing."""
        path = self.path(job)
        if (path / "result.json").exists():
            return "done"
        return "partly" if path.exists() else "missing"

    def progress(self, job: Job) -> float:
        """Share of a job that is done; only runs tell before their end."""
        path = self.path(job)
        if (path / "result.json").exists():
            return 1.0
        if job.kind != "learn":
            return 0.0
        done = sum(1 for _ in (path / "run" / "episodes").glob("[0-9]*.safetensors"))
        return min(1.0, done / float(job.settings["episodes"]))

    def result(self, job: Job) -> dict[str, Any]:
        """What was written when the job was done: figures, seconds and versions."""
        return _read(self.path(job) / "result.json")

    def find(self, job: Job) -> dict[str, Any] | None:
        """The same, or none if the job is not done."""
        return self.result(job) if self.state(job) == "done" else None


def read_job(directory: Path) -> Job:
    """The job that a directory was made for."""
    return Job(**_read(directory / "job.json"))


def _read(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document
