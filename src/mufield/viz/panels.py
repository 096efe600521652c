"""Curves in several panels, with bands and lines to compare with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Array, Float, Real
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..errors import UserError
from .curves import COLOURS, DASHES, MARKERS, MOST_MARKERS

Values = Real[Array | np.ndarray, "_"]

BAND_OPACITY = 0.2
PANEL_WIDTH, PANEL_HEIGHT = 5.4, 3.8
LETTER, HANDLE = 0.072, 0.6
"""Inches that a letter and a handle of the legend take, a little more than on average."""

REFERENCE_COLOUR = "0.35"
REFERENCE_DASHES = (*DASHES, (0, (1, 3)))


@dataclass(frozen=True, eq=False)
class Curve:
    """One curve.

    Attributes:
        y: Its values.
        x: Where they are; the whole numbers from 0 by default.
        lowest: Lower edge of the band around it.
        highest: Upper edge of the band.
        place: Which colour and marker it has; curves of one name have one place in all panels.
        dashes: Style of its line.
        marked: Whether it has markers, if there are few values.
    """

    y: Values
    x: Values | None = None
    lowest: Values | None = None
    highest: Values | None = None
    place: int = 0
    dashes: str = "-"
    marked: bool = True


@dataclass(frozen=True, eq=False)
class Panel:
    """What one panel shows.

    Attributes:
        curves: The curves by their names.
        x_label: What lies on the horizontal axis, with its unit.
        y_label: What lies on the vertical axis, with its unit.
        title: What stands above the panel.
        references: Constant values by their names.
        y_range: Ends of the vertical axis; either may be left to the curves.
        x_range: Ends of the horizontal axis.
        whole: Whether the horizontal axis counts whole numbers.
    """

    curves: Mapping[str, Curve]
    x_label: str
    y_label: str
    title: str = ""
    references: Mapping[str, float] = field(default_factory=dict)
    y_range: tuple[float | None, float | None] = (None, None)
    x_range: tuple[float | None, float | None] = (None, None)
    whole: bool = True


def band_of(values: Float[np.ndarray, "seeds entries"], *, place: int, first_x: int = 1) -> Curve:
    """The median over seeds, with a band from the least to the greatest."""
    return Curve(
        y=np.median(values, axis=0),
        x=first_x + np.arange(values.shape[1]),
        lowest=values.min(axis=0),
        highest=values.max(axis=0),
        place=place,
    )


def panel_figure(
    panels: Sequence[Sequence[Panel]],
    *,
    title: str = "",
    note: str = "",
    width: float = PANEL_WIDTH,
    height: float = PANEL_HEIGHT,
    share_y: bool = False,
) -> Figure:
    """Draws panels in rows, with one legend for all of them below.

    Args:
        panels: The panels of each row; all rows have the same number.
        title: What stands above all of them.
        note: What stands below the legend.
        width: Inches of a panel.
        height: Inches of a panel.
        share_y: Whether the panels of a row have one vertical axis.
    """
    if not panels or not panels[0] or len({len(row) for row in panels}) > 1:
        raise UserError(
            "expected rows with the same number of panels, at least one, got "
            f"{[len(row) for row in panels]}"
        )
    size = (width * len(panels[0]), height * len(panels) + 0.8)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(
        len(panels), len(panels[0]), squeeze=False, sharey="row" if share_y else False
    )
    pairs = [pair for row in zip(panels, axes, strict=True) for pair in zip(*row, strict=True)]
    for panel, place in pairs:
        _draw(place, panel)
    # Only now: a range ends the search for one that shows all curves of a shared axis.
    for panel, place in pairs:
        place.set(xlim=panel.x_range, ylim=panel.y_range)
        if share_y:
            place.label_outer(remove_inner_ticks=False)
    _legend(figure, note)
    if title:
        figure.suptitle(title)
    return figure


def _draw(axes: Axes, panel: Panel) -> None:
    for name, curve in panel.curves.items():
        y = np.asarray(curve.y, dtype=float)
        x = np.arange(len(y)) if curve.x is None else np.asarray(curve.x, dtype=float)
        colour = COLOURS[curve.place % len(COLOURS)]
        few = curve.marked and len(y) <= MOST_MARKERS
        axes.plot(
            x,
            y,
            color=colour,
            linestyle=curve.dashes,
            marker=MARKERS[curve.place % len(MARKERS)] if few else "",
            markersize=4,
            label=name,
        )
        if curve.lowest is not None and curve.highest is not None:
            axes.fill_between(
                x,
                np.asarray(curve.lowest, dtype=float),
                np.asarray(curve.highest, dtype=float),
                color=colour,
                alpha=BAND_OPACITY,
                linewidth=0,
            )
    for index, (name, value) in enumerate(panel.references.items()):
        axes.axhline(
            value,
            color=REFERENCE_COLOUR,
            linestyle=REFERENCE_DASHES[index % len(REFERENCE_DASHES)],
            linewidth=1.2,
            label=name,
        )
    axes.set(xlabel=panel.x_label, ylabel=panel.y_label, title=panel.title)
    if panel.whole:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _legend(figure: Figure, note: str) -> None:
    """One entry for each name, below the panels, as curves may be anywhere in them."""
    entries: dict[str, Artist] = {}
    for axes in figure.axes:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(name, handle)
    longest = max(map(len, entries), default=0)
    columns = int(figure.get_figwidth() / (LETTER * longest + HANDLE))
    legend = figure.legend(
        list(entries.values()),
        list(entries),
        loc="outside lower center",
        ncols=max(1, min(len(entries), columns)),
        frameon=False,
    )
    if note:
        legend.set_title(note)
