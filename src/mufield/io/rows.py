"""Observed moves: whether they can be right, what walls did to them, and rows of logs as data."""

import itertools
import reprlib
from collections.abc import Callable
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from ..errors import UserError, distribution, fail_where, numbers
from ..models.data import Transitions
from ..problem import Problem
from ..space.grid import Grid
from ..space.move import GaussianNoise, NeighbourNoise
from ..space.nodes import Nodes

CONTACT = 1e-3
"""A position this near to a wall, as a share of a cell, touches it: agents rest at walls, and
positions are measured and printed with a few digits only."""

Points = Float[np.ndarray, "points dim"]
Axes = Bool[np.ndarray, "points dim"]
Where = Callable[[int, str], str]
"""The place of a value for errors, from its row and the name of its column."""


def as_transitions(
    problem: Problem,
    states: Any,
    actions: Any,
    next_states: Any,
    *,
    mass: Any | Literal["unknown"] | None = None,
    moment: Any | None = None,
    step: Any | None = None,
    earned: Any | None = None,
) -> Transitions:
    """Loose rows of a log, in any order, of any agents and times; raises if one is wrong.

    Values are rounded to the problem's precision, as those of episodes are. An axis on which an
    agent ended in contact with a wall or border counts as stopped, and is not learned from.

    Args:
        problem: What is known of the system.
        states: Where agents were (rows, dim).
        actions: What they did (rows, action_dim).
        next_states: Where they were one step later.
        mass: The population's distributions (moments, cells), with ``moment`` to say which
            belongs to a row; or one for each row; or a single one (cells). None takes the rows of
            the same ``moment`` for the population. ``"unknown"`` assumes an even spread, which
            does no harm where the motion does not depend on mu.
        moment: The row of ``mass`` for each row; without ``mass`` numbers that tell times apart.
        step: The number of each row's step, for models that look at ``mu.step``; by default 0.
        earned: What agents were paid (rows), if the problem's reward is hidden.
    """
    if problem.shocks is not None:
        raise UserError("rows of a log do not say the shocks of the problem; tell whole episodes")
    grid, dtype = problem.grid, problem.initial.dtype
    start = _matrix("states", states, grid.dim)
    count, columns = len(start), [""] * grid.dim
    done = _matrix("actions", actions, problem.actions.dim, count).astype(dtype)
    end = _matrix("next_states", next_states, grid.dim, count)
    start = checked_positions(_row_of("states"), grid, start.astype(dtype), columns)
    end = checked_positions(_row_of("next_states"), grid, end.astype(dtype), columns)
    check_actions(_row_of("actions"), problem, done)
    check_moves(_row_of("next_states"), problem, start, end)
    paid = None
    if problem.hides_reward:
        if earned is None:
            raise UserError("the problem's reward is hidden; give earned, a number for each row")
        paid = _matrix("earned", np.reshape(earned, (-1, 1)), 1, count)[:, 0].astype(dtype)
    given = np.zeros(count) if step is None else step
    counted = _matrix("step", np.reshape(given, (-1, 1)), 1, count)[:, 0]
    remedy = "leave step out if rows are not of such episodes"
    steps = _whole_numbers("step", "a whole number", counted, problem.horizon, remedy)
    masses, moments = _distributions(problem, start, mass, moment)
    return Transitions(
        problem=problem,
        states=np.asarray(start, dtype=float),
        actions=np.asarray(done, dtype=float),
        next_states=np.asarray(end, dtype=float),
        observed=~stopped_axes(problem, start, end),
        mass=masses.astype(dtype).astype(float),
        moment=moments,
        step=steps,
        earned=None if paid is None else paid.astype(float),
    )


def histograms(
    grid: Grid, states: Points, moment: Int[np.ndarray, "points"], moments: int
) -> Float[np.ndarray, "moments cells"]:
    """The distribution of the agents of each moment; every moment must have one."""
    place = moment * grid.n_cells + grid.index_of(np.asarray(states, dtype=float))
    counts = np.bincount(place, minlength=moments * grid.n_cells).reshape(moments, grid.n_cells)
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))


def stopped_axes(problem: Problem, start: Points, end: Points) -> Axes:
    """Axes on which walls or borders stopped agents, as far as their positions tell."""
    rule = unmoved_at_walls if isinstance(problem.noise, NeighbourNoise) else touching
    return rule(problem.grid, start, end)


