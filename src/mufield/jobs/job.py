"""Jobs and their directories.

A job is a kind of computation and all that its result depends on: the settings, with defaults
written out, and the versions of packages. A digest of these, the job's identity, is part of the
name of its directory. So results of different settings are never mixed up or overwritten.

```
rooms-mirror-0-1a2b3c4d5e/
  job.json       what the job is, for people
  log.txt        what was printed while it was computed, errors included
  run/           if it learns: an ordinary run, which goes on after an interruption
  plan.policy    if it plans: the policy
  training.safetensors   if it is Q-learning: the checkpoint, from which it goes on
  result.safetensors     its figures, sealed; with this file, written last, the job is done
```
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, Literal

from ..errors import UserError
from ..runs.config import RunConfig

Q_RATES = {"omega_q": 0.7, "omega_nu": 0.05, "epsilon": 0.15}
"""The paper's rates of Q-learning."""

Needed = tuple[dict[str, type], tuple[str, ...]]
Kind = Literal["learn", "plan", "mirror", "random", "fleet", "fluid", "qlearning"]
State = Literal["done", "partly", "missing"]


@dataclass(frozen=True)
class Job:
    """One thing to compute. It is plain data: a worker needs nothing else.

    Attributes:
        name: For people, and for the directory.
        kind: How it is computed; `mufield.jobs.compute` has a function for each kind.
        settings: All settings that the result depends on, as JSON.
        versions: All versions that the result depends on.
        seconds: Rough estimate of what it takes on one core.
        label: Tells people apart jobs that share a name.
    """

    name: str
    kind: Kind
    settings: dict[str, Any]
    versions: dict[str, Any] = field(default_factory=lambda: versions_that_matter())
    seconds: float = field(default=1.0, compare=False)
    label: str = field(default="", compare=False)

    @property
    def title(self) -> str:
        """What people call the job."""
        return self.label or self.name

    @property
    def identity(self) -> str:
        """Equal for jobs that must have the same result."""
        # Raise the first number when the code gives other results for the same settings.
        document = [2, self.kind, self.settings, self.versions]
        text = json.dumps(document, sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    @property
    def folder(self) -> str:
        """Name of the job's directory."""
        return f"{self.name}-{self.identity}"

    def document(self) -> dict[str, Any]:
        """The job as JSON."""
        return {
            "name": self.name,
            "kind": self.kind,
            "settings": self.settings,
            "versions": self.versions,
        }


def learning_job(name: str, config: RunConfig, *, seconds: float = 1.0) -> Job:
    """A run of M3-UCRL in its true system."""
    from ..runs.build import resolve
    from ..runs.surroundings import import_users

    full = resolve(config)
    versions = versions_that_matter(import_users(config.imports))
    return Job(name, "learn", full.document(), versions, seconds)


def system_job(
    name: str,
    kind: Kind,
    environment: str,
    options: Mapping[str, Any],
    *,
    precision: str,
    imports: str | None = None,
    seconds: float = 1.0,
    **settings: Any,
) -> Job:
    """A job that needs the true system but no learner, with the settings of its kind."""
    run = RunConfig(environment, options=dict(options), imports=imports)
    system = learning_job(name, run)
    settings |= {
        "environment": environment,
        "options": system.settings["options"],
        "imports": imports,
        "precision": precision,
    }
    return replace(system, kind=kind, settings=settings, seconds=seconds)


def versions_that_matter(imported: Path | None = None) -> dict[str, Any]:
    """Versions that may change a result, with a digest of the user's own file."""
    from ..runs.surroundings import versions

    found = dict(_versions()) if imported is None else versions(imported)
    if "imported" in found:  # where the file lies does not matter
        found["imported"] = found["imported"]["sha256"]
    # These change with every update of the system.
    return {name: found[name] for name in found if name not in ("platform", "python")}


@cache
def _versions() -> dict[str, Any]:
    from ..runs.surroundings import versions

    return versions()


@dataclass(frozen=True)
class JobResult:
    """Numbers, texts and arrays that came out of a job, how long it took and with what versions."""

    file: ClassVar[str] = "result.safetensors"
    kind: ClassVar[str] = "job result"

    figures: dict[str, Any]
    seconds: float
    versions: dict[str, Any]


def write_result(directory: Path, job: Job, figures: Mapping[str, Any], seconds: float) -> None:
    """Writes a job's result atomically; arrays are kept as arrays."""
    import numpy as np

    from ..io.sealed import write_sealed

    arrays = {name: each for name, each in figures.items() if isinstance(each, np.ndarray)}
    document = {
        **job.document(),
        "figures": {name: each for name, each in figures.items() if name not in arrays},
        "seconds": round(seconds, 2),
        "computed_with": _versions(),
    }
    write_sealed(directory / JobResult.file, document, arrays, kind=JobResult.kind)


def read_result(directory: Path, job: Job) -> JobResult | None:
    """What `write_result` wrote; None if it is missing, damaged, or of another job."""
    from ..io.sealed import Sealed, read_sealed, require

    path = directory / JobResult.file
    # Figures and arrays that a result must hold.
    needed: Needed = {"value": float}, ("rewards",)
    if job.kind == "learn":
        needed = {"rows": list, "best_episode": int}, ("values",)
    elif job.kind == "qlearning":
        needed = {}, ("episodes", "training", "evaluation")
    try:
        document, arrays = sealed = read_sealed(path, JobResult.kind)
        require(path, sealed, {"figures": dict, "seconds": float, "computed_with": dict})
        figures: dict[str, Any] = document["figures"]
        require(path, Sealed(figures, arrays), *needed)
    except UserError:
        return None
    # As JSON, in which tuples are lists.
    wanted = json.loads(json.dumps(job.document()))
    if any(document.get(name) != value for name, value in wanted.items()):
        return None
    seconds, versions = document["seconds"], document["computed_with"]
    return JobResult({**figures, **arrays}, float(seconds), versions)


class JobStore:
    """A directory of jobs and their results; `parts` are the directories in it."""

    parts: ClassVar[tuple[str, ...]] = ("jobs",)

    def __init__(self, out: Path):
        """Takes the directory, which may not exist yet."""
        if out.exists() and not out.is_dir():
            raise UserError(f"{out} is no directory; name another with --out")
        self.out = out

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Makes the directory, and keeps other writers out for as long as the block lasts."""
        from ..io.atomic import check_own, locked, remove_leftovers

        self.out.mkdir(parents=True, exist_ok=True)
        # Only what is written to: the rest of the directory is the user's.
        check_own(self.out, *self.parts)
        with locked(self.out):
            remove_leftovers(self.out)
            yield

    def path(self, job: Job) -> Path:
        """The job's directory."""
        return self.out / "jobs" / job.folder

    def begin(self, job: Job) -> Path:
        """Makes the job's directory with its ``job.json``."""
        from ..io.sealed import write_json

        path = self.path(job)
        path.mkdir(parents=True, exist_ok=True)
        write_json(path / "job.json", job.document())
        return path

    def find(self, job: Job) -> JobResult | None:
        """The result of a job; None if it is not computed yet."""
        return read_result(self.path(job), job)

    def figures(self, job: Job) -> dict[str, Any]:
        """The figures of a job that is done."""
        found = self.find(job)
        if found is None:
            raise UserError(f"expected a result in {self.path(job)}, got none; compute it first")
        return found.figures

    def state(self, job: Job) -> State:
        """Whether the job is done, begun or missing."""
        if self.find(job) is not None:
            return "done"
        return "partly" if self.path(job).exists() else "missing"

    def progress(self, job: Job) -> float:
        """Share of a job that is done, by its files' names; only for runs between 0 and 1."""
        path = self.path(job)
        if (path / JobResult.file).exists():
            return 1.0
        if job.kind != "learn":
            return 0.0
        done = sum(1 for _ in (path / "run" / "episodes").glob("[0-9]*.safetensors"))
        return min(1.0, done / float(job.settings["episodes"]))

    def value(self, job: Job) -> float | None:
        """J so far: that of the last episode or evaluation; None if there is none."""
        from ..io.sealed import read_lines

        rows = read_lines(self.path(job) / "run" / "metrics.jsonl")
        found = None if rows else self.find(job)
        figures = rows[-1] if rows else found.figures if found else {}
        last = figures.get("value", figures.get("evaluation", [None])[-1])
        return float(last) if isinstance(last, Real) else None

    def why_anew(self, job: Job) -> str:
        """What differs from the last finished job of this name; empty if there is none."""
        if job.label:  # its name is not its own
            return ""
        siblings = self.path(job).parent.glob(f"{job.name}-{'[0-9a-f]' * 10}/{JobResult.file}")
        last = max(siblings, key=lambda path: path.stat().st_mtime, default=None)
        if last is None or last.parent == self.path(job):
            return ""
        from ..io.sealed import read_sealed

        try:
            before = read_sealed(last, JobResult.kind).document
            old = _flat(before["settings"] | before["versions"])
        except (UserError, KeyError, TypeError, AttributeError):
            return f"{last} is damaged"
        new = _flat(job.settings | job.versions)
        for name in (*new, *old):
            if old.get(name) != new.get(name):
                return f"{name} was {old.get(name)} and is {new.get(name)} now"
        return ""


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted names."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        inner = isinstance(value, dict) and value
        flat |= _flat(value, f"{prefix}{name}.") if inner else {f"{prefix}{name}": value}
    return flat
