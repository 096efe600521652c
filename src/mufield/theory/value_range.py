"""How different two policies' J can be."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._types import Mass, Scalar, State
from ..problem import Problem
from ..space.measure import MeanField

POINTS = 3
"""Actions tried on each axis of a box, its border among them."""

MOST_DISTRIBUTIONS = 200
"""Distributions of a run that are looked at."""


def value_range(problem: Problem, masses: Float[np.ndarray, "moments cells"]) -> float:
    """Greatest minus least integrated reward that was found, times the number of paid steps.

    Looked for among point masses, the uniform distribution and those given, with actions spread
    over the box. No regret of an episode is larger, as far as these go.

    Args:
        problem: The problem.
        masses: Distributions, such as those of a run.
    """
    n, dtype = problem.grid.n_cells, problem.initial.dtype
    stride = max(1, len(masses) // MOST_DISTRIBUTIONS)
    tried = np.concatenate([np.eye(n), np.full((1, n), 1.0 / n), masses[::stride]])
    moves = problem.actions.points(POINTS)
    low, high = _extremes(problem, jnp.asarray(tried, dtype), moves.astype(dtype))
    return float(jnp.max(high) - jnp.min(low)) * problem.paid_steps


@eqx.filter_jit
def _extremes(
    problem: Problem, masses: Float[Array, "rows cells"], moves: Float[Array, "moves dim"]
) -> tuple[Array, Array]:
    grid = problem.grid
    centres = jnp.asarray(grid.centres, dtype=masses.dtype)

    def of(mass: Mass) -> tuple[Scalar, Scalar]:
        def one(state: State, here: Scalar) -> Array:
            mu = MeanField(mass=mass, here=here, grid=grid)
            return jax.vmap(lambda action: problem.reward(state, action, mu))(moves)

        rewards = jax.vmap(one)(centres, mass)
        return jnp.vdot(mass, rewards.min(axis=1)), jnp.vdot(mass, rewards.max(axis=1))

    found: tuple[Array, Array] = jax.lax.map(of, masses)
    return found
