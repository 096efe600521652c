"""Workers in processes of this machine; and the choice of workers."""

import contextlib
import multiprocessing
import os
import signal
import threading
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection

from .._runtime import enable_compilation_cache
from ..errors import UserError
from .pool import AbstractPool, SameProcess, Task, WorkerPool, attempt_with_log


class LocalProcesses(WorkerPool):
    """Computes in processes of this machine, each of which has one job after the other."""

    deaths = (BrokenProcessPool,)

    def __init__(self, workers: int, cores: int = 1):
        """Takes the number of processes, and of cores for each of them."""
        self.workers, self.cores = workers, cores
        self._idle: list[_Process] = []
        self._busy: dict[Future[str], _Process] = {}

    def _begin(self, task: Task) -> Future[str] | None:
        if len(self._busy) == self.workers:
            return None
        process = self._idle.pop() if self._idle else _Process(self.cores)
        future = process.executor.submit(attempt_with_log, task.job, task.directory)
        self._busy[future] = process
        return future

    def _result(self, task: Task, future: Future[str]) -> str:
        process = self._busy.pop(future)
        try:
            problem = future.result()
        except BrokenProcessPool:
            process.stop()
            raise
        self._idle.append(process)
        return problem

    def _close(self) -> None:
        for process in (*self._idle, *self._busy.values()):
            process.stop()
        self._idle, self._busy = [], {}


class _Process:
    """A process that computes jobs until it is stopped, or until its parent has died.

    It has an executor of its own, because one that dies, for example for want of memory, breaks it.
    """

    def __init__(self, cores: int):
        context = multiprocessing.get_context("spawn")
        reader, self._lifeline = context.Pipe(duplex=False)
        self.executor = ProcessPoolExecutor(
            1, mp_context=context, initializer=_begin_process, initargs=(reader, cores)
        )

    def stop(self) -> None:
        self._lifeline.close()
        self.executor.shutdown(cancel_futures=True)


def _begin_process(lifeline: Connection, cores: int) -> None:
    for name, value in thread_limits(cores).items():
        os.environ.setdefault(name, value)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    enable_compilation_cache()


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


def make_pool(on: str = "local", workers: int | None = None, cores: int = 1) -> AbstractPool:
    """The workers of a place.

    Args:
        on: ``local`` for this machine; ``ray`` for the Ray cluster that it belongs to, or else one
            that is started here; ``ray://host:port`` or ``host:port`` for another cluster.
        workers: Most jobs at a time; None for as many as there are cores, 0 for this process.
        cores: Cores for each job.
    """
    if cores < 1 or (workers is not None and workers < 0):
        got = f"got {workers} of {cores}; correct it"
        raise UserError(f"expected 0 or more workers of at least one core, {got}")
    if on == "local":
        if workers == 0:
            return SameProcess()
        return LocalProcesses(workers or max(1, (os.cpu_count() or 1) // cores), cores)
    if workers == 0:
        raise UserError(f"expected at least one worker on {on}, got 0; leave out --workers")
    host, _, port = on.removeprefix("ray://").rpartition(":")
    if on != "ray" and not (host and port.isdecimal()):
        raise UserError(f"expected local, ray, ray://HOST:PORT or HOST:PORT, got {on!r}")
    from .cluster import RayWorkers

    return RayWorkers(None if on == "ray" else on, workers, cores)
