"""Contenders side by side: J against the transitions that it took to learn."""

import numpy as np
from matplotlib.figure import Figure

from ..compare.result import Comparison
from ..learning.metrics import interval_of
from .curves import Curve, Panel, draw_curve, draw_panel, draw_reference


def comparison_figure(comparison: Comparison) -> Figure:
    """Draws the mean over seeds of every learner, with its 95% confidence interval as a band.

    Contenders that learn nothing are horizontal lines; a certified upper bound is dotted.
    """
    seeds = len(comparison.config.seeds)
    spread = f"mean of {seeds} seeds and its 95% interval" if seeds > 1 else "one seed"
    title = f"{comparison.config.environment}, {spread}"
    figure = Figure(figsize=(8.4, 4.6), layout="constrained")
    axes = figure.subplots()
    draw_panel(
        axes, Panel({}, "transitions seen by a learner", "total reward J", title, whole=False)
    )
    for result in comparison.results:
        look = result.look
        if result.transitions:
            entries = [interval_of(entry) for entry in zip(*result.curves, strict=True)]
            mean, low, high = np.array(entries, dtype=float).T
            curve = Curve(
                mean,
                np.asarray(result.transitions),
                (low, high) if len(result.curves) > 1 else None,
                place=look.place,
                dashes=look.dashes,
            )
            draw_curve(axes, result.name, curve)
            continue
        colour = look.colour or "black"
        draw_reference(axes, result.name, result.finals[0], look.dashes, colour)
        if result.upper is not None:
            draw_reference(axes, f"{result.name}, upper bound", result.upper, ":", colour)
    axes.set_xscale("log")
    if not any(result.transitions for result in comparison.results):
        axes.set_xlim(1.0, 10.0)
    # Beside the axes, as curves may be anywhere in them.
    figure.legend(loc="outside right upper", frameon=False)
    return figure
