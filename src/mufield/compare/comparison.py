"""What a comparison is, and what it found. No JAX, so that the command line's help is quick."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..io.atomic import write_bytes
from ..learning.metrics import interval_of
from ..runs.config import ModelName


@dataclass(frozen=True)
class ComparisonConfig:
    """What describes a comparison completely.

    Attributes:
        environment: Name of the environment; `mufield list` shows them.
        contenders: Names in the order of the table; docs/results.md lists them. m3ucrl:ensemble
            names the model, too. A learner of your own goes by its name in the imported file.
            usual stands for m3ucrl, greedy, thompson, random and known, in manhattan for stay,
            demand, m3ucrl, known and fluid; others may stand beside it.
        seeds: Seeds of all that learn.
        episodes: Episodes of those that learn a model; the mean J of the last third of them counts,
            at most of five.
        agents: Agents that those that learn a model track in each episode.
        model: Model of contenders that do not name their own; by default gp, on nodes counts.
        options: Options of the environment, such as horizon=6.
        model_options: Settings of the learned models, such as inducing=128,mu=local; those of
            another family than the one named with --model keep their defaults.
        planner_options: Settings of mirror ascent, the planner of these learners, such as
            sweeps=30; points, the moves on each axis, count for known, too.
        imports: Python file with your own systems and contenders; it is executed.
    """

    environment: str
    contenders: tuple[str, ...] = ("usual",)
    seeds: tuple[int, ...] = tuple(range(10))
    episodes: int = 30
    agents: int = 1
    model: ModelName | None = None
    options: dict[str, Any] = field(default_factory=dict)
    model_options: dict[str, Any] = field(default_factory=dict)
    planner_options: dict[str, Any] = field(default_factory=dict)
    imports: str | None = None

    def __post_init__(self) -> None:
        usual = ["m3ucrl", "greedy", "thompson", "random", "known"]
        if self.environment == "manhattan":
            usual = ["stay", "demand", "m3ucrl", "known", "fluid"]
        named = [
            each for name in self.contenders for each in (usual if name == "usual" else [name])
        ]
        object.__setattr__(self, "contenders", tuple(named))
        _check_list("contender", self.contenders)
        _check_list("seed", self.seeds)
        if min(self.episodes, self.agents) < 1 or min(self.seeds) < 0:
            got = f"{self.episodes}, {self.agents} and {min(self.seeds)}"
            raise UserError(f"expected 1 or more episodes and agents, no negative seed, got {got}")

    def document(self) -> dict[str, Any]:
        """The configuration as JSON."""
        return json.loads(json.dumps(asdict(self), allow_nan=False))


def _check_list(what: str, given: tuple[Any, ...]) -> None:
    if not given:
        raise UserError(f"expected at least one {what}, got none; name one")
    for index, name in enumerate(given):
        if name in given[:index]:
            raise UserError(f"the {what} {name!r} is named twice; name it once")


@dataclass(frozen=True)
class Result:
    """What one contender did.

    Attributes:
        name: Its name on the command line.
        seconds: Time of all seeds together.
        finals: J at the end for each seed; a single one if nothing is random.
        remark: What people should know of it.
        transitions: Moves that a seed had seen at each entry of its curve, those of the entry's
            own episode included; empty if nothing is learned.
        curves: J for each seed and entry.
        episodes: Episodes of each seed.
        counted: Which episodes count for J, in words.
        upper: Certified bound: no policy on the moves of the learners earns more.
        violated: Share of a learner's episodes that violated a constraint by more than a percent of
            its limit; None if the system has no constraints.
    """

    name: str
    seconds: float
    finals: tuple[float, ...]
    remark: str = ""
    transitions: tuple[int, ...] = ()
    curves: tuple[tuple[float, ...], ...] = ()
    episodes: int = 0
    counted: str = ""
    upper: float | None = None
    violated: float | None = None

    def row(self) -> dict[str, Any]:
        """The contender's row of the table; ``low`` to ``high`` is a 95% confidence interval."""
        return {
            "contender": self.name,
            **interval_of(self.finals)._asdict(),
            "seeds": len(self.finals),
            "episodes": self.episodes,
            "transitions": self.transitions[-1] if self.transitions else 0,
            "seconds": self.seconds,
            "violated": self.violated,
            "note": self.remark,
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
        """The table: one row for each contender."""
        rows = [result.row() for result in self.results]
        if all(row["violated"] is None for row in rows):  # most systems have no constraints
            for row in rows:
                del row["violated"]
        return rows

    def tidy(self) -> list[dict[str, Any]]:
        """One row for each contender, seed and entry of its curve, as plotting libraries like."""
        rows: list[dict[str, Any]] = []
        for each in self.results:
            curves = each.curves or tuple((value,) for value in each.finals)
            for seed, curve in zip(self.config.seeds, curves, strict=False):
                about = {"contender": each.name, "seed": seed}
                points = zip(each.transitions or (0,), curve, strict=True)
                rows += [about | {"transitions": seen, "J": value} for seen, value in points]
        return rows

    def write(self, directory: Path) -> None:
        """Writes ``comparison.json``, the table as ``comparison.csv``, curves as ``curves.csv``."""
        from ..io.sealed import write_json

        document = {
            "format": 4,  # of comparison.json
            "config": self.config.document(),
            "table": self.rows(),
            "contenders": {r.name: asdict(r) | {"jobs": self.jobs[r.name]} for r in self.results},
        }
        write_json(directory / "comparison.json", document)
        if self.results:
            write_bytes(directory / "comparison.csv", as_csv(self.rows()).encode())
            write_bytes(directory / "curves.csv", as_csv(self.tidy()).encode())


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as CSV with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
