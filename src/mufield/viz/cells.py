"""One distribution in one panel: along a line, on a plane, or on nodes; and arrows of actions."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.colors import Normalize
from matplotlib.patches import Rectangle

from .._style import STYLE
from ..errors import UserError
from ..space.grid import Grid
from ..space.nodes import Nodes


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


def draw_line(axes: Axes, grid: Grid, values: Float[np.ndarray, "cells"], norm: Normalize) -> None:
    """Draws the density along a line."""
    edges = np.linspace(grid.lower[0], grid.upper[0], grid.shape[0] + 1)
    colours: dict[str, Any] = {"facecolor": STYLE.bar, "edgecolor": STYLE.bar_edge}
    density = grid.to_array(values / grid.cell_volume)
    axes.stairs(density, edges, fill=True, linewidth=1.0, **colours)
    for cell in np.flatnonzero(grid.walls):
        axes.axvspan(edges[cell], edges[cell + 1], label="wall", **Labels().look_of_walls())
    high = 1.05 * float(norm.vmax or 1.0) / grid.cell_volume
    axes.set(xlim=(grid.lower[0], grid.upper[0]), ylim=(0.0, high), xlabel="x", ylabel="density")


def draw_plane(
    axes: Axes, grid: Grid, values: Float[np.ndarray, "cells"], norm: Normalize, labels: Labels
) -> None:
    """Draws the masses of the cells of a plane."""
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
        raise UserError(f"arrows must have the shape {(grid.n_cells, 2)}, got {arrows.shape}")
    lengths = np.linalg.norm(arrows, axis=1)
    unit = unit or float(lengths.max())
    # Arrows along a panel of normal width; finer grids show those of some cells only.
    most_arrows = 16
    # On fine grids every arrow stands for a block of cells, as it would be too small for one.
    stride = math.ceil(max(grid.shape) / (2 * most_arrows if is_wide(grid) else most_arrows))
    # Arrows shorter than this share of the longest would be specks; far shorter ones are rounding.
    least = max(0.25 * unit, 1e-6)
    shown = (values > STYLE.visible_share / grid.n_cells) & (lengths > least)
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


def draw_network(
    axes: Axes, nodes: Nodes, mass: Float[np.ndarray, "nodes"], norm: Normalize
) -> None:
    """Draws ways as lines and nodes as discs, with their names if there are at most 30."""
    places = nodes.positions
    if nodes.successors is not None:
        here, slot = np.nonzero(nodes.successors >= 0)
        ends: Any = np.stack([places[here], places[nodes.successors[here, slot]]], axis=1)
        axes.add_collection(LineCollection(ends, colors=STYLE.wall, linewidths=0.5, zorder=1))
    largest = max(30.0, 1500.0 / np.sqrt(nodes.n_cells))  # in square points
    area = largest * np.maximum(mass, 0.0) / float(norm.vmax or 1.0)
    x, y = places.T
    axes.scatter(x, y, s=area + 4.0, c=mass, cmap=f"{STYLE.field_map}_r", norm=norm, zorder=2)
    low, high = places.min(axis=0), places.max(axis=0)
    pad = 0.15 * max(float((high - low).max()), 1e-6)
    axes.set(xlim=(low[0] - pad, high[0] + pad), ylim=(low[1] - pad, high[1] + pad))
    axes.set_aspect("equal")
    axes.set_axis_off()
    if nodes.n_cells <= 30 and not axes.texts:  # frames of a film share their names
        for name, place in zip(nodes.names, places, strict=True):
            above = (0, float(np.sqrt(largest)) / 2 + 3)
            axes.annotate(name, place, above, textcoords="offset points", ha="center", fontsize=7)


def is_wide(grid: Grid) -> bool:
    """Whether a panel is so wide that its colour bar stands below."""
    return grid.extent[1] < 0.6 * grid.extent[0]
