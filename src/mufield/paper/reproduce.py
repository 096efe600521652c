"""The reproduction: compute missing jobs, draw the items whose jobs are done, write the table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..jobs.job import Job
from ..jobs.pool import AbstractPool, SameProcess, compute_missing
from .budget import Budget
from .catalogue import Item, choose
from .results import Results
from .table import write_table

Say = Callable[[str], None]
"""Called with a line of text for people."""


@dataclass(frozen=True)
class Reproduction:
    """What a call of `reproduce` gave.

    Attributes:
        files: Figures and films of the items that are done.
        table: The table's files.
        problems: One line for each job or drawing that failed.
        computed: Number of jobs that this call computed.
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
    pool: AbstractPool | None = None,
    progress: bool = True,
    say: Say = lambda line: None,
) -> Reproduction:
    """Computes and draws items of the paper that are not done yet.

    After an interruption, the same call goes on from what is there.

    Args:
        names: Names of items, or ``all``.
        out: Directory of the results; made if it does not exist.
        budget: How much to compute.
        pool: The workers; by default this process.
        progress: Whether to show a bar.
        say: Called for every job and item that is done.
    """
    items, results, pool = choose(names), Results(out, budget), pool or SameProcess()
    jobs = [job for item in items for job in results.missing(item)]
    _check_installed(jobs)
    waiting = [item for item in items if results.item_state(item) != "done"]
    problems: list[str] = []
    computed = 0
    with results.writing():
        # Items are drawn as soon as their jobs are done, so that there is something to see early.
        problems += _draw_ready(waiting, results, say)
        for finished in compute_missing(jobs, results, pool, progress=progress, say=say):
            computed += not finished.problem
            problems += [finished.problem] if finished.problem else []
            problems += _draw_ready(waiting, results, say)
        table = write_table(results)
    files = [path for item in items for path in results.files(item)]
    return Reproduction(tuple(files), table, tuple(problems), computed)


def _draw_ready(waiting: list[Item], results: Results, say: Say) -> list[str]:
    """Draws the waiting items whose jobs are done, and removes them; returns what went wrong."""
    problems: list[str] = []
    ready = [item for item in waiting if not results.missing(item)]
    for item in ready:
        waiting.remove(item)
        try:
            drawn = results.draw(item)
        except (ValueError, OSError) as error:  # the others can still be drawn
            problems.append(f"{item.name} could not be drawn: {type(error).__name__}: {error}")
            say(problems[-1])
            continue
        say(f"{item.name}: {', '.join(map(str, drawn.files)) or 'numbers in the table'}")
    if ready:
        write_table(results)
    return problems


def _check_installed(jobs: Sequence[Job]) -> None:
    """Raises if an extra is not installed, before anything is computed."""
    from .. import viz  # noqa: F401

    if any(job.kind == "qlearning" for job in jobs):
        from ..baselines.q_learning import compiled_loop

        compiled_loop()