def checked_positions(where: Where, grid: Grid, points: Points, columns: list[str]) -> Points:
    """The positions after `settle`; raises if one of them is inside a wall or outside the box."""
    settled, lost = settle(grid, points)
    if isinstance(grid, Nodes):
        lost = lost | (points != np.round(points)).any(axis=1)
    if not lost.any():
        return settled
    row = int(np.argmax(lost))
    low, high, point = np.asarray(grid.lower), np.asarray(grid.upper), points[row]
    outside = (point < low) | (point > high)
    axis = int(np.argmax(outside))  # the first, if it is in a wall
    if isinstance(grid, Nodes):
        what = f"expected the number of a node, from 0 to {grid.n_cells - 1}, got {point[0]:g}; "
        what += f"{reprlib.repr(list(grid.names))} are their names in this order"
    elif outside.any():
        what = f"expected a position between {low[axis]} and {high[axis]}, got {point[axis]}; "
        wrap = ", and wrap positions on this periodic axis" if grid.periodic[axis] else ""
        what += f"check the units and the origin{wrap}"
    else:
        what = f"the position {tuple(map(float, point))} is inside a wall; check the units, the "
        what += "origin and the order of the axes"
    raise UserError(f"{where(row, columns[axis])}: {what}")


def check_actions(where: Where, problem: Problem, actions: np.ndarray) -> None:
    """Raises if an action is outside the problem's set."""
    outside = ~np.asarray(problem.actions.contains(jnp.asarray(actions)))
    known = problem.actions.describe()
    fail_where(
        outside,
        lambda i: f"{where(i[0], 'action_0')}: the action {actions[i].tolist()} is outside {known}",
        "check the units",
        _no_place,
    )


def check_moves(where: Where, problem: Problem, start: Points, end: Points) -> None:
    """Raises if an agent jumped: a sign of wrong units or of steps that are missing."""
    grid = problem.grid
    size, noise = np.asarray(grid.cell_size), problem.noise
    # No more than 8 standard deviations of noise are seen in a single step.
    farthest = 8.0 * np.asarray(noise.std) if isinstance(noise, GaussianNoise) else size
    reach = np.asarray(problem.max_move) + CONTACT * size + farthest
    moved = np.abs(grid.displacement(start, end))
    far = moved > reach
    if far.any():
        row, axis = (int(i) for i in np.argwhere(far)[0])
        raise UserError(
            f"{where(row, f'next_{axis}')}: the agent moved by {moved[row, axis]:.6g} in one "
            f"step, but max_move and noise reach {reach[axis]:.6g}; check the units and the steps"
        )


def _distributions(
    problem: Problem, states: Points, mass: Any, moment: Any
) -> tuple[Float[np.ndarray, "moments cells"], Int[np.ndarray, "points"]]:
    """The population's distributions, and the one that each row belongs to."""
    count, cells = len(states), problem.grid.n_cells
    if isinstance(mass, str):
        if mass != "unknown":
            raise UserError(f"mass must be distributions or 'unknown', got {mass!r}")
        return np.full((1, cells), 1.0 / cells), np.zeros(count, dtype=np.int64)
    if moment is not None and np.shape(moment) != (count,):
        raise UserError(f"moment needs an entry for each of {count} rows, got {np.shape(moment)}")
    if mass is None:
        if moment is None:
            raise UserError(
                "nothing says how the population was spread when the rows were seen; give mass, or "
                "moment, to take the agents of one time for it, or mass='unknown' for an even one"
            )
        times, index = np.unique(np.asarray(moment), return_inverse=True)
        index = np.reshape(index, -1).astype(np.int64)
        return histograms(problem.grid, states, index, len(times)), index
    given = np.asarray(mass, dtype=float)
    if given.ndim == 1:
        given, moment = given[None], np.zeros(count) if moment is None else moment
    if given.ndim != 2 or given.shape[1] != cells or (moment is None and len(given) != count):
        raise UserError(
            f"mass must have one entry for each of the {cells} cells, in one row for each of the "
            f"{count} transitions, or fewer with moment to say which, got the shape {given.shape}"
        )
    total = distribution(given, "each row of mass", "divide each distribution by its sum")
    index = np.arange(count) if moment is None else np.asarray(moment)
    remedy = "count moments from 0, in the order of mass"
    index = _whole_numbers("moment", "a row of mass,", index, len(given), remedy)
    return given / total[:, None], index


def _whole_numbers(
    name: str, expected: str, given: np.ndarray, end: int, remedy: str
) -> Int[np.ndarray, "points"]:
    """The numbers as integers; raises if one of them is not among 0, ..., end - 1."""
    odd = ~((given >= 0) & (given < end) & (given == np.floor(given)))
    must = f"must be {expected} from 0 to {end - 1}"
    fail_where(odd, lambda i: f"row {i[0]} of {name} {must}, got {given[i]:g}", remedy, _no_place)
    return np.asarray(given, dtype=np.int64)


