"""What contenders did, as curves and as a table."""

import csv
import io
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .config import ComparisonConfig


@dataclass(frozen=True)
class Result:
    """What one contender did; the first four fields are those of `Contender`.

    Attributes:
        seconds: Time of all seeds together.
        finals: J at the end for each seed; a single one if nothing is random.
        transitions: Moves that a seed had seen at each entry of its curve, those of the entry's
            own episode included; empty if nothing is learned.
        curves: J for each seed and entry.
        episodes: Episodes of each seed.
        last: Number of last entries of a curve whose mean is the seed's J at the end.
        upper: Certified bound: no policy on the moves of the learners earns more.
        violated: Share of a learner's episodes that violated a constraint by more than a percent of
            its limit; None if the system has no constraints.
    """

    name: str
    plays: str
    comparable: bool
    remark: str
    seconds: float
    finals: tuple[float, ...]
    transitions: tuple[int, ...] = ()
    curves: tuple[tuple[float, ...], ...] = ()
    episodes: int = 0
    last: int = 1
    upper: float | None = None
    violated: float | None = None

    @property
    def label(self) -> str:
        """The name, with a star if it played another game."""
        return self.name if self.comparable else f"{self.name}*"

    @property
    def note(self) -> str:
        """What people should know of it; first of all whether it played another game."""
        return self.remark if self.comparable else f"not comparable: {self.remark}"

    def row(self) -> dict[str, Any]:
        """The contender's row of the table."""
        return {
            "contender": self.name,
            "mean": statistics.fmean(self.finals),
            "min": min(self.finals),
            "max": max(self.finals),
            "episodes": self.episodes,
            "transitions": self.transitions[-1] if self.transitions else 0,
            "seconds": self.seconds,
            "violated": self.violated,
            "note": self.note,
        }


@dataclass(frozen=True)
class Comparison:
    """What a comparison found.

    Attributes:
        results: One for each contender that finished, in the order of the configuration.
        jobs: The jobs of each contender by its name: their settings and versions.
        problems: One line for each job that failed.
    """

    config: ComparisonConfig
    results: tuple[Result, ...]
    jobs: dict[str, list[dict[str, Any]]]
    problems: tuple[str, ...] = ()

    def rows(self) -> list[dict[str, Any]]:
        """The table."""
        rows = [result.row() for result in self.results]
        if all(row["violated"] is None for row in rows):  # most systems have no constraints
            for row in rows:
                del row["violated"]
        return rows

    def document(self) -> dict[str, Any]:
        """Everything as JSON."""
        return {
            "format": 2,  # of comparison.json
            "config": self.config.document(),
            "table": self.rows(),
            "contenders": {
                result.name: {**asdict(result), "jobs": self.jobs[result.name]}
                for result in self.results
            },
        }

    def write(self, directory: Path) -> None:
        """Writes all curves to ``comparison.json`` and the table to ``comparison.csv``."""
        from ..io.atomic import write_bytes
        from ..io.sealed import write_json

        write_json(directory / "comparison.json", self.document())
        if self.results:
            write_bytes(directory / "comparison.csv", as_csv(self.rows()).encode())


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as CSV with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
