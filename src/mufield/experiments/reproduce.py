"""The whole of it: compute what is missing, draw what can be drawn, write the table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .._files import locked, remove_leftovers
from .._progress import Report, progress_bar
from .budget import Budget
from .catalogue import Item, choose
from .jobs import Job
from .lanes import Finished, run_jobs
from .results import Results
from .table import write_table

Say = Callable[[str], None]
"""Called with a line for people."""


@dataclass(frozen=True)
class Outcome:
    """What came of it.

    Attributes:
        files: Figures and films of the items that are done.
        table: The table's files.
        problems: What failed, a line for each job.
        computed: Number of jobs that were computed now.
    """

    files: tuple[Path, ...]
    table: tuple[Path, ...]
    problems: tuple[str, ...]
    computed: int


def reproduce(
    names: Sequence[str],
    out: Path,
    budget: Budget,
    *,
    workers: int = 2,
    progress: bool = True,
    say: Say = lambda line: None,
) -> Outcome:
    """Computes and draws items of the paper, as far as that was not done yet.

    Interrupted at any moment, the same call goes on from what is there.

    Args:
        names: Names of items, or ``all``.
        out: Directory of the results; made if it does not exist.
        budget: How much to compute.
        workers: Jobs at a time, each in a process of its own; 0 computes in this one.
        progress: Whether to show a bar.
        say: Told of every job and item that is done.
    """
    items, results = choose(names), Results(out, budget)
    jobs = _missing(items, results)
    _check_installed(jobs)
    out.mkdir(parents=True, exist_ok=True)
    with locked(out):
        remove_leftovers(out)
        drawer = Drawer(items, results, say)
        drawer.draw_ready()
        problems = _compute(jobs, results, drawer, workers, progress, say)
        table = write_table(results)
    files = [path for item in items for path in results.files(item)]
    return Outcome(tuple(files), table, (*problems, *drawer.problems), len(jobs) - len(problems))


class Drawer:
    """Draws items as soon as their jobs are done, so that something can be looked at early."""

    def __init__(self, items: Sequence[Item], results: Results, say: Say):
        """Takes the items that are not done yet."""
        self.waiting = [item for item in items if results.state(item) != "done"]
        self.results, self.say = results, say
        self.problems: list[str] = []

    def draw_ready(self) -> None:
        """Draws what can be drawn, and brings the table up to date."""
        ready = [item for item in self.waiting if not self.results.missing(item)]
        for item in ready:
            self.waiting.remove(item)
            self._draw(item)
        if ready:
            write_table(self.results)

    def _draw(self, item: Item) -> None:
        try:
            drawn = self.results.draw(item)
        except (ValueError, OSError) as error:  # the others can still be drawn
            self.problems.append(f"{item.name} could not be drawn: {error}")
            self.say(self.problems[-1])
            return
        shown = ", ".join(str(path) for path in drawn.files) or "numbers in the table"
        self.say(f"{item.name}: {shown}")


def _missing(items: Sequence[Item], results: Results) -> list[Job]:
    """The jobs to compute, each once, in the order of the items."""
    missing: dict[str, Job] = {}
    for item in items:
        missing |= {job.folder: job for job in results.missing(item)}
    return list(missing.values())


def _check_installed(jobs: Sequence[Job]) -> None:
    """Raises if an extra is not installed: now, not after an hour."""
    from .. import viz  # noqa: F401

    if any(job.kind == "qlearning" for job in jobs):
        from ..baselines.q_learning import compiled_loop

        compiled_loop()


def _compute(
    jobs: Sequence[Job],
    results: Results,
    drawer: Drawer,
    workers: int,
    progress: bool,
    say: Say,
) -> tuple[str, ...]:
    if not jobs:
        return ()
    total, lanes = sum(job.seconds for job in jobs), max(1, workers)
    say(f"{len(jobs)} jobs to compute, about {_duration(total / lanes)}")
    problems: list[str] = []
    # The bar counts seconds of work, by the estimates.
    with progress_bar("seconds of work", round(total), shown=progress) as report:
        found = run_jobs(
            jobs, results.jobs, workers=workers, watch=lambda: _report(report, jobs, results)
        )
        for number, finished in enumerate(found, start=1):
            say(f"[{number}/{len(jobs)}] {_sentence(finished, results)}")
            problems += [finished.problem] if finished.problem else []
            drawer.draw_ready()
    return tuple(problems)


def _report(report: Report, jobs: Sequence[Job], results: Results) -> None:
    shares = [results.jobs.progress(job) for job in jobs]
    done = sum(share * job.seconds for share, job in zip(shares, jobs, strict=True))
    report(round(done), jobs_done=sum(share >= 1.0 for share in shares))


def _sentence(finished: Finished, results: Results) -> str:
    if finished.problem:
        return finished.problem
    seconds = results.jobs.result(finished.job)["seconds"]
    return f"{finished.job.name}: done, {seconds:.0f} s"


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{seconds:.0f} seconds"
