"""A corridor with a moving walkway, which only learners that explore find."""

import jax

from .._types import Action, Scalar, State
from ..problem import Box, Problem
from ..space.grid import Grid
from ..space.measure import MeanField, point_mass
from ..systems import SimulatedSystem

LENGTH = 24
START = 9
BENCH = 6.0
"""To the left of this position agents earn a little."""
ENTRANCE = 12.0
"""To the right of this position agents move fast."""
GATE = 21.0
"""To the right of this position agents earn a lot."""
PLAIN_SPEED, WALKWAY_SPEED = 0.4, 1.6
SMALL_PAY, LARGE_PAY = 0.3, 3.0


def carried(state: State, action: Action, mu: MeanField) -> State:
    """f(s, a) = s + v(s) a: slow on the plain floor, four times as fast on the walkway."""
    on = jax.nn.sigmoid(4.0 * (state[0] - ENTRANCE))
    return state + action * (PLAIN_SPEED + (WALKWAY_SPEED - PLAIN_SPEED) * on)


def pay(state: State, action: Action, mu: MeanField) -> Scalar:
    """A little on the bench, a lot behind the gate, nothing in between."""
    x = state[0]
    return SMALL_PAY * (x < BENCH) + LARGE_PAY * (x > GATE)


def walkway(*, horizon: int = 18, noise_std: float = 0.15) -> SimulatedSystem:
    """A corridor of 24 cells; agents start near the left end.

    Agents near the start see only the speed of the plain floor. At that speed the gate on the
    right is out of reach within an episode, and the bench on the left is the best place. On the
    walkway agents are four times as fast, which a learner finds out only by trying it.
    """
    grid = Grid.box(0.0, float(LENGTH), LENGTH)
    problem = Problem(
        grid=grid,
        actions=Box(-1.0, 1.0),
        reward=pay,
        horizon=horizon,
        initial=point_mass(grid, START),
        noise=noise_std,
        max_move=WALKWAY_SPEED,
        pay_end=True,
    )
    return SimulatedSystem(problem, carried)
