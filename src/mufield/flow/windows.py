"""Phi from the centres of cells, with Gaussian noise: the flow of the paper (App. D.2)."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._types import Mass, Step
from ..errors import UserError
from ..problem import Problem
from ..space.grid import Grid
from .landing import AbstractLanding, Exact, Stencil
from .phi import AbstractPhi, Joint
from .tables import build_stencil, build_tables, open_cells


class TargetsLater(NamedTuple):
    """Displacements that are computed for a few moves at a time, as all would fill the memory.

    Attributes:
        of: From the actions of some moves to their displacements.
        actions: The actions of all moves.
        group: Moves come in groups of this many, which must stay together.
    """

    of: Callable[[Array], Float[Array, "cells some dim"]]
    actions: Float[Array, "cells moves action_dim"]
    group: int = 1


class Windows(AbstractPhi):
    """Mass leaves the centres of cells and spreads over the windows around them.

    Attributes:
        landing: How mass comes to rest at walls and borders.
        noise_std: Standard deviation of the Gaussian noise on each axis.
        grid: The space.
    """

    landing: AbstractLanding
    noise_std: Float[Array, "dim"]
    grid: Grid = eqx.field(static=True)

    @property
    def floats_kept(self) -> int:
        """See `AbstractPhi`."""
        return self.landing.floats_kept

    def push(self, joint: Joint, targets: Array | TargetsLater, seen: Mass, step: Step) -> Mass:
        """See `AbstractPhi`."""
        if isinstance(targets, TargetsLater):
            return self._in_chunks(joint, targets)
        return self.landing(joint, self.in_cells(targets), self.std(joint.dtype))

    def in_cells(self, lengths: Float[Array, "... dim"]) -> Float[Array, "... dim"]:
        """Lengths in units of cells."""
        return lengths / jnp.asarray(self.grid.cell_size, dtype=lengths.dtype)

    def std(self, dtype: Any) -> Float[Array, "dim"]:
        """The noise in units of cells."""
        return self.in_cells(self.noise_std.astype(dtype))

    def _in_chunks(self, joint: Joint, targets: TargetsLater) -> Mass:
        """`push` with the windows of a few moves at a time, which gradients do not keep either."""
        at_once, moves, actions = 64, joint.shape[1], targets.actions

        def add(total: Mass, part: tuple[Array, Array]) -> tuple[Mass, None]:
            some, weights = part
            landed = self.landing(weights, self.in_cells(targets.of(some)), self.std(joint.dtype))
            return total + landed, None

        none = jnp.zeros_like(joint[:, 0])
        if moves <= at_once:
            return add(none, (actions, joint))[0]
        size = targets.group * max(1, at_once // targets.group)
        chunks = -(-moves // size)
        pad = (0, chunks * size - moves)
        actions = jnp.pad(actions, ((0, 0), pad, (0, 0)), mode="edge")
        parts = tuple(
            jnp.swapaxes(x.reshape(x.shape[0], chunks, size, *x.shape[2:]), 0, 1)
            for x in (actions, jnp.pad(joint, ((0, 0), pad)))
        )
        return jax.lax.scan(jax.checkpoint(add), none, parts)[0]


class WindowSettings(eqx.Module):
    """How windows are built.

    Attributes:
        noise_reach: Standard deviations of noise that windows cover on top of the farthest move.
            Of the farthest moves 3e-7 of the mass would go farther, about what single precision
            resolves; it lands at the window's edge, so that none is lost.
        subcells: Subcells on each axis into which cells near the ends of walls are cut. By default
            each is about half a standard deviation of the noise, but there are at most 16 in two
            dimensions and 8 in three; smaller noise is then resolved only to the subcell.
        stencil: Whether open cells land by a stencil. By default on maps of at least
            ``stencil_cells`` cells of which at least half are open.
        stencil_cells: See `stencil`.
        most_window: Cells in the window around a cell; more are refused.
        most_entries: Cells in all windows of tables; more are refused.
    """

    noise_reach: float = 5.0
    subcells: int | None = None
    stencil: bool | None = None
    stencil_cells: int = 10_000
    most_window: int = 5_000
    most_entries: int = 100_000_000


def build_windows(problem: Problem, settings: WindowSettings | None = None) -> Windows:
    """The transition of a problem's grid, noise and farthest moves."""
    settings = WindowSettings() if settings is None else settings
    grid, spread = problem.grid, problem.noise_std
    reach = window_reach(problem, spread, settings.noise_reach)
    stencil = settings.stencil
    if stencil is None:
        stencil = _suits_stencil(grid, reach, settings)
    check_windows(problem, reach, settings, stencil)
    cut = settings.subcells or _subcells(grid, spread)
    built: Any = (build_stencil if stencil else build_tables)(
        grid, reach, cut, problem.initial.dtype.name
    )

    def exact(tables: Any) -> Exact:
        return Exact(tables=tables, grid=grid, reach=reach)

    if not any(spread):
        if isinstance(built, Stencil):
            built = eqx.tree_at(lambda s: s.near, built, exact(built.near))
        else:
            built = exact(built)
    std = jnp.asarray(spread, dtype=problem.initial.dtype)
    return Windows(landing=built, noise_std=std, grid=grid)


def window_reach(problem: Problem, spread: tuple[float, ...], deviations: float) -> tuple[int, ...]:
    """Cells to each side that the farthest move and some deviations of the noise can touch."""
    reach = []
    for axis, size in enumerate(problem.grid.cell_size):
        cells = (problem.max_move[axis] + deviations * spread[axis]) / size
        # Agents stand half a cell from their own cell's edge; the rest is slack for rounding.
        needed = max(1, math.ceil(cells - 0.5 - 1e-9))
        if not problem.grid.periodic[axis]:
            needed = min(needed, max(1, problem.grid.shape[axis] - 1))
        reach.append(needed)
    return tuple(reach)


def check_windows(
    problem: Problem, reach: tuple[int, ...], settings: WindowSettings, stencil: bool
) -> None:
    """Raises if windows would take minutes to prepare, or more memory than there is."""
    grid, shape = problem.grid, tuple(2 * r + 1 for r in reach)
    tables = int(np.sum(~open_cells(grid, reach))) if stencil else grid.n_cells
    size = math.prod(shape)
    if size > settings.most_window or tables * size > settings.most_entries:
        near = f"; {tables:,} of them have walls within reach" if stencil else ""
        raise UserError(
            f"expected agents that move a few cells in one step, got a max_move of "
            f"{problem.max_move} and the noise {problem.noise}, which reach "
            f"{' x '.join(map(str, shape))} cells around each of {grid.n_cells:,}{near}; give a "
            "smaller max_move (by default it is the whole space), less noise or larger cells"
        )


def _suits_stencil(grid: Grid, reach: tuple[int, ...], settings: WindowSettings) -> bool:
    """Whether a map is better split between a stencil and tables: large, and mostly open."""
    window = math.prod(2 * r + 1 for r in reach)
    if grid.n_cells < settings.stencil_cells or window > settings.most_window:
        return False
    return bool(open_cells(grid, reach).mean() >= 0.5)


def _subcells(grid: Grid, spread: tuple[float, ...]) -> int:
    """Number of subcells on each axis, a power of two: each about half a standard deviation."""
    finest, most = 1, {1: 1, 2: 16, 3: 8}[grid.dim]
    for size, std in zip(grid.cell_size, spread, strict=True):
        wanted = most if std == 0 else math.ceil(2.0 * size / std)
        finest = max(finest, 1 << max(0, math.ceil(math.log2(wanted))))
    return min(finest, most)
