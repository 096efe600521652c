"""Whether an observed episode can be right, and where walls stopped agents.

Errors name the row, the column and the remedy.
"""

import itertools
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from ..errors import UserError
from ..policies.base import Profile
from ..problem import Problem
from ..space.grid import Grid
from ..space.move import GaussianNoise
from .tables import Table

CONTACT = 1e-3
"""A position this near to a wall, as a share of a cell, touches it: agents rest at walls, and
positions are measured and printed with a few digits only."""

FARTHEST_NOISE = 8.0
"""How many standard deviations of noise a single step may show."""

Points = Float[np.ndarray, "points dim"]
Axes = Bool[np.ndarray, "points dim"]


@dataclass(frozen=True)
class Asked:
    """The plan that an observed episode must belong to; `run` and `policy` are their ids."""

    problem: Problem
    profile: Profile
    run: str
    episode: int
    policy: str


def check_answer(table: Table, asked: Asked) -> None:
    """Raises if the file is of another problem, run, episode or policy."""
    grid, actions = asked.problem.grid, asked.problem.actions
    for name, size in {"state": grid.dim, "next": grid.dim, "action": actions.dim}.items():
        if f"{name}_{size}" in table.columns:
            raise UserError(
                f"{table.path}: expected {size} columns {name}_0, ..., got {name}_{size} as well; "
                "tell episodes of this problem only"
            )
    wanted = {"run": asked.run, "episode": str(asked.episode), "policy": asked.policy}
    for column in wanted.keys() & table.columns.keys():
        for row, found in enumerate(table.labels(column)):
            if found != wanted[column]:
                raise UserError(
                    f"{table.where(row, column)}: expected {wanted[column]}, got {found}: the rows "
                    "belong to another run or episode; tell the episode of the policy that was "
                    "asked last"
                )


def rows_by_agent(table: Table, horizon: int) -> tuple[np.ndarray, list[str]]:
    """The rows' order by agent and step, and the agents' names.

    Raises unless each agent has every step once.
    """
    steps = table.integers("step")
    distinct = np.unique(steps)
    if distinct[0] < 0:
        row = int(np.argmin(steps))
        raise UserError(
            f"{table.where(row, 'step')}: expected 0 to {horizon - 1}, got {steps[row]}; count "
            "steps from 0"
        )
    shorter = len(distinct) < horizon and np.array_equal(distinct, np.arange(len(distinct)))
    if distinct[-1] >= horizon or shorter:
        raise UserError(
            f"{table.path}: expected the steps 0 to {horizon - 1}, as the horizon is {horizon}, "
            f"got {distinct[0]} to {distinct[-1]}; tell episodes of this problem only"
        )
    names = table.labels("agent")
    who = sorted(set(names), key=_by_number)
    index = {name: i for i, name in enumerate(who)}
    place = np.array([index[name] for name in names]) * horizon + steps
    counts = np.bincount(place, minlength=len(who) * horizon)
    if (counts > 1).any():
        row = int(np.flatnonzero(place == np.argmax(counts > 1))[1])
        raise UserError(
            f"{table.where(row, 'step')}: agent {names[row]} has step {steps[row]} more than "
            "once; leave one out"
        )
    if (counts == 0).any():
        agent, step = divmod(int(np.argmax(counts == 0)), horizon)
        raise UserError(
            f"{table.path}: agent {who[agent]} has no row for step {step}; add it, or leave the "
            "agent out of the file"
        )
    return np.argsort(place), who


def _by_number(name: str) -> tuple[bool, int, str]:
    number = name.isdecimal() and len(name) < 20  # Python refuses to read very long ones
    return (not number, int(name) if number else 0, name)


def checked_positions(table: Table, grid: Grid, points: Points, columns: list[str]) -> Points:
    """The positions after `settle`; raises if one of them is inside a wall or outside the box."""
    settled, lost = settle(grid, points)
    if not lost.any():
        return settled
    row = int(np.argmax(lost))
    low, high, point = np.asarray(grid.lower), np.asarray(grid.upper), points[row]
    outside = (point < low) | (point > high)
    if outside.any():
        axis = int(np.argmax(outside))
        raise UserError(
            f"{table.where(row, columns[axis])}: expected a position between {low[axis]} and "
            f"{high[axis]}, got {point[axis]}; check the units and the origin"
            + (", and wrap positions on this periodic axis" if grid.periodic[axis] else "")
        )
    raise UserError(
        f"{table.where(row, columns[0])}: the position {tuple(map(float, point))} is inside a "
        "wall; check the units, the origin and the order of the axes"
    )


def check_actions(table: Table, problem: Problem, actions: np.ndarray) -> None:
    """Raises if an action is outside the problem's set."""
    inside = np.asarray(problem.actions.contains(jnp.asarray(actions)))
    if not inside.all():
        row = int(np.argmin(inside))
        raise UserError(
            f"{table.where(row, 'action_0')}: the action {tuple(map(float, actions[row]))} is "
            f"outside {problem.actions.describe()}; check the units"
        )


