"""``runs`` and ``show``: which runs there are, and what one of them learned."""

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from ..errors import UserError
from ..runs.config import RunConfig
from ..runs.sweep import is_sweep, read_sweep
from .flags import Command, Switch
from .output import Answer, Table, metrics_answer
from .sources import RunArgument
from .sweep import sweep_answer

Order = Literal["directory", "best", "last", "episodes"]


@dataclass(frozen=True, kw_only=True)
class Runs(Command):
    """List runs: what they are, how far they have come and what they earned.

    Of a sweep, the runs that earned most come first, and below them stands which setting matters.
    """

    directories: Annotated[tuple[Path, ...], tyro.conf.Positional] = (
        Path("."),
        Path("runs"),
    )
    """Directories to look in and below; or the directory of a sweep."""

    where: dict[str, Any] = field(default_factory=dict)
    """Only runs with these settings, such as model=gp,seed=3,options.horizon=10."""

    unfinished: Switch = False
    """Only runs with episodes left to run, or that wait for an episode to be told."""

    sort: Order = "directory"
    """What to sort by; numbers begin with the highest."""

    depth: int = 5
    """How many directories deep to look."""

    def __call__(self) -> Answer:
        from ..runs.overview import find_runs, matches, summarise

        known = [each.name for each in fields(RunConfig)]
        for name in self.where:
            if name.partition(".")[0] not in known:
                raise UserError(f"--where: no setting {name}; there are {', '.join(known)}")
        places = self.directories
        plain = replace(self, directories=(), json=False, debug=False) == Runs(directories=())
        if plain and len(places) == 1 and is_sweep(places[0]):
            return sweep_answer(read_sweep(places[0]))
        for directory in places if places != Runs.directories else ():  # those need not exist
            if not directory.is_dir():
                raise UserError(f"there is no directory {directory}; name one to look in")
        runs = [summarise(run) for run in find_runs(places, depth=self.depth)]
        runs = [run for run in runs if matches(run.config, self.where)]
        if self.unfinished:
            runs = [run for run in runs if run.state in ("unfinished", "waiting for tell")]
        rows = _sorted([run.row() for run in runs], self.sort)
        if not rows:
            return Answer(rows, [f"no such run in {' or '.join(map(str, places))}"])
        texts = ("directory", "environment", "model", "planner", "optimism", "state", "began")
        spare = ("began", "planner", "model", "last J", "optimism", "seed")
        return Answer(rows, [Table([_cells(row) for row in rows], texts=texts, spare=spare)])


@dataclass(frozen=True, kw_only=True)
class Show(Command):
    """Show the metrics of a run."""

    run: RunArgument
    """Directory of the run."""

    def __call__(self) -> Answer:
        from ..runs.files import RunFiles

        files = RunFiles(self.run)
        answer = metrics_answer(files.rows, self.run)
        if not files.logs:
            return answer
        logs = "a log" if len(files.logs) == 1 else f"{len(files.logs)} logs"
        count = f"{files.historical:,} historical transitions from {logs}"
        return replace(answer, shown=[*(answer.shown or []), count])


def _sorted(rows: list[dict[str, Any]], order: Order) -> list[dict[str, Any]]:
    by_name = sorted(rows, key=lambda row: str(row["directory"]))
    if order == "directory":
        return by_name
    return sorted(by_name, key=lambda row: (row[order] is None, -(row[order] or 0)))


def _cells(row: dict[str, Any]) -> dict[str, Any]:
    """The row of a run, shortened for the table."""
    from datetime import datetime

    names = ("directory", "environment", "model", "planner", "optimism", "seed")
    target = "?" if row["target"] is None else row["target"]
    began = row["began"] and datetime.fromisoformat(row["began"]).astimezone()
    return {name: row[name] for name in names} | {
        "episodes": f"{row['episodes']}/{target}",
        "best J": row["best"],
        "last J": row["last"],
        "state": f"{row['state']}: {row['reason']}" if row["reason"] else row["state"],
        "began": began and f"{began:%Y-%m-%d %H:%M}",
    }
