"""The discrete four rooms of the comparison with tabular Q-learning (App. E.1)."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..actions import MoveSet
from ..errors import UserError
from ..policies.tables import TablePolicy
from ..problem import Problem
from ..space.grid import Grid
from ..space.measure import point_mass
from ..space.move import NeighbourNoise
from ..systems import SimulatedSystem
from .four_rooms import FOUR_ROOMS, avoid_crowds, walk

MOVES = ((0, 1), (-1, 0), (0, 0), (1, 0), (0, -1))
"""The displacements of the five moves: up, left, stay, right, down."""


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
        grid=grid,
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
