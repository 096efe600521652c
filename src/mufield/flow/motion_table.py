"""A stand-in for a costly motion: what it says at some actions and masses, interpolated.

Planners evaluate a motion hundreds of times, always at the cells' centres, and models such as
Gaussian processes are costly. In every cell a motion is a function of the action, or of the action
and the cell's mass. Models are smooth in both, so some evaluations tell the rest: between actions
by Chebyshev polynomials, between masses by a cubic spline.
"""

import math
from functools import lru_cache, reduce
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._types import Action, Mass, Scalar, State, Step
from ..actions import Box, MoveSet
from ..problem import AbstractJointMotion, Motion, Problem
from ..space.grid import Grid
from ..space.measure import MeanField
from .dependence import dependence, sees_step

SPLINE_KNOTS = 10
"""Masses of a cell at which a motion is evaluated that sees that mass."""


class MotionTable(AbstractJointMotion):
    """A motion whose costly part is interpolated; steering by eta stays exact.

    Attributes:
        motion: The motion itself.
        values: What it says: leaves have the axes steps, cells, masses and actions before their
            own; one step if the motion does not see it. Of actions in a box these are coefficients
            of Chebyshev polynomials.
        box: The box; None if the actions are listed.
        listed: The actions, if they are listed.
        grid: The space.
        action_dim: Number of axes of an action; what follows them in a joint action is eta.
    """

    motion: Motion
    values: Any
    box: Box | None
    listed: Float[Array, "actions action_dim"] | None
    grid: Grid = eqx.field(static=True)
    action_dim: int = eqx.field(static=True)

    def believe(self, state: State, action: Action, mu: MeanField) -> Any:
        """The interpolated values of the agent's cell, as seen from its centre."""
        if self.listed is None:
            assert self.box is not None
            terms = chebyshev_terms(self.box, action)
        else:
            nearest = jnp.argmin(jnp.sum((self.listed - action) ** 2, axis=-1))
            terms = jax.nn.one_hot(nearest, len(self.listed), dtype=action.dtype)
        cell, weights = self.grid.index_of(state), self._weights(mu.here)
        both = (weights[:, None] * terms).reshape(-1)

        def one(leaf: Array) -> Array:
            rows = _at_step(leaf, mu.step)[cell].reshape(len(both), *leaf.shape[4:])
            return jnp.tensordot(both.astype(leaf.dtype), rows, axes=1)

        return jax.tree.map(one, self.values)

    def steer(self, state: State, belief: Any, eta: Array) -> State:
        """Where an agent aims: as far from its position as it would from its cell's centre."""
        centre = jnp.asarray(self.grid.centres, dtype=state.dtype)[self.grid.index_of(state)]
        return state + self.grid.displacement(centre, steered(self.motion, centre, belief, eta))

    def displacements(
        self, mass: Mass, actions: Float[Array, "cells moves joint_dim"], group: int, step: Step
    ) -> Float[Array, "cells moves dim"]:
        """How far all moves lead, by the listed actions, which come in groups that share one."""
        cells, moves, size = actions.shape
        weights = jax.vmap(self._weights)(mass)
        beliefs = jax.tree.map(
            lambda leaf: jnp.einsum("ck,ckm...->cm...", weights, _at_step(leaf, step)), self.values
        )
        centres = jnp.asarray(self.grid.centres, dtype=mass.dtype)
        etas = actions.reshape(cells, moves // group, group, size)[..., self.action_dim :]

        def of_cell(centre: State, beliefs: Any, etas: Array) -> Array:
            one = lambda belief, eta: steered(self.motion, centre, belief, eta)  # noqa: E731
            both: Any = jax.vmap(jax.vmap(one, (None, 0)))
            found: Array = both(beliefs, etas)
            return found

        all_cells: Any = jax.vmap(of_cell)
        ends: Array = all_cells(centres, beliefs, etas).reshape(cells, moves, -1)
        return self.grid.displacement(centres[:, None], ends)

    def _weights(self, here: Scalar) -> Float[Array, "masses"]:
        """The spline's weights of the masses at which the motion was evaluated."""
        knots = jax.tree.leaves(self.values)[0].shape[2]
        if knots == 1:
            return jnp.ones(1, dtype=here.dtype)
        place = crowd_coordinate(here, self.grid.n_cells)
        which = jnp.clip(jnp.floor(place * (knots - 1)).astype(jnp.int32), 0, knots - 2)
        along = place - which / (knots - 1)
        powers = jnp.stack([along**3, along**2, along, jnp.ones_like(along)])
        return powers @ jnp.asarray(_spline(knots), dtype=place.dtype)[:, which]


def tabulated(problem: Problem, motion: Motion, actions: Box | MoveSet | Array) -> Motion:
    """The motion, quick at the cells' centres; itself if it sees more of mu than `here`.

    Args:
        problem: The problem to plan in.
        motion: The law of motion, of joint actions or of the agents' own.
        actions: What agents can do, without controls; an array lists the actions.
    """
    grid, dtype, seen = problem.grid, problem.initial.dtype, dependence(problem, motion)
    box = actions if isinstance(actions, Box) else None
    to_coefficients = None
    if isinstance(actions, Box):
        nodes, to_coefficients = chebyshev_nodes(actions)
    else:
        nodes = actions.moves if isinstance(actions, MoveSet) else actions
    knots, steps = SPLINE_KNOTS if seen == "here" else 1, jnp.zeros(1, dtype=jnp.int32)
    if sees_step(problem, motion):
        steps = problem.steps
    most = 2_000_000 if box is not None else 20_000_000  # evaluations; else it is left as it is
    if seen == "more" or len(steps) * grid.n_cells * knots * len(nodes) > most:
        return motion
    centres, nodes = (jnp.asarray(x, dtype=dtype) for x in (grid.centres, nodes))

    def at(step: Array, mass: Scalar) -> Any:
        mu = MeanField(jnp.full_like(problem.initial, mass), mass, grid, step)
        ask: Any = jax.vmap(lambda state, action: believed(motion, state, action, mu), (0, None))
        # A few actions in all cells at a time: more would not fit into memory.
        return jax.lax.map(lambda action: ask(centres, action), nodes, batch_size=16)

    masses = crowd_mass(jnp.linspace(0.0, 1.0, knots, dtype=dtype), grid.n_cells)
    every = jax.lax.map(lambda step: jax.lax.map(lambda mass: at(step, mass), masses), steps)
    found = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 3, 1), every)
    if to_coefficients is not None:
        found = jax.tree.map(
            lambda leaf: jnp.einsum(
                "ij,hckj...->hcki...", to_coefficients.astype(leaf.dtype), leaf
            ),
            found,
        )
    listed = None if box is not None else nodes
    return MotionTable(
        motion=motion, values=found, box=box, listed=listed, grid=grid, action_dim=nodes.shape[1]
    )


