"""Curves in one panel, with bands, reference lines and a legend below; and figures as files."""

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Array, Real
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


def curve_figure(
    series: Mapping[str, Values | Curve],
    *,
    x_label: str,
    y_label: str,
    reference: Mapping[str, float] | None = None,
    title: str = "",
    first_x: int = 0,
    whole: bool = True,
) -> Figure:
    """Draws curves in one panel, and dashed lines for values to compare them with.

    Args:
        series: The curves by their names, or their values alone.
        x_label: What values are counted by, such as episodes.
        y_label: What the values are, with their unit.
        reference: Constant values by their names.
        title: Title of the figure.
        first_x: Number of the first value, of values alone.
        whole: Whether the ticks of the horizontal axis are whole numbers.
    """
    curves: dict[str, Curve] = {}
    for name, given in series.items():
        x = None if isinstance(given, Curve) else first_x + np.arange(len(given))
        curve = given if isinstance(given, Curve) else Curve(given, x, place=len(curves))
        if np.ndim(curve.y) != 1 or not np.size(curve.y):
            raise UserError(f"curve {name!r} must be a vector of values, got {np.shape(curve.y)}")
        curves[name] = curve
    if not curves and not reference:
        raise UserError("expected at least one curve to draw, got none")
    figure = Figure(figsize=(6.8, 4.6), layout="constrained")
    axes = figure.subplots()
    draw_curves(axes, curves, reference or {}, whole=whole)
    axes.set(xlabel=x_label, ylabel=y_label, title=title)
    legend_below(figure)
    return figure


def metrics_figure(
    runs: Mapping[str, Sequence[Mapping[str, Any]]], reference: float | None = None, title: str = ""
) -> Figure:
    """Draws J against episodes, with a dashed line for plans without optimism on the same data.

    A single run is drawn beside what its optimistic plans expected.

    Args:
        runs: The rows of each run's metrics, by the runs' names.
        reference: J of the reference plan of all of them.
        title: Title of the figure.
    """
    curves: dict[str, Curve] = {}
    columns = {"value": "realised", "optimistic": "expected by the optimistic plan"}
    columns |= {"greedy": "realised without optimism"}
    for place, (called, rows) in enumerate(runs.items()):
        for index, (column, name) in enumerate(columns.items()):
            values = np.array([row.get(column) for row in rows], dtype=float)
            if not np.isfinite(values).any() or (len(runs) > 1 and column == "optimistic"):
                continue
            look: dict[str, Any] = {"place": index}
            if column == "optimistic" and all(row.get("paths") for row in rows):
                low, _, high = np.array([row["paths"]["value"] for row in rows], dtype=float).T
                look["band"], name = (low, high), f"{name}, and 90% of its paths"
            if len(runs) > 1:
                name = f"{called}, {name}"
                look = {"place": place, "dashes": "--" if column == "greedy" else "-"}
            curves[name] = Curve(values, 1 + np.arange(len(values)), **look)
    known = {} if reference is None else {"reference plan": reference}
    return curve_figure(
        curves, x_label="episode", y_label="total reward J", reference=known, title=title
    )


def draw_curves(
    axes: Axes, curves: Mapping[str, Curve], references: Mapping[str, float], *, whole: bool = True
) -> None:
    """Draws curves with their bands, and horizontal lines; labels and legend are left out."""
    for name, curve in curves.items():
        y = np.asarray(curve.y, dtype=float)
        x = np.arange(len(y)) if curve.x is None else np.asarray(curve.x, dtype=float)
        count = len(STYLE.colours)
        colour = STYLE.colours[curve.place % count]
        # Beyond the last colour, each has another marker than the first time. Curves with many
        # values have none: markers would overlap.
        marker = STYLE.markers[(curve.place + curve.place // count) % len(STYLE.markers)]
        marker = marker if curve.marked and len(y) <= 40 else ""
        axes.plot(x, y, curve.dashes, color=colour, marker=marker, markersize=4, label=name)
        if curve.band is not None:
            low, high = (np.asarray(edge, dtype=float) for edge in curve.band)
            axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
    dashes = ("--", "-.", ":", (0, (1, 3)))
    for index, (name, value) in enumerate(references.items()):
        axes.axhline(
            value, color=STYLE.reference, linestyle=dashes[index % 4], linewidth=1.2, label=name
        )
    if whole:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


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