def check_moves(table: Table, problem: Problem, start: Points, end: Points) -> None:
    """Raises if an agent jumped: a sign of wrong units or of steps that are missing."""
    grid = problem.grid
    reach = np.asarray(problem.max_move) + CONTACT * np.asarray(grid.cell_size)
    if isinstance(problem.noise, GaussianNoise):
        reach = reach + FARTHEST_NOISE * np.asarray(problem.noise.std)
    else:
        reach = reach + np.asarray(grid.cell_size)
    moved = np.abs(grid.displacement(start, end))
    far = moved > reach
    if far.any():
        row, axis = (int(i) for i in np.argwhere(far)[0])
        raise UserError(
            f"{table.where(row, f'next_{axis}')}: the agent moved by {moved[row, axis]:.6g} in one "
            f"step, but max_move and noise reach {reach[axis]:.6g}; check the units and the steps"
        )


def check_continuity(
    table: Table, grid: Grid, states: np.ndarray, ends: np.ndarray, order: np.ndarray
) -> None:
    """Raises unless every step of an agent starts where the one before it ended.

    Axes of ``states`` and ``ends``: (agents, steps, dim); ``order`` is that of `rows_by_agent`.
    """
    gap = grid.displacement(ends[:, :-1], states[:, 1:])
    broken = np.abs(gap) > 3 * CONTACT * np.asarray(grid.cell_size)
    if broken.any():
        agent, step, axis = (int(i) for i in np.argwhere(broken)[0])
        row = int(order[agent * states.shape[1] + step + 1])
        raise UserError(
            f"{table.where(row, f'state_{axis}')}: expected {ends[agent, step, axis]:.6g}, where "
            f"the agent's step {step} ended, got {states[agent, step + 1, axis]:.6g}; check the "
            "order of the steps"
        )


def settle(grid: Grid, points: Points) -> tuple[Points, Bool[np.ndarray, "points"]]:
    """Moves points that rounding put into a wall or out of the box back to free cells.

    Also returns which points could not be moved: rounding alone does not explain them.
    """
    settled, lost = points.copy(), ~_free(grid, points)
    step = CONTACT * np.asarray(grid.cell_size)
    for signs in itertools.product((0, -1, 1), repeat=grid.dim):
        rows = np.flatnonzero(lost)
        if len(rows) == 0:
            break
        tried = (points[rows] + np.asarray(signs) * step).astype(points.dtype)
        free = _free(grid, tried)
        settled[rows[free]] = tried[free]
        lost[rows[free]] = False
    return settled, lost


def touching(grid: Grid, start: Points, end: Points) -> Axes:
    """Axes on which a wall or border may have stopped a move, as the move ends in contact."""
    place = grid.lattice(np.asarray(end, dtype=float))
    face = np.round(place).astype(int)
    near = np.abs(place - face) <= 2 * CONTACT
    # Rounding may have put the agent on either side of the face.
    return np.asarray(near & _beside_wall(grid, start, end, near, face - 1, face))


def unmoved_at_walls(grid: Grid, start: Points, end: Points) -> Axes:
    """Axes on which agents that move from cell to cell stayed beside a wall or border.

    Nobody can tell whether they were stopped, so their moves on these axes are not learned from.
    """
    last = _cells(grid, end)
    stayed = np.asarray(_cells(grid, start) == last)
    return np.asarray(stayed & _beside_wall(grid, start, end, stayed, last - 1, last + 1))


def _beside_wall(
    grid: Grid, start: Points, end: Points, where: Axes, below: np.ndarray, above: np.ndarray
) -> Axes:
    """For each axis in ``where``, whether its cell ``below`` or ``above`` is a wall or border.

    An agent that slid along a wall may have come past the wall's end. So on the other axes all
    cells count from the agent's start to its end.
    """
    first, last = _cells(grid, start), _cells(grid, end)
    walls = grid.padded_walls(1)  # cells are counted from 1 in it
    found = np.zeros_like(where)
    for row, axis in np.argwhere(where).tolist():
        way = []
        for other in range(grid.dim):
            low, high = sorted((int(first[row, other]), int(last[row, other])))
            if grid.periodic[other] and high - low > grid.shape[other] // 2:
                # The move may have gone either way round the axis; only its end is certain.
                low = high = int(last[row, other])
            way.append(slice(low + 1, high + 2))
        for cell in (int(below[row, axis]), int(above[row, axis])):
            way[axis] = slice(cell + 1, cell + 2)
            found[row, axis] |= walls[tuple(way)].any()
    return found


def _cells(grid: Grid, points: Points) -> Int[np.ndarray, "points dim"]:
    """The cells of points inside the box; the upper border belongs to the last cell."""
    # Clipped before the conversion: far-away positions do not fit into integers.
    place = grid.lattice(np.asarray(points, dtype=float))
    cells = np.clip(np.floor(place), 0, np.asarray(grid.shape) - 1)
    return np.asarray(cells.astype(int))


def _free(grid: Grid, points: Points) -> Bool[np.ndarray, "points"]:
    """Which points are in free cells, in double precision as well as in the learner's."""
    inside = ((points >= np.asarray(grid.lower)) & (points <= np.asarray(grid.upper))).all(axis=1)
    ours = grid.index_of(np.asarray(points, dtype=float))
    learners = np.asarray(grid.index_of(jnp.asarray(points)))
    return np.asarray(inside & (ours >= 0) & (learners >= 0))
