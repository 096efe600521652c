"""The reproduction: compute missing jobs, draw the items whose jobs are done, write the table."""

from collections.abc import Sequence
from pathlib import Path

from mufield.jobs.pool import AbstractPool, compute_missing
from mufield.runs.surroundings import set_precision

from .items import choose
from .paper import Budget
from .q_learning import compiled_loop
from .results import Item, Results
from .table import write_table


def reproduce(
    names: Sequence[str], out: Path, budget: Budget, pool: AbstractPool, *, progress: bool = True
) -> list[str]:
    """Computes and draws items of the paper that are not done yet; prints what is done.

    After an interruption, the same call goes on from what is there.

    Args:
        names: Names of items, or ``all``.
        out: Directory of the results; made if it does not exist.
        budget: How much to compute.
        pool: The workers.
        progress: Whether to show a bar.

    Returns:
        One line for each job or drawing that failed.
    """
    set_precision(budget.precision)
    items, results = choose(names), Results(out, budget)
    jobs = [job for item in items for job in results.missing(item)]
    if any(job.kind == "qlearning" for job in jobs):
        compiled_loop()  # raises if numba is not installed, before anything is computed
    waiting = [item for item in items if results.item_state(item) != "done"]
    with results.writing():
        # Items are drawn as soon as their jobs are done, so that there is something to see early.
        problems = _draw_ready(waiting, results)
        for finished in compute_missing(jobs, results, pool, progress=progress, say=print):
            problems += [finished.problem] if finished.problem else []
            problems += _draw_ready(waiting, results)
        write_table(results)
    return problems


def _draw_ready(waiting: list[Item], results: Results) -> list[str]:
    """Draws the waiting items whose jobs are done, and removes them; returns what went wrong."""
    problems: list[str] = []
    for item in [item for item in waiting if not results.missing(item)]:
        waiting.remove(item)
        try:
            drawn = results.draw(item)
        except (ValueError, OSError) as error:  # the others can still be drawn
            problems.append(f"{item.name} could not be drawn: {type(error).__name__}: {error}")
            print(problems[-1])
            continue
        print(f"{item.name}: {', '.join(map(str, drawn.files)) or 'numbers in the table'}")
    return problems
