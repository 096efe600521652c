"""``reproduce``: the paper's figures and numbers."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from ..experiments.budget import FULL, QUICK
from ..experiments.catalogue import ITEMS, choose
from ..experiments.results import Results

if TYPE_CHECKING:
    from ..experiments.reproduce import Outcome

FAILED = 1


@dataclass(frozen=True, kw_only=True)
class Reproduce:
    """Reproduce the paper's figures, films and numbers; without a name, list them.

    All that is computed is kept in the directory, and the same command goes on from there,
    however it was stopped. All of it takes about an hour on two cores; with --quick less than five
    minutes, to see that it runs.
    """

    names: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Names of items, or all."""

    out: Path = Path("results")
    """Directory for figures, films, runs, table.md, table.json and table.csv; with --quick, its
    name with -quick behind it."""

    quick: bool = False
    """Compute little: the same figures from few seeds, episodes and steps."""

    workers: int = 2
    """Jobs that are computed at a time."""

    json: bool = False
    """Print JSON."""

    def __call__(self) -> int:
        """List the items, or compute and draw them."""
        out = self.out.with_name(f"{self.out.name}-quick") if self.quick else self.out
        budget = QUICK if self.quick else FULL
        choose(self.names)  # raises, before anything is imported that takes long
        if not self.names:
            return _list(Results(out, budget), as_json=self.json)
        from ..experiments.reproduce import reproduce
        from ..runs.precision import set_precision

        set_precision(budget.precision)
        try:
            outcome = reproduce(self.names, out, budget, workers=self.workers, say=_say)
        except KeyboardInterrupt:
            _say(f"stopped; what is done is kept in {out}; go on with: {self._command()}")
            raise
        return self._print(outcome)

    def _command(self) -> str:
        words = ["mufield", "reproduce", *self.names]
        words += [] if self.out == Path("results") else ["--out", str(self.out)]
        return " ".join([*words, "--quick"] if self.quick else words)

    def _print(self, outcome: "Outcome") -> int:
        if self.json:
            answer = {
                "files": [str(path) for path in outcome.files],
                "table": [str(path) for path in outcome.table],
                "problems": list(outcome.problems),
                "computed": outcome.computed,
            }
            print(json.dumps(answer, indent=2, ensure_ascii=False))
        else:
            for path in (*outcome.files, *outcome.table):
                print(path)
        for problem in outcome.problems:
            _say(f"error: {problem}")
        if outcome.problems:
            _say(f"what is done is kept; try the rest again with: {self._command()}")
        return FAILED if outcome.problems else 0


def _say(line: str) -> None:
    """Not on standard output, which is for the result."""
    print(line, file=sys.stderr, flush=True)


def _list(results: Results, *, as_json: bool) -> int:
    rows: list[dict[str, Any]] = [
        {"name": item.name, "paper": item.paper, "state": results.state(item)} for item in ITEMS
    ]
    if as_json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return 0
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "state", "what of the paper", box=None, pad_edge=False)
    for row in rows:
        table.add_row(row["name"], row["state"], row["paper"])
    console = Console()
    console.print(table)
    console.print(f"states are those in {results.out}", highlight=False, soft_wrap=True)
    return 0
