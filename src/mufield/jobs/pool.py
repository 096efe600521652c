"""Workers that compute jobs, one after the other or several at a time.

The interface, `AbstractPool`, takes jobs with their directories and yields them as they end,
wherever they are computed. Nothing heavy is imported here, because a new process imports this file
before it limits the threads of NumPy.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from .._progress import progress_bar
from ..errors import UserError
from .job import LOG, Job, JobStore

LOOK = 1.0
"""Seconds between two updates of the progress bar."""


@dataclass(frozen=True)
class Task:
    """A job and where its files belong."""

    job: Job
    directory: Path


@dataclass(frozen=True)
class Finished:
    """A job that ended; `problem` says in one line what went wrong, and is empty if nothing did."""

    job: Job
    problem: str = ""


class AbstractPool(ABC):
    """Computes jobs."""

    @abstractmethod
    def run(self, tasks: Sequence[Task]) -> Generator[Finished | None]:
        """Begins all tasks in this order, and yields each when it has ended.

        While nothing ends, it yields None now and then. A job that fails is yielded with its
        problem, and the others go on. When the iterator is closed, for example by Ctrl-C, all
        work stops; files are written whole or not at all, so nothing is damaged.
        """


class SameProcess(AbstractPool):
    """Computes in this process, one job after the other."""

    def run(self, tasks: Sequence[Task]) -> Generator[Finished | None]:
        """Computes the tasks."""
        from .._files import open_new

        for task in tasks:
            with (
                os.fdopen(open_new(task.directory / LOG), "w", encoding="utf-8") as file,
                contextlib.redirect_stderr(file),
            ):
                problem = _attempt(task)
            yield Finished(task.job, problem)


class LocalProcesses(AbstractPool):
    """Computes in processes of this machine.

    Each has an executor of its own, because a process that dies, for example for want of memory,
    breaks its executor.
    """

    def __init__(self, workers: int):
        """Takes the number of processes."""
        self.workers = workers

    def run(self, tasks: Sequence[Task]) -> Generator[Finished | None]:
        """Computes the tasks."""
        waiting, idle = deque(tasks), [_Worker() for _ in range(min(self.workers, len(tasks)))]
        busy: dict[Future[str], tuple[Task, _Worker]] = {}
        try:
            while waiting or busy:
                while waiting and idle:
                    task, worker = waiting.popleft(), idle.pop()
                    busy[worker.executor.submit(_attempt_with_log, task)] = task, worker
                ended = wait(busy, timeout=LOOK, return_when=FIRST_COMPLETED).done
                if not ended:
                    yield None
                for future in ended:
                    task, worker = busy.pop(future)
                    try:
                        problem = future.result()
                        idle.append(worker)
                    except BrokenProcessPool:
                        worker.stop()
                        idle.append(_Worker())
                        problem = _sentence(task, "its process died")
                    yield Finished(task.job, problem)
        finally:
            for worker in (*idle, *(worker for _, worker in busy.values())):
                worker.stop()


class _Worker:
    """A process that computes jobs until it is stopped, or until its parent has died."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        reader, self.lifeline = context.Pipe(duplex=False)
        self.executor = ProcessPoolExecutor(
            1, mp_context=context, initializer=_begin_worker, initargs=(reader,)
        )

    def stop(self) -> None:
        self.lifeline.close()
        self.executor.shutdown(cancel_futures=True)


def _begin_worker(lifeline: Connection) -> None:
    # On busy cores the threads of OpenBLAS only get in each other's way.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    from .._runtime import enable_compilation_cache

    enable_compilation_cache()


def _end_with(lifeline: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        lifeline.recv()  # nothing is ever sent: it returns when the parent closes its end
    os._exit(0)


def _attempt_with_log(task: Task) -> str:
    """Computes a job; all that the process prints, even from C code, goes to the job's log."""
    from .._files import open_new

    log = open_new(task.directory / LOG)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    return _attempt(task)


def _attempt(task: Task) -> str:
    """Computes a job; returns what went wrong, or an empty text."""
    try:
        from .compute import compute

        compute(task.job, task.directory)
    except Exception as error:
        traceback.print_exc()
        named = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        return _sentence(task, f"{named}{' '.join(str(error).split())}")
    return ""


def _sentence(task: Task, problem: str) -> str:
    return f"{task.job.name} failed: {problem}; see {task.directory / LOG}"


def local_pool(workers: int | None) -> AbstractPool:
    """Workers on this machine: None for one process per core, 0 to compute in this process."""
    if workers is not None and workers < 0:
        raise UserError(f"expected 0 or more workers, got {workers}; correct it")
    if workers == 0:
        return SameProcess()
    return LocalProcesses(workers or os.cpu_count() or 1)


def compute_missing(
    jobs: Sequence[Job],
    store: JobStore,
    pool: AbstractPool,
    *,
    progress: bool = True,
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[Finished]:
    """Computes the jobs that have no result yet; yields each when it has ended.

    Args:
        jobs: What is needed, in the order in which to begin; a job may be named twice.
        store: Where results are kept.
        pool: The workers.
        progress: Whether to show a bar; it counts seconds of work, by the jobs' estimates.
        say: Called with a line of text about each job.
    """
    missing = [job for job in {job.folder: job for job in jobs}.values() if not store.find(job)]
    if not missing:
        return
    for job in missing:
        if change := store.why_anew(job):
            say(f"{job.name} is computed anew: {change}")
    total, ended = sum(job.seconds for job in missing), 0
    running = pool.run([Task(job, store.begin(job)) for job in missing])
    bar = progress_bar("seconds of work", round(total), shown=progress)
    with contextlib.closing(running), bar as report:
        for finished in running:
            done = sum(store.progress(job) * job.seconds for job in missing)
            ended += finished is not None
            report(round(done), jobs_done=ended)
            if finished is not None:
                say(f"[{ended}/{len(missing)}] {finished.problem or f'{finished.job.name}: done'}")
                yield finished
