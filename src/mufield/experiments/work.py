"""Computes a job, or goes on with it, in the job's directory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .._files import write_json
from ..runs.surroundings import set_precision, versions
from .jobs import Job, Kind
from .learned import learn_job
from .planned import bracket_job, plan_job, random_job
from .trained import training_job

Compute = Callable[[dict[str, Any], Path], dict[str, Any]]
"""From settings and directory to figures, with the seconds that they took among them."""

KINDS: dict[Kind, Compute] = {
    "learn": learn_job,
    "plan": plan_job,
    "bracket": bracket_job,
    "random": random_job,
    "qlearning": training_job,
}


def compute(job: Job, directory: Path) -> None:
    """Computes a job to its end and writes its result, at one stroke.

    JAX is set to the job's number format: for programs only.
    """
    set_precision(job.settings["precision"])
    figures = KINDS[job.kind](job.settings, directory)
    seconds = figures.pop("seconds")
    result = {
        **job.document(),
        "seconds": round(float(seconds), 2),
        "versions": versions(),
        "figures": figures,
    }
    write_json(directory / "result.json", result)
