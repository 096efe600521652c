"""Curves in panels, with bands, reference lines and one legend below."""

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Array, Float, Real
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .._style import STYLE
from ..errors import UserError
from ..io.atomic import write_bytes

Values = Real[Array | np.ndarray, "_"]


@dataclass(frozen=True, eq=False)
class Curve:
    """One curve.

    Attributes:
        y: Its values.
        x: Their positions; 0, 1, 2, ... by default.
        band: Lower and upper edge of the band around it.
        place: Index of its colour and marker; use the same for curves of one name.
        dashes: Line style of matplotlib.
        marked: Whether it has markers, if there are few values.
    """

    y: Values
    x: Values | None = None
    band: tuple[Values, Values] | None = None
    place: int = 0
    dashes: str = "-"
    marked: bool = True


@dataclass(frozen=True, eq=False)
class Panel:
    """What one panel shows.

    Attributes:
        curves: The curves by their names.
        references: Horizontal lines: their values by their names.
        y_range: Ends of the vertical axis; None leaves an end to the curves.
        x_range: Ends of the horizontal axis.
        whole: Whether the ticks of the horizontal axis are whole numbers.
    """

    curves: Mapping[str, Curve]
    x_label: str
    y_label: str
    title: str = ""
    references: Mapping[str, float] = field(default_factory=dict)
    y_range: tuple[float | None, float | None] = (None, None)
    x_range: tuple[float | None, float | None] = (None, None)
    whole: bool = True


def band_of(values: Float[np.ndarray, "seeds entries"], *, place: int, dashes: str = "-") -> Curve:
    """The median over seeds, with a band from the least to the greatest if there are several."""
    # Not nanmedian: where a seed has no value, the curve shall have a gap.
    middle, x = np.median(values, axis=0), 1 + np.arange(values.shape[1])
    band = (values.min(axis=0), values.max(axis=0)) if len(values) > 1 else None
    return Curve(middle, x, band, place=place, dashes=dashes)


def curve_figure(
    series: Mapping[str, Values],
    *,
    x_label: str,
    y_label: str,
    reference: Mapping[str, float] | None = None,
    title: str = "",
    first_x: int = 0,
) -> Figure:
    """Draws curves in one panel, and dashed lines for values to compare them with.

    Args:
        series: The values of the curves by their names.
        x_label: What values are counted by, such as episodes.
        y_label: What the values are, with their unit.
        reference: Constant values by their names.
        title: Title of the figure.
        first_x: Number of the first value.
    """
    curves = {}
    for place, (name, values) in enumerate(series.items()):
        y = np.asarray(values, dtype=float)
        if y.ndim != 1 or not y.size:
            raise UserError(f"the curve {name!r} must be a vector of values, got {y.shape}")
        curves[name] = Curve(y, first_x + np.arange(len(y)), place=place)
    if not curves:
        raise UserError("expected at least one curve to draw, got none")
    panel = Panel(curves, x_label, y_label, title=title, references=reference or {})
    return panel_figure([[panel]], width=6.4)


def panel_figure(
    panels: Sequence[Sequence[Panel | None]],
    *,
    title: str = "",
    width: float = STYLE.panel[0],
    height: float = STYLE.panel[1],
    share_y: bool = False,
) -> Figure:
    """Draws panels in rows, with one legend for all of them below.

    Args:
        panels: The panels of each row; all rows have the same number. None leaves a place empty.
        title: Title of the figure.
        width: Width of a panel in inches.
        height: Height of a panel in inches.
        share_y: Whether the panels of a row share their vertical axis.
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
        if panel is None:
            place.remove()
        else:
            draw_panel(place, panel)
    # After drawing: a range that is set stops matplotlib from fitting a shared axis to all curves.
    for panel, place in pairs:
        if panel is None:
            continue
        place.set(xlim=panel.x_range, ylim=panel.y_range)
        if share_y:
            place.label_outer(remove_inner_ticks=False)
    legend_below(figure)
    if title:
        figure.suptitle(title)
    return figure


def draw_panel(axes: Axes, panel: Panel) -> None:
    """Draws one panel, without its ranges and its legend."""
    for name, curve in panel.curves.items():
        draw_curve(axes, name, curve)
    reference_dashes = ("--", "-.", ":", (0, (1, 3)))
    for index, (name, value) in enumerate(panel.references.items()):
        draw_reference(axes, name, value, reference_dashes[index % len(reference_dashes)])
    axes.set(xlabel=panel.x_label, ylabel=panel.y_label, title=panel.title)
    if panel.whole:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def draw_curve(axes: Axes, name: str, curve: Curve) -> None:
    """Draws one curve and its band."""
    y = np.asarray(curve.y, dtype=float)
    x = np.arange(len(y)) if curve.x is None else np.asarray(curve.x, dtype=float)
    colour = STYLE.colours[curve.place % len(STYLE.colours)]
    # Curves with more values have no markers, which would overlap.
    most_markers = 40
    few = curve.marked and len(y) <= most_markers
    axes.plot(
        x,
        y,
        color=colour,
        linestyle=curve.dashes,
        # Beyond the last colour, each has another marker than the first time.
        marker=STYLE.markers[(curve.place + curve.place // len(STYLE.colours)) % len(STYLE.markers)]
        if few
        else "",
        markersize=4,
        label=name,
    )
    if curve.band is not None:
        low, high = (np.asarray(edge, dtype=float) for edge in curve.band)
        axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)


def draw_reference(
    axes: Axes, name: str, value: float, dashes: Any = "--", colour: str = STYLE.reference
) -> None:
    """Draws a horizontal line."""
    axes.axhline(value, color=colour, linestyle=dashes, linewidth=1.2, label=name)


def legend_below(figure: Figure) -> None:
    """Draws one legend for all panels below them, with one entry for each name."""
    entries: dict[str, Artist] = {}
    for axes in figure.axes:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(name, handle)
    longest = max(map(len, entries), default=0)
    # Width in inches of a letter and of a handle in the legend, on the safe side.
    columns = int(figure.get_figwidth() / (0.072 * longest + 0.6))
    figure.legend(
        list(entries.values()),
        list(entries),
        loc="outside lower center",
        ncols=max(1, min(len(entries), columns)),
        frameon=False,
    )


def save_figure(
    figure: Figure, path: Path, kinds: Iterable[str] = ("png", "pdf")
) -> tuple[Path, ...]:
    """Writes a figure in several formats, each file whole or not at all; returns the files.

    The formats are also the endings of the files; ``path`` has none.
    """
    written = []
    for kind in kinds:
        picture = io.BytesIO()
        # Without the date, so that the same figure gives the same file.
        metadata = {"CreationDate": None} if kind == "pdf" else None
        figure.savefig(picture, format=kind, dpi=STYLE.dots_per_inch, metadata=metadata)
        # Not with_suffix: names of runs may contain dots.
        written.append(path.with_name(f"{path.name}.{kind}"))
        write_bytes(written[-1], picture.getvalue())
    return tuple(written)
