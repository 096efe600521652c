"""A table that stands in for a costly motion.

Planners evaluate a motion hundreds of times, always at the cells' centres, and models such as
Gaussian processes are costly. In every cell a motion is a function of the action, perhaps of the
cell's mass, and perhaps of the population's `Centre`. Models are smooth in all three, so some
evaluations tell the rest: between actions by Chebyshev polynomials, between masses and between
centres by cubic splines.
"""

import math
from dataclasses import replace
from functools import lru_cache, partial, reduce
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._arrays import Action, Mass, Scalar, State, Step, Target
from ..actions import Box, MoveSet, nearest_move
from ..interfaces import AbstractLifted
from ..policies.encoders import Centre, position_features, position_size
from ..problem import Motion, Problem
from ..space.grid import Grid
from ..space.measure import MeanField, at_all_cells
from . import motions
from .motions import AbstractJointMotion
from .windows import KernelBank, Windows


class MotionTable(AbstractJointMotion):
    """A motion whose costly part is interpolated; what eta does stays exact.

    Attributes:
        values: What it says: leaves have the axes steps, cells, knots and actions before their own;
            one step if the motion does not see it. Of actions in a box these are coefficients of
            Chebyshev polynomials.
        actions: The box of actions, or the listed ones; others than those are not known.
        action_dim: Number of axes of an action; what follows them in a joint action is eta.
        knots: How many masses were tried, and how many values of each number of the centre, if the
            motion sees it.
    """

    motion: Motion
    values: Any
    actions: Box | Float[Array, "actions action_dim"]
    grid: Grid = eqx.field(static=True)
    action_dim: int = eqx.field(static=True)
    knots: tuple[int, ...] = eqx.field(static=True)

    def predict(self, state: State, action: Action, mu: MeanField) -> Any:
        """The interpolated values of the agent's cell, as seen from its centre."""
        if isinstance(self.actions, Box):
            terms = chebyshev_terms(self.actions, action)
        else:
            nearest = nearest_move(self.actions, action)[0]
            terms = jax.nn.one_hot(nearest, len(self.actions), dtype=action.dtype)
        cell, weights = self.grid.index_of(state), self._weights(mu.here, self._centre(mu))
        both = (weights[:, None] * terms).reshape(-1)

        def one(leaf: Array) -> Array:
            rows = _at_step(leaf, mu.step)[cell].reshape(len(both), *leaf.shape[4:])
            return jnp.tensordot(both.astype(leaf.dtype), rows, axes=1)

        return jax.tree.map(one, self.values)

    def hallucinate(self, state: State, prediction: Any, eta: Array) -> Target:
        """Where an agent aims: as far from its position as it would from its cell's centre."""
        centre = jnp.asarray(self.grid.centres, dtype=state.dtype)[self.grid.index_of(state)]
        end = motions.hallucinated(self.motion, centre, prediction, eta)
        return state + self.grid.displacement(centre, end)

    def only(self, which: Int[Array, ""]) -> "MotionTable":
        """The table of one of the listed actions."""
        one = partial(jax.lax.dynamic_index_in_dim, index=which)
        values = jax.tree.map(lambda leaf: one(leaf, axis=3), self.values)
        return replace(self, values=values, actions=one(self.actions, axis=0))

    def predict_all(
        self, mass: Mass, actions: Float[Array, "cells moves action_dim"], step: Step
    ) -> Any:
        """What `predict` says at each cell's centre of that cell's actions.

        The actions must be the listed ones, or any of the box. Masses are interpolated first, once
        for all actions of a cell.
        """
        centre, box = self._centre(MeanField(mass, mass[0], self.grid, step)), self.actions
        weights = jax.vmap(self._weights, in_axes=(0, None))(mass, centre)
        found = jax.tree.map(
            lambda leaf: jnp.einsum("ck,ckm...->cm...", weights, _at_step(leaf, step)), self.values
        )
        if not isinstance(box, Box):
            return found
        terms = jax.vmap(jax.vmap(lambda action: chebyshev_terms(box, action)))(actions)
        return jax.tree.map(
            lambda leaf: jnp.einsum("cmn,cn...->cm...", terms.astype(leaf.dtype), leaf), found
        )

    def _centre(self, mu: MeanField) -> Float[Array, "numbers"]:
        if len(self.knots) == 1:
            return jnp.zeros(0, dtype=mu.mass.dtype)
        return Centre()(jnp.zeros(self.grid.dim, dtype=mu.mass.dtype), mu)

    def _weights(self, here: Scalar, centre: Float[Array, "numbers"]) -> Float[Array, "knots"]:
        """The splines' weights of all that the motion was tried with."""
        places = [motions.crowd_coordinate(here, self.grid.n_cells), *(0.5 * (1.0 + centre))]
        weights = [_spline_weights(*each) for each in zip(places, self.knots, strict=True)]
        return reduce(lambda one, other: (one[:, None] * other).reshape(-1), weights)


