"""Whether a motion is one: its shape, its reach, and on nodes its probabilities."""

import equinox as eqx
import numpy as np
from jaxtyping import Float

from .._types import Mass
from ..checks import distribution, fail_where
from ..errors import UserError
from ..problem import Motion, Problem, check_function
from ..space.measure import at_all_cells
from ..space.nodes import Nodes
from .motions import dependence


def check_motion(problem: Problem, motion: Motion) -> Motion:
    """The motion as a function of states and actions.

    Raises if it has the wrong shape, is not finite, or goes beyond ``max_move``; on nodes, if it
    returns no probabilities, at the initial distribution.
    """
    grid, motion = problem.grid, problem.lifted(motion)
    if isinstance(grid, Nodes):
        moves = problem.actions.by_cell(grid.n_cells)
        check_function(problem, motion, "the motion", (grid.slots,), moves)
        seen = dependence(problem, motion).step
        for step in range(problem.horizon if seen else 1):
            check_probabilities(problem, motion, problem.initial, step)
        return motion
    targets = check_function(problem, motion, "the motion", (grid.dim,), problem.actions.points(3))
    moved = np.abs(grid.displacement(grid.centres[:, None], targets))
    check_farthest(problem, moved.max(axis=(0, 1)))
    return motion


def check_probabilities(problem: Problem, motion: Motion, mass: Mass, step: int) -> None:
    """Raises unless a motion on nodes returns probabilities, and says for which node and action."""
    grid, actions = problem.grid, problem.actions.by_cell(problem.grid.n_cells)
    assert isinstance(grid, Nodes)
    found = np.asarray(_evaluated(grid, mass, motion, actions.astype(mass.dtype), step))

    def place(index: tuple[int, ...]) -> str:
        action = np.asarray(actions[index[:2]]).tolist()
        return f"for {grid.place(index[0])}, the action {action} and step {step}"

    name, remedy = "the motion's probabilities of successors", "divide them by their sum"
    if grid.successors is not None:
        absent = (grid.successors[:, None] < 0) & (found != 0)
        fail_where(
            absent,
            lambda i: f"the motion leads to successor number {i[2]}, which does not exist",
            "give probability zero to what is beyond the end of a node's list",
            place,
        )
    distribution(found, name, remedy, place)


_evaluated = eqx.filter_jit(at_all_cells)


def check_farthest(problem: Problem, farthest: Float[np.ndarray, "dim"]) -> None:
    """Raises if a motion carries agents farther than the problem's ``max_move``."""
    if np.any(farthest > np.asarray(problem.max_move) * (1 + 1e-4)):
        raise UserError(
            f"the motion carries agents up to {farthest} in one step, farther than the problem's "
            f"max_move {problem.max_move}; raise max_move, so that the flow's windows reach"
        )
