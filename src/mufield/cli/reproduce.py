"""``reproduce``: the paper's figures and numbers."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from ..paper.budget import QUICK, Budget
from ..paper.catalogue import ITEMS, choose
from ..paper.results import Results
from .flags import Jobs, Switch
from .output import Answer, ExitCode, Table, say

if TYPE_CHECKING:
    from ..paper.reproduce import Reproduction


@dataclass(frozen=True, kw_only=True)
class Reproduce(Jobs):
    """Reproduce the paper's figures, films and numbers; without a name, list them.

    Results are kept in the directory, and the same command goes on from there, however it was
    stopped. Everything takes about an hour on two cores; with --quick less than five minutes, to
    see that it runs.
    """

    names: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Names of items, or all."""

    out: Path = Path("results")
    """Directory for figures, films, jobs, table.md, table.json and table.csv; --quick adds -quick
    to its name."""

    quick: Switch = False
    """Compute little: the same figures from few seeds, episodes and steps."""

    def __call__(self) -> Answer:
        out = self.out.with_name(f"{self.out.name}-quick") if self.quick else self.out
        budget = QUICK if self.quick else Budget()
        choose(self.names)  # raises for unknown names, before anything slow is imported
        if not self.names:
            return _list(Results(out, budget))
        from ..paper.reproduce import reproduce
        from ..runs.surroundings import set_precision

        set_precision(budget.precision)
        try:
            outcome = reproduce(self.names, out, budget, pool=self.pool(), say=say)
        except KeyboardInterrupt:
            say(f"stopped; what is done is kept in {out}; go on with: {self._command()}")
            raise
        return self._answer(outcome)

    def _command(self) -> str:
        words = ["mufield", "reproduce", *self.names]
        words += [] if self.out == Path("results") else ["--out", str(self.out)]
        return " ".join([*words, "--quick"] if self.quick else words)

    def _answer(self, outcome: "Reproduction") -> Answer:
        for problem in outcome.problems:
            say(f"error: {problem}")
        if outcome.problems:
            say(f"what is done is kept; try the rest again with: {self._command()}")
        document = {
            "files": [str(path) for path in outcome.files],
            "table": [str(path) for path in outcome.table],
            "problems": list(outcome.problems),
            "computed": outcome.computed,
        }
        paths = [str(path) for path in (*outcome.files, *outcome.table)]
        return Answer(document, paths, ExitCode.FAULT if outcome.problems else 0)


def _list(results: Results) -> Answer:
    rows: list[dict[str, Any]] = [
        {"name": item.name, "paper": item.paper, "state": results.item_state(item)}
        for item in ITEMS
    ]
    columns = {"name": "name", "state": "state", "what of the paper": "paper"}
    table = Table(rows, columns, texts=tuple(columns))
    return Answer(rows, [table, f"states are those in {results.out}"])