def _at_step(leaf: Array, step: Step) -> Array:
    return leaf[0] if len(leaf) == 1 else leaf[step]


def believed(motion: Motion, state: State, action: Action, mu: MeanField) -> Any:
    """What a motion believes, or where it goes if it has no such part."""
    if isinstance(motion, AbstractJointMotion):
        return motion.believe(state, action, mu)
    return motion(state, action, mu)


def steered(motion: Motion, state: State, belief: Any, eta: Array) -> State:
    """Where an agent aims, given what `believed` returned."""
    if isinstance(motion, AbstractJointMotion):
        return motion.steer(state, belief, eta)
    return jnp.asarray(belief)


def crowd_coordinate(mass: Float[Array, "*cells"], cells: int) -> Float[Array, "*cells"]:
    """The mass of a cell on a scale from 0, an empty cell, to 1, one that holds everybody.

    Even below a fifth of the uniform mass and logarithmic above it: crowds matter by their relative
    size, and cells that are nearly empty do not.
    """
    crowd = jnp.log1p(jnp.maximum(mass, 0.0) * (cells / 0.2))
    return jnp.minimum(crowd / math.log1p(cells / 0.2), 1.0)


def crowd_mass(place: Float[Array, "*knots"], cells: int) -> Float[Array, "*knots"]:
    """The inverse of `crowd_coordinate`."""
    return 0.2 * jnp.expm1(place * math.log1p(cells / 0.2)) / cells


@lru_cache(maxsize=8)
def _spline(knots: int) -> Float[np.ndarray, "powers intervals knots"]:
    """Coefficients of the cubic splines that are one at one knot; knots run evenly from 0 to 1."""
    from scipy.interpolate import CubicSpline  # slow to import

    return np.asarray(CubicSpline(np.linspace(0.0, 1.0, knots), np.eye(knots)).c)


def chebyshev_nodes(box: Box) -> tuple[Array, Array]:
    """Chebyshev nodes of a box, and the matrix from values at them to coefficients."""
    count = _nodes_on_axis(box)
    places = np.cos(np.pi * (np.arange(count) + 0.5) / count)
    solve = np.linalg.inv(np.polynomial.chebyshev.chebvander(places, count - 1))
    shares = 0.5 * (np.stack(np.meshgrid(*[places] * box.dim, indexing="ij"), axis=-1) + 1.0)
    lower, upper = np.asarray(box.lower), np.asarray(box.upper)
    nodes = lower + (upper - lower) * shares.reshape(-1, box.dim)
    return jnp.asarray(nodes), jnp.asarray(reduce(np.kron, [solve] * box.dim))


def chebyshev_terms(box: Box, action: Action) -> Float[Array, "nodes"]:
    """All products of Chebyshev polynomials of the action's axes."""
    lower, upper = (jnp.asarray(each, dtype=action.dtype) for each in (box.lower, box.upper))
    axes = []
    for place in 2.0 * (action - lower) / (upper - lower) - 1.0:
        orders = [jnp.ones_like(place), place]
        while len(orders) < _nodes_on_axis(box):
            orders.append(2.0 * place * orders[-1] - orders[-2])
        axes.append(jnp.stack(orders))
    return reduce(lambda one, other: (one[:, None] * other).reshape(-1), axes)


def _nodes_on_axis(box: Box) -> int:
    return {1: 13, 2: 7}.get(box.dim, 4)
