"""What contenders did, as curves and as a table."""

import csv
import io
import statistics
from dataclasses import asdict, dataclass
from typing import Any

from .config import ComparisonConfig

FORMAT = 1
"""Of the files of a comparison."""


@dataclass(frozen=True)
class Result:
    """What one contender did.

    Attributes:
        name: The contender.
        plays: The system that it played in.
        comparable: Whether that is the system of all others.
        remark: What people should know of it.
        transitions: Moves that a seed had seen at each entry of its curve, those of the entry's
            own episode included; none if nothing is learned.
        curves: J for each seed and entry.
        finals: J at the end for each seed; one for all if there is no randomness.
        episodes: Episodes of each seed.
        seconds: Time of all seeds together, compilation included.
        upper: Certified: no policy on the moves of the learners earns more.
    """

    name: str
    plays: str
    comparable: bool
    remark: str
    transitions: tuple[int, ...]
    curves: tuple[tuple[float, ...], ...]
    finals: tuple[float, ...]
    episodes: int
    seconds: float
    upper: float | None = None

    @property
    def label(self) -> str:
        """The name, with a star if it played another game."""
        return self.name if self.comparable else f"{self.name}*"

    @property
    def note(self) -> str:
        """Whether it can be compared with the others, and the remark."""
        verdict = "comparable" if self.comparable else "not comparable"
        return f"{verdict}: {self.remark}" if self.remark else verdict

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
            "note": self.note,
        }

    def document(self) -> dict[str, Any]:
        """The result as JSON has it."""
        return asdict(self)


@dataclass(frozen=True)
class Comparison:
    """What a comparison found.

    Attributes:
        config: What was compared.
        results: One for each contender, in the order of the configuration.
        settings: All that each result depends on, by the contender's name.
        versions: Of all that computes.
    """

    config: ComparisonConfig
    results: tuple[Result, ...]
    settings: dict[str, dict[str, Any]]
    versions: dict[str, Any]

    def rows(self) -> list[dict[str, Any]]:
        """The table."""
        return [result.row() for result in self.results]

    def document(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        return {
            "format": FORMAT,
            "config": self.config.document(),
            "versions": self.versions,
            "table": self.rows(),
            "contenders": {
                result.name: {**result.document(), "settings": self.settings[result.name]}
                for result in self.results
            },
        }

    def csv(self) -> str:
        """The table as comma-separated values."""
        text = io.StringIO()
        rows = self.rows()
        writer = csv.DictWriter(text, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()
