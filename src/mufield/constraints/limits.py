"""The usual constraints: on the mass of a region or of cells, and on the entropy."""

import reprlib
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._types import Mass
from ..errors import UserError
from ..space.grid import Grid
from ..space.measure import log_mass
from .constraint import Constraint

Steps = Sequence[int] | None


def mass_at_most(
    grid: Grid, region: Any, limit: float, *, name: str = "", steps: Steps = None
) -> Constraint:
    """At most ``limit`` of the population is in a region.

    Args:
        grid: The space.
        region: Cells as coordinates, such as ``[(5, 2), (5, 8)]``, one truth value for each free
            cell, or a function of a position that says whether it belongs to the region.
        limit: The greatest share.
        name: As of `Constraint`.
        steps: As of `Constraint`.
    """
    inside = _region(grid, region)
    return _limit(Linear(-inside, _share(limit)), name or f"mass at most {limit:g}", limit, steps)


def mass_at_least(
    grid: Grid, region: Any, limit: float, *, name: str = "", steps: Steps = None
) -> Constraint:
    """At least ``limit`` of the population is in a region; arguments as of `mass_at_most`."""
    inside = _region(grid, region)
    return _limit(Linear(inside, -_share(limit)), name or f"mass at least {limit:g}", limit, steps)


def cells_at_most(
    grid: Grid, limit: float, region: Any = None, *, name: str = "", steps: Steps = None
) -> Constraint:
    """No cell, of a region or of all, holds more than ``limit``; as `mass_at_most`."""
    inside = np.ones(grid.n_cells) if region is None else _region(grid, region)
    cells = tuple(np.flatnonzero(inside).tolist())
    return _limit(_CellCap(cells, _share(limit)), name or f"cells at most {limit:g}", limit, steps)


def entropy_at_least(
    grid: Grid, limit: float, weights: Any = None, *, name: str = "", steps: Steps = None
) -> Constraint:
    """The entropy -sum w mu log mu, in nats, is at least ``limit``.

    Args:
        grid: The space.
        limit: The least entropy; `log(grid.n_cells)` is the greatest without weights.
        weights: One weight of at least zero for each free cell; all one by default.
        name: As of `Constraint`.
        steps: As of `Constraint`.
    """
    if not limit > 0:
        raise UserError(f"the least entropy must be positive, got {limit}")
    weigh = np.ones(grid.n_cells) if weights is None else np.asarray(weights, dtype=float)
    if weigh.shape != (grid.n_cells,) or not (np.isfinite(weigh).all() and (weigh >= 0).all()):
        raise UserError(
            f"weights of an entropy must be {grid.n_cells} finite numbers of at least zero, one "
            f"for each free cell, got the shape {weigh.shape}"
        )
    return _limit(_Entropy(weigh, limit), name or f"entropy at least {limit:g}", limit, steps)


class Linear(eqx.Module):
    """Factors . mass + offset."""

    factors: Float[np.ndarray, "cells"]
    offset: float = eqx.field(static=True)

    def __call__(self, mass: Mass) -> Array:
        """The margin of one distribution, not yet as a share of the limit."""
        return jnp.vdot(jnp.asarray(self.factors, dtype=mass.dtype), mass) + self.offset


class _CellCap(eqx.Module):
    """What is left below the limit in each of some cells."""

    cells: tuple[int, ...] = eqx.field(static=True)
    limit: float = eqx.field(static=True)

    def __call__(self, mass: Mass) -> Array:
        return self.limit - mass[np.asarray(self.cells)]


class _Entropy(eqx.Module):
    """The weighted entropy above the limit."""

    weights: Float[np.ndarray, "cells"]
    limit: float = eqx.field(static=True)

    def __call__(self, mass: Mass) -> Array:
        weights = jnp.asarray(self.weights, dtype=mass.dtype)
        return -jnp.sum(weights * mass * log_mass(mass)) - self.limit


def _limit(function: Any, name: str, limit: float, steps: Steps) -> Constraint:
    return Constraint(function, name, float(limit), None if steps is None else tuple(steps))


def _share(limit: float) -> float:
    if not 0 < limit <= 1:
        raise UserError(f"the limit is a share of the population, from above 0 to 1; got {limit}")
    return limit


def _region(grid: Grid, region: Any) -> Float[np.ndarray, "cells"]:
    """One for every free cell of a region, and zero for the others."""
    if callable(region):
        region = [bool(region(at)) for at in grid.centres]
    inside = np.asarray(region)
    if inside.size and inside.dtype.kind in "iu":
        cells, inside = inside.reshape(-1, grid.dim), np.zeros(grid.n_cells, dtype=bool)
        inside[[grid.index_at(*map(int, cell)) for cell in cells]] = True
    elif inside.shape == grid.shape and inside.shape != (grid.n_cells,):
        inside = grid.from_array(inside)
    if inside.dtype != bool or inside.shape != (grid.n_cells,):
        raise UserError(
            "a region must be cells as coordinates, one truth value for each of the "
            f"{grid.n_cells} free cells, or a function of a position; got {reprlib.repr(region)}"
        )
    if not inside.any():
        raise UserError("the region is empty: no free cell belongs to it")
    return np.asarray(inside, dtype=float)
