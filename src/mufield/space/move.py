"""How agents move: towards a target, by the rule for walls, with noise."""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._arrays import CellIndex, Key, Scalar, State, Stopped
from ..errors import PerAxis, UserError, finite, non_negative, number, numbers, per_axis
from .grid import Grid
from .walls import Places, decode, lines_between, look_up, short_walk, trace


class Move(eqx.Module):
    """Where one move ended.

    Attributes:
        position: Where the agent is now.
        stopped: Axes on which a wall or border stopped it, so that the displacement is censored.
        index: Free-cell index of the position.
    """

    position: State
    stopped: Stopped
    index: CellIndex


class Ends(NamedTuple):
    """Where the moves of many agents ended, as `Move` says it of one; an array for each axis."""

    position: Places
    stopped: tuple[Bool[Array, "*agents"], ...]
    cell: Int[Array, "*agents"]


def move(grid: Grid, start: State, target: State) -> Move:
    """Moves one agent from ``start``, in a free cell, along the straight line towards ``target``.

    Where an axis meets a wall or a border, that axis stops there and the others go on, so agents
    slide along walls. A path that hits the corner of a wall exactly stops on all axes that meet
    there, so that no axis is preferred. Periodic axes wrap. The paper leaves the rule open
    ("stopped by the walls", Sec. 6; "redistribute some of the probability mass", App. D.2).

    Stopped agents rest a rounding error in front of the wall, so that the cell of their position
    is always free. An infinite or NaN coordinate of the target gives NaN.
    """
    path = trace(grid, grid.in_cells(start), grid.in_cells(target))
    ends = _at_rest(grid, *map(tuple, (target, path.cell, path.stopped, path.direction > 0)))
    return Move(jnp.stack(ends.position), path.stopped, ends.cell)


def move_many(grid: Grid, start: Places, cell: Int[Array, "agents"], target: Places) -> Ends:
    """Moves agents as `move` does, from ``start``, which is in the free cell ``cell``.

    If one of them crosses many cells, all go by the rule for any distance, which is slower: call it
    for some thousand agents at a time.
    """
    axes = zip(grid.lower, grid.cell_size, start, target, strict=True)
    ends = [((here - low) / size, (there - low) / size) for low, size, here, there in axes]
    lines = lines_between(grid, *zip(*ends, strict=True))

    def at_rest(passed: Sequence[Array], stopped: Sequence[Array]) -> Ends:
        cells = [line.first + p for line, p in zip(lines, passed, strict=True)]
        return _at_rest(grid, target, cells, stopped, [line.steps > 0 for line in lines])

    if not grid.padded_walls(1).any():
        nowhere = jnp.zeros_like(cell, dtype=bool)
        return at_rest([line.steps for line in lines], [nowhere] * grid.dim)
    code = short_walk(grid, lines, cell)
    return Ends(
        *jax.lax.cond(
            jnp.min(code) >= 0,
            lambda code: at_rest(*decode(code, grid.dim)),
            lambda _: one_by_one(partial(move, grid), start, target),
            code,
        )
    )


def one_by_one(rule: Callable[..., Move], *parts: tuple[Array, ...]) -> Ends:
    """The moves of many agents by a rule for one, which takes vectors."""

    def one(*parts: Sequence[Array]) -> Ends:
        moved = rule(*map(jnp.stack, parts))
        return Ends(tuple(moved.position), tuple(moved.stopped), moved.index)

    return Ends(*jax.vmap(one)(*parts))


