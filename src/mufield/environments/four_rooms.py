"""Entropy maximisation in four rooms, continuous (Sec. 6) and discrete (App. E.1)."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .. import constraints  # each name is loaded when it is used
from .._arrays import Action, Scalar, State
from ..actions import Box, MoveSet
from ..errors import UserError
from ..policies.tables import TablePolicy
from ..problem import Problem
from ..space.grid import Grid
from ..space.measure import MeanField, log_mass, point_mass
from ..space.move import NeighbourNoise
from ..systems import SimulatedSystem

FOUR_ROOMS = """
.....#.....
.....#.....
...........
.....#.....
.....#.....
##.#####.##
.....#.....
.....#.....
...........
.....#.....
.....#.....
"""
"""Four rooms of five by five cells, doors at (5, 2), (5, 8), (2, 5) and (8, 5): 104 free cells."""

MOVES = ((0, 1), (-1, 0), (0, 0), (1, 0), (0, -1))
"""The displacements of the five moves: up, left, stay, right, down."""


def walk(state: State, action: Action, mu: MeanField) -> State:
    """f(s, a, mu) = s + a (eq. experiment_dynamics)."""
    return state + action


def avoid_crowds(state: State, action: Action, mu: MeanField) -> Scalar:
    """r(s, a, mu) = -log mu(s): its population average is the entropy."""
    return -log_mass(mu.density_here)


def four_rooms(
    *,
    action_box: str = "symmetric",
    noise_std: float = 0.25,
    horizon: int = 20,
    drawing: str = FOUR_ROOMS,
    door_cap: float | None = None,
) -> SimulatedSystem:
    """The continuous four rooms: 104 unit cells, all agents start in the lower left corner.

    The reward is paid for all 21 distributions h = 0, ..., 20. It is zero for the first one, whose
    density is one in a single cell.

    Args:
        action_box: ``"symmetric"`` is [-1, 1]^2; ``"printed"`` is the [0, 1]^2 of the paper, with
            which the paper's reference plan could not reach the uniform distribution.
        noise_std: Standard deviation of the noise. The paper gives none. With 0.25 the entropy of
            networks planned with known motion stagnates when the paper's does; with less it falls
            there, with more it grows (`benchmarks/plans.py`). J cannot tell: compare percentages
            of the plan with known motion, never J, with the paper.
        horizon: Number of moves.
        drawing: The map.
        door_cap: Greatest share of the agents in each of the four doors at any time, such as 0.03,
            which binds (`benchmarks/constraints.py`). None for no limit.
    """
    boxes = {"symmetric": Box(-1.0, 1.0, dim=2), "printed": Box(0.0, 1.0, dim=2)}
    if action_box not in boxes:
        raise UserError(f"action_box must be one of {sorted(boxes)}, got {action_box!r}")
    grid = Grid.from_map(drawing)
    limits = []
    if door_cap is not None:
        if drawing != FOUR_ROOMS:
            raise UserError("door_cap is for the paper's map; leave out drawing, or the cap")
        doors = ((5, 2), (5, 8), (2, 5), (8, 5))
        limits = [constraints.cells_at_most(grid, door_cap, doors, name="agents in a door")]
    problem = Problem(
        space=grid,
        actions=boxes[action_box],
        reward=avoid_crowds,
        horizon=horizon,
        initial=point_mass(grid, 0, 0),
        noise=noise_std,
        max_move=1.0,
        pay_end=True,
        constraints=limits,
    )
    return SimulatedSystem(problem, walk)


def option_table(actions: str) -> Float[np.ndarray, "options moves"]:
    """The distributions over the five moves that a policy may choose from; see `discrete_rooms`."""
    single = np.eye(5)
    up, left, _, right, down = single
    halves = 0.5 * np.stack([up + right, right + down, down + left, left + up])
    tables = {"standard": single, "extended": np.concatenate([single, halves])}
    if not isinstance(actions, str) or actions not in tables:
        raise UserError(f"actions must be one of {list(tables)}, got {actions!r}")
    return tables[actions]


def discrete_rooms(
    *,
    actions: str = "standard",
    horizon: int = 20,
    noise_intensity: float = 0.0,
    pay_end: bool = True,
    drawing: str = FOUR_ROOMS,
) -> SimulatedSystem:
    """The discrete four rooms: agents stand in cells and take one of five moves.

    A move into a wall leaves the agent where it is.

    Args:
        actions: ``"standard"`` has the five moves. ``"extended"`` adds the four even mixtures of
            adjacent moves, which makes nine options, as many as the paper's table has; the even
            mixture of all four directions, which the paper's footnote lists as well, is left out.
        horizon: Number of moves.
        noise_intensity: Probability of a further random move after each move.
        pay_end: Whether the last distribution is paid; OpenSpiel's game does not pay it.
        drawing: The map.
    """
    grid = Grid.from_map(drawing)
    problem = Problem(
        space=grid,
        actions=MoveSet(MOVES, option_table(actions)),
        reward=avoid_crowds,
        horizon=horizon,
        initial=point_mass(grid, 0, 0),
        noise=NeighbourNoise(noise_intensity),
        max_move=1.0,
        pay_end=pay_end,
    )
    return SimulatedSystem(problem, walk)


def uniform_legal(grid: Grid) -> TablePolicy:
    """The policy that draws uniformly from the moves that do not run into a wall."""
    legal = grid.cell_index(grid.free_cells[:, None] + np.array(MOVES)) >= 0
    weights = legal / legal.sum(axis=1, keepdims=True)
    moves = jnp.asarray(MOVES, dtype=jnp.result_type(float))
    return TablePolicy.mixing(moves, jnp.asarray(weights), grid)
