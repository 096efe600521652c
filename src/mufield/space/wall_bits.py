"""What the wall rule looks up: the walls around each cell, as the bits of one number."""

import itertools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from .grid import Grid


def entry(table: Int[Array, "..."], cell: Sequence[Array]) -> Int[Array, "*agents"]:
    """The table's entry for cells. Bounds are not checked: that would cost more than reading."""
    place: Any = 0
    for number, size in zip(cell, table.shape, strict=True):
        place = place * size + number
    return table.reshape(-1).at[place].get(mode="promise_in_bounds", wrap_negative_indices=False)


def is_set(number: Array, bit: Any) -> Array:
    """Whether a bit of a number is one."""
    return jnp.asarray((number >> bit) & 1, dtype=bool)


def wall_bit(offset: Sequence[Any], reach: int) -> Any:
    """Number of the bit in `walls_around` that stands for the cell at an offset."""
    return sum((step + reach) * (2 * reach + 1) ** axis for axis, step in enumerate(offset))


def short_reach(dim: int) -> int:
    """The cells on each axis that a short walk may cross: 32 bits hold all walls around."""
    return {1: 3, 2: 2, 3: 1}[dim]


def walls_around(grid: Grid, reach: int) -> Int[np.ndarray, "..."]:
    """For each cell a number whose bits say which cells within ``reach`` on each axis are walls."""
    blocked = grid.padded_walls(reach)
    around = np.zeros(grid.shape, dtype=np.uint32)
    for offset in itertools.product(range(-reach, reach + 1), repeat=grid.dim):
        begin = [reach + o for o in offset]
        window = tuple(slice(b, b + n) for b, n in zip(begin, grid.shape, strict=True))
        around |= blocked[window].astype(np.uint32) << np.uint32(wall_bit(offset, reach))
    return around.astype(np.int32)


def wall_margin(grid: Grid, dtype: Any) -> float:
    """How far in front of a wall stopped agents rest: some rounding errors of positions."""
    magnitude = max(*(abs(b) for b in grid.lower), *(abs(b) for b in grid.upper))
    return 8.0 * magnitude * float(jnp.finfo(dtype).eps)
