"""Motions: what they see of mu, and a table that stands in for a costly one.

Planners evaluate a motion hundreds of times, always at the cells' centres, and models such as
Gaussian processes are costly. In every cell a motion is a function of the action, or of the action
and the cell's mass. Models are smooth in both, so some evaluations tell the rest: between actions
by Chebyshev polynomials, between masses by a cubic spline.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from functools import lru_cache, reduce
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal as Constant
from jaxtyping import Array, Float

from .._types import Action, Mass, Scalar, State, Step, Target
from ..actions import Box, MoveSet
from ..functions import AbstractLifted
from ..problem import Motion, Problem
from ..space.grid import Grid
from ..space.measure import MeanField


class Dependence(NamedTuple):
    """What the result of a function of one agent may depend on.

    Attributes:
        mass: Whether on more of mu than the mass of the agent's own cell.
        here: Whether on that mass, ``mu.here``.
        step: Whether on the number of the step.
    """

    mass: bool
    here: bool
    step: bool

    @property
    def mu(self) -> bool:
        """Whether on mu."""
        return self.mass or self.here


def dependence(problem: Problem, function: Callable[..., Any]) -> Dependence:
    """What the result of ``function(state, action, mu)`` may depend on, by its jaxpr.

    The answer may say too much, for example for ``0 * mu.mass``, but never too little. It consists
    of plain booleans, also inside a compiled function.
    """
    grid, dtype = problem.grid, problem.initial.dtype
    state = jnp.asarray(grid.centres[0], dtype=dtype)
    action = jnp.asarray(problem.actions.rest, dtype=dtype)

    def of_mu(mass: Mass, here: Scalar, step: Step) -> Any:
        mu = MeanField(mass=mass, here=here, grid=grid, step=step)
        return jnp.asarray(function(state, action, mu))

    inputs = (problem.initial, problem.initial[0], problem.steps[0])
    function = problem.lifted(function)
    program = jax.make_jaxpr(of_mu)(*inputs).jaxpr
    return Dependence(*(_reaches(program, variable) for variable in program.invars))


def trips_see_mu(problem: Problem) -> bool:
    """Whether the chance of a trip depends on mu; then the flow is not linear in it."""
    return problem.trips is not None and dependence(problem, problem.trips.chance_at).mu


def _reaches(program: Any, variable: Any) -> bool:
    """Whether an input of a program may have an effect on its results."""
    reached = {variable}
    for equation in program.eqns:
        if any(v in reached for v in equation.invars if not isinstance(v, Constant)):
            reached.update(equation.outvars)
    return any(v in reached for v in program.outvars if not isinstance(v, Constant))


class AbstractJointMotion(AbstractLifted):
    """A motion f(s, (a, eta), mu) of joint actions whose costly part does not depend on eta.

    Planners compute that part once for all controls eta of an action.

    Attributes:
        action_dim: Number of axes of a; what follows them in a joint action is eta.
    """

    action_dim: eqx.AbstractVar[int]

    @abstractmethod
    def predict(self, state: State, action: Action, mu: MeanField) -> Any:
        """The part that does not depend on eta, such as the mean and the deviation of a model."""

    @abstractmethod
    def hallucinate(self, state: State, prediction: Any, eta: Array) -> Target:
        """The target of an agent, given what `predict` returned and the control eta."""

    def __call__(self, state: State, joint: Action, mu: MeanField) -> Target:
        """The target of an agent."""
        prediction = self.predict(state, joint[: self.action_dim], mu)
        return self.hallucinate(state, prediction, joint[self.action_dim :])


class MotionTable(AbstractJointMotion):
    """A motion whose costly part is interpolated; what eta does stays exact.

    Attributes:
        motion: The motion itself.
        values: What it says: leaves have the axes steps, cells, masses and actions before their
            own; one step if the motion does not see it. Of actions in a box these are coefficients
            of Chebyshev polynomials.
        actions: The box of actions, or the listed ones; others than those are not known.
        grid: The space.
        action_dim: Number of axes of an action; what follows them in a joint action is eta.
    """

    motion: Motion
    values: Any
    actions: Box | Float[Array, "actions action_dim"]
    grid: Grid = eqx.field(static=True)
    action_dim: int = eqx.field(static=True)

    @property
    def listed(self) -> bool:
        """Whether the actions are listed."""
        return not isinstance(self.actions, Box)

    def predict(self, state: State, action: Action, mu: MeanField) -> Any:
        """The interpolated values of the agent's cell, as seen from its centre."""
        if isinstance(self.actions, Box):
            terms = chebyshev_terms(self.actions, action)
        else:
            nearest = jnp.argmin(jnp.sum((self.actions - action) ** 2, axis=-1))
            terms = jax.nn.one_hot(nearest, len(self.actions), dtype=action.dtype)
        cell, weights = self.grid.index_of(state), self._weights(mu.here)
        both = (weights[:, None] * terms).reshape(-1)

        def one(leaf: Array) -> Array:
            rows = _at_step(leaf, mu.step)[cell].reshape(len(both), *leaf.shape[4:])
            return jnp.tensordot(both.astype(leaf.dtype), rows, axes=1)

        return jax.tree.map(one, self.values)

    def hallucinate(self, state: State, prediction: Any, eta: Array) -> Target:
        """Where an agent aims: as far from its position as it would from its cell's centre."""
        centre = jnp.asarray(self.grid.centres, dtype=state.dtype)[self.grid.index_of(state)]
        end = hallucinated(self.motion, centre, prediction, eta)
        return state + self.grid.displacement(centre, end)

    def listed_predictions(self, mass: Mass, step: Step) -> Any:
        """What `predict` says at each cell's centre of each listed action, at once."""
        weights = jax.vmap(self._weights)(mass)
        return jax.tree.map(
            lambda leaf: jnp.einsum("ck,ckm...->cm...", weights, _at_step(leaf, step)), self.values
        )

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
    grid, dtype, sees = problem.grid, problem.initial.dtype, dependence(problem, motion)
    solve, most = None, 20_000_000  # evaluations; if more are needed the motion stays as it is
    if isinstance(actions, Box):
        (nodes, solve), most = chebyshev_nodes(actions), 2_000_000
    else:
        nodes = actions.moves if isinstance(actions, MoveSet) else actions
    knots = 10 if sees.here else 1
    steps = problem.steps if sees.step else jnp.zeros(1, dtype=jnp.int32)
    if sees.mass or len(steps) * grid.n_cells * knots * len(nodes) > most:
        return motion
    everywhere = jnp.broadcast_to(jnp.asarray(nodes, dtype), (grid.n_cells, *nodes.shape))

    def at(step: Step, mass: Scalar) -> Any:
        seen = jnp.full_like(problem.initial, mass)
        return predictions(grid, seen, motion, everywhere, step, at_once=16)

    masses = crowd_mass(jnp.linspace(0.0, 1.0, knots, dtype=dtype), grid.n_cells)
    every = jax.lax.map(lambda step: jax.lax.map(lambda mass: at(step, mass), masses), steps)
    found = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 1, 2), every)
    if solve is not None:
        found = jax.tree.map(
            lambda leaf: jnp.einsum("ij,hckj...->hcki...", solve.astype(leaf.dtype), leaf), found
        )
    known = actions if isinstance(actions, Box) else everywhere[0]
    return MotionTable(
        motion=motion, values=found, actions=known, grid=grid, action_dim=nodes.shape[1]
    )


