"""How a network sees the population: from the masses of all cells to a short vector."""

from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._types import Mass
from ..errors import UserError
from ..space.grid import Grid


class AbstractEncoder(eqx.Module):
    """Turns a distribution into features of a fixed number."""

    size: eqx.AbstractVar[int]

    @abstractmethod
    def __call__(self, mass: Mass) -> Float[Array, "features"]:
        """The features of a distribution, of the order of one."""


class NoEncoder(AbstractEncoder):
    """The network does not see the population: pi(s)."""

    size: int = eqx.field(static=True, default=0)

    def __call__(self, mass: Mass) -> Float[Array, "features"]:
        """Nothing."""
        return jnp.zeros((0,), dtype=mass.dtype)


class RawEncoder(AbstractEncoder):
    """The mass of every cell, scaled so that the uniform distribution is all ones."""

    size: int = eqx.field(static=True)

    def __call__(self, mass: Mass) -> Float[Array, "features"]:
        """All masses."""
        return mass * self.size


class PooledEncoder(AbstractEncoder):
    """The mass of blocks of cells, for grids with many cells.

    Attributes:
        blocks: Block of each cell, as rows of a matrix that adds them up.
    """

    blocks: tuple[int, ...] = eqx.field(static=True)
    size: int = eqx.field(static=True)

    def __call__(self, mass: Mass) -> Float[Array, "features"]:
        """Masses of the blocks, scaled so that equal blocks are all ones."""
        member = np.asarray(self.blocks)[:, None] == np.arange(self.size)
        return mass @ jnp.asarray(member, dtype=mass.dtype) * self.size


def make_encoder(grid: Grid, kind: str, pooling: int = 4) -> AbstractEncoder:
    """Builds an encoder by name.

    Args:
        grid: The space.
        kind: ``"none"``, ``"raw"`` or ``"pooled"``.
        pooling: Cells of a block on each axis, for ``"pooled"``.
    """
    if kind == "none":
        return NoEncoder()
    if kind == "raw":
        return RawEncoder(size=grid.n_cells)
    if kind == "pooled":
        if pooling < 1:
            raise UserError(f"pooling must be at least 1, got {pooling}")
        coarse = grid.free_cells // pooling
        _, block = np.unique(coarse, axis=0, return_inverse=True)
        block = block.reshape(-1)
        return PooledEncoder(blocks=tuple(block.tolist()), size=int(block.max()) + 1)
    raise UserError(f"the encoder must be 'none', 'raw' or 'pooled', got {kind!r}")
