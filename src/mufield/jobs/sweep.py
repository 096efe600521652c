"""A sweep: a job for each of its runs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ..environments.registry import check_options
from ..runs.sweep import Sweep, read_sweep, write_record
from ..runs.trials import Trial
from .job import Job, JobStore, learning_job
from .pool import AbstractPool, SameProcess, compute_missing


def sweep(
    trials: Sequence[Trial],
    directory: Path,
    *,
    pool: AbstractPool | None = None,
    progress: bool = True,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[Sweep, tuple[str, ...]]:
    """Learns with all settings of a sweep that were not learned with before.

    Args:
        trials: What `mufield.runs.sweep.read_trials` made of a file.
        directory: Where runs are kept. A later sweep may add to them; what both have in common is
            not computed again.
        pool: The workers; by default this process.
        progress: Whether to show a bar.
        say: Called with a line of text about each job.

    Returns:
        The sweep, and a line about each run that failed.
    """
    jobs = {job.folder: (job, trial) for trial in trials for job in [_job(trial)]}
    store = JobStore(directory)
    with store.writing():
        write_record(directory, {folder: trial.values for folder, (_, trial) in jobs.items()})
        wanted = [job for job, _ in jobs.values()]
        ended = compute_missing(wanted, store, pool or SameProcess(), progress=progress, say=say)
        problems = tuple(each.problem for each in ended if each.problem)
    return read_sweep(directory), problems


def _job(trial: Trial) -> Job:
    """The job of a run; its name is that of all, so that it is found again in other sweeps."""
    job = learning_job("run", trial.config, seconds=float(trial.config.episodes))
    check_options(trial.config.environment, trial.config.options)
    return replace(job, label=trial.label)
