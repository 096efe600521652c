"""Workers on a Ray cluster; needs the extra ``ray``.

Each job has a worker, that is a process, of its own. What travels between machines is plain data:
the job's document, texts, and the bytes of files. (Ray packs it with cloudpickle, which could run
code, so a cluster must be one's own.) Where a worker sees the job's directory, it writes there.
Elsewhere it computes in a directory of its own, from the files that it was handed, and hands back
every file that it has written since it was last asked.
"""

import contextlib
import io
import logging
import os
import secrets
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import ray

from .._files import write_bytes
from ..errors import UserError
from .job import Job, versions_that_matter
from .pool import (
    LOOK,
    AbstractWorker,
    Finished,
    Task,
    WorkerDied,
    WorkerPool,
    Working,
    attempt_with_log,
    settle,
    thread_limits,
)

TOKEN = ".mufield-token.tmp"
"""File by which a worker knows that a directory is the job's, and not another of the same name."""

AHEAD = 4
"""Workers that are asked for beyond the cluster's cores, so that one that can grow does."""

MOST_SECONDS = 30.0
"""Seconds to wait for the last words of a worker."""

PAUSES = (1.0, 4.0)
"""Seconds before one more attempt to become a client of a cluster that is there but refused."""

Files = dict[str, bytes]
"""Contents of files by name, in the order in which they were written; first directories, whose
names end with a slash."""


