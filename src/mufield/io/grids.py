"""Grids as JSON can hold them, for files of policies."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import UserError
from ..space.grid import Grid
from ..space.nodes import Nodes


def grid_entries(grid: Grid) -> dict[str, Any]:
    """A grid as JSON can hold it: walls as bits in hexadecimal; nodes with names and successors."""
    about: dict[str, Any] = {
        "lower": list(grid.lower),
        "upper": list(grid.upper),
        "shape": list(grid.shape),
        "periodic": list(grid.periodic),
        "walls": np.packbits(grid.walls).tobytes().hex(),
    }
    if isinstance(grid, Nodes):
        listed = None if grid.successors is None else grid.successors.tolist()
        about |= {"names": list(grid.names), "successors": listed}
    return about


def read_grid(about: Mapping[str, Any]) -> Grid:
    """The grid that `grid_entries` described."""
    if "names" in about:
        listed = about["successors"]
        return Nodes(about["names"], successors=None if listed is None else np.array(listed, int))
    count, bits = math.prod(about["shape"]), np.frombuffer(bytes.fromhex(about["walls"]), np.uint8)
    # Before unpacking: a wrong shape must not reserve memory.
    if len(bits) != (count + 7) // 8:
        raise UserError(f"expected walls for {count} cells, got {8 * len(bits)} bits")
    walls = np.unpackbits(bits, count=count).astype(bool).reshape(about["shape"])
    box = (about["lower"], about["upper"], about["shape"])
    return Grid.box(*box, periodic=about["periodic"], walls=walls)
