"""Workers that compute jobs, one after the other or several at a time.

The interface, `AbstractPool`, takes jobs with their directories and yields them as they end,
wherever they are computed: in this process, in others of this machine, or on a cluster
(`mufield.jobs.cluster`). Nothing heavy is imported here, because a new process imports this file
before it limits the threads of NumPy and JAX.
"""

import contextlib
import os
import time
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from .._progress import Part, progress_bar
from ..errors import UserError
from .job import Job, JobStore, read_result


@dataclass
class PoolSettings:
    """How pools wait for their workers.

    Attributes:
        look: Seconds between two updates of the progress bar.
        patience: Seconds to wait for a worker that seemed dead and still holds the job's
            directory. A file server may take minutes to notice that a machine is gone.
    """

    look: float = 1.0
    patience: float = 300.0


POOL = PoolSettings()


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


@dataclass(frozen=True)
class Working:
    """The jobs that are being computed now."""

    jobs: tuple[Job, ...]


class AbstractPool(ABC):
    """Computes jobs."""

    @abstractmethod
    def run(self, tasks: Sequence[Task]) -> Generator[Finished | Working]:
        """Begins all tasks in this order, and yields each when it has ended.

        While nothing ends, it says now and then what is being computed. A job that fails is
        yielded with its problem, and the others go on. When the iterator is closed, for example by
        Ctrl-C, all work stops; files are written whole or not at all, so nothing is damaged.
        """


class SameProcess(AbstractPool):
    """Computes in this process, one job after the other, with all threads that it may have."""

    def run(self, tasks: Sequence[Task]) -> Generator[Finished | Working]:
        """Computes the tasks."""
        from ..io.atomic import open_new

        for task in tasks:
            yield Working((task.job,))
            with (
                os.fdopen(open_new(task.directory / "log.txt"), "w", encoding="utf-8") as file,
                contextlib.redirect_stderr(file),
            ):
                problem = attempt(task.job, task.directory)
            yield Finished(task.job, _sentence(task, problem))


class WorkerDied(Exception):
    """A worker ended before its job did."""


class AbstractWorker(ABC):
    """Computes one job at a time, somewhere else, and may die at it."""

    begun = True
    """Whether its job is being computed, and does not wait for a place."""

    @abstractmethod
    def begin(self, task: Task) -> None:
        """Begins a task."""

    @abstractmethod
    def result(self) -> str:
        """What went wrong at the task, or an empty text.

        Raises:
            WorkerDied: If the worker did not survive it.
        """

    @abstractmethod
    def stop(self) -> None:
        """Ends the worker, whatever it is doing."""


Worker = TypeVar("Worker", bound=AbstractWorker)


class WorkerPool(AbstractPool, Generic[Worker]):
    """Computes with workers that may die; another one then goes on from the last checkpoint.

    A job is given up when `tries` workers in a row died at it without getting any further.
    """

    tries = 3

    @abstractmethod
    def _hire(self) -> Worker | None:
        """A worker that has nothing to do; None if there is none at the moment."""

    @abstractmethod
    def _wait(self, workers: Sequence[Worker]) -> list[Worker]:
        """Waits for the end of a task, `POOL.look` seconds at most; returns those who ended one."""

    @abstractmethod
    def _release(self, worker: Worker, *, alive: bool) -> None:
        """Takes back a worker that has ended its task, or died at it."""

    def _close(self) -> None:
        """Ends what belongs to no worker that is busy."""

    def run(self, tasks: Sequence[Task]) -> Generator[Finished | Working]:
        """Computes the tasks."""
        waiting, busy = deque(tasks), dict[Worker, Task]()
        deaths: dict[str, tuple[int, Checkpoint]] = {}
        try:
            while waiting or busy:
                while waiting and (worker := self._hire()) is not None:
                    busy[worker] = task = waiting.popleft()
                    worker.begin(task)
                for worker in self._wait(list(busy)):
                    task = busy.pop(worker)
                    try:
                        problem = worker.result()
                        self._release(worker, alive=True)
                    except WorkerDied as death:
                        self._release(worker, alive=False)
                        problem = ""
                        if read_result(task.directory, task.job) is None:
                            now = checkpoint(task.directory)
                            count, before = deaths.get(task.job.folder, (0, now))
                            count = count + 1 if now == before else 1
                            deaths[task.job.folder] = count, now
                            if count < self.tries:
                                waiting.appendleft(task)
                                continue
                            often = f" {count} times in a row" if count > 1 else ""
                            problem = f"{death}{often}"
                    yield Finished(task.job, _sentence(task, problem))
                yield Working(tuple(task.job for worker, task in busy.items() if worker.begun))
        finally:
            for worker in busy:
                worker.stop()
            self._close()


Checkpoint = dict[str, int]


def checkpoint(directory: Path) -> Checkpoint:
    """What a job goes on from, by name and time; equal exactly if nothing was added."""
    files = directory.rglob("*.safetensors")
    return {path.relative_to(directory).as_posix(): path.stat().st_mtime_ns for path in files}


def attempt_with_log(job: Job, directory: Path) -> str:
    """Computes a job; all that the process prints, even from C code, goes to the job's log."""
    from ..io.atomic import open_new

    log = open_new(directory / "log.txt")
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    return attempt(job, directory)


def attempt(job: Job, directory: Path) -> str:
    """Computes a job unless it is done; returns what went wrong, or an empty text."""
    try:
        from .compute import compute

        with _alone(directory):
            if read_result(directory, job) is None:
                compute(job, directory)
    except Exception as error:
        traceback.print_exc()
        named = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        return f"{named}{' '.join(str(error).split())}"
    return ""


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Keeps other workers out of a job; waits for one that was given up, but is still alive."""
    from ..io.atomic import DirectoryInUse, locked

    until = time.monotonic() + POOL.patience
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(locked(directory))
                break
            except DirectoryInUse:
                if time.monotonic() > until:
                    raise
                time.sleep(POOL.look / 2)
        yield


def _sentence(task: Task, problem: str) -> str:
    return problem and f"{task.job.title} failed: {problem}; see {task.directory / 'log.txt'}"


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
            say(f"{job.title} is computed anew: {change}")
    total = sum(job.seconds for job in missing)
    shares = dict.fromkeys((job.folder for job in missing), 0.0)
    working: tuple[Job, ...] = ()
    ended = failed = 0
    running = pool.run([Task(job, store.begin(job)) for job in missing])
    bar = progress_bar("seconds of work", round(total), shown=progress)
    with contextlib.closing(running), bar as report:
        for news in running:
            if isinstance(news, Working):
                working = news.jobs
            else:
                ended, failed = ended + 1, failed + bool(news.problem)
                shares[news.job.folder] = 1.0
                working = tuple(job for job in working if job != news.job)
            parts = [_part(store, job) for job in working]
            shares |= {job.folder: part.share for job, part in zip(working, parts, strict=True)}
            report(
                round(sum(shares[job.folder] * job.seconds for job in missing)),
                parts,
                done=ended - failed,
                running=len(working),
                failed=failed,
                waiting=len(missing) - ended - len(working),
            )
            if isinstance(news, Finished):
                value = None if news.problem else store.value(news.job)
                earned = "" if value is None else f", J = {value:.4g}"
                text = news.problem or f"{news.job.title}: done{earned}"
                say(f"[{ended}/{len(missing)}] {text}")
                yield news


def _part(store: JobStore, job: Job) -> Part:
    """How far a job has come, and its J so far."""
    value = store.value(job)
    return Part(job.title, store.progress(job), {} if value is None else {"J": value})
