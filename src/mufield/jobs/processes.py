"""Workers in processes of this machine, which keep to their cores; and the choice of workers."""

import contextlib
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from pathlib import Path

from ..errors import UserError
from .pool import (
    POOL,
    AbstractPool,
    AbstractWorker,
    SameProcess,
    Task,
    WorkerDied,
    WorkerPool,
    attempt_with_log,
)


class LocalProcesses(WorkerPool["_Process"]):
    """Computes in processes of this machine."""

    def __init__(self, workers: int, cores: int = 1):
        """Takes the number of processes, and of cores for each of them."""
        self.workers, self.cores = workers, cores
        self._idle: list[_Process] = []
        self._busy = 0

    def _hire(self) -> "_Process | None":
        if self._busy == self.workers:
            return None
        self._busy += 1
        return self._idle.pop() if self._idle else _Process(self.cores)

    def _wait(self, workers: Sequence["_Process"]) -> list["_Process"]:
        wait([each.future for each in workers], timeout=POOL.look, return_when=FIRST_COMPLETED)
        return [each for each in workers if each.future.done()]

    def _release(self, worker: "_Process", *, alive: bool) -> None:
        self._busy -= 1
        if alive:
            self._idle.append(worker)
        else:
            worker.stop()

    def _close(self) -> None:
        while self._idle:
            self._idle.pop().stop()
        self._busy = 0


class _Process(AbstractWorker):
    """A process that computes jobs until it is stopped, or until its parent has died.

    It has an executor of its own, because a process that dies, for example for want of memory,
    breaks its executor.
    """

    future: Future[str]

    def __init__(self, cores: int) -> None:
        context = multiprocessing.get_context("spawn")
        reader, self.lifeline = context.Pipe(duplex=False)
        self.executor = ProcessPoolExecutor(
            1, mp_context=context, initializer=_begin_process, initargs=(reader, cores)
        )

    def begin(self, task: Task) -> None:
        self.future = self.executor.submit(attempt_with_log, task.job, task.directory)

    def result(self) -> str:
        try:
            return self.future.result()
        except BrokenProcessPool as death:
            raise WorkerDied("its process died") from death

    def stop(self) -> None:
        self.lifeline.close()
        self.executor.shutdown(cancel_futures=True)


def _begin_process(lifeline: Connection, cores: int) -> None:
    for name, value in thread_limits(cores).items():
        os.environ.setdefault(name, value)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    settle(cores)


def _end_with(lifeline: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        lifeline.recv()  # nothing is ever sent: it returns when the parent closes its end
    os._exit(0)


def thread_limits(cores: int) -> dict[str, str]:
    """Environment variables that limit a worker's threads, read when NumPy and JAX begin.

    The number of JAX's threads decides how sums are split, and so their last digits.
    """
    # On busy cores the threads of OpenBLAS only get in each other's way.
    return {"OPENBLAS_NUM_THREADS": "1", "PJRT_NPROC": str(cores)}


_CLAIMS: list[socket.socket] = []


def settle(cores: int) -> None:
    """Prepares a new worker's process, before JAX is imported: its cores and its cache."""
    from .._runtime import enable_compilation_cache

    enable_compilation_cache()
    _claim_cores(cores)


def _claim_cores(count: int) -> None:
    """Keeps this process on cores that no other worker of this machine has, if there are any left.

    Compilers of JAX start a thread for each core that they see. A core is claimed by a socket with
    its number, which is gone when the process is.
    """
    if not hasattr(os, "sched_setaffinity") or _has_quota():
        return
    claims: dict[int, socket.socket] = {}
    for core in sorted(os.sched_getaffinity(0)):
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0mufield core {core}")
            claims[core] = claim
        except OSError:
            claim.close()
        if len(claims) == count:
            os.sched_setaffinity(0, claims)
            _CLAIMS.extend(claims.values())
            return
    for claim in claims.values():
        claim.close()


def _has_quota() -> bool:
    """Whether this is a container with a share of all cores, which knows nothing of its peers."""
    try:
        return not Path("/sys/fs/cgroup/cpu.max").read_text().startswith("max")
    except OSError:
        return False


def make_pool(on: str = "local", workers: int | None = None, cores: int = 1) -> AbstractPool:
    """The workers of a place.

    Args:
        on: ``local`` for this machine; ``ray`` for the Ray cluster that it belongs to, or else one
            that is started here; ``ray://host:port`` or ``host:port`` for another cluster.
        workers: Most jobs at a time; None for as many as there are cores, 0 for this process.
        cores: Cores for each job.
    """
    if cores < 1 or (workers is not None and workers < 0):
        raise UserError(
            f"expected 0 or more workers of at least one core, got {workers} of {cores}; correct it"
        )
    if on == "local":
        if workers == 0:
            return SameProcess()
        return LocalProcesses(workers or max(1, (os.cpu_count() or 1) // cores), cores)
    if workers == 0:
        raise UserError(f"expected at least one worker on {on}, got 0; leave out --workers")
    host, _, port = on.removeprefix("ray://").rpartition(":")
    if on != "ray" and not (host and port.isdecimal()):
        raise UserError(
            f"jobs can be computed on local, ray, ray://HOST:PORT or HOST:PORT, got {on!r}; "
            "name one of these"
        )
    from .cluster import RayWorkers

    return RayWorkers(None if on == "ray" else on, workers, cores)
