"""Distributions over the space: bars in one dimension, an image in two, discs on nodes."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Array, Float
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from .._style import STYLE
from ..errors import UserError
from ..space.grid import Grid
from ..space.nodes import Nodes
from .cells import Labels, draw_arrows, draw_line, draw_network, draw_plane, is_wide

Masses = Float[Array | np.ndarray, "steps_and_end cells"]
Arrows = Float[Array | np.ndarray, "steps cells action_dim"]


@dataclass(frozen=True, eq=False)
class NamedFlow:
    """One flow of a picture.

    Attributes:
        title: Title of its panels.
        masses: The distributions mu_0, ..., mu_H.
        arrows: Mean actions in the cells at each step. There may be fewer steps than
            distributions: at the end of an episode nobody acts.
    """

    title: str
    masses: Masses
    arrows: Arrows | None = None

    def arrows_at(self, step: int) -> Float[np.ndarray, "cells action_dim"] | None:
        """The arrows of one step, if it has any."""
        if self.arrows is None or step >= len(self.arrows):
            return None
        return np.asarray(self.arrows[step])


def as_flows(
    grid: Grid, flows: Masses | Sequence[NamedFlow], arrows: Arrows | None
) -> tuple[NamedFlow, ...]:
    """Checks the flows of a picture; masses alone become a flow without a title."""
    if isinstance(flows, Sequence):
        if arrows is not None:
            raise UserError("several flows bring their own arrows: put them into each NamedFlow")
        named = tuple(flows)
    else:
        named = (NamedFlow("", flows, arrows),)
    if not named:
        raise UserError("expected at least one flow to draw, got an empty sequence")
    for flow in named:
        shape = np.shape(flow.masses)
        if len(shape) != 2 or shape[0] == 0 or shape[1] != grid.n_cells:
            raise UserError(f"expected masses (steps, {grid.n_cells} free cells), got {shape}")
    if any(len(first.masses) != len(second.masses) for first, second in pairwise(named)):
        lengths = {flow.title: len(flow.masses) for flow in named}
        raise UserError(f"flows in one picture share their steps, but their lengths are {lengths}")
    return named


def longest_arrow(flows: Sequence[NamedFlow]) -> float | None:
    """Length of the longest arrow, so that all panels and steps have one scale."""
    arrows = [np.asarray(flow.arrows) for flow in flows if flow.arrows is not None]
    lengths = [float(np.linalg.norm(a, axis=-1).max()) for a in arrows if a.size]
    return max(lengths, default=None)


def draw_field(
    axes: Axes,
    grid: Grid,
    mass: Float[Array | np.ndarray, "cells"],
    *,
    arrows: Float[Array | np.ndarray, "cells 2"] | None = None,
    title: str = "",
    norm: Normalize | None = None,
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
        norm: How masses become colours, of matplotlib: from zero to the largest mass by default,
            ``norm_of(grid, highest, log=True)`` shows thin and dense cells in one range. On a line
            it gives the vertical axis.
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
        raise UserError(f"expected masses of {grid.n_cells} free cells, got {values.shape}")
    norm = norm or norm_of(grid, float(values.max()))
    if arrows is not None and grid.dim == 1:
        raise UserError("arrows are drawn on grids of 2 dimensions only; leave them out")
    if isinstance(grid, Nodes):
        draw_network(axes, grid, values, norm)
    elif grid.dim == 1:
        draw_line(axes, grid, values, norm)
    else:
        draw_plane(axes, grid, values, norm, labels)
        if arrows is not None:
            draw_arrows(axes, grid, values, np.asarray(arrows, dtype=float), arrow_unit)
    if colour_bar:
        draw_colour_bar([axes], grid, norm, labels)
    axes.set_title(title)


def draw_colour_bar(axes: Sequence[Axes], grid: Grid, norm: Normalize, labels: Labels) -> None:
    """Draws the colour bar that panels share; a line has none."""
    nodes = isinstance(grid, Nodes)
    if grid.dim == 1 and not nodes:
        return
    logarithmic = isinstance(norm, LogNorm)
    wide = not nodes and is_wide(grid)
    bar = axes[0].figure.colorbar(
        ScalarMappable(norm, f"{STYLE.field_map}_r" if nodes else STYLE.field_map),
        ax=list(axes),
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
    """Draws a flow at several steps; all panels have one scale of colours, and one of arrows.

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
    titles = titles_of(steps, titles)
    width, height = panel_size(grid)
    figure = Figure(figsize=(width * len(steps), height * len(flows)), layout="compressed")
    panels = figure.subplots(len(flows), len(steps), squeeze=False)
    shared = shared_look(panels.ravel().tolist(), grid, flows, labels)
    for flow, row in zip(flows, panels, strict=True):
        for step, title, axes in zip(steps, titles, row, strict=True):
            shared["title"] = f"{flow.title}, {title}" if flow.title else title
            draw_field(axes, grid, flow.masses[step], arrows=flow.arrows_at(step), **shared)
    return figure


def shared_look(
    panels: Sequence[Axes], grid: Grid, flows: Sequence[NamedFlow], labels: Labels
) -> dict[str, Any]:
    """What `draw_field` needs for panels with one scale; draws their colour bar and a legend."""
    norm = norm_of(grid, max(float(np.max(flow.masses)) for flow in flows), log=grid.dim == 2)
    draw_colour_bar(panels, grid, norm, labels)
    unit = longest_arrow(flows)
    if (unit or 0.0) > 1e-6:  # else rounding
        panels[0].figure.supxlabel(f"arrows: mean actions; the longest has size {unit:.2g}")
    return {"norm": norm, "arrow_unit": unit, "labels": labels, "colour_bar": False}


def titles_of(steps: Sequence[int], titles: Sequence[str] | None) -> Sequence[str]:
    """The titles of steps; by default their numbers."""
    titles = [f"h = {step}" for step in steps] if titles is None else titles
    if len(titles) != len(steps):
        raise UserError(f"expected a title for each of {len(steps)} steps, got {len(titles)}")
    return titles


def panel_size(grid: Grid) -> tuple[float, float]:
    """Width and height in inches of a panel with its colour bar."""
    if grid.dim == 1:
        return 4.0, 3.0
    aspect = grid.extent[1] / grid.extent[0]
    if is_wide(grid):
        return 6.0, 1.5 + 5.0 * aspect
    # Tall and narrow spaces would make pictures that fit on no screen.
    return 4.0, 1.2 + 3.0 * min(aspect, 2.0)


def norm_of(grid: Grid, highest: float, *, log: bool = False) -> Normalize:
    """How masses of a flow up to ``highest`` become colours.

    The log scale ends at ten times the mass that cells have if the population is evenly spread, so
    that crowds at the start of a flow leave some range for the other steps.
    """
    high = highest if highest > 0 else 1.0
    if not log:
        return Normalize(0.0, high)
    high = min(high, 10.0 / grid.n_cells)
    return LogNorm(min(STYLE.visible_share / grid.n_cells, 0.1 * high), high, clip=True)