def predictions(
    grid: Grid,
    mass: Mass,
    motion: Motion,
    actions: Float[Array, "cells actions action_dim"],
    step: Step,
    *,
    at_once: int,
) -> Any:
    """`prediction_of` at every cell centre, for each of that cell's actions.

    ``at_once`` actions are computed at a time, as models take much memory for each.
    """
    centres = jnp.asarray(grid.centres, dtype=mass.dtype)

    def one(state: State, here: Scalar, action: Action) -> Any:
        return prediction_of(motion, state, action, MeanField(mass, here, grid, step))

    @jax.checkpoint
    def in_all_cells(actions: Float[Array, "cells action_dim"]) -> Any:
        return jax.vmap(one)(centres, mass, actions)

    found = jax.lax.map(in_all_cells, jnp.swapaxes(actions, 0, 1), batch_size=at_once)
    return jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), found)


def _at_step(leaf: Array, step: Step) -> Array:
    return leaf[0] if len(leaf) == 1 else leaf[step]


def prediction_of(motion: Motion, state: State, action: Action, mu: MeanField) -> Any:
    """The part of a motion that does not depend on eta; all of it if it has no eta."""
    if isinstance(motion, AbstractJointMotion):
        return motion.predict(state, action, mu)
    return motion(state, action, mu)


def hallucinated(motion: Motion, state: State, prediction: Any, eta: Array) -> Target:
    """The target of an agent, given what `prediction_of` returned."""
    if isinstance(motion, AbstractJointMotion):
        return motion.hallucinate(state, prediction, eta)
    return jnp.asarray(prediction)


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
