"""The directory of results: jobs, and what was drawn from them.

```
runs/       the jobs, one directory each
figures/    figures, as PNG and PDF
films/      films
made/       for each item: which jobs and files it was made of, and its numbers
table.md, table.json, table.csv
```
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError
from .budget import Budget
from .catalogue import Item
from .jobs import Job, JobStore, State

FORMAT = 2
"""Of drawings. Raise it when the same results are drawn otherwise."""


@dataclass(frozen=True)
class Drawn:
    """What was made for an item.

    Attributes:
        files: Figures and films.
        numbers: What the table says of them.
    """

    files: tuple[Path, ...] = ()
    numbers: dict[str, Any] = field(default_factory=dict)


class Results:
    """A directory of results for one budget.

    Attributes:
        out: The directory.
        budget: How much is computed.
        jobs: The jobs' directories.
    """

    def __init__(self, out: Path, budget: Budget):
        """Looks at a directory, which may not exist yet."""
        if out.exists() and not out.is_dir():
            raise UserError(f"{out} is no directory; name another with --out")
        self.out, self.budget = out, budget
        self.jobs = JobStore(out)

    def figures_of(self, job: Job) -> dict[str, Any]:
        """The figures of a job that is done."""
        figures: dict[str, Any] = self.jobs.result(job)["figures"]
        return figures

    def missing(self, item: Item) -> list[Job]:
        """The jobs that an item still needs."""
        return [job for job in item.jobs(self.budget) if self.jobs.state(job) != "done"]

    def state(self, item: Item) -> State:
        """Whether an item is done, begun or missing."""
        record = self._record(item)
        if record is not None and record == self._expected(item, record) and self._whole(record):
            return "done"
        begun = any(self.jobs.state(job) != "missing" for job in item.jobs(self.budget))
        return "partly" if begun or record is not None else "missing"

    def numbers(self, item_name: str) -> dict[str, Any]:
        """The numbers that were found when an item was drawn; none if it was not."""
        record = _read(self.out / "made" / f"{item_name}.json")
        return {} if record is None else dict(record["numbers"])

    def draw(self, item: Item) -> Drawn:
        """Draws an item whose jobs are done, and keeps a record of it."""
        from .._files import write_json

        for name in ("figures", "films", "made"):
            (self.out / name).mkdir(parents=True, exist_ok=True)
        drawn = item.draw(self)
        files = [path.relative_to(self.out).as_posix() for path in drawn.files]
        record = self._expected(item, {"files": files, "numbers": drawn.numbers})
        write_json(self.out / "made" / f"{item.name}.json", record)
        return drawn

    def files(self, item: Item) -> tuple[Path, ...]:
        """The files of an item that is done."""
        record = self._record(item)
        return () if record is None else tuple(self.out / name for name in record["files"])

    def heading(self, text: str) -> str:
        """A title that says if not everything was computed."""
        return text if self.budget.name == "full" else f"{text} ({self.budget.name})"

    def save(self, figure: Any, name: str) -> tuple[Path, ...]:
        """Writes a figure of matplotlib as PNG and PDF."""
        from ..viz import save_figure

        return save_figure(figure, self.out / "figures" / name)

    @property
    def quick(self) -> bool:
        """Whether less than the paper's budget was computed."""
        return self.budget.name != "full"

    def _expected(self, item: Item, record: dict[str, Any]) -> dict[str, Any]:
        """The record of an item with what it should be made of."""
        made_of = {
            "format": FORMAT,
            "budget": self.budget.name,
            "jobs": [job.folder for job in item.jobs(self.budget)],
        }
        return record | made_of

    def _record(self, item: Item) -> dict[str, Any] | None:
        return _read(self.out / "made" / f"{item.name}.json")

    def _whole(self, record: dict[str, Any]) -> bool:
        return all((self.out / name).exists() for name in record["files"])


def _read(path: Path) -> dict[str, Any] | None:
    """A record; none if there is none, or if it is damaged."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return record if isinstance(record, dict) and {"files", "numbers"} <= record.keys() else None
