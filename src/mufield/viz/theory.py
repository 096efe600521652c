"""The theory's bounds beside what a run realised, episode by episode."""

import math
from collections.abc import Iterable

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from ..theory.report import TheoryReport
from .panels import Curve, Panel, panel_figure

REALISED, BOUND = "realised", "bound of the paper"
TRIVIAL = "cannot be exceeded anyway"

MOST_BEYOND = 3.0
"""Powers of ten beyond the space's diameter up to which a bound is drawn beside other curves."""

Line = Float[np.ndarray, "_"]


def theory_figure(report: TheoryReport) -> Figure:
    """Draws regret, W1, complexity and information beside their bounds.

    Bounds may lie beyond all floating-point numbers, so that axes count powers of ten.

    Args:
        report: What is drawn.
    """
    panels = [
        [_regret(report), _ends(report), _along(report)],
        [_complexity(report), _information(report), _betas(report)],
    ]
    vacuous = sum(verdict.vacuous for verdict in report.verdicts)
    figure = panel_figure(
        panels,
        title=f"{report.environment}, {report.model}: {vacuous} of {len(report.verdicts)} bounds "
        "are vacuous",
        note=_note(report),
        width=4.6,
        height=3.4,
    )
    powers = [panel for row in panels for panel in row]
    for panel, axes in zip(powers, figure.axes, strict=True):
        if panel.y_label.endswith("(powers of ten)"):
            axes.set_ylabel(panel.y_label.removesuffix(" (powers of ten)"))
            axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
            axes.yaxis.set_major_formatter(FuncFormatter(_power))
        axes.title.set_fontsize("medium")
    return figure


def _regret(report: TheoryReport) -> Panel:
    known = report.rows[0].total_regret is not None
    # Without a reference the optimism stands for the regret, which it bounds if all goes well.
    realised = [r.total_regret if known else r.optimism for r in report.rows]
    bound = [r.total_bound if known else r.regret_bound for r in report.rows]
    trivial = report.value_range * (np.arange(len(bound)) + 1 if known else np.ones(len(bound)))
    title = "total regret R" if known else "optimism, as no reference is known"
    return Panel(
        curves={
            REALISED: _curve(report, _logs(realised), 0),
            BOUND: _curve(report, bound, 1),
            TRIVIAL: _curve(report, _logs(trivial), 2, dashes="--"),
        },
        x_label="episode",
        y_label="difference in J (powers of ten)",
        title=title,
    )


def _ends(report: TheoryReport) -> Panel:
    end = report.distance_bounds[:, -1]
    farthest = _log(report.diameter)
    curves = {
        REALISED: _curve(report, _logs(report.distances[:, -1]), 0),
        f"{REALISED}, after one step": _curve(report, _logs(report.distances[:, 1]), 4),
        f"{BOUND}, after one step": _curve(report, report.distance_bounds[:, 1], 5),
        TRIVIAL: _curve(report, np.full(len(end), farthest), 2, dashes="--"),
    }
    title = "W1 of imagined and realised flow, at the end"
    if end.max() > farthest + MOST_BEYOND:
        # Drawn, it would press all other curves together; the next panel shows it.
        title += f"\n(there the bound is up to {_power(round(float(end.max()), 1))})"
    else:
        curves[BOUND] = _curve(report, end, 1)
    return Panel(
        curves=curves,
        x_label="episode",
        y_label="units of the space (powers of ten)",
        title=title,
    )


def _along(report: TheoryReport) -> Panel:
    planned = np.flatnonzero(np.isfinite(report.distances).all(axis=1))
    last = int(planned[-1]) if len(planned) else len(report.rows) - 1
    steps = np.arange(1, report.distances.shape[1])

    def curve(values: Iterable[float], place: int, dashes: str = "-") -> Curve:
        return Curve(y=np.asarray(list(values)), x=steps, place=place, dashes=dashes)

    return Panel(
        curves={
            REALISED: curve(_logs(report.distances[last, 1:]), 0),
            BOUND: curve(report.distance_bounds[last, 1:], 1),
            TRIVIAL: curve(np.full(len(steps), _log(report.diameter)), 2, "--"),
        },
        x_label="step h",
        y_label="units of the space (powers of ten)",
        title=f"W1 of imagined and realised flow, along episode {last + 1}",
    )


def _complexity(report: TheoryReport) -> Panel:
    curves = {
        REALISED: _curve(report, _numbers(r.complexity for r in report.rows), 0),
        "at the tracked agents' points": _curve(
            report, _numbers(r.observed_complexity for r in report.rows), 3
        ),
    }
    if report.rows[0].complexity_bound is not None:
        stale = _numbers(r.stale_complexity for r in report.rows)
        bound = _numbers(r.complexity_bound for r in report.rows)
        curves["the same under the last kernel alone"] = _curve(report, stale, 4, dashes="--")
        curves[f"{BOUND}, for that"] = _curve(report, bound, 1, dashes="--")
    return Panel(
        curves=curves,
        x_label="episode",
        y_label="sum of squared doubts",
        title="complexity I",
        y_range=(0.0, None),
    )


def _information(report: TheoryReport) -> Panel:
    curves = {}
    if report.rows[0].information is not None:
        curves = {
            REALISED: _curve(report, _numbers(r.information for r in report.rows), 0),
            "greatest possible, at least": _curve(
                report, _numbers(r.least_capacity for r in report.rows), 2, dashes="-."
            ),
            "greatest possible among the candidates, at most": _curve(
                report, _numbers(r.capacity for r in report.rows), 1, dashes="-."
            ),
        }
    return Panel(
        curves=curves,
        x_label="episode",
        y_label="nats",
        title="information of the data" if curves else "information: not defined without noise",
        y_range=(0.0, None),
    )


def _betas(report: TheoryReport) -> Panel:
    curves = {"of the model's band": _curve(report, _numbers(r.beta for r in report.rows), 0)}
    if report.rows[0].theory_beta is not None:
        theory = _numbers(r.theory_beta for r in report.rows)
        curves["of corollary ConfidenceInterval"] = _curve(report, theory, 1, dashes=":")
    return Panel(
        curves=curves,
        x_label="episode",
        y_label="standard deviations",
        title="beta",
        y_range=(0.0, None),
    )


def _note(report: TheoryReport) -> str:
    estimated = report.constants.estimated
    broken = [each.name for each in report.assumptions if each.holds is False]
    words = []
    if estimated:
        words.append(f"{len(estimated)} constants are estimates: bounds are not proven")
    if broken:
        words.append(f"{len(broken)} assumptions do not hold")
    return "; ".join(words)


def _curve(
    report: TheoryReport, values: Iterable[float], place: int, *, dashes: str = "-"
) -> Curve:
    episodes = np.asarray([row.episode for row in report.rows])
    return Curve(y=np.asarray(list(values), dtype=float), x=episodes, place=place, dashes=dashes)


def _numbers(values: Iterable[float | None]) -> Line:
    return np.asarray([math.nan if v is None else v for v in values], dtype=float)


def _logs(values: Iterable[float | None]) -> Line:
    """Powers of ten; gaps where there is nothing, or no positive number."""
    numbers = _numbers(values)
    numbers[~((numbers > 0) & np.isfinite(numbers))] = math.nan
    return np.asarray(np.log10(numbers))


def _log(value: float) -> float:
    return math.log10(value) if value > 0 else math.nan


def _power(value: float, position: int | None = None) -> str:
    return f"$10^{{{value:g}}}$"
