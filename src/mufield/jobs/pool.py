"""Workers that compute jobs: in this process, in others of this machine, or on a cluster.

Nothing heavy is imported here, because a new process imports this file before it limits the threads
of NumPy and JAX.
"""

import contextlib
import os
import sys
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._progress import progress_bar
from ..errors import UserError
from ..io.atomic import locked, open_new, write_bytes
from .job import Job, JobStore, read_result


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
    """Computes jobs.

    Attributes:
        look: Seconds between two updates of the progress bar.
        patience: Seconds to wait for a worker that seemed dead and still holds the job's
            directory. A file server may take minutes to notice that a machine is gone.
    """

    look: float = 1.0
    patience: float = 300.0

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
        """Computes the tasks; only tracebacks go to their logs, as others may print meanwhile."""
        for task in tasks:
            yield Working((task.job,))
            lines: list[str] = []
            problem = attempt(task.job, task.directory, lines.append)
            write_bytes(task.directory / "log.txt", "".join(lines).encode())
            yield Finished(task.job, _sentence(task, problem))


class WorkerPool(AbstractPool):
    """Computes with workers that may die; another one then goes on from the last checkpoint.

    Attributes:
        tries: A job is given up when so many workers in a row died at it without getting further.
        deaths: Exceptions of a future that mean that its worker died.
    """

    tries: int = 3
    deaths: tuple[type[Exception], ...] = ()

    @abstractmethod
    def _begin(self, task: Task) -> "Future[Any] | None":
        """Gives a task to a worker; None if all are busy."""

    @abstractmethod
    def _result(self, task: Task, future: "Future[Any]") -> str:
        """What went wrong at a task that has ended; raises one of `deaths` if its worker died."""

    @abstractmethod
    def _close(self) -> None:
        """Ends all workers, whatever they are doing."""

    def run(self, tasks: Sequence[Task]) -> Generator[Finished | Working]:
        """Computes the tasks."""
        waiting, busy = deque(tasks), dict[Future[Any], Task]()
        tried: dict[str, tuple[int, Checkpoint]] = {}
        try:
            while waiting or busy:
                while waiting and (future := self._begin(waiting[0])) is not None:
                    busy[future] = waiting.popleft()
                for future in wait(busy, self.look, FIRST_COMPLETED).done:
                    task = busy.pop(future)
                    try:
                        problem = self._result(task, future)
                    except self.deaths as death:
                        now = checkpoint(task.directory)
                        count, before = tried.get(task.job.folder, (0, now))
                        count = count + 1 if now == before else 1
                        tried[task.job.folder] = count, now
                        if count < self.tries:
                            waiting.appendleft(task)
                            continue
                        often = f" {count} times in a row" if count > 1 else ""
                        problem = f"its worker died{often} ({one_line(death)})"
                    yield Finished(task.job, _sentence(task, problem))
                yield Working(tuple(task.job for task in busy.values()))
        finally:
            self._close()


Checkpoint = dict[str, int]


def checkpoint(directory: Path) -> Checkpoint:
    """What a job goes on from, by name and time; equal exactly if nothing was added."""
    files = directory.rglob("*.safetensors")
    return {path.relative_to(directory).as_posix(): path.stat().st_mtime_ns for path in files}


def attempt_with_log(job: Job, directory: Path) -> str:
    """Computes a job; all that the process prints, even from C code, goes to the job's log."""
    log = open_new(directory / "log.txt")
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    return attempt(job, directory, sys.stderr.write)


def attempt(job: Job, directory: Path, log: Callable[[str], object]) -> str:
    """Computes a job unless it is done; returns what went wrong, or an empty text.

    ``log`` is called with the traceback, if there is one.
    """
    try:
        from .compute import compute

        # A worker that was given up may be alive, and still have the lock.
        with locked(directory, patience=AbstractPool.patience):
            if read_result(directory, job) is None:
                compute(job, directory)
    except Exception as error:
        log(traceback.format_exc())
        named = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        return f"{named}{' '.join(str(error).split())}"
    return ""


def one_line(error: BaseException) -> str:
    """The first and the last line of an error; between them Ray may put a hundred."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ... ".join(dict.fromkeys((*lines[:1], *lines[-1:])))[:400] or type(error).__name__


def _sentence(task: Task, problem: str) -> str:
    return problem and f"{task.job.name} failed: {problem}; see {task.directory / 'log.txt'}"


def compute_missing(
    jobs: Sequence[Job],
    store: JobStore,
    pool: AbstractPool,
    *,
    progress: bool = True,
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[Finished]:
    """Computes the jobs that have no result yet, in this order; yields each when it has ended.

    ``progress`` shows a bar; ``say`` is called with a line of text about each job.
    """
    missing = [job for job in {job.folder: job for job in jobs}.values() if not store.find(job)]
    if not missing:
        return
    working: tuple[Job, ...] = ()
    ended = failed = 0
    running = pool.run([Task(job, store.begin(job)) for job in missing])
    bar = progress_bar("jobs", len(missing), shown=progress)
    with contextlib.closing(running), bar as report:
        for news in running:
            if isinstance(news, Working):
                working = news.jobs
            else:
                ended, failed = ended + 1, failed + bool(news.problem)
                working = tuple(job for job in working if job != news.job)
            report(
                ended,
                done=ended - failed,
                running=len(working),
                failed=failed,
                waiting=len(missing) - ended - len(working),
                share=(ended + sum(map(store.progress, working))) / len(missing),
            )
            if isinstance(news, Finished):
                say(f"[{ended}/{len(missing)}] {news.problem or _done(store, news.job)}")
                yield news


def _done(store: JobStore, job: Job) -> str:
    found = store.find(job)
    figures = found.figures if found else {}
    value = figures.get("value", figures.get("values", [None])[-1])
    return f"{job.name}: done" + ("" if value is None else f", J = {value:.4g}")
