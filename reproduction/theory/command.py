"""Print the paper's bounds beside what a run realised, and which assumptions it keeps.

Says which bounds are vacuous. The models are fitted again, so it takes about as long as learning
did without planning.
"""

import argparse
import math
import sys
from pathlib import Path
from typing import Any

from mufield._progress import progress_bar
from mufield.cli.flags import read_pairs
from mufield.cli.output import Answer, Table
from mufield.cli.sources import read_run
from mufield.errors import UserError
from mufield.runs.build import build

from .bounds import SYMBOLS, Constants, power
from .report import TheoryReport, make_report
from .run import RunData, episodes_of


def main(arguments: list[str]) -> int:
    """Returns 0, or 2 for a mistake of the user."""
    parser = argparse.ArgumentParser("python -m reproduction theory", description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="directory of the run")
    parser.add_argument(
        "--constants",
        type=read_pairs,
        default={},
        metavar="NAME=VALUE,...",
        help="constants that you know, such as L_f=1,L_sigma=0.1,L_pi=2,L_r=3; bounds that need "
        "one that is not given are infinite",
    )
    parser.add_argument(
        "--reference",
        type=float,
        help="J of the best policy, for the regret; by default that of the run",
    )
    parser.add_argument(
        "--import", dest="imports", metavar="FILE", help="your own Python file, as for other runs"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    given = parser.parse_args(arguments)
    try:
        report = report_on(given.run, given.constants, given.reference, given.imports)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    _answer(report).show(as_json=given.json)
    return 0


def report_on(
    directory: Path, constants: dict[str, Any], reference: float | None, imports: str | None
) -> TheoryReport:
    """Fits the models of a run again, and computes the report."""
    Constants.given(constants, 1.0)  # raises for mistakes, before anything is computed
    store = read_run(directory)
    run, evidence = RunData.read(store, build(store.config, imports)), []
    with progress_bar("fitting again", store.episodes, shown=True) as advance:
        for each in episodes_of(run):
            evidence.append(each)
            advance(len(evidence))
    return make_report(run, evidence, given=constants, reference=reference)


def _answer(report: TheoryReport) -> Answer:
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
