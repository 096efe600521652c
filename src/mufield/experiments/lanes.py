"""Several jobs at a time, each lane a process that computes one after the other."""

import contextlib
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import UserError
from .jobs import Job, JobStore
from .worker import DONE, LOG, attempt

PATIENCE = 5.0
"""Seconds that a process has to end before it is killed."""

LOOK = 1.0
"""Seconds between two looks at how far the jobs are."""

Watch = Callable[[], None]
"""Called now and then while jobs are computed."""


@dataclass(frozen=True)
class Finished:
    """A job that came to an end.

    Attributes:
        job: The job.
        problem: What went wrong, in one line; empty if nothing did.
    """

    job: Job
    problem: str = ""


def run_jobs(
    jobs: Sequence[Job], store: JobStore, *, workers: int, watch: Watch = lambda: None
) -> Iterator[Finished]:
    """Computes jobs; yields each as soon as it is done, or has failed.

    Args:
        jobs: What to compute, in this order.
        store: Where.
        workers: Number of processes; 0 computes in this one.
        watch: Called about once a second.
    """
    if workers < 0:
        raise UserError(f"expected 0 or more workers, got {workers}")
    if workers == 0:
        yield from _here(jobs, store, watch)
        return
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    done: queue.SimpleQueue[Finished] = queue.SimpleQueue()
    lanes = [Lane(waiting, done, store) for _ in range(min(workers, len(jobs)))]
    try:
        for lane in lanes:
            lane.start()
        for _ in jobs:
            yield _next(done, watch)
    finally:
        for lane in lanes:
            lane.stop()


def _next(done: "queue.SimpleQueue[Finished]", watch: Watch) -> Finished:
    while True:
        watch()
        with contextlib.suppress(queue.Empty):
            return done.get(timeout=LOOK)


def _here(jobs: Sequence[Job], store: JobStore, watch: Watch) -> Iterator[Finished]:
    for job in jobs:
        watch()
        directory = store.begin(job)
        log = directory / LOG
        with log.open("w", encoding="utf-8") as file, contextlib.redirect_stderr(file):
            fine = attempt(directory)
        yield Finished(job, "" if fine else _problem(job, log))


class Lane(threading.Thread):
    """Hands jobs to a process, and starts another one where it died."""

    def __init__(
        self,
        waiting: "queue.SimpleQueue[Job]",
        done: "queue.SimpleQueue[Finished]",
        store: JobStore,
    ):
        """Takes jobs from one queue and puts what became of them into the other."""
        super().__init__(daemon=True)
        self.waiting, self.done, self.store = waiting, done, store
        self.process: subprocess.Popen[str] | None = None
        self.stopped = threading.Event()

    def run(self) -> None:
        """Computes until no job waits."""
        while not self.stopped.is_set():
            try:
                job = self.waiting.get_nowait()
            except queue.Empty:
                return
            try:
                problem = self._compute(job)
            except OSError as error:  # of the disk, or no process could be started
                problem = f"{job.name} failed: {error}"
            self.done.put(Finished(job, problem))

    def stop(self) -> None:
        """Ends the process; what it was at goes on next time."""
        self.stopped.set()
        process = self.process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _compute(self, job: Job) -> str:
        directory = self.store.begin(job)
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(f"{directory.resolve()}\n")
            process.stdin.flush()
            answer = process.stdout.readline().strip()
        except BrokenPipeError:
            answer = ""
        if answer == DONE:
            return ""
        died = "" if answer else f"its process ended with code {process.wait()}; "
        return _problem(job, directory / LOG, died)

    def _running(self) -> "subprocess.Popen[str]":
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mufield.experiments.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                # On busy cores the threads of OpenBLAS only get in each other's way.
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                # Ctrl-C is for us; we then end the process ourselves.
                start_new_session=True,
            )
        return self.process


def _problem(job: Job, log: Path, died: str = "") -> str:
    """One line about a failure, with the last line of the log."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = f"{lines[-1]}; " if lines else ""
    return f"{job.name} failed: {died}{last}see {log}"
