"""How far a model's confidence can be trusted: coverage, and its band beside the truth."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Array, Float
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from .._style import STYLE
from ..errors import UserError
from .curves import Curve, Panel, draw_panel, legend_below

Line = Float[Array | np.ndarray, "_"]


def calibration_figure(
    curves: Mapping[str, tuple[Line, Line]],
    *,
    title: str = "",
    x_label: str = "expected coverage",
    y_label: str = "observed coverage",
) -> Figure:
    """Draws observed against expected coverage; a model below the diagonal is overconfident.

    Args:
        curves: For each model's name, expected and observed shares between 0 and 1.
        title: Title of the figure.
        x_label: What the expected shares are.
        y_label: What the observed shares are.
    """
    if not curves:
        raise UserError("expected at least one curve to draw, got none")
    drawn = {}
    for place, (name, (expected, observed)) in enumerate(curves.items()):
        x, y = np.asarray(expected, dtype=float), np.asarray(observed, dtype=float)
        if x.ndim != 1 or not x.size or x.shape != y.shape:
            raise UserError(
                f"the curve {name!r} must be two vectors of one length, got the shapes "
                f"{x.shape} and {y.shape}"
            )
        if not ((x >= 0) & (x <= 1) & (y >= 0) & (y <= 1)).all():
            raise UserError(
                f"coverages are shares between 0 and 1, but the curve {name!r} runs from "
                f"{min(x.min(), y.min()):g} to {max(x.max(), y.max()):g}; divide percentages by 100"
            )
        drawn[name] = Curve(y, x, place=place)
    figure = Figure(figsize=(5.4, 5.8), layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color=STYLE.reference, linestyle="--", label="calibrated")
    draw_panel(axes, Panel(drawn, x_label, y_label, title=title, whole=False))
    axes.set(aspect="equal", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0))
    legend_below(figure)
    return figure


def slice_figure(
    position: Line,
    truth: Line,
    models: Mapping[str, tuple[Line, Line]],
    *,
    x_label: str,
    y_label: str,
    points: tuple[Line, Line] | None = None,
    points_label: str = "moves seen nearby",
    title: str = "",
) -> Figure:
    """Draws the mean and the band of each model in a panel of its own, beside the true motion.

    Args:
        position: Positions along a line through the space of states and actions.
        truth: One axis of the true motion at these positions.
        models: For each model's name, the mean and half the width of the band there.
        x_label: What changes along the line.
        y_label: What the models predict, with its unit.
        points: Observed moves near the line: their positions and what was observed.
        points_label: Name of these moves in the legend.
        title: Title of the figure.
    """
    if not models:
        raise UserError("expected at least one model to draw, got none")
    x = _values("position", position, None)
    right = _values("truth", truth, x.shape)
    figure = Figure(figsize=(4.6 * len(models), 4.4), layout="constrained")
    panels = figure.subplots(1, len(models), sharex=True, sharey=True, squeeze=False)[0]
    for axes, (name, (mean, half_width)) in zip(panels, models.items(), strict=True):
        middle = _values(f"the mean of {name!r}", mean, x.shape)
        half = _values(f"the band of {name!r}", half_width, x.shape)
        if half.min() < 0:
            raise UserError(f"the band of {name!r} must not be negative, got {half.min():g}")
        if points is not None:
            seen = [np.asarray(part, dtype=float) for part in points]
            axes.scatter(*seen, s=9, color="0.55", linewidth=0, label=points_label, zorder=1)
        curve = Curve(middle, x, (middle - half, middle + half), marked=False)
        panel = Panel({"mean and band": curve}, x_label, "", title=name, whole=False)
        draw_panel(axes, panel)
        axes.plot(x, right, color="black", linestyle="--", linewidth=1.2, label="truth", zorder=4)
        axes.margins(x=0.02)
    panels[0].set_ylabel(y_label)
    legend_below(figure)
    figure.suptitle(title)
    return figure


def _values(name: str, values: Line, shape: tuple[int, ...] | None) -> Float[np.ndarray, "points"]:
    array = np.asarray(values, dtype=float)
    if array.ndim != 1 or not array.size or (shape is not None and array.shape != shape):
        wanted = "a vector" if shape is None else f"a vector of {shape[0]} values"
        raise UserError(f"{name} must be {wanted}, got the shape {array.shape}")
    return array
