"""A corridor with a moving walkway, which only learners that explore find."""

from functools import lru_cache

import jax

from .._types import Action, Scalar, State
from ..actions import Box
from ..problem import Motion, Problem, Reward
from ..space.grid import Grid
from ..space.measure import MeanField, point_mass
from ..systems import SimulatedSystem


def walkway(
    *,
    horizon: int = 18,
    noise_std: float = 0.15,
    plain_speed: float = 0.4,
    walkway_speed: float = 1.6,
    bench_pay: float = 0.3,
    gate_pay: float = 3.0,
) -> SimulatedSystem:
    """A corridor of 24 cells; agents start near the left end.

    Agents near the start see only the speed of the plain floor. At that speed the gate on the
    right is out of reach within an episode, and the bench on the left is the best place. On the
    walkway agents are four times as fast, which a learner finds out only by trying it.

    Args:
        horizon: Number of moves.
        noise_std: Standard deviation of the noise.
        plain_speed: The farthest move on the plain floor.
        walkway_speed: The farthest move on the walkway, to the right of 12.
        bench_pay: Reward to the left of 6.
        gate_pay: Reward to the right of 21.
    """
    grid = Grid.box(0.0, 24.0, 24)
    problem = Problem(
        grid=grid,
        actions=Box(-1.0, 1.0),
        reward=_pay(bench_pay, gate_pay),
        horizon=horizon,
        initial=point_mass(grid, 9),
        noise=noise_std,
        max_move=max(plain_speed, walkway_speed),
        pay_end=True,
    )
    return SimulatedSystem(problem, _carry(plain_speed, walkway_speed))


# Cached, so that equal systems share their functions and so their compiled programs.
@lru_cache
def _carry(plain: float, fast: float) -> Motion:
    def carry(state: State, action: Action, mu: MeanField) -> State:
        """f(s, a) = s + v(s) a."""
        on_walkway = jax.nn.sigmoid(4.0 * (state[0] - 12.0))
        return state + action * (plain + (fast - plain) * on_walkway)

    return carry


@lru_cache
def _pay(bench: float, gate: float) -> Reward:
    def pay(state: State, action: Action, mu: MeanField) -> Scalar:
        return bench * (state[0] < 6.0) + gate * (state[0] > 21.0)

    return pay
