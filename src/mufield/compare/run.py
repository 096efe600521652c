"""A comparison: compute the contenders' jobs, and put their results side by side."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from ..jobs.job import JobStore
from ..jobs.pool import AbstractPool, SameProcess, compute_missing
from .comparison import Comparison, ComparisonConfig
from .contenders import Arena, enter


def compare(
    config: ComparisonConfig,
    directory: Path | None = None,
    *,
    pool: AbstractPool | None = None,
    progress: bool = True,
    say: Callable[[str], None] = lambda line: None,
) -> Comparison:
    """Compares contenders in one system.

    All arguments are checked before the first job is computed. After an interruption, the same
    call goes on from the last episode.

    Args:
        config: What to compare.
        directory: Where jobs are kept, to be used again by other comparisons, and where
            ``comparison.json``, ``comparison.csv`` (the table) and ``curves.csv`` (tidy rows) are
            written; None to keep nothing.
        pool: The workers, such as ``LocalProcesses(2)``; by default this process. Scripts that ask
            for processes need ``if __name__ == "__main__":``.
        progress: Whether to show a bar.
        say: Called with a line of text about each job.
    """
    if directory is None:
        with tempfile.TemporaryDirectory() as kept_for_now:
            return compare(config, Path(kept_for_now), pool=pool, progress=progress, say=say)
    store, arena = JobStore(directory), Arena(config)
    jobs = [(each, each.jobs(arena)) for each in map(enter, config.contenders)]
    wanted = [job for _, own in jobs for job in own]
    with store.writing():
        ended = compute_missing(wanted, store, pool or SameProcess(), progress=progress, say=say)
        problems = tuple(finished.problem for finished in ended if finished.problem)
        results = []
        for each, own in jobs:
            found = [result for job in own if (result := store.find(job))]
            if len(found) == len(own):
                results.append(each.result(arena, found))
        documents = {each.name: [job.document() for job in own] for each, own in jobs}
        comparison = Comparison(config, tuple(results), documents, problems)
        comparison.write(directory)
    return comparison
