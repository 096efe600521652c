"""Distributions over the space: bars in one dimension, an image in two."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Array, Float
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PatchCollection
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator

from .._style import STYLE
from ..errors import UserError
from ..space.grid import Grid
from ..space.nodes import Nodes
from .flows import Arrows, Masses, NamedFlow, as_flows, longest_arrow
from .network import draw_network


@dataclass(frozen=True)
class Labels:
    """What axes and colours are called, and the colour of walls; None hatches them."""

    x: str = "x"
    y: str = "y"
    mass: str = "mass of a cell"
    walls: str | None = None

    def look_of_walls(self) -> dict[str, Any]:
        """Arguments of patches that are walls."""
        if self.walls:
            return {"facecolor": self.walls, "linewidth": 0}
        # Hatched, because plain dark grey is too near to the dark end of the colour map.
        colours = {"facecolor": STYLE.wall, "edgecolor": STYLE.wall_hatch}
        return {**colours, "hatch": "////", "linewidth": 0}


ColourScale = Literal["linear", "log"]


def draw_field(
    axes: Axes,
    grid: Grid,
    mass: Float[Array | np.ndarray, "cells"],
    *,
    arrows: Float[Array | np.ndarray, "cells 2"] | None = None,
    title: str | None = None,
    colour_limits: tuple[float, float] | None = None,
    colour_scale: ColourScale = "linear",
    colour_bar: bool = True,
    arrow_unit: float | None = None,
    labels: Labels = Labels(),
) -> None:
    """Draws one distribution: the density along a line, or the masses of cells as an image.

    Args:
        axes: Where to draw.
        grid: The space, of one or two dimensions, or nodes.
        mass: Mass of every free cell.
        arrows: Mean actions in cells of a plane; drawn where there is mass, of fine grids in some.
        title: Title of the panel.
        colour_limits: Masses at the ends of the colour range; by default zero and the largest
            mass, on a log scale from a tenth to ten times an evenly spread population's. On a
            line they are the ends of the vertical axis, in mass as well.
        colour_scale: ``"log"`` shows thin and dense cells in one range.
        colour_bar: Whether to draw the colour bar beside the panel.
        arrow_unit: Size of the action whose arrow is as long as a cell, or as the block of cells
            that it stands for; by default that of the largest action.
        labels: What axes and colours are called, of a plane.
    """
    values = np.asarray(mass, dtype=float)
    if grid.dim == 3:
        raise UserError(
            "a grid of 3 dimensions cannot be drawn; pass a slice, for the floor z = k: "
            "plane = Grid.box(grid.lower[:2], grid.upper[:2], grid.shape[:2], "
            "walls=grid.walls[:, :, k]) with plane.from_array(grid.to_array(mass)[:, :, k])"
        )
    if values.shape != (grid.n_cells,):
        raise UserError(
            f"mass must have one entry for each of the {grid.n_cells} free cells, "
            f"got the shape {values.shape}"
        )
    limits = colour_limits or range_of(grid, float(values.max()), colour_scale)
    norm = norm_between(limits, colour_scale)
    if arrows is not None and grid.dim == 1:
        raise UserError("arrows are drawn on grids of 2 dimensions only; leave them out")
    if isinstance(grid, Nodes):
        draw_network(axes, grid, values, limits[1])
    elif grid.dim == 1:
        _draw_line(axes, grid, values, limits, colour_scale)
    else:
        _draw_plane(axes, grid, values, norm, labels)
        if arrows is not None:
            draw_arrows(axes, grid, values, np.asarray(arrows, dtype=float), arrow_unit)
    if colour_bar and (grid.dim == 2 or isinstance(grid, Nodes)):
        draw_colour_bar(axes, grid, norm, labels)
    if title:
        axes.set_title(title)


def draw_colour_bar(
    axes: Axes | Sequence[Axes], grid: Grid, norm: Normalize, labels: Labels = Labels()
) -> None:
    """Draws the colour bar of one panel, or one that several panels share."""
    first = axes if isinstance(axes, Axes) else axes[0]
    logarithmic = isinstance(norm, LogNorm)
    nodes = isinstance(grid, Nodes)
    wide = not nodes and _is_wide(grid)
    bar = first.figure.colorbar(
        ScalarMappable(norm, f"{STYLE.field_map}_r" if nodes else STYLE.field_map),
        ax=axes if isinstance(axes, Axes) else list(axes),
        label="mass of a node" if nodes else labels.mass,
        location="bottom" if wide else "right",
        ticks=LogLocator(subs=(1.0, 2.0, 5.0)) if logarithmic else None,
        format="%g" if logarithmic else None,
        extend="both" if logarithmic else "neither",
        fraction=0.15 if wide else 0.05,
        aspect=30 if wide else 20,
        pad=0.03,
    )
    if logarithmic:
        bar.minorticks_off()


def field_figure(
    grid: Grid,
    masses: Masses | Sequence[NamedFlow],
    steps: Sequence[int],
    *,
    arrows: Arrows | None = None,
    titles: Sequence[str] | None = None,
    labels: Labels = Labels(),
) -> Figure:
    """Draws a flow at several steps, each with its own colour range, as in the paper.

    Args:
        grid: The space.
        masses: The distributions of a flow; or several named flows, one in each row.
        steps: Which of the distributions to draw, one in each column.
        arrows: Mean actions at each step, for a single flow.
        titles: Titles of the columns; by default the step.
        labels: What axes and colours are called, of a plane.
    """
    flows = as_flows(grid, masses, arrows)
    length = len(flows[0].masses)
    if not steps or any(not 0 <= step < length for step in steps):
        raise UserError(f"steps must be between 0 and {length - 1}, got {list(steps)}")
    titles = [f"h = {step}" for step in steps] if titles is None else titles
    if len(titles) != len(steps):
        raise UserError(f"expected a title for each of {len(steps)} steps, got {len(titles)}")
    width, height = panel_size(grid)
    figure = Figure(figsize=(width * len(steps), height * len(flows)), layout="compressed")
    panels = figure.subplots(len(flows), len(steps), squeeze=False)
    unit = longest_arrow(flows)
    for flow, row in zip(flows, panels, strict=True):
        for step, title, axes in zip(steps, titles, row, strict=True):
            draw_field(
                axes,
                grid,
                flow.masses[step],
                arrows=flow.arrows_at(step),
                title=f"{flow.title}, {title}" if flow.title else title,
                arrow_unit=unit,
                labels=labels,
            )
    return figure


def panel_size(grid: Grid) -> tuple[float, float]:
    """Width and height in inches of a panel with its colour bar."""
    if grid.dim == 1:
        return 4.0, 3.0
    aspect = grid.extent[1] / grid.extent[0]
    if _is_wide(grid):
        return 6.0, 1.5 + 5.0 * aspect
    # Tall and narrow spaces would make pictures that fit on no screen.
    return 4.0, 0.5 + 3.0 * min(aspect, 2.0)


def _is_wide(grid: Grid) -> bool:
    return grid.extent[1] < 0.6 * grid.extent[0]


def range_of(grid: Grid, highest: float, scale: ColourScale) -> tuple[float, float]:
    """Masses at the ends of the colour range for a flow with masses up to ``highest``."""
    high = highest if highest > 0 else 1.0
    if scale == "linear":
        return 0.0, high
    # The log scale ends at this multiple of the mass that cells have if the population is
    # evenly spread, so that crowds at the start of a flow leave some range for the other steps.
    crowded_share = 10.0
    high = min(high, crowded_share / grid.n_cells)
    return min(STYLE.visible_share / grid.n_cells, 0.1 * high), high


def norm_between(limits: tuple[float, float], scale: ColourScale) -> Normalize:
    """How masses become colours."""
    low, high = limits
    if not low < high or (scale == "log" and low <= 0):
        raise UserError(
            f"colour_limits must grow, and be positive on a log scale, got {low} to {high}"
        )
    return LogNorm(low, high, clip=True) if scale == "log" else Normalize(low, high)


def _draw_line(
    axes: Axes,
    grid: Grid,
    values: Float[np.ndarray, "cells"],
    limits: tuple[float, float],
    scale: ColourScale,
) -> None:
    edges = np.linspace(grid.lower[0], grid.upper[0], grid.shape[0] + 1)
    axes.stairs(
        grid.to_array(values / grid.cell_volume),
        edges,
        fill=True,
        facecolor=STYLE.bar,
        edgecolor=STYLE.bar_edge,
        linewidth=1.0,
    )
    for cell in np.flatnonzero(grid.walls):
        axes.axvspan(edges[cell], edges[cell + 1], label="wall", **Labels().look_of_walls())
    low, high = (limit / grid.cell_volume for limit in limits)
    axes.set(
        xlim=(grid.lower[0], grid.upper[0]),
        ylim=(low, 1.05 * high),
        yscale=scale,
        xlabel="x",
        ylabel="density",
    )


def _draw_plane(
    axes: Axes, grid: Grid, values: Float[np.ndarray, "cells"], norm: Normalize, labels: Labels
) -> None:
    axes.imshow(
        grid.to_array(values).T,  # rows of an image are y
        origin="lower",
        extent=(grid.lower[0], grid.upper[0], grid.lower[1], grid.upper[1]),
        cmap=STYLE.field_map,
        norm=norm,
        interpolation="nearest",
    )
    size = np.asarray(grid.cell_size)
    corners = np.asarray(grid.lower) + np.argwhere(grid.walls) * size
    if len(corners):
        blocks = [Rectangle((x, y), size[0], size[1]) for x, y in corners]
        look = labels.look_of_walls()
        axes.add_collection(PatchCollection(blocks, label="walls", **look), autolim=False)
    axes.set(xlabel=labels.x, ylabel=labels.y, aspect="equal")


def draw_arrows(
    axes: Axes,
    grid: Grid,
    values: Float[np.ndarray, "cells"],
    arrows: Float[np.ndarray, "cells 2"],
    unit: float | None,
) -> None:
    """Draws the mean actions of cells with mass; one of size ``unit`` is as long as a cell."""
    if arrows.shape != (grid.n_cells, 2):
        raise UserError(
            f"arrows must have the shape {(grid.n_cells, 2)}, one for each free cell, "
            f"got {arrows.shape}"
        )
    lengths = np.linalg.norm(arrows, axis=1)
    unit = unit or float(lengths.max())
    # Arrows along a panel of normal width; finer grids show those of some cells only.
    most_arrows = 16
    # On fine grids every arrow stands for a block of cells, as it would be too small for one.
    stride = math.ceil(max(grid.shape) / (2 * most_arrows if _is_wide(grid) else most_arrows))
    # Arrows shorter than this share of the longest are left out: they would be specks.
    shortest_arrow = 0.25
    shown = (values > STYLE.visible_share / grid.n_cells) & (lengths > shortest_arrow * unit)
    shown &= (grid.free_cells % stride == stride // 2).all(axis=1)
    if not shown.any():
        return
    cell = stride * min(grid.cell_size)
    axes.quiver(
        *grid.centres[shown].T,
        *(arrows[shown] * cell / unit).T,
        angles="xy",
        scale_units="xy",
        scale=1.0,
        pivot="middle",
        units="xy",
        width=0.13 * cell,
        headwidth=3.2,
        headlength=3.2,
        headaxislength=2.8,
        minlength=0.0,
        facecolor="black",
        edgecolor="white",
        linewidth=0.6,
        zorder=3,
    )