def _at_rest(
    grid: Grid,
    target: Places,
    cells: Sequence[Array],
    stopped: Sequence[Array],
    upward: Sequence[Array],
) -> Ends:
    """Where agents come to rest whose paths ended in these cells, not wrapped, on each axis."""
    found, positions = [], []
    margin = wall_margin(grid, target[0].dtype)
    for axis, (goal, cell, stop, up) in enumerate(zip(target, cells, stopped, upward, strict=True)):
        lower, size, extent = grid.lower[axis], grid.cell_size[axis], grid.extent[axis]
        free = goal
        if grid.periodic[axis]:
            wrapped = jnp.mod(goal - lower, extent)
            free = lower + jnp.where(wrapped >= extent, 0.0, wrapped)
            cell = cell % grid.shape[axis]
        low = lower + cell.astype(goal.dtype) * size
        at_wall = jnp.where(up, low + size - margin, low + margin)
        # Rounding must not put a position into another cell than the path ended in.
        inside = jnp.clip(free, low + margin, low + size - margin)
        position = jnp.where(stop, at_wall, inside)
        positions.append(jnp.where(jnp.isfinite(goal), position, jnp.nan))
        found.append(cell)
    index = look_up(jnp.asarray(grid.index_table), found)
    return Ends(tuple(positions), tuple(stopped), index)


def wall_margin(grid: Grid, dtype: Any) -> float:
    """How far in front of a wall stopped agents rest: some rounding errors of positions."""
    return 8.0 * max(map(abs, (*grid.lower, *grid.upper))) * float(jnp.finfo(dtype).eps)


def check_rounding(grid: Grid, dtype: Any) -> None:
    """Raises if positions are so far from the origin that their rounding is felt in a cell."""
    far, smallest = max(map(abs, (*grid.lower, *grid.upper))), min(grid.cell_size)
    if wall_margin(grid, dtype) > 0.1 * smallest:
        raise UserError(
            f"expected cells that are large beside the rounding of positions, got cells of "
            f"{smallest:g} and positions up to {far:g} in {dtype}; subtract the map's lower corner "
            "from positions, or compute with 64 bits (jax.config.update('jax_enable_x64', True))"
        )


def draw_index(weights: Float[Array, "choices"], chance: Scalar) -> Int[Array, ""]:
    """The choice at which a number in [0, 1) lies among the cumulative weights."""
    sums = jnp.cumsum(weights)
    # A weight of zero must not be drawn, however the sums are rounded.
    return jnp.argmax((sums > chance * sums[-1]) & (weights > 0))


class AbstractNoise(eqx.Module):
    """What chance does to a move, by a few random numbers for each agent."""

    centred: ClassVar[bool] = True
    """Whether agents always stand in the middle of their cells."""

    def numbers(self, grid: Grid) -> int:
        """How many random numbers a move needs."""
        return 1

    def draws(self, grid: Grid, key: Key, dtype: Any) -> Float[Array, "draws"]:
        """The random numbers of one agent's move."""
        return jax.random.uniform(key, (self.numbers(grid),), dtype=dtype)

    def from_uniform(self, uniform: Float[Array, "*agents"]) -> Float[Array, "*agents"]:
        """A draw of each number that is uniform between 0 and 1."""
        return uniform

    def parts(self, target: Array) -> tuple[Array, ...]:
        """The target of one agent as `move_many` takes it."""
        return tuple(target)

    @abstractmethod
    def move(self, grid: Grid, state: State, target: Array, draws: Float[Array, "draws"]) -> Move:
        """Moves one agent; `Grid.targets` says where to, without noise and walls."""

    def move_many(
        self, grid: Grid, start: Places, cell: Array, target: tuple[Array, ...], draws: Places
    ) -> Ends:
        """Moves agents as `move` does, with one array for each axis and each draw."""
        return one_by_one(partial(self.move, grid), start, target, draws)


