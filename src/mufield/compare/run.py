"""A comparison: compute the contenders' jobs, and put their results side by side."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from ..jobs.job import JobStore
from ..jobs.pool import compute_missing, local_pool
from .config import ComparisonConfig
from .contenders import Arena
from .result import Comparison


def compare(
    config: ComparisonConfig,
    directory: Path | None = None,
    *,
    workers: int | None = 0,
    progress: bool = True,
    say: Callable[[str], None] = lambda line: None,
) -> Comparison:
    """Compares contenders in one system.

    All arguments are checked before the first job is computed. After an interruption, the same
    call goes on from the last episode.

    Args:
        config: What to compare.
        directory: Where jobs are kept, to be used again by other comparisons, and where
            ``comparison.json`` and ``comparison.csv`` are written; None to keep nothing.
        workers: Number of worker processes; None for one per core, 0 to compute in this process.
            Scripts that ask for processes need ``if __name__ == "__main__":``.
        progress: Whether to show a bar.
        say: Called with a line of text about each job.
    """
    if directory is None:
        with tempfile.TemporaryDirectory() as kept_for_now:
            return compare(config, Path(kept_for_now), workers=workers, progress=progress, say=say)
    store, pool, contenders = JobStore(directory), local_pool(workers), Arena(config).contenders()
    jobs = [job for contender in contenders for job in contender.jobs]
    with store.writing():
        ended = compute_missing(jobs, store, pool, progress=progress, say=say)
        problems = tuple(finished.problem for finished in ended if finished.problem)
        results = []
        for contender in contenders:
            found = [result for job in contender.jobs if (result := store.find(job))]
            if len(found) == len(contender.jobs):
                results.append(contender.result(found))
        documents = {
            contender.name: [job.document() for job in contender.jobs] for contender in contenders
        }
        comparison = Comparison(config, tuple(results), documents, problems)
        comparison.write(directory)
    return comparison
