"""Contenders side by side: J against the transitions that it took to learn."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..comparison.config import LEARNERS, Q_LEARNERS
from ..comparison.result import Comparison, Result
from .calibration import BAND_OPACITY
from .curves import COLOURS, MARKERS

# Each contender keeps its colour and marker, whoever else is compared.
_PLACES = {name: index for index, name in enumerate((*LEARNERS, *Q_LEARNERS))}
# Dashes are for what cannot be compared.
_REFERENCES = {"random": ("0.45", "-."), "known": ("black", "-")}

_MARKER_SIZE = 4
_EMPTY_RANGE = (1.0, 10.0)


def comparison_figure(comparison: Comparison) -> Figure:
    """Draws the mean over seeds of every learner, with a band from the least to the greatest.

    Contenders that learn nothing are horizontal lines; a certified upper bound is dotted. Those
    that played another game are dashed and marked with a star.

    Args:
        comparison: What was compared.
    """
    figure = Figure(figsize=(8.4, 4.6), layout="constrained")
    axes = figure.subplots()
    for result in comparison.results:
        if result.transitions:
            _draw_curve(axes, result)
        else:
            _draw_reference(axes, result)
    axes.set_xscale("log")
    if not any(result.transitions for result in comparison.results):
        axes.set_xlim(_EMPTY_RANGE)
    seeds = comparison.config.seeds
    axes.set(
        xlabel="transitions seen by a learner",
        ylabel="total reward J",
        title=f"{comparison.config.environment}, "
        + (f"mean and range of {seeds} seeds" if seeds > 1 else "one seed"),
    )
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    # Beside the axes, as curves may be anywhere in them.
    figure.legend(loc="outside right upper", frameon=False)
    _explain_stars(figure, comparison.results)
    return figure


def _draw_curve(axes: Axes, result: Result) -> None:
    values = np.asarray(result.curves)
    place = _PLACES[result.name]
    colour = COLOURS[place % len(COLOURS)]
    axes.plot(
        result.transitions,
        values.mean(axis=0),
        color=colour,
        marker=MARKERS[place % len(MARKERS)],
        markersize=_MARKER_SIZE,
        linestyle="-" if result.comparable else "--",
        label=result.label,
    )
    if len(values) > 1:
        lowest, highest = values.min(axis=0), values.max(axis=0)
        axes.fill_between(
            result.transitions, lowest, highest, color=colour, alpha=BAND_OPACITY, linewidth=0
        )


def _draw_reference(axes: Axes, result: Result) -> None:
    colour, dashes = _REFERENCES[result.name]
    (value,) = result.finals
    axes.axhline(value, color=colour, linestyle=dashes, linewidth=1.2, label=result.label)
    if result.upper is not None:
        label = f"{result.name}, upper bound"
        axes.axhline(result.upper, color=colour, linestyle=":", linewidth=1.2, label=label)


def _explain_stars(figure: Figure, results: tuple[Result, ...]) -> None:
    """Says below the axes what the stars mean."""
    notes = dict.fromkeys(result.note for result in results if not result.comparable)
    if notes:
        figure.supxlabel("\n".join(f"* {note}" for note in notes), fontsize="small")
