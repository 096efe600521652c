"""The directory of a reproduction: jobs, and what was drawn from them.

```
jobs/       the jobs, one directory each
figures/    figures, as PNG and PDF
films/      films
made/       for each item that was drawn: its jobs, files and numbers
table.md, table.json
```
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from mufield.errors import UserError
from mufield.io.sealed import read_sealed, write_sealed
from mufield.jobs.job import Job, JobStore
from mufield.viz import save_figure

from .paper import Budget


@dataclass(frozen=True)
class Drawn:
    """The figures and films of an item, and numbers that were found on the way for the table."""

    files: tuple[Path, ...] = ()
    numbers: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Item:
    """One figure, film or group of numbers.

    Attributes:
        name: Its name on the command line.
        paper: What it shows, with the paper's LaTeX label.
        jobs: From a budget to the jobs that it needs.
        draw: Draws it from the results of its jobs; None for numbers that only the table shows.
    """

    name: str
    paper: str
    jobs: Callable[[Budget], tuple[Job, ...]]
    draw: "Callable[[Results], Drawn] | None" = None


class Results(JobStore):
    """The directory of a reproduction with one budget.

    Attributes:
        kind: What records of drawings are called in their files.
        drawings: Version of the drawings; raise it when the same results are drawn differently.
    """

    parts: ClassVar[tuple[str, ...]] = (*JobStore.parts, "figures", "films", "made")
    kind: ClassVar[str] = "record of a drawing"
    drawings: ClassVar[int] = 3

    def __init__(self, out: Path, budget: Budget):
        """Takes the directory, which may not exist yet."""
        super().__init__(out)
        self.budget = budget

    def missing(self, item: Item) -> list[Job]:
        """The jobs of an item that have no result yet."""
        return [job for job in item.jobs(self.budget) if self.find(job) is None]

    def item_state(self, item: Item) -> Literal["done", "partly", "missing"]:
        """Whether an item is drawn from the results of its present jobs, begun or missing."""
        record, jobs = self._record(item.name), item.jobs(self.budget)
        current = record.get("made_of") == self._made_of(item)
        if current and all(path.exists() for path in self.files(item)):
            return "done"
        begun = record or any(self.path(job).exists() for job in jobs)
        return "partly" if begun else "missing"

    def draw(self, item: Item) -> Drawn:
        """Draws an item whose jobs are done, and keeps a record of it."""
        for name in self.parts:
            (self.out / name).mkdir(parents=True, exist_ok=True)
        drawn = Drawn() if item.draw is None else item.draw(self)
        record = {
            "made_of": self._made_of(item),
            "files": [path.relative_to(self.out).as_posix() for path in drawn.files],
            "numbers": drawn.numbers,
        }
        write_sealed(self._made(item.name), record, {}, kind=self.kind)
        return drawn

    def files(self, item: Item) -> tuple[Path, ...]:
        """The files that were drawn for an item."""
        return tuple(self.out / name for name in self._record(item.name).get("files", ()))

    def numbers(self, item_name: str) -> dict[str, Any]:
        """The numbers that were found when an item was drawn; empty if it was not."""
        return dict(self._record(item_name).get("numbers", {}))

    def heading(self, text: str) -> str:
        """A title that says so if less than the paper's budget was computed."""
        return f"{text} ({self.budget.name})" if self.quick else text

    def save(self, figure: Any, name: str) -> tuple[Path, ...]:
        """Writes a matplotlib figure as PNG and PDF."""
        return save_figure(figure, self.out / "figures" / name)

    @property
    def quick(self) -> bool:
        """Whether less than the paper's budget was computed."""
        return self.budget.name != "full"

    def _made_of(self, item: Item) -> dict[str, Any]:
        return {"format": self.drawings, "jobs": [job.folder for job in item.jobs(self.budget)]}

    def _record(self, name: str) -> dict[str, Any]:
        """What `draw` wrote about an item; empty if there is nothing, or if it is damaged."""
        try:
            return read_sealed(self._made(name), self.kind).document
        except UserError:
            return {}

    def _made(self, name: str) -> Path:
        return self.out / "made" / f"{name}.safetensors"
