"""The theory's bounds beside what a run realised, episode by episode."""

import math
from collections.abc import Iterable

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from ..theory.report import TheoryReport
from .curves import Curve, Panel, panel_figure

Line = Float[np.ndarray, "_"]
Looks = dict[str, tuple[Iterable[float | None], int, str]]
"""Curves by their names: values, index of the colour, line style."""


def theory_figure(report: TheoryReport) -> Figure:
    """Draws regret, W1, complexity and information beside their bounds.

    Bounds may exceed all floating-point numbers, so axes count powers of ten.
    """
    powers = [_regret(report), _ends(report), _along(report)]
    numbers = [_complexity(report), _information(report), _betas(report)]
    vacuous = sum(verdict.vacuous for verdict in report.verdicts)
    figure = panel_figure(
        [powers, numbers],
        title=f"{report.environment}, {report.model}: {vacuous} of {len(report.verdicts)} bounds "
        "are vacuous",
        note=_note(report),
        width=4.6,
        height=3.4,
    )
    for axes in figure.axes:
        axes.title.set_fontsize("medium")
    for axes in figure.axes[: len(powers)]:
        axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.yaxis.set_major_formatter(FuncFormatter(_power))
    return figure


def _regret(report: TheoryReport) -> Panel:
    rows = report.rows
    if rows[0].total_regret is None:
        # Without a reference the optimism stands for the regret, which it bounds if all goes well.
        title, trivial = "optimism, as no reference is known", [report.value_range for _ in rows]
        realised, bound = [r.optimism for r in rows], [r.regret_bound for r in rows]
    else:
        title, trivial = "total regret R", [report.value_range * r.episode for r in rows]
        realised, bound = [r.total_regret for r in rows], [r.total_bound for r in rows]
    curves: Looks = {
        "realised": (_logs(realised), 0, "-"),
        "bound of the paper": (bound, 1, "-"),
        "cannot be exceeded anyway": (_logs(trivial), 2, "--"),
    }
    return _panel(title, "difference in J", curves)


def _ends(report: TheoryReport) -> Panel:
    bounds, farthest = report.distance_bounds, _logs([report.diameter])[0]
    highest = float(bounds[:, -1].max())
    curves: Looks = {
        "realised": (_logs(report.distances[:, -1]), 0, "-"),
        "realised, after one step": (_logs(report.distances[:, 1]), 4, "-"),
        "bound of the paper, after one step": (bounds[:, 1], 5, "-"),
        "cannot be exceeded anyway": (np.full(len(bounds), farthest), 2, "--"),
    }
    title = "W1 of imagined and realised flow, at the end"
    # A bound of W1 is drawn beside other curves up to so many powers of ten beyond the
    # diameter.
    most_beyond = 3.0
    if highest > farthest + most_beyond:
        # It would flatten all other curves; the next panel shows it.
        title += f"\n(there the bound is up to {_power(round(highest, 1))})"
    else:
        curves["bound of the paper"] = (bounds[:, -1], 1, "-")
    return _panel(title, "units of the space", curves)


def _along(report: TheoryReport) -> Panel:
    planned = np.flatnonzero(np.isfinite(report.distances).all(axis=1))
    last = int(planned[-1]) if len(planned) else len(report.rows) - 1
    curves: Looks = {
        "realised": (_logs(report.distances[last, 1:]), 0, "-"),
        "bound of the paper": (report.distance_bounds[last, 1:], 1, "-"),
        "cannot be exceeded anyway": (_logs(np.full(report.horizon, report.diameter)), 2, "--"),
    }
    title = f"W1 of imagined and realised flow, along episode {last + 1}"
    return _panel(title, "units of the space", curves, x_label="step h")


def _complexity(report: TheoryReport) -> Panel:
    rows = report.rows
    curves: Looks = {
        "realised": ([r.complexity for r in rows], 0, "-"),
        "at the tracked agents' points": ([r.observed_complexity for r in rows], 3, "-"),
    }
    if rows[0].complexity_bound is not None:
        stale, bound = [r.stale_complexity for r in rows], [r.complexity_bound for r in rows]
        curves["the same under the last kernel alone"] = (stale, 4, "--")
        curves["bound of the paper, for that"] = (bound, 1, "--")
    return _panel("complexity I", "sum of squared deviations", curves, least=0.0)


def _information(report: TheoryReport) -> Panel:
    rows = report.rows
    if rows[0].information is None:
        return _panel("information: not defined without noise", "nats", {}, least=0.0)
    curves: Looks = {
        "realised": ([r.information for r in rows], 0, "-"),
        "greatest possible, at least": ([r.least_capacity for r in rows], 2, "-."),
        "greatest possible among the candidates, at most": ([r.capacity for r in rows], 1, "-."),
    }
    return _panel("information of the data", "nats", curves, least=0.0)


def _betas(report: TheoryReport) -> Panel:
    curves: Looks = {"of the model's band": ([r.beta for r in report.rows], 0, "-")}
    if report.rows[0].theory_beta is not None:
        theory = [r.theory_beta for r in report.rows]
        curves["of corollary ConfidenceInterval"] = (theory, 1, ":")
    return _panel("beta", "standard deviations", curves, least=0.0)


def _panel(
    title: str, unit: str, curves: Looks, *, x_label: str = "episode", least: float | None = None
) -> Panel:
    drawn = {}
    for name, (values, place, dashes) in curves.items():
        y = np.asarray([math.nan if v is None else v for v in values], dtype=float)
        drawn[name] = Curve(y, 1 + np.arange(len(y)), place=place, dashes=dashes)
    return Panel(drawn, x_label, unit, title=title, y_range=(least, None))


def _note(report: TheoryReport) -> str:
    estimated = report.constants.estimated
    broken = [each.name for each in report.assumptions if each.holds is False]
    words = []
    if estimated:
        words.append(f"{len(estimated)} constants are estimates: bounds are not proven")
    if broken:
        words.append(f"{len(broken)} assumptions do not hold")
    return "; ".join(words)


def _logs(values: Iterable[float | None]) -> Line:
    """Logarithms to the base of ten; NaN, a gap in the curve, where there is none."""
    return np.asarray(
        [math.log10(v) if v is not None and 0 < v < math.inf else math.nan for v in values]
    )


def _power(value: float, position: int | None = None) -> str:
    return f"$10^{{{value:g}}}$"
