"""A learned motion as polynomials of the action, one for each cell.

Gradient ascent evaluates the motion hundreds of times, always at the cells' centres, and models
such as Gaussian processes are costly. Where a motion does not depend on mu, it is a function of
the action alone in every cell; models are smooth in it, so a few evaluations tell it.
"""

from functools import reduce
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._types import Action, State
from ..problem import AbstractJointMotion, Box, Motion, Problem
from ..space.grid import Grid
from ..space.measure import MeanField

NODES = {1: 17, 2: 9, 3: 5}
"""Actions on each axis at which the motion is evaluated, by the number of axes."""

LARGEST = 2_000_000
"""Most evaluations; on larger grids a motion is left as it is."""


class TabulatedMotion(AbstractJointMotion):
    """A motion whose costly part is interpolated; steering by eta stays exact.

    Attributes:
        motion: The motion itself.
        coefficients: Chebyshev coefficients of what it believes, in every cell.
    """

    motion: Motion
    coefficients: Any
    box: Box
    grid: Grid = eqx.field(static=True)
    action_dim: int = eqx.field(static=True)

    def believe(self, state: State, action: Action, mu: MeanField) -> Any:
        """The polynomials of the agent's cell."""
        cell, terms = self.grid.index_of(state), _terms(self.box, action)
        return jax.tree.map(
            lambda each: jnp.tensordot(terms.astype(each.dtype), each[cell], axes=1),
            self.coefficients,
        )

    def steer(self, state: State, belief: Any, eta: Array) -> State:
        """As the motion itself steers."""
        if isinstance(self.motion, AbstractJointMotion):
            return self.motion.steer(state, belief, eta)
        return jnp.asarray(belief)


def tabulated(problem: Problem, motion: Motion, actions: Box) -> Motion:
    """The motion, quick at the cells' centres; it must not depend on mu.

    Args:
        problem: The problem to plan in.
        motion: The law of motion, of joint actions or of the agents' own.
        actions: What agents can do, without controls.
    """
    grid, count = problem.grid, NODES.get(actions.dim, 0)
    if not 0 < grid.n_cells * count**actions.dim <= LARGEST:
        return motion
    place = np.cos(np.pi * (np.arange(count) + 0.5) / count)
    inverse = np.linalg.inv(np.polynomial.chebyshev.chebvander(place, count - 1))
    lower, upper = np.asarray(actions.lower), np.asarray(actions.upper)
    axes = np.meshgrid(*[place] * actions.dim, indexing="ij")
    nodes = lower + (upper - lower) * 0.5 * (np.stack(axes, axis=-1).reshape(-1, actions.dim) + 1.0)
    solve = reduce(np.kron, [inverse] * actions.dim)
    mass = problem.initial
    centres = jnp.asarray(grid.centres, dtype=mass.dtype)

    def cell(state: State, here: Array) -> Any:
        mu = MeanField(mass=mass, here=here, grid=grid)
        ask: Any = motion.believe if isinstance(motion, AbstractJointMotion) else motion
        return jax.vmap(lambda action: ask(state, action, mu))(jnp.asarray(nodes, mass.dtype))

    values = jax.vmap(cell)(centres, mass)
    coefficients = jax.tree.map(
        lambda each: jnp.einsum("ij,kj...->ki...", jnp.asarray(solve, each.dtype), each), values
    )
    return TabulatedMotion(
        motion=motion,
        coefficients=coefficients,
        box=actions,
        grid=grid,
        action_dim=actions.dim,
    )


def _terms(box: Box, action: Action) -> Float[Array, "nodes"]:
    """All products of Chebyshev polynomials of the action's axes."""
    lower, upper = (jnp.asarray(each, dtype=action.dtype) for each in (box.lower, box.upper))
    place = 2.0 * (action - lower) / (upper - lower) - 1.0
    orders = [jnp.ones_like(place), place]
    while len(orders) < NODES[box.dim]:
        orders.append(2.0 * place * orders[-1] - orders[-2])
    of_axes = jnp.stack(orders, axis=-1)  # axes by orders

    def product(one: Array, other: Array) -> Array:
        return (one[:, None] * other[None, :]).reshape(-1)

    return reduce(product, [of_axes[axis] for axis in range(box.dim)])
