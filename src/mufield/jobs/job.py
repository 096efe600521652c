"""Jobs and their directories.

A job is a kind of computation and all that its result depends on: the settings, with defaults
written out, the versions of packages and a digest of our own code. A digest of these, the job's
identity, is part of the name of its directory. So results of different settings are never mixed up.

```
rooms-mirror-0-1a2b3c4d5e/
  job.json       what the job is, for people
  log.txt        what was printed while it was computed, errors included
  run/           if it learns: an ordinary run, which goes on after an interruption
  plan.policy    if it plans: the policy
  result.safetensors     its figures, sealed; with this file, written last, the job is done
```
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from ..errors import UserError
from ..io import disk
from ..io.atomic import check_own, locked, make_directory, remove_leftovers
from ..runs.config import RunConfig


@dataclass(frozen=True)
class Job:
    """One thing to compute. It is plain data: a worker needs nothing else.

    Attributes:
        name: For people, and for the directory.
        kind: How it is computed; `mufield.jobs.compute.KINDS` has a function for each kind.
        settings: All settings that the result depends on, as JSON.
        versions: All versions that the result depends on, and a digest of our own code.
    """

    name: str
    kind: str
    settings: dict[str, Any]
    versions: dict[str, Any] = field(default_factory=lambda: versions_that_matter())

    @property
    def identity(self) -> str:
        """Equal for jobs that must have the same result."""
        what = self.kind, self.settings, self.versions
        text = json.dumps(what, sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    @property
    def folder(self) -> str:
        """Name of the job's directory."""
        return f"{self.name}-{self.identity}"

    def document(self) -> dict[str, Any]:
        """The job as JSON."""
        return asdict(self)


def learning_job(name: str, config: RunConfig) -> Job:
    """A run of M3-UCRL in its true system."""
    from ..runs.build import resolve
    from ..runs.surroundings import import_users

    document = resolve(config).document()
    return Job(name, "learn", document, versions_that_matter(import_users(config.imports)))


def system_job(
    name: str,
    kind: str,
    environment: str,
    options: Mapping[str, Any],
    *,
    precision: str,
    imports: str | None = None,
    **settings: Any,
) -> Job:
    """A job that needs the true system but no learner, with the settings of its kind."""
    # The model does not matter; without one the system would be built to choose it.
    run = RunConfig(environment, options=dict(options), imports=imports, model="gp")
    system = learning_job(name, run)
    shared = {each: system.settings[each] for each in ("environment", "options", "imports")}
    return replace(system, kind=kind, settings=settings | shared | {"precision": precision})


def versions_that_matter(imported: Path | None = None) -> dict[str, Any]:
    """Versions that may change a result, with digests of our code and of the user's own file."""
    from ..runs.surroundings import versions

    # Python and the platform change with every update of the system.
    found = {name: each for name, each in _versions().items() if name not in ("platform", "python")}
    if imported is not None:  # where the file lies does not matter
        found["imported"] = versions(imported)["imported"]["sha256"]
    return found | {"code": code_digest()}


@cache
def code_digest() -> str:
    """SHA-256 of the sources of this package, without the rooms that only show results."""
    package, shows = Path(__file__).parents[1], ("cli", "report", "viz")
    total = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package)
        if name.parts[0] not in shows:
            total.update(f"{name.as_posix()} {path.stat().st_size}\n".encode() + path.read_bytes())
    return total.hexdigest()[:16]


@cache
def _versions() -> dict[str, Any]:
    from ..runs.surroundings import versions

    return versions()


@dataclass(frozen=True)
class JobResult:
    """Numbers, texts and arrays that came out of a job, how long it took and with what versions.

    ``needed`` are figures and arrays of a kind's results; of other kinds J and the rewards.
    """

    file: ClassVar[str] = "result.safetensors"
    kind: ClassVar[str] = "job result"
    needed: ClassVar[dict[str, tuple[dict[str, type], tuple[str, ...]]]] = {
        "learn": ({"rows": list, "best_episode": int}, ("values",)),
        "own": ({}, ("values", "transitions")),
    }

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
    needed = JobResult.needed.get(job.kind, ({"value": float}, ("rewards",)))
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
    return JobResult({**figures, **arrays}, document["seconds"], document["computed_with"])


class JobStore:
    """A directory of jobs and their results; `parts` are the directories in it."""

    parts: ClassVar[tuple[str, ...]] = ("jobs",)

    def __init__(self, out: Path):
        """Takes the directory, which may not exist yet."""
        if disk.kind(out) not in ("directory", ""):
            raise UserError(f"{out} is no directory; name another with --out")
        self.out = out

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Makes the directory, and keeps other writers out for as long as the block lasts."""
        make_directory(self.out)
        # Only what is written to: the rest of the directory is the user's.
        check_own(self.out, *self.parts)
        with locked(self.out):
            remove_leftovers(self.out)
            make_directory(self.out / "jobs")
            yield

    def path(self, job: Job) -> Path:
        """The job's directory."""
        return self.out / "jobs" / job.folder

    def begin(self, job: Job) -> Path:
        """Makes the job's directory with its ``job.json``."""
        from ..io.sealed import write_json

        path = self.path(job)
        make_directory(path)
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

    def progress(self, job: Job) -> float:
        """Share of a job that is done, by its files' names; only for runs between 0 and 1."""
        path = self.path(job)
        ended = bool(disk.kind(path / JobResult.file))
        if ended or job.kind != "learn":
            return float(ended)
        from ..runs.layout import part_numbers

        done = len(part_numbers(path / "run", "episodes"))
        return min(1.0, done / float(job.settings["episodes"]))
