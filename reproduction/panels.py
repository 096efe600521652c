"""Several panels of curves in one figure, with one legend below."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from mufield.viz.curves import Curve, draw_curves, legend_below


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


def band_of(values: Float[np.ndarray, "seeds entries"], *, place: int) -> Curve:
    """The median over seeds, with a band from the least to the greatest if there are several."""
    middle, x = np.median(values, axis=0), 1 + np.arange(values.shape[1])
    band = (values.min(axis=0), values.max(axis=0)) if len(values) > 1 else None
    return Curve(middle, x, band, place=place)


def panel_figure(
    panels: Sequence[Sequence[Panel]],
    *,
    title: str = "",
    width: float = 5.4,
    height: float = 3.8,
    share_y: bool = False,
) -> Figure:
    """Draws panels in rows of equal length, each of this width and height in inches."""
    size = (width * len(panels[0]), height * len(panels) + 0.8)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(
        len(panels), len(panels[0]), squeeze=False, sharey="row" if share_y else False
    )
    pairs = [pair for row in zip(panels, axes, strict=True) for pair in zip(*row, strict=True)]
    for panel, place in pairs:
        draw_curves(place, panel.curves, panel.references, whole=panel.whole)
        place.set(xlabel=panel.x_label, ylabel=panel.y_label, title=panel.title)
    # After drawing: a range that is set stops matplotlib from fitting a shared axis to all curves.
    for panel, place in pairs:
        place.set(xlim=panel.x_range, ylim=panel.y_range)
        if share_y:
            place.label_outer(remove_inner_ticks=False)
    legend_below(figure)
    if title:
        figure.suptitle(title)
    return figure
