"""Landing without Gaussian noise: mass lands by the very rule that agents follow."""

import itertools
import math
from functools import lru_cache, partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._types import Mass
from ..space.grid import Grid
from ..space.move import NeighbourNoise, Noise
from ..space.walls import trace
from .tables import Routing
from .windows import AbstractLanding, SourceMass, Std, Targets, WindowMass


class Noiseless(AbstractLanding):
    """Mass lands where an agent of its cell would; by targets the derivative is zero.

    In the discrete rooms it is then pushed to neighbouring cells with some probability.

    Attributes:
        arrival: From (cell, window offset) to the cell that this is.
        neighbours: From (cell, direction) to the cell there; None without such noise.
        weights: Probability of each direction in each cell.
        grid: The space.
    """

    arrival: Routing
    neighbours: Routing | None
    weights: Float[Array, "cells directions"] | None
    grid: Grid = eqx.field(static=True)
    reach: tuple[int, ...] = eqx.field(static=True)

    def __call__(self, joint: SourceMass, targets: Targets, std: Std) -> Mass:
        """See `AbstractLanding`."""
        chosen = self._offsets(targets)[..., None] == jnp.arange(math.prod(self.window))
        return self.arrive(jnp.einsum("km,kme->ke", joint, chosen.astype(joint.dtype)))

    def kernel(self, targets: Float[Array, "sources dim"], std: Std) -> WindowMass:
        """See `AbstractLanding`."""
        offsets = self._offsets(targets[:, None])[:, 0]
        return jax.nn.one_hot(offsets, math.prod(self.window), dtype=targets.dtype)

    def arrive(self, landed: WindowMass) -> Mass:
        """See `AbstractLanding`."""
        mass = self.arrival(landed.reshape(-1))
        if self.neighbours is None or self.weights is None:
            return mass
        return self.neighbours((mass[:, None] * self.weights.astype(mass.dtype)).reshape(-1))

    def _offsets(self, targets: Targets) -> Int[Array, "sources moves"]:
        """Number of the window offset at which each move ends."""
        reach = jnp.asarray(self.reach, dtype=jnp.int32)
        centres = jnp.asarray(self.grid.free_cells, dtype=targets.dtype) + 0.5

        def offset(centre: Array, displacement: Array) -> Array:
            path = trace(self.grid, centre, centre + displacement)
            place = jnp.clip(path.cell - path.start, -reach, reach) + reach
            return jnp.ravel_multi_index(tuple(place), self.window, mode="clip")

        return jax.vmap(lambda c, ds: jax.vmap(partial(offset, c))(ds))(centres, targets)


@lru_cache(maxsize=32)
def build_noiseless(grid: Grid, reach: tuple[int, ...], noise: Noise) -> Noiseless:
    """The landing of a grid, for windows of ``reach`` cells to each side."""
    with jax.ensure_compile_time_eval():
        offsets = np.array(list(itertools.product(*(range(-r, r + 1) for r in reach))))
        ends = grid.cell_index(grid.free_cells[:, None] + offsets)
        neighbours = weights = None
        if isinstance(noise, NeighbourNoise):
            neighbours = Routing.to_ends(grid.neighbours, grid.n_cells)
            weights = jnp.asarray(noise.weights(grid), dtype=jnp.result_type(float))
        arrival = Routing.to_ends(ends, grid.n_cells)
        return Noiseless(
            arrival=arrival, neighbours=neighbours, weights=weights, grid=grid, reach=reach
        )
