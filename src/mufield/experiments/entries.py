"""What the table compares: one entry for each number of the paper."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .jobs import Job
from .results import Results

NOT_COMPUTED = "not computed"
Number = float | int | str


@dataclass(frozen=True)
class Entry:
    """One number, not looked up yet.

    Attributes:
        quantity: What it is.
        item: The item that it belongs to.
        jobs: The jobs that it comes from.
        paper: What the paper says; text if that is no number.
        ours: Looks our number up; called only once jobs and item are done.
        why: Why ours may differ.
        digits: Digits behind the point.
        drawn: Whether the number is found only when the item is drawn.
        relative: Whether a deviation in percent means anything.
    """

    quantity: str
    item: str
    jobs: tuple[Job, ...]
    paper: Number
    ours: Callable[[], Number]
    why: str
    digits: int = 2
    drawn: bool = False
    relative: bool = True

    def row(self, results: Results) -> dict[str, Any]:
        """The entry's row of the table."""
        found = [results.jobs.find(job) for job in self.jobs]
        done = all(one is not None for one in found)
        if self.drawn:
            done = done and bool(results.numbers(self.item))
        ours = self.ours() if done else None
        known = [one for one in found if one is not None]
        flag = " --quick" if results.quick else ""
        return {
            "quantity": self.quantity,
            "paper": self._text(self.paper),
            "ours": NOT_COMPUTED if ours is None else self._text(ours),
            "deviation": "" if ours is None else self._deviation(ours),
            "command": f"mufield reproduce {self.item}{flag}",
            "seeds": _seeds(self.jobs),
            "seconds": round(sum(one["seconds"] for one in known), 1),
            "versions": _versions(known),
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
    """Seeds of the runs; plans have only their planner's own, and brackets none."""
    seeds = sorted({job.settings["seed"] for job in jobs if "seed" in job.settings})
    if not seeds:
        return "0" if any(job.kind == "plan" for job in jobs) else "none"
    return f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"{seeds[0]}"


def _versions(results: list[dict[str, Any]]) -> str:
    """What computed the jobs; several if they were computed with different versions."""
    names = ("mufield", "jax", "numpy", "python")
    texts = {", ".join(f"{name} {one['versions'][name]}" for name in names) for one in results}
    return "; ".join(sorted(texts))


Section = Callable[[Results], Iterator[Entry]]
"""The entries of one part of the paper."""