def tabulated(problem: Problem, motion: Motion, actions: Box | MoveSet | Array) -> Motion:
    """The motion, quick at the cells' centres; itself if it sees too much of mu for a table.

    ``actions`` are what agents can do, without controls; an array lists them.
    """
    grid, dtype, sees = problem.grid, problem.initial.dtype, motions.dependence(problem, motion)
    # Knots of the own cell's mass, and of each number of the centre: with these the splines of
    # tests/planning/test_motion_table.py are within 5e-3 of the motion.
    here_knots, centre_knots = 10, 9
    # So many evaluations are affordable: tables of more would take too long, and too much memory.
    solve, most = None, 20_000_000
    if isinstance(actions, Box):
        (nodes, solve), most = chebyshev_nodes(actions), 2_000_000
    else:
        nodes = actions.moves if isinstance(actions, MoveSet) else actions
    if sees.mass and not (isinstance(motion, AbstractLifted) and motion.sees_centre):
        return motion
    about_mass = (centre_knots,) * position_size(grid) if sees.mass else ()
    knots = (here_knots if sees.here else 1, *about_mass)
    steps = problem.steps if sees.step else jnp.zeros(1, dtype=jnp.int32)
    if len(steps) * grid.n_cells * math.prod(knots) * len(nodes) > most:
        return motion
    everywhere = jnp.broadcast_to(jnp.asarray(nodes, dtype), (grid.n_cells, *nodes.shape))
    predict = motions.costly_part(motion)

    def at(step: Step, here: Scalar, mass: Mass | None) -> Any:
        def seeing(state: State, action: Action, mu: MeanField) -> Any:
            return predict(state, action, mu if mass is None else replace(mu, mass=mass))

        seen = jnp.full_like(problem.initial, here)
        return at_all_cells(grid, seen, seeing, everywhere, step, at_once=16)

    heres = motions.crowd_mass(jnp.linspace(0.0, 1.0, knots[0], dtype=dtype), grid.n_cells)
    tried = [jnp.repeat(heres, math.prod(knots[1:])), None]
    if sees.mass:
        tried[1] = jnp.tile(_masses_with_centres(grid, knots[1:]).astype(dtype), (knots[0], 1))
    every = jax.lax.map(lambda step: jax.lax.map(lambda each: at(step, *each), tuple(tried)), steps)
    found = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 1, 2), every)
    if solve is not None:
        found = jax.tree.map(
            lambda leaf: jnp.einsum("ij,hckj...->hcki...", solve.astype(leaf.dtype), leaf), found
        )
    return MotionTable(
        motion=motion,
        values=found,
        actions=actions if isinstance(actions, Box) else everywhere[0],
        grid=grid,
        action_dim=nodes.shape[1],
        knots=knots,
    )


def _masses_with_centres(grid: Grid, knots: tuple[int, ...]) -> Float[Array, "knots cells"]:
    """Masses of sum one whose `Centre` is each point of a regular mesh of [-1, 1]^n.

    The centre is linear in the mass, so that these need be no distributions, only small.
    """
    mesh = np.meshgrid(*(np.linspace(-1.0, 1.0, count) for count in knots), indexing="ij")
    wanted = np.stack([*(axis.ravel() for axis in mesh), np.ones(mesh[0].size)], axis=1)
    with jax.ensure_compile_time_eval():
        shown = np.asarray(jax.vmap(partial(position_features, grid))(jnp.asarray(grid.centres)))
    shown = np.concatenate([shown, np.ones((len(shown), 1))], axis=1)
    return jnp.asarray(wanted @ np.linalg.pinv(shown))