class RayWorkers(WorkerPool["_RayWorker"]):
    """Computes on a Ray cluster, one worker for each job."""

    def __init__(self, address: str | None = None, workers: int | None = None, cores: int = 1):
        """Takes what is needed to connect to the cluster once there is work.

        Args:
            address: ``ray://host:port`` of its client server, or ``host:port`` if this machine is
                one of its nodes; None for the cluster of this machine, or else a new one here.
            workers: Most jobs at a time; None for as many as there are cores.
            cores: Cores for each job.
        """
        self.address, self.workers, self.cores = address, workers, cores
        self._busy, self._own = 0, False
        passed = {name: os.environ[name] for name in ("XLA_FLAGS",) if name in os.environ}
        self._actor = ray.remote(Desk).options(
            num_cpus=cores,
            max_concurrency=2,  # one computes, the other answers
            max_restarts=0,  # the pool begins anew, with what was handed back
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": thread_limits(cores) | passed},
        )

    def _hire(self) -> "_RayWorker | None":
        room = self.workers
        if room is None:
            room = int(ray.cluster_resources().get("CPU", 0) // self.cores) + AHEAD
        if self._busy >= room:
            return None
        self._busy += 1
        return _RayWorker(self._actor.remote(self.cores))

    def _wait(self, workers: Sequence["_RayWorker"]) -> list["_RayWorker"]:
        ray.wait([each.work for each in workers], num_returns=1, timeout=LOOK)
        ended = _ready([each.work for each in workers])
        answered = _ready([each.look for each in workers if each.look is not None])
        for each in workers:
            if each.look in answered:
                each.hear(again=each.work not in ended)
        return [each for each in workers if each.work in ended or each.lost]

    def _release(self, worker: "_RayWorker", *, alive: bool) -> None:
        self._busy -= 1
        worker.stop()

    def _close(self) -> None:
        self._busy = 0
        if self._own:
            ray.shutdown()

    def run(self, tasks: Sequence[Task]) -> Generator[Finished | Working]:
        """Computes the tasks."""
        self._own = not ray.is_initialized()
        if self._own:
            _connect(self.address)
        with _quiet():
            try:
                yield from super().run(tasks)
            except ConnectionError as error:
                raise UserError(
                    f"lost the connection to the cluster: {_line(error)}; what is done is kept, "
                    "the same command goes on from there"
                ) from error


class _RayWorker(AbstractWorker):
    """A worker of the cluster, as the pool sees it; it has one task in its life."""

    begun = False
    lost = False
    """Whether an answer was lost, and perhaps files with it."""

    def __init__(self, actor: Any):
        self.actor = actor

    def begin(self, task: Task) -> None:
        self.directory, token = task.directory, secrets.token_hex(8)
        write_bytes(task.directory / TOKEN, token.encode())
        files = _read(task.directory, _stamps(task.directory))
        place = {"directory": str(task.directory.resolve()), "token": token, "here": os.getcwd()}
        self.work = self.actor.work.remote(task.job.document(), place, files)
        self.look = self.actor.look.remote()

    def hear(self, *, again: bool) -> None:
        """Takes what the worker has handed back, and asks for more."""
        try:
            files = ray.get(self.look, timeout=MOST_SECONDS)
        except ray.exceptions.RayError:
            self.lost = True
            return
        self.begun = True
        _write(self.directory, files)
        self.look = self.actor.look.remote() if again else None

    def result(self) -> str:
        try:
            # What is lost may still be at work, and is not waited for.
            problem, files = ray.get(self.work, timeout=LOOK if self.lost else None)
        except ray.exceptions.RayError as error:
            raise WorkerDied(f"its worker died ({_line(error)})") from error
        if self.look is not None:
            self.hear(again=False)  # what was written earlier comes first
        if self.lost:
            raise WorkerDied("its worker died, or could not be reached")
        _write(self.directory, files)
        self.begun = False
        return str(problem)

    def stop(self) -> None:
        (self.directory / TOKEN).unlink(missing_ok=True)
        with contextlib.suppress(Exception):  # it may be gone, or the whole cluster
            if self.begun and not self.lost:
                ray.wait([self.actor.leave.remote()], timeout=LOOK)
            ray.kill(self.actor)


class Desk:
    """What runs in a worker's process: it computes a job, and hands its files back if asked."""

    def __init__(self, cores: int):
        """Prepares the process."""
        settle(cores)
        self._directory: Path | None = None
        self._sent: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()

    def work(
        self, document: dict[str, Any], place: dict[str, str], files: Files
    ) -> tuple[str, Files]:
        """Computes a job; returns what went wrong, if anything did, and files not yet seen."""
        job, directory = Job(**document), Path(place["directory"])
        if Path(place["here"]).is_dir():  # files that the user names are relative to it
            os.chdir(place["here"])
        if not _is_shared(directory, place["token"]):
            directory = Path(tempfile.mkdtemp(prefix="mufield-job-"))
            _write(directory, files)
            self._sent, self._directory = _stamps(directory), directory
        try:
            problem = _other_versions(job) or attempt_with_log(job, directory)
            return problem, self.look()
        finally:
            self.leave()

    def look(self) -> Files:
        """Files that were written since the last time; none if the directory is shared."""
        with self._lock:
            for _ in range(20):
                if self._directory is None:
                    break
                now = _stamps(self._directory)
                new = sorted((n for n in now if now[n] != self._sent.get(n)), key=now.__getitem__)
                files = _read(self._directory, new)
                if _stamps(self._directory) == now:  # so no file is without those before it
                    self._sent = now
                    return files
            return {}

    def leave(self) -> None:
        """Removes the directory that was only for this worker."""
        with self._lock:
            if self._directory is not None:
                shutil.rmtree(self._directory, ignore_errors=True)
                self._directory = None


def _is_shared(directory: Path, token: str) -> bool:
    try:
        same = (directory / TOKEN).read_text(encoding="utf-8") == token
    except (OSError, UnicodeDecodeError):
        return False
    return same and os.access(directory, os.W_OK)


def _stamps(directory: Path) -> dict[str, tuple[int, int]]:
    """Time and size of everything in a job's directory, by name, earliest first."""
    found = {}
    for path in directory.rglob("*"):
        if path.is_symlink() or path.name == "lock" or path.suffix == ".tmp":
            continue
        name = path.relative_to(directory).as_posix()
        with contextlib.suppress(OSError):  # it was replaced just now
            about = path.stat()
            if path.is_dir():
                found[f"{name}/"] = (0, 0)
            else:
                found[name] = (about.st_mtime_ns, about.st_size)
    return dict(sorted(found.items(), key=lambda item: item[1]))


def _read(directory: Path, names: Iterable[str]) -> Files:
    return {name: b"" if name[-1] == "/" else (directory / name).read_bytes() for name in names}


def _write(directory: Path, files: Files) -> None:
    for name, data in files.items():
        parts = PurePosixPath(name).parts
        if not parts or parts[0] == "/" or ".." in parts:
            raise UserError(f"expected the name of a file inside of a job, got {name!r}")
        path = directory.joinpath(*parts)
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        else:
            write_bytes(path, data)


def _other_versions(job: Job) -> str:
    """What is other on this machine than the job was made with; its result would be another's."""
    from ..runs.surroundings import import_users

    try:
        found = versions_that_matter(import_users(job.settings.get("imports")))
    except UserError as error:
        return f"{error} (on {socket.gethostname()})"
    for name, wanted in job.versions.items():
        if found.get(name) != wanted:
            return (
                f"{name} is {found.get(name)} on {socket.gethostname()}, and {wanted} where the "
                "command was given; install the same on all machines"
            )
    return ""


def _connect(address: str | None) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would report home
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    for later in (*PAUSES, None):
        try:
            try:
                ray.init(address or "auto", **options)
            except ConnectionError:
                if address is not None:
                    raise
                ray.init(include_dashboard=False, **options)
            return
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            ray.shutdown()  # else it would go on as a client that is not connected
            # On a busy head the server that it starts for a client may end before it has begun.
            if later is None or not isinstance(error, ConnectionAbortedError):
                raise UserError(
                    f"cannot use the Ray cluster {address or 'of this machine'}: {_line(error)}; "
                    "is it started, and with the same versions of Python and Ray?"
                ) from error
            time.sleep(later)


def _ready(references: Sequence[Any]) -> set[Any]:
    return set(ray.wait(list(references), num_returns=len(references), timeout=0)[0])


def _line(error: BaseException) -> str:
    """The first and the last line of an error; between them Ray may put a hundred."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ... ".join(dict.fromkeys((*lines[:1], *lines[-1:])))[:400] or type(error).__name__


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps Ray's threads from printing to standard output, which is for results alone.

    Ray keeps the same messages in the logs of its session.
    """
    before = sys.stdout

    class Others(io.TextIOBase):
        def write(self, text: str) -> int:
            ours = not threading.current_thread().name.startswith("ray_")
            return before.write(text) if ours else len(text)

        def flush(self) -> None:
            before.flush()

    sys.stdout = Others()
    try:
        yield
    finally:
        sys.stdout = before
