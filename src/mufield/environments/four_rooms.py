"""Exploration by entropy maximisation in four rooms (Sec. 6)."""

from .. import constraints  # each name is loaded when it is used
from .._types import Action, Scalar, State
from ..actions import Box
from ..errors import UserError
from ..problem import Problem
from ..space.grid import Grid
from ..space.measure import MeanField, log_mass, point_mass
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
        grid=grid,
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
