"""The episodes of U2-MF-QL-FH as machine code, by numba."""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from .world import World

SMALLEST_SCALE = 1e-100
"""Below it the distributions are scaled anew, long before their numbers overflow."""

Jit = Callable[[Any], Any]
"""Makes a function faster, or leaves it as it is."""


class Rates(NamedTuple):
    """The algorithm's numbers.

    Attributes:
        omega_q: How fast the learning rate of Q falls.
        omega_nu: How fast that of the distributions falls.
        epsilon: Share of random choices.
    """

    omega_q: float
    omega_nu: float
    epsilon: float


class Memory(NamedTuple):
    """What the algorithm learns; the loop writes into these arrays.

    Attributes:
        q: Q_h(x, o).
        visits: How often each entry of it was updated.
        weights: nu_h, divided by a scale that all of them share.
    """

    q: Float[np.ndarray, "steps cells options"]
    visits: Int[np.ndarray, "steps cells options"]
    weights: Float[np.ndarray, "steps_and_end cells"]


Loop = Callable[
    [World, Rates, Memory, np.random.Generator, int, int, float, float], tuple[float, float]
]
"""``(world, rates, memory, generator, done, count, scale, earned) -> (scale, earned)``."""


@cache
def compiled() -> Loop:
    """The loop, compiled when it is first called; it runs without Python's lock."""
    try:
        import numba
    except ImportError as error:
        raise ImportError(
            "Q-learning needs numba; install it with: pip install 'mufield[qlearning]'"
        ) from error

    def jit(function: Any) -> Any:
        # Under test, functions are wrapped to check their arguments.
        return numba.njit(nogil=True)(inspect.unwrap(function))

    return build(jit)


def build(jit: Jit) -> Loop:
    """The loop and its parts, each passed through ``jit``."""

    @jit
    def pick(chances: Float[np.ndarray, "entries"], draw: float) -> int:
        entry = 0
        while draw >= chances[entry]:
            entry += 1
        return entry

    @jit
    def greedy(values: Float[np.ndarray, "options"]) -> int:
        best, top = 0, values[0]
        for option in range(1, len(values)):
            if values[option] > top:
                best, top = option, values[option]
        return best

    @jit
    def run(
        world: World,
        rates: Rates,
        memory: Memory,
        generator: np.random.Generator,
        done: int,
        count: int,
        scale: float,
        earned: float,
    ) -> tuple[float, float]:
        q, visits, weights = memory.q, memory.visits, memory.weights
        steps, _, options = q.shape
        for k in range(done + 1, done + count + 1):
            # All nu_h shrink by the same factor: that is one number, not a loop over the cells.
            rho_nu = (1.0 + k) ** -rates.omega_nu
            scale *= 1.0 - rho_nu
            if scale < SMALLEST_SCALE:
                weights *= scale
                scale = 1.0
            gain = rho_nu / scale
            x = pick(world.starts, generator.random())
            best = greedy(q[0, x])
            for h in range(steps):
                weights[h, x] += gain
                reward = world.log_volume - np.log(scale * weights[h, x])
                # One draw says whether to choose at random, and then what.
                draw = generator.random()
                option = best
                if draw < rates.epsilon:
                    option = min(int(draw / rates.epsilon * options), options - 1)
                branch = pick(world.chances[x, option], generator.random())
                y = world.ends[x, option, branch]
                ahead = 0.0
                if h + 1 < steps:
                    best = greedy(q[h + 1, y])
                    ahead = q[h + 1, y, best]
                else:
                    weights[steps, y] += gain
                    if world.pay_end:
                        ahead = world.log_volume - np.log(scale * weights[steps, y])
                        earned += ahead
                rho_q = (1.0 + visits[h, x, option]) ** -rates.omega_q
                q[h, x, option] += rho_q * (reward + ahead - q[h, x, option])
                visits[h, x, option] += 1
                earned += reward
                x = y
        return scale, earned

    loop: Loop = run
    return loop
