"""Workers on a Ray cluster; needs the extra ``ray``.

What travels between machines is plain data: the job's document, texts, and the bytes of files.
(Ray packs it with cloudpickle, which could run code, so a cluster must be one's own.) Where a
worker sees the job's directory, it writes there, so that another one can go on from its
checkpoints. Elsewhere it computes in a directory of its own, and hands back all files at the end.
"""

import contextlib
import logging
import os
import secrets
import socket
import tempfile
import time
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from pathlib import Path, PurePosixPath
from typing import Any

import ray

from .._runtime import enable_compilation_cache
from ..errors import UserError
from ..io.atomic import make_directory, write_bytes
from ..runs.surroundings import import_users
from .job import Job, versions_that_matter
from .pool import Finished, Task, WorkerPool, Working, attempt_with_log, one_line
from .processes import thread_limits

Files = dict[str, bytes]
"""Contents of files by their names in a job's directory."""


class RayWorkers(WorkerPool):
    """Computes on a Ray cluster.

    Attributes:
        pauses: Seconds before one more attempt to become a client of a cluster that refused.
        ahead: Jobs given to Ray beyond the cluster's cores, so that one that can grow does.
        token_file: By it a worker knows that a directory is the job's, not another of that name.
    """

    deaths = (ray.exceptions.RayError,)
    pauses: tuple[float, ...] = (1.0, 4.0)
    ahead: int = 4
    token_file: str = ".mufield-token.tmp"

    def __init__(self, address: str | None = None, workers: int | None = None, cores: int = 1):
        """Takes what is needed to connect once there is work; arguments are as of `make_pool`.

        The ``address`` is None for the cluster of this machine, or else a new one here.
        """
        self.address, self.workers, self.cores = address, workers, cores
        self._busy: dict[Future[Any], Any] = {}
        self._own = False
        passed = {name: os.environ[name] for name in ("XLA_FLAGS",) if name in os.environ}
        self._work = ray.remote(work).options(
            num_cpus=cores,
            max_retries=0,  # the pool begins anew, and counts
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": thread_limits(cores) | passed},
        )

    def _begin(self, task: Task) -> Future[Any] | None:
        most = self.workers
        if most is None:
            most = int(ray.cluster_resources().get("CPU", 0) // self.cores) + self.ahead
        if len(self._busy) >= most:
            return None
        token = secrets.token_hex(8)
        write_bytes(task.directory / self.token_file, token.encode())
        place = {"directory": str(task.directory.resolve()), "token": token, "here": os.getcwd()}
        reference = self._work.remote(task.job.document(), place, read_files(task.directory))
        future: Future[Any] = reference.future()
        self._busy[future] = reference
        return future

    def _result(self, task: Task, future: Future[Any]) -> str:
        del self._busy[future]
        (task.directory / self.token_file).unlink(missing_ok=True)
        problem, files = future.result()
        write_files(task.directory, files)
        return str(problem)

    def _close(self) -> None:
        for reference in self._busy.values():
            ray.cancel(reference, force=True)
        self._busy = {}
        if self._own:
            ray.shutdown()

    def run(self, tasks: Sequence[Task]) -> Generator[Finished | Working]:
        """Computes the tasks."""
        self._own = not ray.is_initialized()
        if self._own:
            _connect(self.address)
        try:
            yield from super().run(tasks)
        except ConnectionError as error:
            lost = f"lost the connection to the cluster: {one_line(error)}"
            kept = "what is done is kept, the same command goes on from there"
            raise UserError(f"{lost}; {kept}") from error


def work(document: dict[str, Any], place: dict[str, str], files: Files) -> tuple[str, Files]:
    """Computes a job on a machine of the cluster.

    Returns what went wrong, or an empty text, and the files, unless the directory is shared.
    """
    enable_compilation_cache()
    job, directory = Job(**document), Path(place["directory"])
    if Path(place["here"]).is_dir():  # files that the user names are relative to it
        os.chdir(place["here"])
    if problem := _other_versions(job):
        return problem, {}
    token = b""
    with contextlib.suppress(OSError):
        token = (directory / RayWorkers.token_file).read_bytes()
    if token == place["token"].encode() and os.access(directory, os.W_OK):  # it is shared
        return attempt_with_log(job, directory), {}
    with tempfile.TemporaryDirectory(prefix="mufield-job-") as name:
        write_files(Path(name), files)
        return attempt_with_log(job, Path(name)), read_files(Path(name))


def read_files(directory: Path) -> Files:
    """All files of a job."""
    found = (path for path in directory.rglob("*") if path.is_file() and not path.is_symlink())
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in found
        if path.name != "lock" and path.suffix != ".tmp"
    }


def write_files(directory: Path, files: Files) -> None:
    """Writes what `read_files` read."""
    for name, data in files.items():
        parts = PurePosixPath(name).parts
        if not parts or parts[0] == "/" or ".." in parts:
            raise UserError(f"expected the name of a file inside of a job, got {name!r}")
        path = directory.joinpath(*parts)
        make_directory(path.parent)
        write_bytes(path, data)


def _other_versions(job: Job) -> str:
    """What is other on this machine than the job was made with; its result would be another's."""
    try:
        found = versions_that_matter(import_users(job.settings.get("imports")))
    except UserError as error:
        return f"{error} (on {socket.gethostname()})"
    for name, wanted in job.versions.items():
        if found.get(name) != wanted:
            here = f"{name} is {found.get(name)} on {socket.gethostname()}"
            there = f"{wanted} where the command was given"
            return f"{here}, and {there}; install the same on all machines"
    return ""


def _connect(address: str | None) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would report home
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    for later in (*RayWorkers.pauses, None):
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
                what = f"{address or 'of this machine'}: {one_line(error)}"
                ask = "is it started, and with the same versions of Python and Ray?"
                raise UserError(f"cannot use the Ray cluster {what}; {ask}") from error
            time.sleep(later)