class GaussianNoise(AbstractNoise):
    """Independent Gaussian noise on each axis, added to where an agent would go."""

    std: tuple[float, ...] = eqx.field(static=True)
    centred: ClassVar[bool] = False

    def __init__(self, std: PerAxis):
        name, remedy = "the noise's standard deviation", "it must be 0 or more on each axis"
        values = np.atleast_1d(numbers(std, name, remedy))
        finite(values, name, remedy)
        non_negative(values, name, remedy)
        self.std = tuple(values.astype(float).tolist())

    def on(self, grid: Grid) -> "GaussianNoise":
        """The noise with one standard deviation for each axis of a grid."""
        given = self.std * grid.dim if len(self.std) == 1 else self.std
        std = per_axis(given, grid.dim, float, "the noise")
        for axis, (each, wide) in enumerate(zip(std, grid.extent, strict=True)):
            if each > wide:
                raise UserError(
                    f"expected noise that is smaller than the space, which is {wide:g} wide on "
                    f"axis {axis}, got a standard deviation of {each:g}; check the units"
                )
        return GaussianNoise(std)

    def numbers(self, grid: Grid) -> int:
        """One for each axis."""
        return grid.dim

    def draws(self, grid: Grid, key: Key, dtype: Any) -> Float[Array, "draws"]:
        """Standard normal numbers."""
        return jax.random.normal(key, (grid.dim,), dtype=dtype)

    def from_uniform(self, uniform: Float[Array, "*agents"]) -> Float[Array, "*agents"]:
        """Standard normal numbers."""
        return math.sqrt(2.0) * jax.lax.erf_inv(2.0 * uniform - 1.0)

    def move(self, grid: Grid, state: State, target: State, draws: Float[Array, "draws"]) -> Move:
        """Moves one agent by its displacement plus the noise."""
        return move(grid, state, state + target + jnp.asarray(self.std, dtype=state.dtype) * draws)

    def move_many(
        self, grid: Grid, start: Places, cell: Int[Array, "agents"], target: Places, draws: Places
    ) -> Ends:
        """Moves agents as `move` does, with one array for each axis and each draw."""
        axes = zip(start, target, self.std, draws, strict=True)
        return move_many(grid, start, cell, tuple(x + t + s * draw for x, t, s, draw in axes))


class NeighbourNoise(AbstractNoise):
    """Noise of the discrete rooms: after its move, an agent may be pushed to a neighbour.

    With probability ``intensity`` the agent takes one more move, drawn uniformly from staying
    and the free neighbours of its cell.
    """

    intensity: float = eqx.field(static=True)

    def __init__(self, intensity: float):
        self.intensity = number(intensity, "the noise intensity", 0.0, 1.0)

    def weights(self, grid: Grid) -> Float[np.ndarray, "cells directions"]:
        """Probability of each of the cell's `Grid.neighbours`."""
        free = grid.neighbours >= 0
        weights = self.intensity * free / free.sum(axis=1, keepdims=True)
        weights[:, 0] += 1.0 - self.intensity
        return np.asarray(weights)

    def on(self, grid: Grid) -> "NeighbourNoise":
        """The noise itself, which is the same on all grids."""
        return self

    def move(self, grid: Grid, state: State, target: State, draws: Float[Array, "draws"]) -> Move:
        """Moves one agent by its displacement, then perhaps on to a neighbour."""
        moved = move(grid, state, state + target)
        weights = jnp.asarray(self.weights(grid), dtype=state.dtype)[moved.index]
        index = jnp.asarray(grid.neighbours)[moved.index, draw_index(weights, draws[0])]
        centre = jnp.asarray(grid.centres, dtype=state.dtype)[index]
        return Move(position=centre, stopped=moved.stopped, index=index)


def farthest_moves(max_move: PerAxis | None, grid: Grid) -> tuple[float, ...]:
    """The farthest move on each axis; by default the whole space."""
    if max_move is None:
        return grid.extent
    farthest = per_axis(max_move, grid.dim, float, "max_move")
    for axis, (each, wide) in enumerate(zip(farthest, grid.extent, strict=True)):
        if not 0 < each <= 100 * wide:  # more is a mistake in the units
            raise UserError(
                "max_move must be positive and at most 100 times the space, which is "
                f"{wide:g} wide on axis {axis}, got {each:g}; check the units"
            )
    return farthest


Noise = GaussianNoise | NeighbourNoise
