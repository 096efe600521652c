"""Distributions over nodes: the network, with discs whose area is the mass."""

from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from .._style import STYLE
from ..space.nodes import Nodes


def draw_network(
    axes: Axes, nodes: Nodes, mass: Float[np.ndarray, "nodes"], most: float, names: int = 30
) -> None:
    """Draws ways as lines and nodes as discs; ``most`` is the mass of the largest disc.

    Nodes are named if there are at most ``names``.
    """
    places = nodes.positions
    if nodes.successors is not None:
        here, slot = np.nonzero(nodes.successors >= 0)
        ends: Any = np.stack([places[here], places[nodes.successors[here, slot]]], axis=1)
        axes.add_collection(LineCollection(ends, colors=STYLE.wall, linewidths=0.5, zorder=1))
    largest = max(30.0, 1500.0 / np.sqrt(nodes.n_cells))  # in square points
    area = largest * np.maximum(mass, 0.0) / max(most, 1e-12)
    x, y = places.T
    look: dict[str, Any] = {"cmap": f"{STYLE.field_map}_r", "vmin": 0.0, "vmax": most, "zorder": 2}
    axes.scatter(x, y, s=area + 4.0, c=mass, **look)
    low, high = places.min(axis=0), places.max(axis=0)
    pad = 0.15 * max(float((high - low).max()), 1e-6)
    axes.set(xlim=(low[0] - pad, high[0] + pad), ylim=(low[1] - pad, high[1] + pad))
    axes.set_aspect("equal")
    axes.set_axis_off()
    if nodes.n_cells <= names and not axes.texts:  # frames of a film share their names
        for name, place in zip(nodes.names, places, strict=True):
            above = (0, float(np.sqrt(largest)) / 2 + 3)
            axes.annotate(name, place, above, textcoords="offset points", ha="center", fontsize=7)
