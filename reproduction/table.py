"""The table of every number of the paper, ours, and why they differ."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mufield.io.atomic import write_bytes
from mufield.io.sealed import write_json
from mufield.jobs.job import Job, JobResult

from .results import Results

Number = float | int | str
Figures = dict[str, Any]


def value_of(figures: Figures) -> float:
    """J of a plan."""
    return float(figures["value"])


DEPARTURES = (
    "Action box of the four rooms: [-1, 1]^2; printed is [0, 1]^2, with which the paper's own plan "
    "could not reach the greatest entropy.",
    "Noise of the four rooms: 0.25; the paper prints none. Only percentages of the plan with known "
    "motion in the same class can be compared, not J.",
    "Doors of the four rooms: cells (5,2), (5,8), (2,5), (8,5), as in OpenSpiel's game of the same "
    "size; the paper shows them only in a figure.",
    "Walls: an agent slides along them; the paper says that mass is redistributed.",
    "Horizon of the four rooms: 20 moves, 21 paid distributions h = 0, ..., 20.",
    "M3-UCRL by default plans randomised policies by mirror ascent; the paper's class, one network "
    "for each step, stands beside it. The model is the default Gaussian process, the paper's an "
    "ensemble. The paper prints no beta: ours is 4, of which plans use in each place the share of "
    "the doubt that one move there would take away.",
    "Swarm: effort a^2 / 2, printed |a| / 2; noise of the variance of a step; mu(s) in the "
    "congested motion is the mass of the cell; the reward's -ln mu takes the density.",
    "Extended Q-learning: nine options; the footnote lists ten, the table's size says nine.",
)


@dataclass(frozen=True)
class Entry:
    """A row of the table, before our number is looked up.

    Attributes:
        item: Name of the item that it belongs to.
        jobs: The jobs that our number comes from.
        paper: What the paper says; a text if that is no number.
        ours: Finds our number in the figures of the jobs, one argument for each job; if
            ``drawn``, in the numbers that were found when the item was drawn, one argument.
        why: Why ours may differ.
        digits: Digits after the decimal point.
        drawn: Whether the number is found only when the item is drawn.
        relative: Whether a deviation in percent makes sense.
    """

    quantity: str
    item: str
    jobs: tuple[Job, ...]
    paper: Number
    ours: Callable[..., Number]
    why: str
    digits: int = 2
    drawn: bool = False
    relative: bool = True

    def row(self, results: Results) -> dict[str, Any]:
        """The entry's row of the table."""
        found = [one for job in self.jobs if (one := results.find(job))]
        sources = [one.figures for one in found]
        complete = len(found) == len(self.jobs)
        if self.drawn:
            sources = [results.numbers(self.item)]
            complete = complete and bool(sources[0])
        ours = self.ours(*sources) if complete else None
        return {
            "quantity": self.quantity,
            "paper": self._text(self.paper),
            "ours": "not computed" if ours is None else self._text(ours),
            "deviation": "" if ours is None else self._deviation(ours),
            "command": f"python -m reproduction {self.item}"
            + (" --quick" if results.quick else ""),
            "seeds": _seeds(self.jobs),
            "seconds": round(sum(one.seconds for one in found), 1),
            "versions": _versions(found),
            "budget": results.budget.name,
        }

    def _text(self, value: Number) -> str:
        return f"{value:,.{self.digits}f}" if isinstance(value, float) else f"{value}"

    def _deviation(self, ours: Number) -> str:
        if isinstance(ours, str) or isinstance(self.paper, str):
            return self.why
        apart = ours - self.paper
        if round(apart, self.digits) == 0:
            return "none"
        if isinstance(apart, int):
            return f"{apart:+d}: {self.why}"
        share = f" ({apart / self.paper:+.1%})" if self.relative else ""
        return f"{apart:+,.{self.digits}f}{share}: {self.why}"


def _seeds(jobs: tuple[Job, ...]) -> str:
    """Seeds of the jobs; plans have only their planner's own, 0, and brackets have none."""
    seeds = sorted({job.settings["seed"] for job in jobs if "seed" in job.settings})
    if not seeds:
        return "0" if any(job.kind == "plan" for job in jobs) else "none"
    return f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"{seeds[0]}"


def _versions(results: list[JobResult]) -> str:
    """The versions that the jobs were computed with; several if they differ."""
    names = ("mufield", "jax", "numpy", "python")
    texts = {", ".join(f"{name} {one.versions[name]}" for name in names) for one in results}
    return "; ".join(sorted(texts))


def table_rows(results: Results) -> list[dict[str, Any]]:
    """All rows; numbers that are not computed yet say so."""
    from .numbers import entries

    return [entry.row(results) for entry in entries(results.budget)]


def write_table(results: Results) -> tuple[Path, ...]:
    """Writes the table as Markdown and JSON; returns the files."""
    rows = table_rows(results)
    markdown, document = (results.out / f"table.{kind}" for kind in ("md", "json"))
    write_bytes(markdown, as_markdown(rows, results.heading("The paper and our results")).encode())
    write_json(
        document, {"budget": results.budget.name, "rows": rows, "departures": list(DEPARTURES)}
    )
    return markdown, document


def as_markdown(rows: list[dict[str, Any]], title: str) -> str:
    """The table as a page for people."""
    budget = rows[0]["budget"]
    little = "" if budget == "full" else " Small budgets show that everything runs, and no more."
    names = [name for name in rows[0] if name != "budget"]
    versions = {row["versions"] for row in rows} - {""}
    if len(versions) == 1:  # said once, for all rows
        names.remove("versions")
        little += f" Computed with {versions.pop()}; later versions may give other numbers."
    lines = [
        f"# {title}",
        "",
        f"Budget: {budget}.{little}",
        "",
        _line(names),
        _line(["---"] * len(names)),
        *(_line([str(row[name]) for name in names]) for row in rows),
        "",
        "## What the paper leaves open or misprints, and what we do",
        "",
        *(f"- {departure}" for departure in DEPARTURES),
        "",
    ]
    return "\n".join(lines)


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
