"""Contenders side by side: J against the transitions that it took to learn."""

from typing import get_args

import numpy as np
from matplotlib.figure import Figure

from ..compare.config import contenders_of, split
from ..compare.result import Comparison
from ..runs.config import ModelName
from .curves import Curve, Panel, draw_curve, draw_panel, draw_reference


def _place(name: str) -> int:
    """The place of a contender's colour and marker; models of a named family have others."""
    own, family = split(name)
    families = get_args(ModelName)
    # The same for a contender, whoever else is compared.
    places = [*contenders_of("learner"), *contenders_of("q-learner"), *contenders_of("constrained")]
    return places.index(own) + len(places) * (1 + families.index(family) if family else 0)


def comparison_figure(comparison: Comparison) -> Figure:
    """Draws the mean over seeds of every learner, with a band from the least to the greatest.

    Contenders that learn nothing are horizontal lines; a certified upper bound is dotted. Those
    that played another game are dashed and marked with a star.
    """
    seeds = len(comparison.config.seeds)
    spread = f"mean and range of {seeds} seeds" if seeds > 1 else "one seed"
    title = f"{comparison.config.environment}, {spread}"
    figure = Figure(figsize=(8.4, 4.6), layout="constrained")
    axes = figure.subplots()
    draw_panel(
        axes, Panel({}, "transitions seen by a learner", "total reward J", title, whole=False)
    )
    # Solid or dash-dotted: plain dashes mark what cannot be compared.
    references = {"random": ("-.", "0.45"), "known": ("-", "black")} | {
        "stay": ("-.", "tab:brown"),
        "demand": ("-.", "tab:olive"),
        "fluid": ("-", "tab:gray"),
    }
    for result in comparison.results:
        if result.transitions:
            values = np.asarray(result.curves)
            band = (values.min(axis=0), values.max(axis=0)) if len(values) > 1 else None
            curve = Curve(
                values.mean(axis=0),
                np.asarray(result.transitions),
                band,
                place=_place(result.name),
                dashes="-" if result.comparable else "--",
            )
            draw_curve(axes, result.label, curve)
            continue
        dashes, colour = references[result.name]
        draw_reference(axes, result.label, result.finals[0], dashes, colour)
        if result.upper is not None:
            draw_reference(axes, f"{result.name}, upper bound", result.upper, ":", colour)
    axes.set_xscale("log")
    if not any(result.transitions for result in comparison.results):
        axes.set_xlim(1.0, 10.0)
    # Beside the axes, as curves may be anywhere in them.
    figure.legend(loc="outside right upper", frameon=False)
    notes = dict.fromkeys(each.note for each in comparison.results if not each.comparable)
    if notes:
        figure.supxlabel("\n".join(f"* {note}" for note in notes), fontsize="small")
    return figure
