"""Contenders side by side: J against the transitions that it took to learn."""

import numpy as np
from matplotlib.figure import Figure

from ..compare.result import Comparison
from ..learning.metrics import interval_of
from .curves import Curve, curve_figure


def comparison_figure(comparison: Comparison) -> Figure:
    """Draws the mean over seeds of every learner, with its 95% confidence interval as a band.

    Contenders that learn nothing, and certified upper bounds, are horizontal lines.
    """
    seeds = len(comparison.config.seeds)
    spread = f"mean of {seeds} seeds and its 95% interval" if seeds > 1 else "one seed"
    curves: dict[str, Curve] = {}
    lines: dict[str, float] = {}
    for result in comparison.results:
        if result.transitions:
            entries = [interval_of(entry) for entry in zip(*result.curves, strict=True)]
            mean, low, high = np.array(entries, dtype=float).T
            band = (low, high) if len(result.curves) > 1 else None
            x = np.asarray(result.transitions)
            curves[result.name] = Curve(mean, x, band, place=len(curves))
            continue
        lines[result.name] = result.finals[0]
        if result.upper is not None:
            lines[f"{result.name}, upper bound"] = result.upper
    figure = curve_figure(
        curves,
        x_label="transitions seen by a learner",
        y_label="total reward J",
        reference=lines,
        title=f"{comparison.config.environment}, {spread}",
        whole=False,
    )
    figure.axes[0].set(xscale="log", **({} if curves else {"xlim": (1.0, 10.0)}))
    return figure
