"""``theory``: the paper's bounds beside what a run realised."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from .output import Answer, Table
from .sources import OfRun, read_run

if TYPE_CHECKING:
    from ..theory.report import TheoryReport


@dataclass(frozen=True, kw_only=True)
class Theory(OfRun):
    """Print the theory's constants and bounds beside the regret and the W1 that a run realised.

    Says which assumptions do not hold and which bounds are vacuous. The models are fitted again,
    so it takes about as long as learning did without planning.
    """

    constants: dict[str, Any] = field(default_factory=dict)
    """Constants that you know, such as L_f=1,L_pi=2,L_r=3,B_f=1; others are bounded or
    estimated."""

    delta: float = 0.1
    """Probability that the theory's band may fail."""

    reference: float | None = None
    """J of the best policy, for the regret; by default that of the run."""

    out: Path | None = None
    """Draw regret, W1 and information beside their bounds into a .png or .pdf file."""

    def __call__(self) -> Answer:
        if self.out is not None and self.out.suffix not in (".png", ".pdf"):
            raise UserError(f"--out: expected a .png or .pdf file, got {self.out}")
        report = self._report()
        shown = _shown(report)
        if self.out is not None:
            from ..viz.curves import save_figure
            from ..viz.theory import theory_figure

            self.out.parent.mkdir(parents=True, exist_ok=True)
            stem = self.out.with_suffix("")
            save_figure(theory_figure(report), stem, [self.out.suffix[1:]])
            shown.append(f"wrote {self.out}")
        return Answer(report.document(), shown)

    def _report(self) -> "TheoryReport":
        store = read_run(self.run)
        from .._progress import progress_bar
        from ..runs.build import build
        from ..theory.report import make_report
        from ..theory.run import RunData

        run = RunData.read(store, build(store.config, self.imports))
        with progress_bar("fitting again", store.episodes, shown=True) as report:
            return make_report(
                run,
                given=self.constants,
                delta=self.delta,
                reference=self.reference,
                progress=report,
            )


def _shown(report: "TheoryReport") -> list[Table | str]:
    """The report as tables and sentences."""
    from ..theory.bounds import SYMBOLS

    found = {name: getattr(report.constants, name) for name in SYMBOLS}
    rows = [
        {"constant": SYMBOLS[name], "value": c.value, "from": c.source, "note": c.note}
        for name, c in found.items()
        if c is not None
    ]
    rows.append(
        {"constant": "L-bar", "value": report.growth, "from": "", "note": "of theorem main"}
    )
    signs = {True: "holds", False: "does not hold", None: "cannot be seen"}
    spare = ("beta", "theory's", "bound gap", "optimism", "one kernel", "bound I")
    return [
        f"{report.run}: {report.environment}, {report.model}, horizon {report.horizon}\n",
        Table(rows, texts=("constant", "from", "note")),
        "",
        Table([_row(each) for each in report.rows], spare=(*spare, "gamma from", "to")),
        "\nbounds are powers of ten where they stand as 10^; information is in nats\n",
        *(f"assumption {a.name}: {signs[a.holds]}: {a.sentence}." for a in report.assumptions),
        "",
        *(verdict.sentence for verdict in report.verdicts),
        *(f"note: {note}" for note in report.notes),
    ]


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
    """A bound as text, from its decimal logarithm."""
    from ..theory.verdicts import power

    return None if log is None else power(log * math.log(10))
