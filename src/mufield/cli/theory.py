"""``theory``: the paper's bounds beside what a run realised."""

import math
from dataclasses import dataclass, field
from typing import Any

from .output import Answer, Table
from .sources import OfRun, read_run


@dataclass(frozen=True, kw_only=True)
class Theory(OfRun):
    """Print the theory's bounds beside what a run realised, and which assumptions it keeps.

    Says which bounds are vacuous. The models are fitted again, so it takes about as long as
    learning did without planning.
    """

    constants: dict[str, Any] = field(default_factory=dict)
    """Constants that you know, such as L_f=1,L_sigma=0.1,L_pi=2,L_r=3; bounds that need one that is
    not given are infinite."""

    reference: float | None = None
    """J of the best policy, for the regret; by default that of the run."""

    def __call__(self) -> Answer:
        store = read_run(self.run)
        from .._progress import progress_bar
        from ..runs.build import build
        from ..theory.bounds import SYMBOLS, Constants, power
        from ..theory.report import make_report
        from ..theory.run import RunData, episodes_of

        Constants.given(self.constants, 1.0)  # raises for mistakes, before anything is computed
        run, evidence = RunData.read(store, build(store.config, self.imports)), []
        with progress_bar("fitting again", store.episodes, shown=True) as advance:
            for each in episodes_of(run):
                evidence.append(each)
                advance(len(evidence))
        report = make_report(run, evidence, given=self.constants, reference=self.reference)
        constants = {symbol: getattr(report.constants, name) for symbol, name in SYMBOLS.items()}
        known = ", ".join(f"{symbol} = {value:.4g}" for symbol, value in constants.items())
        bounds = [
            {
                "bound": each.name,
                "of": each.quantity,
                "realised": None if math.isnan(each.realised) else each.realised,
                "at most": power(each.bound),
                "at most anyway": None if math.isinf(each.trivial) else each.trivial,
                "verdict": each.verdict,
            }
            for each in report.verdicts
        ]
        signs = {True: "yes", False: "no", None: "not known"}
        kept = [
            {"assumption": each.name, "holds": signs[each.holds], "why": each.why}
            for each in report.assumptions
        ]
        return Answer(
            report.document(),
            [
                f"{report.run}; {known}; L-bar = {report.growth:.4g}\n",
                Table(bounds, texts=("bound", "of", "at most", "verdict")),
                "",
                Table(kept, texts=("assumption", "holds", "why")),
            ],
        )
