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
import sys
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import ray

from ..errors import UserError
from ..io.atomic import write_bytes
from .desk import Desk, read_files, stamps, write_files
from .pool import (
    POOL,
    AbstractWorker,
    Finished,
    Task,
    WorkerDied,
    WorkerPool,
    Working,
)
from .processes import thread_limits


class RayWorkers(WorkerPool["_RayWorker"]):
    """Computes on a Ray cluster, one worker for each job.

    Attributes:
        pauses: Seconds before one more attempt to become a client of a cluster that refused.
    """

    pauses: tuple[float, ...] = (1.0, 4.0)

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
        # Workers that are asked for beyond the cluster's cores, so that one that can grow does.
        ahead = 4
        if room is None:
            room = int(ray.cluster_resources().get("CPU", 0) // self.cores) + ahead
        if self._busy >= room:
            return None
        self._busy += 1
        return _RayWorker(self._actor.remote(self.cores))

    def _wait(self, workers: Sequence["_RayWorker"]) -> list["_RayWorker"]:
        ray.wait([each.work for each in workers], num_returns=1, timeout=POOL.look)
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
        write_bytes(task.directory / Desk.token_file, token.encode())
        files = read_files(task.directory, stamps(task.directory))
        place = {"directory": str(task.directory.resolve()), "token": token, "here": os.getcwd()}
        self.work = self.actor.work.remote(task.job.document(), place, files)
        self.look = self.actor.look.remote()

    def hear(self, *, again: bool) -> None:
        """Takes what the worker has handed back, and asks for more."""
        # Seconds to wait for the last words of a worker.
        most_seconds = 30.0
        try:
            files = ray.get(self.look, timeout=most_seconds)
        except ray.exceptions.RayError:
            self.lost = True
            return
        self.begun = True
        write_files(self.directory, files)
        self.look = self.actor.look.remote() if again else None

    def result(self) -> str:
        try:
            # What is lost may still be at work, and is not waited for.
            problem, files = ray.get(self.work, timeout=POOL.look if self.lost else None)
        except ray.exceptions.RayError as error:
            raise WorkerDied(f"its worker died ({_line(error)})") from error
        if self.look is not None:
            self.hear(again=False)  # what was written earlier comes first
        if self.lost:
            raise WorkerDied("its worker died, or could not be reached")
        write_files(self.directory, files)
        self.begun = False
        return str(problem)

    def stop(self) -> None:
        (self.directory / Desk.token_file).unlink(missing_ok=True)
        with contextlib.suppress(Exception):  # it may be gone, or the whole cluster
            if self.begun and not self.lost:
                ray.wait([self.actor.leave.remote()], timeout=POOL.look)
            ray.kill(self.actor)


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