def _matrix(name: str, values: Any, width: int, count: int | None = None) -> Points:
    """Finite numbers, one line for each row; raises and names the row otherwise."""
    array = numbers(values, name).astype(float)
    if array.ndim != 2 or array.shape[1] != width or count not in (None, len(array)):
        shape = f"({count or 'rows'}, {width})"
        raise UserError(f"{name} must have the shape {shape}, got {array.shape}")
    bad, remedy = ~np.isfinite(array), "leave it out or repair it"
    fail_where(bad, lambda i: f"row {i[0]} of {name} holds NaN or infinity", remedy, _no_place)
    return array


def _row_of(name: str) -> Where:
    return lambda row, column: f"row {row} of {name}"


def _no_place(index: tuple[int, ...]) -> str:
    return ""  # the message says where


def settle(grid: Grid, points: Points) -> tuple[Points, Bool[np.ndarray, "points"]]:
    """Moves points that rounding put into a wall or out of the box back to free cells.

    Also returns which points could not be moved: rounding alone does not explain them.
    """
    settled, lost = points.copy(), ~_free(grid, points)
    step = CONTACT * np.asarray(grid.cell_size)
    for signs in itertools.product((0, -1, 1), repeat=grid.dim):
        rows = np.flatnonzero(lost)
        tried = (points[rows] + np.asarray(signs) * step).astype(points.dtype)
        free = _free(grid, tried)
        settled[rows[free]] = tried[free]
        lost[rows[free]] = False
    return settled, lost


def touching(grid: Grid, start: Points, end: Points) -> Axes:
    """Axes on which a wall or border may have stopped a reported move, as it ends in contact."""
    place = grid.in_cells(np.asarray(end, dtype=float))
    face = np.round(place).astype(int)
    near = np.abs(place - face) <= 2 * CONTACT
    # Rounding may have put the agent on either side of the face.
    return _beside_wall(grid, start, end, near, face - 1, face)


def unmoved_at_walls(grid: Grid, start: Points, end: Points) -> Axes:
    """Axes on which agents that move from cell to cell stayed beside a wall or border.

    Nobody can tell whether they were stopped, so their moves on these axes are not learned from.
    """
    first, last = _cells(grid, start), _cells(grid, end)
    return _beside_wall(grid, start, end, np.equal(first, last), last - 1, last + 1)


def _beside_wall(
    grid: Grid, start: Points, end: Points, where: Axes, below: np.ndarray, above: np.ndarray
) -> Axes:
    """For each axis in ``where``, whether its cell ``below`` or ``above`` is a wall or border.

    An agent that slid along a wall may have come past the wall's end. So on the other axes all
    cells count from the agent's start to its end.
    """
    first, last = _cells(grid, start), _cells(grid, end)
    # A move may have gone either way round a periodic axis; then only its end is certain.
    around = np.asarray(grid.periodic) & (np.abs(last - first) > np.asarray(grid.shape) // 2)
    first = np.where(around, last, first)
    low, high = np.minimum(first, last), np.maximum(first, last)
    walls = grid.padded_walls(1)  # cells are counted from 1 in it
    found = np.zeros_like(where)
    for row, axis in np.argwhere(where).tolist():
        way = [slice(a + 1, b + 2) for a, b in zip(low[row], high[row], strict=True)]
        for cell in (below[row, axis], above[row, axis]):
            way[axis] = slice(cell + 1, cell + 2)
            found[row, axis] |= walls[tuple(way)].any()
    return found


def _cells(grid: Grid, points: Points) -> Int[np.ndarray, "points dim"]:
    """The cells of points inside the box; the upper border belongs to the last cell."""
    # Clipped before the conversion: far-away positions do not fit into integers.
    place = np.floor(grid.in_cells(np.asarray(points, dtype=float)))
    return np.asarray(np.clip(place, 0, np.asarray(grid.shape) - 1).astype(int))


def _free(grid: Grid, points: Points) -> Bool[np.ndarray, "points"]:
    """Which points are in free cells, in double precision as well as in the learner's."""
    inside = ((points >= np.asarray(grid.lower)) & (points <= np.asarray(grid.upper))).all(axis=1)
    ours = grid.index_of(np.asarray(points, dtype=float))
    learners = np.asarray(grid.index_of(jnp.asarray(points)))
    return np.asarray(inside & (ours >= 0) & (learners >= 0))
