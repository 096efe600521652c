"""The wall rule of `move` for many agents at once.

The compiler makes fast code of what is one formula for one array. So each axis has an array of its
own, agents who cross few cells are moved without a loop, and the result of their walk is packed
into one number: of several results, each would be computed by a walk of its own.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial, reduce
from operator import and_
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .grid import Grid, per_axis
from .move import GaussianNoise, Move, Noise, move, rest, wall_bit, walls_around

SHORT = {1: 3, 2: 2, 3: 1}
"""The cells on each axis that a short walk may cross, by the number of axes. One number of 32 bits
holds all the walls that it may meet."""

Places = tuple[Float[Array, "agents"], ...]
"""Positions of agents: one array for each axis."""


class Crowd(NamedTuple):
    """Where the moves of many agents ended, as `Move` says it of one; ``cell`` is its index."""

    position: Places
    stopped: tuple[Bool[Array, "agents"], ...]
    cell: Int[Array, "agents"]


def move_with_noise(
    grid: Grid, noise: Noise, start: Places, cell: Int[Array, "agents"], aim: Places, draws: Places
) -> Crowd:
    """Moves agents to where they aim and the noise pushes them.

    ``draws`` are those of ``noise.move``, with one array for each number.
    """
    if isinstance(noise, GaussianNoise):
        std = per_axis(noise.std, grid.dim, float)
        pushed = [a + s * draw for a, s, draw in zip(aim, std, draws, strict=True)]
        return move_many(grid, start, cell, tuple(pushed))
    return _one_by_one(partial(noise.move, grid), start, aim, draws)


def move_many(grid: Grid, start: Places, cell: Int[Array, "agents"], aim: Places) -> Crowd:
    """Moves agents as `move` does, from ``start``, which is in the free cell ``cell``.

    If one of them crosses many cells, all go by the rule for any distance, which is slower: call it
    for some thousand agents at a time.
    """
    lines = _Lines.between(grid, start, aim)
    if not walls_around(grid, 1).any():
        nowhere = tuple(jnp.zeros_like(cell, dtype=bool) for _ in start)
        return _at_rest(grid, aim, lines, lines.steps, nowhere)
    code = _short_walk(grid, lines, cell)

    def all_short(code: Array) -> Crowd:
        bits, places = _bits(grid), range(grid.dim)
        passed = [((code >> (bits * a)) & ((1 << bits) - 1)) - SHORT[grid.dim] for a in places]
        stopped = tuple(((code >> (bits * grid.dim + a)) & 1) != 0 for a in places)
        return _at_rest(grid, aim, lines, passed, stopped)

    def any_distance(_: Array) -> Crowd:
        return _one_by_one(partial(move, grid), start, aim)

    moved: Crowd = jax.lax.cond(jnp.min(code) >= 0, all_short, any_distance, code)
    return moved


def _one_by_one(rule: Callable[..., Move], *parts: Places) -> Crowd:
    """The moves by a rule for one agent, which takes vectors."""

    def one(*parts: Sequence[Array]) -> Crowd:
        moved = rule(*map(jnp.stack, parts))
        return Crowd(tuple(moved.position), tuple(moved.stopped), moved.index)

    crowd: Crowd = jax.vmap(one)(*parts)
    return crowd


class _Lines(NamedTuple):
    """Straight lines on the lattice: for each axis, arrays over the agents.

    Attributes:
        first: Cells in which they start.
        inside: Where in these cells, as a share of the edge.
        delta: Where they go, in cells.
        steps: Edges to cross on the way.
    """

    first: Sequence[Array]
    inside: Sequence[Array]
    delta: Sequence[Array]
    steps: Sequence[Array]

    @classmethod
    def between(cls, grid: Grid, start: Places, aim: Places) -> "_Lines":
        axes = zip(grid.lower, grid.cell_size, grid.shape, start, aim, strict=True)
        lines = []
        for lower, size, count, here, there in axes:
            here, there = ((x - lower) / size for x in (here, there))
            first = jnp.clip(jnp.floor(here).astype(jnp.int32), 0, count - 1)
            delta = there - here
            # An axis that is not finite stays put, as in `trace`.
            steps = jnp.where(jnp.isfinite(delta), jnp.floor(there).astype(jnp.int32) - first, 0)
            lines.append((first, here - first, jnp.where(delta == 0, 1.0, delta), steps))
        return cls(*zip(*lines, strict=True))


def _bits(grid: Grid) -> int:
    """Bits that hold how far a short walk went on one axis."""
    return (2 * SHORT[grid.dim]).bit_length()


def _short_walk(grid: Grid, lines: _Lines, cell: Array) -> Int[Array, "agents"]:
    """Where lines end and on which axes they are stopped, in one number; negative if they are long.

    See `trace` for the rule.
    """
    reach, dim = SHORT[grid.dim], grid.dim
    table = jnp.asarray(walls_around(grid, reach)[tuple(grid.free_cells.T)])
    seen = table.at[cell].get(mode="promise_in_bounds", wrap_negative_indices=False)
    short = reduce(and_, (jnp.abs(steps) <= reach for steps in lines.steps))
    goals = [jnp.where(short, steps, 0) for steps in lines.steps]
    signs = [jnp.sign(goal) for goal in goals]
    edges = [(sign > 0).astype(jnp.int32) for sign in signs]
    passed = [jnp.zeros_like(goal) for goal in goals]

    def is_wall(axes: Sequence[int]) -> Array:
        """Whether the next cell is a wall, if these axes are crossed."""
        there = [
            p + (s if a in axes else 0) for a, p, s in zip(range(dim), passed, signs, strict=True)
        ]
        return jnp.asarray((seen >> wall_bit(there, reach)) & 1, dtype=bool)

    for _ in range(dim * reach):
        going = [p != g for p, g in zip(passed, goals, strict=True)]
        parts = zip(going, passed, edges, lines.inside, lines.delta, strict=True)
        times = [jnp.where(go, (p + e - x) / d, jnp.inf) for go, p, e, x, d in parts]
        least = reduce(jnp.minimum, times)
        now = [go & (time == least) for go, time in zip(going, times, strict=True)]
        alone = [n & is_wall([axis]) for axis, n in enumerate(now)]
        free = [n & ~a for n, a in zip(now, alone, strict=True)]
        corner = jnp.zeros_like(short)
        for size in range(2, dim + 1):
            for axes in itertools.combinations(range(dim), size):
                corner = corner | (reduce(and_, (free[a] for a in axes)) & is_wall(axes))
        hits = [a | (f & corner) for a, f in zip(alone, free, strict=True)]
        goals = [jnp.where(hit, p, goal) for hit, p, goal in zip(hits, passed, goals, strict=True)]
        onward = zip(passed, signs, free, strict=True)
        passed = [p + jnp.where(f & ~corner, s, 0) for p, s, f in onward]

    code = jnp.where(short, 0, -1)
    for axis, (goal, wanted, p) in enumerate(zip(goals, lines.steps, passed, strict=True)):
        code = code | ((p + reach) << (_bits(grid) * axis))
        code = code | ((goal != wanted).astype(jnp.int32) << (_bits(grid) * dim + axis))
    return code


def _at_rest(
    grid: Grid, aim: Places, lines: _Lines, passed: Sequence[Array], stopped: Sequence[Array]
) -> Crowd:
    """The end of lines that ``passed`` so many edges on each axis."""
    cells, positions = [], []
    for axis, (goal, first, p, stop) in enumerate(
        zip(aim, lines.first, passed, stopped, strict=True)
    ):
        end = rest(grid, axis, goal, first + p, stop, lines.steps[axis] > 0)
        cells.append(end.cell)
        positions.append(end.position)
    place: Any = 0
    for cell, count in zip(cells, grid.shape, strict=True):
        place = place * count + cell
    index = jnp.asarray(grid.index_table).reshape(-1)
    found = index.at[place].get(mode="promise_in_bounds", wrap_negative_indices=False)
    return Crowd(tuple(positions), tuple(stopped), found)
