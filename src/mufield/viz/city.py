"""Pictures of a fleet on a city's map: where passengers and vehicles are, and who is served."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Array, Float
from matplotlib.cm import ScalarMappable
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from .._style import STYLE
from ..errors import UserError
from ..fleet.counts import clock
from ..fleet.maps import CityMap
from ..problem import Problem
from .curves import Curve, Panel, panel_figure
from .fields import Labels, draw_arrows

Cells = Float[Array | np.ndarray, "cells"]


@dataclass(frozen=True, eq=False)
class MapPanel:
    """One map of a picture.

    Attributes:
        title: What it shows.
        shares: Share of the fleet, or demand as a share of it, in each cell.
        arrows: Mean actions in the cells, if they are to be shown.
    """

    title: str
    shares: Cells
    arrows: Float[Array | np.ndarray, "cells 2"] | None = None


def map_labels(city: CityMap, mass: str = "share of the fleet in a cell") -> Labels:
    """What the axes of a city's map are called; what is no street is blue."""
    up = f"{city.turn:g}° from north" if city.turn else "north"
    return Labels(
        x="km",
        y=f"km (up is {up})",
        mass=f"{mass} (pale blue: water, or no trips)",
        walls=STYLE.water,
    )


def labels_of(problem: Problem) -> Labels:
    """What the axes of a problem's pictures are called: on a city's map, kilometres."""
    return map_labels(problem.city) if isinstance(problem.city, CityMap) else Labels()


def step_names(problem: Problem) -> list[str]:
    """What pictures call the steps 0 to H: the time of day if the demand's clock is known."""
    clock_of = getattr(getattr(problem.trips, "chance", None), "clock", None)
    steps = range(problem.horizon + 1)
    if clock_of is None:
        return [f"h = {step} of {problem.horizon}" for step in steps]
    return [clock(clock_of[0] + step * clock_of[1] / 60) for step in steps]


def map_figure(city: CityMap, panels: Sequence[MapPanel], *, title: str = "") -> Figure:
    """Draws maps side by side, in one range of colours: vehicles of a fleet of 1,000 in each cell.

    Args:
        city: The map.
        panels: What to show.
        title: Title of the figure.
    """
    if not panels:
        raise UserError("expected at least one map to draw, got none")
    grid, labels, fleet = city.grid, map_labels(city), 1000
    width = 2.6 * max(1.0, 1.6 * grid.extent[0] / grid.extent[1])
    height = width * grid.extent[1] / grid.extent[0] + 0.9
    figure = Figure(figsize=(width * len(panels) + 1.0, min(height, 8.0)), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    highest = max(float(np.max(panel.shares)) for panel in panels)
    # The square root shows thin cells beside crowds.
    norm = PowerNorm(0.5, 0.0, max(fleet * highest, 1e-9))
    for panel, each in zip(panels, axes, strict=True):
        values = np.asarray(panel.shares, dtype=float)
        each.set_facecolor(STYLE.water)
        each.imshow(
            np.where(grid.walls, np.nan, grid.to_array(fleet * values)).T,
            origin="lower",
            extent=(grid.lower[0], grid.upper[0], grid.lower[1], grid.upper[1]),
            cmap=STYLE.street_map,
            norm=norm,
            interpolation="nearest",
        )
        if panel.arrows is not None:
            draw_arrows(each, grid, values, np.asarray(panel.arrows, dtype=float), None)
        each.set(xlabel=labels.x, title=panel.title)
    axes[0].set_ylabel(labels.y)
    figure.colorbar(
        ScalarMappable(norm, STYLE.street_map),
        ax=list(axes),
        label=f"number in a cell of {1000 * grid.cell_size[0]:.0f} m, of {fleet:,} vehicles",
        fraction=0.05,
        aspect=30,
        shrink=0.75,
    )
    keys: list[Patch | Line2D] = [Patch(color=STYLE.water, label="water, or no trips")]
    if any(panel.arrows is not None for panel in panels):
        arrow = Line2D([], [], marker=r"$\rightarrow$", markersize=14, linestyle="", color="black")
        arrow.set_label("mean drive of empty vehicles")
        keys.append(arrow)
    figure.legend(handles=keys, loc="outside lower center", ncols=2, frameon=False)
    if title:
        figure.suptitle(title)
    return figure


def served_figure(
    hours: Sequence[float] | np.ndarray,
    served: Mapping[str, Float[np.ndarray, "steps"]],
    *,
    title: str = "",
) -> Figure:
    """Draws the share of passengers that is served at each time of the day.

    Args:
        hours: Hours of the day, such as 7.5, one for each step.
        served: The shares by the name of the policy.
        title: Title of the figure.
    """
    times = np.asarray(hours, dtype=float)
    curves = {name: Curve(y, times, place=i) for i, (name, y) in enumerate(served.items())}
    wanted = "passengers served, of those who want a ride"
    panel = Panel(curves, "time of day", wanted, title, y_range=(0.0, 1.03), whole=False)
    figure = panel_figure([[panel]], width=7.0)
    figure.axes[0].yaxis.set_major_formatter(PercentFormatter(1.0))
    figure.axes[0].xaxis.set_major_formatter(lambda hour, _: clock(hour))
    return figure
