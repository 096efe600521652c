"""A learned motion as polynomials of the action, one for each cell.

Gradient ascent evaluates the motion hundreds of times, always at the cells' centres, and models
such as Gaussian processes are costly. In every cell a motion is a function of the action alone, or
of the action and the cell's mass; models are smooth in them, so some evaluations tell it.
"""

import math
from functools import partial, reduce
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._types import Action, Scalar, State
from ..flow.sight import sees_step, sight
from ..problem import AbstractJointMotion, Box, Motion, Problem
from ..space.grid import Grid
from ..space.measure import MeanField

NODES = {1: 13, 2: 7, 3: 4}
"""Actions on each axis at which the motion is evaluated, by the number of axes."""

MASS_NODES = 4
"""Masses of a cell at which it is evaluated, if it sees that mass."""

LARGEST = 2_000_000
"""Most evaluations; on larger grids a motion is left as it is."""


class _Restated(AbstractJointMotion):
    """A motion that believes in another way than the one that it stands for, and steers as it."""

    motion: eqx.AbstractVar[Motion]

    def steer(self, state: State, belief: Any, eta: Array) -> State:
        """As the motion itself steers."""
        if isinstance(self.motion, AbstractJointMotion):
            return self.motion.steer(state, belief, eta)
        return jnp.asarray(belief)


class AmongAll(_Restated):
    """A motion as if agents were spread evenly: for starts, which may be rough but must be quick.

    Attributes:
        motion: The motion itself.
        action_dim: Number of axes of the agents' actions.
    """

    motion: Motion
    action_dim: int = eqx.field(static=True)

    def believe(self, state: State, action: Action, mu: MeanField) -> Any:
        """What the motion believes where agents are spread evenly."""
        even = jnp.full_like(mu.mass, 1.0 / mu.grid.n_cells)
        return _asked(self.motion, state, action, MeanField(even, even[0], mu.grid, mu.step))


class TabulatedMotion(_Restated):
    """A motion whose costly part is interpolated; steering by eta stays exact.

    Attributes:
        motion: The motion itself.
        coefficients: Chebyshev coefficients of what it believes, in every cell.
        crowds: Whether they depend on the cell's mass too.
    """

    motion: Motion
    coefficients: Any
    box: Box
    crowds: bool = eqx.field(static=True)
    grid: Grid = eqx.field(static=True)
    action_dim: int = eqx.field(static=True)

    def believe(self, state: State, action: Action, mu: MeanField) -> Any:
        """The polynomials of the agent's cell."""
        cell, terms = self.grid.index_of(state), _terms(self.box, action)
        if self.crowds:
            place = 2.0 * jnp.log1p(mu.here * self.grid.n_cells) / _most(self.grid) - 1.0
            terms = _product(terms, _orders(place, MASS_NODES))
        return jax.tree.map(
            lambda each: jnp.tensordot(terms.astype(each.dtype), each[cell], axes=1),
            self.coefficients,
        )


def tabulated(problem: Problem, motion: Motion, actions: Box) -> Motion:
    """The motion, quick at the cells' centres; itself if it sees the step, or more of mu than here.

    Args:
        problem: The problem to plan in.
        motion: The law of motion, of joint actions or of the agents' own.
        actions: What agents can do, without controls.
    """
    grid, seen = problem.grid, sight(problem, motion)
    counts = [NODES.get(actions.dim, 0)] * actions.dim + [MASS_NODES] * (seen == "here")
    if (
        seen == "more"
        or sees_step(problem, motion)
        or not 0 < grid.n_cells * math.prod(counts) <= LARGEST
    ):
        return motion
    places = [np.cos(np.pi * (np.arange(count) + 0.5) / count) for count in counts]
    solve = [np.linalg.inv(np.polynomial.chebyshev.chebvander(x, len(x) - 1)) for x in places]
    shares = 0.5 * (np.stack(np.meshgrid(*places, indexing="ij"), axis=-1) + 1.0)
    shares = shares.reshape(-1, len(counts))
    lower, upper = np.asarray(actions.lower), np.asarray(actions.upper)
    dtype = problem.initial.dtype
    nodes = jnp.asarray(lower + (upper - lower) * shares[:, : actions.dim], dtype)
    here = jnp.asarray(np.expm1(_most(grid) * shares[:, -1]) / grid.n_cells, dtype)

    def ask(state: State, action: Action, here: Array) -> Any:
        mu = MeanField(mass=problem.initial, here=here, grid=grid)
        return _asked(motion, state, action, mu)

    centres = jnp.asarray(grid.centres, dtype=dtype)
    values = jax.vmap(lambda state: jax.vmap(partial(ask, state))(nodes, here))(centres)
    inverse = reduce(np.kron, solve)
    coefficients = jax.tree.map(
        lambda each: jnp.einsum("ij,kj...->ki...", jnp.asarray(inverse, each.dtype), each), values
    )
    return TabulatedMotion(
        motion=motion,
        coefficients=coefficients,
        box=actions,
        crowds=seen == "here",
        grid=grid,
        action_dim=actions.dim,
    )


def _asked(motion: Motion, state: State, action: Action, mu: MeanField) -> Any:
    """What a motion believes, or where it goes if it has no such part."""
    if isinstance(motion, AbstractJointMotion):
        return motion.believe(state, action, mu)
    return motion(state, action, mu)


def _most(grid: Grid) -> float:
    """The scale of masses, on which models see them, where everybody is in one cell."""
    return math.log1p(grid.n_cells)


def _terms(box: Box, action: Action) -> Float[Array, "nodes"]:
    """All products of Chebyshev polynomials of the action's axes."""
    lower, upper = (jnp.asarray(each, dtype=action.dtype) for each in (box.lower, box.upper))
    places = 2.0 * (action - lower) / (upper - lower) - 1.0
    return reduce(_product, [_orders(place, NODES[box.dim]) for place in places])


def _orders(place: Scalar, count: int) -> Float[Array, "count"]:
    """The Chebyshev polynomials of one number."""
    orders = [jnp.ones_like(place), place]
    while len(orders) < count:
        orders.append(2.0 * place * orders[-1] - orders[-2])
    return jnp.stack(orders)


def _product(one: Float[Array, "some"], other: Float[Array, "more"]) -> Float[Array, "all"]:
    return (one[:, None] * other[None, :]).reshape(-1)
