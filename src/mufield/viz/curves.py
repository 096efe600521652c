"""Curves over steps or episodes."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Array, Float
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..errors import UserError

# Okabe and Ito's colours, which colour-blind readers can tell apart; markers help in print.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
MARKERS = ("o", "s", "^", "D", "v", "P")
DASHES = ("--", "-.", ":")
MOST_MARKERS = 40


def curve_figure(
    series: Mapping[str, Float[Array | np.ndarray, "_"]],
    *,
    x_label: str,
    y_label: str,
    reference: Mapping[str, float] | None = None,
    title: str | None = None,
    first_x: int = 0,
) -> Figure:
    """Draws curves with a legend, and dashed lines for values to compare them with.

    Args:
        series: The curves by their names, with one value for each whole number.
        x_label: What the whole numbers count.
        y_label: What the values are, with their unit.
        reference: Constant values by their names.
        title: What stands above the curves.
        first_x: The whole number of the first value.
    """
    if not series:
        raise UserError("expected at least one curve to draw, got none")
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    for index, (name, values) in enumerate(series.items()):
        y = np.asarray(values, dtype=float)
        if y.ndim != 1 or not y.size:
            raise UserError(f"the curve {name!r} must be a vector of values, got {y.shape}")
        axes.plot(
            first_x + np.arange(len(y)),
            y,
            color=COLOURS[index % len(COLOURS)],
            marker=MARKERS[index % len(MARKERS)] if len(y) <= MOST_MARKERS else "",
            markersize=4,
            label=name,
        )
    for index, (name, value) in enumerate((reference or {}).items()):
        dashes = DASHES[index % len(DASHES)]
        axes.axhline(value, color="0.35", linestyle=dashes, linewidth=1.2, label=name)
    axes.set(xlabel=x_label, ylabel=y_label, title=title or "")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure
