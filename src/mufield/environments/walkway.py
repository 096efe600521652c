"""A corridor with a moving walkway, which only learners that explore find."""

import jax

from .._types import Action, Scalar, State
from ..actions import Box
from ..problem import Problem
from ..space.grid import Grid
from ..space.measure import MeanField, point_mass
from ..systems import SimulatedSystem


def motion(state: State, action: Action, mu: MeanField) -> State:
    """f(s, a) = s + v(s) a: v is 0.4 on the plain floor, and 1.6 to the right of 12."""
    on_walkway = jax.nn.sigmoid(4.0 * (state[0] - 12.0))
    return state + action * (0.4 + 1.2 * on_walkway)


def reward(state: State, action: Action, mu: MeanField) -> Scalar:
    """0.3 at the bench, to the left of 6, and 3 at the gate, to the right of 21."""
    return 0.3 * (state[0] < 6.0) + 3.0 * (state[0] > 21.0)


def walkway(*, horizon: int = 18, noise_std: float = 0.15) -> SimulatedSystem:
    """A corridor of 24 cells; agents start near the left end.

    Agents near the start see only the speed of the plain floor. At that speed the gate on the
    right is out of reach within an episode, and the bench on the left is the best place. On the
    walkway agents are four times as fast, which a learner finds out only by trying it.

    Args:
        horizon: Number of moves.
        noise_std: Standard deviation of the noise.
    """
    grid = Grid.box(0.0, 24.0, 24)
    problem = Problem(
        grid=grid,
        actions=Box(-1.0, 1.0),
        reward=reward,
        horizon=horizon,
        initial=point_mass(grid, 9),
        noise=noise_std,
        max_move=1.6,
        pay_end=True,
    )
    return SimulatedSystem(problem, motion)
