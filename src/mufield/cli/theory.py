"""``theory``: the paper's bounds beside what a run realised."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from ..errors import UserError
from .flags import ImportFlag, flag
from .printing import prepare, print_table
from .settings import read_pairs

if TYPE_CHECKING:
    from ..theory.report import TheoryReport

SPARE = ("beta", "theory's", "bound gap", "optimism", "one kernel", "bound I", "gamma from", "to")
"""Columns that a narrow terminal does without."""


@dataclass(frozen=True, kw_only=True)
class Theory:
    """Print the theory's constants and bounds beside the regret and the W1 that a run realised.

    Says plainly which assumptions do not hold and which bounds are vacuous. The models are fitted
    again, so that it takes about as long as learning did without planning.
    """

    run: Annotated[Path, tyro.conf.Positional]
    """Directory of the run."""

    constants: Annotated[tuple[str, ...], flag("NAME=VALUE ...")] = ()
    """Constants that you know, such as L_f=1 L_pi=2 L_r=3 B_f=1; others are bounded or
    estimated."""

    delta: float = 0.1
    """Probability that the theory's band may fail."""

    reference: Annotated[float | None, flag("FLOAT", "that of the run")] = None
    """J of the best policy, for the regret."""

    out: Annotated[Path | None, flag("FILE")] = None
    """Draw regret, W1 and information beside their bounds into a .png or .pdf file."""

    imports: ImportFlag = None
    """Where your own Python file is now, if it is not where it was when the run began."""

    json: bool = False
    """Print JSON instead of tables; bounds are logarithms to the base of ten."""

    def __call__(self) -> int:
        """Read the run, compute and print."""
        given = read_pairs(self.constants, "constants")
        if self.out is not None and self.out.suffix not in (".png", ".pdf"):
            raise UserError(f"--out: expected a .png or .pdf file, got {self.out}")
        report = self._report(given)
        if self.out is not None:
            from ..viz.run_pictures import save_figures
            from ..viz.theory import theory_figure

            self.out.parent.mkdir(parents=True, exist_ok=True)
            stem = self.out.with_suffix("")
            save_figures(theory_figure(report), stem, [self.out.suffix[1:]])
        if self.json:
            print(json.dumps(report.document(), indent=2))
        else:
            print_report(report)
            if self.out is not None:
                print(f"wrote {self.out}")
        return 0

    def _report(self, given: dict[str, Any]) -> "TheoryReport":
        prepare(self.run)
        from .._progress import progress_bar
        from ..runs.build import build
        from ..runs.store import RunStore
        from ..theory.report import make_report
        from ..theory.run import RunData

        store = RunStore(self.run)
        run = RunData.read(store, build(store.config, self.imports))
        with progress_bar("fitting again", store.episodes, shown=True) as report:
            return make_report(
                run,
                given=given,
                delta=self.delta,
                reference=self.reference,
                progress=report,
            )


def print_report(report: "TheoryReport") -> None:
    """Prints tables and sentences."""
    from ..theory.bounds import SYMBOLS

    print(f"{report.run}: {report.environment}, {report.model}, horizon {report.horizon}\n")
    found = {name: getattr(report.constants, name) for name in SYMBOLS}
    rows = [
        {"constant": SYMBOLS[name], "value": c.value, "from": c.source, "note": c.note}
        for name, c in found.items()
        if c is not None
    ]
    rows.append(
        {"constant": "L-bar", "value": report.growth, "from": "", "note": "of theorem main"}
    )
    print_table(rows, texts=("constant", "from", "note"))
    print()
    print_table([_row(each) for each in report.rows], texts=(), spare=SPARE)
    print("\nbounds are powers of ten where they stand as 10^; information is in nats\n")
    signs = {True: "holds", False: "does not hold", None: "cannot be seen"}
    for each in report.assumptions:
        print(f"assumption {each.name}: {signs[each.holds]}: {each.sentence}.")
    print()
    for verdict in report.verdicts:
        print(verdict.sentence)
    for note in report.notes:
        print(f"note: {note}")


def _row(row: Any) -> dict[str, Any]:
    return {
        "episode": row.episode,
        "J": row.value,
        "regret": row.regret,
        "bound r": _ten(row.regret_bound),
        "total": row.total_regret,
        "bound R": _ten(row.total_bound),
        "optimism": row.optimism,
        "bound gap": _ten(row.gap_bound),
        "W1 end": row.w1_end,
        "bound W1": _ten(row.w1_bound),
        "I": row.complexity,
        "one kernel": row.stale_complexity,
        "bound I": row.complexity_bound,
        "information": row.information,
        "gamma from": row.least_capacity,
        "to": row.capacity,
        "beta": row.beta,
        "theory's": row.theory_beta,
    }


def _ten(log: float | None) -> str | None:
    """A bound by its logarithm to the base of ten."""
    import math

    from ..theory.verdicts import power

    return None if log is None else power(log * math.log(10))