def _at_step(leaf: Array, step: Step) -> Array:
    return leaf[step if len(leaf) > 1 else 0]


def _spline_weights(place: Scalar, knots: int) -> Float[Array, "knots"]:
    """Weights of the values at evenly spaced knots between 0 and 1."""
    if knots == 1:
        return jnp.ones(1, dtype=place.dtype)
    which = jnp.clip(jnp.floor(place * (knots - 1)).astype(jnp.int32), 0, knots - 2)
    along = place - which / (knots - 1)
    powers = jnp.stack([along**3, along**2, along, jnp.ones_like(along)])
    return powers @ jnp.asarray(_spline(knots), dtype=place.dtype)[:, which]


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


def move_targets(
    grid: Grid,
    motion: Motion,
    seen: Mass,
    actions: Float[Array, "cells moves action_dim"],
    step: Step,
    group: int = 1,
) -> Float[Array, "cells moves _"]:
    """How far each move leads, without noise and walls; on nodes, with which probabilities.

    As `mufield.flow.phi.displacements`, for models: so many consecutive moves as a ``group`` has
    share all but their hallucinated control, and the costly part of the motion.
    """
    cells, moves, size = actions.shape
    if isinstance(motion, AbstractJointMotion):
        dim = motion.action_dim
    else:
        group, dim = 1, size
    parts = actions.reshape(cells, moves // group, group, size)
    own = parts[:, :, 0, :dim]
    if isinstance(motion, MotionTable):
        found = motion.predict_all(seen, own, step)
        motion = motion.motion
    else:
        predict, at_once = motions.costly_part(motion), max(1, 64 // group)
        found = at_all_cells(grid, seen, predict, own, step, at_once=at_once)

    def of_cell(centre: State, found: Any, etas: Array) -> Float[Array, "groups group target"]:
        of_group = jax.vmap(partial(motions.hallucinated, motion, centre), (None, 0))
        return jax.vmap(of_group)(found, etas)

    centres = jnp.asarray(grid.centres, dtype=seen.dtype)
    ends = jax.vmap(of_cell)(centres, found, parts[..., dim:]).reshape(cells, moves, -1)
    return grid.targets(centres[:, None, :], ends)


@eqx.filter_jit
def kernels_ahead(
    windows: Windows,
    motion: Motion,
    actions: Float[Array, "*steps cells moves action_dim"],
    steps: Int[Array, "steps"],
    knots: int,
    group: int = 1,
) -> KernelBank:
    """The moves' kernels at some steps, at evenly spaced crowd coordinates of the cell's mass."""
    grid, dtype = windows.grid, actions.dtype
    masses = motions.crowd_mass(jnp.linspace(0.0, 1.0, knots, dtype=dtype), grid.n_cells)

    def at(step: Step, mass: Scalar) -> Float[Array, "cells window moves"]:
        # The same mass in every cell: the motion looks only at the agent's own.
        seen, now = jnp.full(grid.n_cells, mass, dtype), actions_at(actions, step)
        targets = move_targets(grid, motion, seen, now, step, group)
        return jnp.swapaxes(windows.kernel(targets), 1, 2)

    def at_step(step: Step) -> Float[Array, "cells knots window moves"]:
        return jnp.swapaxes(jax.lax.map(lambda mass: at(step, mass), masses), 0, 1)

    return windows.with_kernels(jax.lax.map(at_step, steps))


def actions_at(
    actions: Float[Array, "*steps cells moves action_dim"], step: Step
) -> Float[Array, "cells moves action_dim"]:
    """The moves of a step, of moves that are the same at all steps or listed for each."""
    return actions[step] if actions.ndim == 4 else actions
