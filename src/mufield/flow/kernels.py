"""Where moves lead, computed ahead: landing kernels of motions that see little or nothing of mu.

A motion that ignores mu has one kernel. A motion that sees no more of mu than the mass of the
agent's own cell has one for each value of that mass; here it is computed at some values, and in
between a mixture of two kernels stands in for it.
"""

import math
from functools import lru_cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._types import Mass, Scalar, State, Step
from ..policies.base import ActionLaw
from ..problem import AbstractJointMotion, Motion, Motions
from ..space.measure import MeanField, at_all_cells
from .flow import Flow
from .phi import Aims, landed_exactly, unfolded, windows

MOVES_AT_ONCE = 64
"""Number of moves whose windows are in memory at the same time."""

BELIEVED_AT_ONCE = 16
"""Number of actions for which a model is asked at the same time, in all cells."""

CELLS_AT_ONCE = 8
"""Number of cells for which a model is asked at the same time, for all actions."""

MOST_KERNEL_BYTES = 1 << 29
"""Largest kernel, or table of kernels, that is stored."""

KNOTS = 16
"""Values of a cell's mass at which kernels are computed."""

BELIEF_KNOTS = 10
"""Values of it at which a model is asked."""

FEWEST_KNOTS = 12
"""A table with fewer would be too coarse; then moves are computed anew in every pass."""

EVEN_BELOW = 0.2
"""Knots are spaced evenly below this mass and by equal factors above it, in multiples of the
uniform mass: crowds matter by their relative size, and cells that are nearly empty do not."""


def displacements(
    flow: Flow,
    motion: Motion,
    mass: Mass,
    actions: Float[Array, "cells moves action_dim"],
    group: int = 1,
    step: Step = 0,
) -> Float[Array, "cells moves dim"]:
    """Where each move of an agent at each cell centre aims, measured from there.

    Args:
        flow: The problem's flow.
        motion: The law of motion.
        mass: What the motion sees as mu.
        actions: The moves.
        group: Number of consecutive moves that share all but their hallucinated control; the
            costly part of an `AbstractJointMotion` is computed once for each group.
        step: Number of the step.
    """
    cells, moves, _ = actions.shape
    if group == 1 or not isinstance(motion, AbstractJointMotion):
        ones = jnp.ones(actions.shape[:2], dtype=mass.dtype)
        return flow.displacements(motion, mass, ActionLaw(actions=actions, weights=ones), step)
    joint: AbstractJointMotion = motion
    groups = actions.reshape(cells, moves // group, -1)

    def together(state: Array, flat: Array, mu: MeanField) -> Array:
        parts = flat.reshape(group, -1)
        found = joint.believe(state, parts[0, : joint.action_dim], mu)
        return jax.vmap(lambda eta: joint.steer(state, found, eta))(parts[:, joint.action_dim :])

    aims = at_all_cells(flow.problem.grid, mass, together, groups, step)
    centres = jnp.asarray(flow.problem.grid.centres, dtype=mass.dtype)
    return flow.problem.grid.displacement(centres[:, None, :], aims.reshape(cells, moves, -1))


def kernel_bytes(flow: Flow, moves: int) -> int:
    """Size of one kernel."""
    entries = flow.problem.grid.n_cells * moves * math.prod(flow.fold.window)
    return entries * flow.problem.initial.dtype.itemsize


@eqx.filter_jit
def landing_kernel(
    flow: Flow, motion: Motion, actions: Array, mass: Mass, group: int = 1, step: Step = 0
) -> Float[Array, "cells moves window"]:
    """Probability of each window offset for each cell and move; the motion sees ``mass``."""

    def one(moves: Float[Array, "cells group action_dim"]) -> Float[Array, "group cells window"]:
        found = displacements(flow, motion, mass, moves, group, step)
        return jax.vmap(lambda each: _landed(flow, each), in_axes=1)(found)

    groups = jnp.swapaxes(actions.reshape(len(actions), -1, group, actions.shape[-1]), 0, 1)
    by_move = jax.lax.map(one, groups, batch_size=max(1, MOVES_AT_ONCE // group))
    return jnp.swapaxes(by_move.reshape(-1, *by_move.shape[2:]), 0, 1)


def kernels_of(
    flow: Flow,
    motions: Motions,
    actions: Float[Array, "moves action_dim"],
    mass: Mass,
) -> Float[Array, "motions cells moves window"]:
    """The landing kernels of several motions, which see ``mass``; each cell has the same moves.

    Args:
        flow: The problem's flow.
        motions: The laws of motion.
        actions: The moves.
        mass: What the motions see as mu.
    """
    grid = flow.problem.grid
    centres = jnp.asarray(grid.centres, dtype=mass.dtype)

    def of_cell(cell: tuple[State, Scalar]) -> Float[Array, "moves motions dim"]:
        state, here = cell
        mu = MeanField(mass=mass, here=here, grid=grid)
        found = jax.vmap(lambda action: motions(state, action, mu))(actions)
        return grid.displacement(state, found)

    aimed = jax.lax.map(of_cell, (centres, mass), batch_size=CELLS_AT_ONCE)

    # One move after the other: the pieces of several would not fit into a core's cache.
    def landed(moves: Float[Array, "moves cells dim"]) -> Float[Array, "cells moves window"]:
        return jnp.swapaxes(jax.lax.map(lambda each: _landed(flow, each), moves), 0, 1)

    kernels: Array = jax.lax.map(landed, jnp.transpose(aimed, (2, 1, 0, 3)))
    return kernels


def land(
    flow: Flow, joint: Float[Array, "cells moves"], kernel: Float[Array, "cells moves window"]
) -> Mass:
    """The next distribution by a kernel, from the joint mass of cells and moves."""
    return arrive(flow, jnp.einsum("km,kme->ke", joint, kernel))


def arrive(flow: Flow, landed: Float[Array, "cells window"]) -> Mass:
    """The next distribution, from the mass that lands at each window offset."""
    if flow.ground is None:
        after = flow.fold.arrival(landed.reshape(-1))
    else:
        after = flow.ground.arrive(landed)
    return after if flow.neighbours is None else flow.neighbours(after)


def _landed(flow: Flow, displacement: Float[Array, "cells dim"]) -> Float[Array, "cells window"]:
    """Probability of each window offset, for one move of each cell."""
    grid, ground = flow.problem.grid, flow.ground
    ones = jnp.ones(grid.n_cells, dtype=displacement.dtype)
    aims = Aims(displacement[:, None], ones[:, None], flow.noise_std)
    if ground is None:
        return _by_tables(flow, aims, ones)
    landed = unfolded(grid, ground.reach, aims, ones)
    if not len(ground.near):
        return landed
    return landed.at[ground.near].set(_by_tables(flow, aims.of(ground.near), ones[ground.near]))


def _by_tables(flow: Flow, aims: Aims, mass: Mass) -> Float[Array, "sources window"]:
    """Mass at each window offset, for the cells that have tables."""
    grid, fold = flow.problem.grid, flow.fold
    if flow.noiseless:
        return landed_exactly(grid, fold, aims, mass)
    return fold.landing(windows(grid, fold, aims, mass).flat).reshape(mass.shape[0], -1)


class Beliefs(eqx.Module):
    """What a model says of each action in each cell at `BELIEF_KNOTS` masses of that cell.

    Models are smooth in mu, so that a cubic spline serves between these masses.

    Attributes:
        known: What `AbstractJointMotion.believe` returned; each leaf has the axes masses, actions
            and cells before its own.
    """

    known: Any

    @classmethod
    def build(
        cls, flow: Flow, motion: AbstractJointMotion, actions: Array, group: int
    ) -> "Beliefs":
        """Asks the model; arguments as of `displacements`."""
        grid, initial = flow.problem.grid, flow.problem.initial
        centres = jnp.asarray(grid.centres, dtype=initial.dtype)
        own = jnp.swapaxes(actions[:, ::group, : motion.action_dim], 0, 1)

        def beliefs(mass: Scalar) -> Any:
            mu = MeanField(mass=jnp.full_like(initial, mass), here=mass, grid=grid)
            asked: Any = jax.vmap(lambda state, action: motion.believe(state, action, mu))
            return jax.lax.map(lambda each: asked(centres, each), own, batch_size=BELIEVED_AT_ONCE)

        return cls(jax.lax.map(beliefs, _masses(flow, BELIEF_KNOTS)))

    def at(self, place: Float[Array, "cells"]) -> Any:
        """The beliefs where the mass of each cell has these crowd coordinates, from 0 to 1."""
        intervals = BELIEF_KNOTS - 1
        which = jnp.clip(jnp.floor(place * intervals).astype(jnp.int32), 0, intervals - 1)
        along = place - which / intervals
        powers = jnp.stack([along**3, along**2, along, jnp.ones_like(along)])
        pieces = jnp.asarray(_spline(BELIEF_KNOTS), dtype=place.dtype)
        weights = jnp.einsum("pc,pck->ck", powers, pieces[:, which])
        return jax.tree.map(lambda leaf: jnp.einsum("ck,kmc...->mc...", weights, leaf), self.known)

    def displacements(
        self,
        flow: Flow,
        motion: AbstractJointMotion,
        place: Float[Array, "cells"],
        actions: Float[Array, "cells moves joint_dim"],
        group: int,
    ) -> Float[Array, "cells moves dim"]:
        """As the function of this name, at crowd coordinates from 0 to 1."""
        grid = flow.problem.grid
        cells, moves, size = actions.shape
        centres = jnp.asarray(grid.centres, dtype=actions.dtype)
        parts = jnp.swapaxes(actions.reshape(cells, moves // group, group, size), 0, 1)
        steer: Any = jax.vmap(jax.vmap(motion.steer, (None, None, 0)))
        aims = jax.vmap(steer, (None, 0, 0))(
            centres, self.at(place), parts[..., motion.action_dim :]
        )
        found = grid.displacement(centres[:, None], aims)
        return jnp.swapaxes(found, 0, 1).reshape(cells, moves, -1)


class CrowdTable(eqx.Module):
    """The kernels of a motion that sees the mass of the agent's own cell, at some of its values.

    The derivative by that mass is the mixture's. Derivatives by the kernels are left out.

    Attributes:
        kernels: The kernels at the knots.
        beliefs: What the model says, if the motion is a model's.
    """

    kernels: Float[Array, "cells knots moves window"]
    beliefs: Beliefs | None = None

    @staticmethod
    def knots_for(flow: Flow, moves: int) -> int:
        """Number of knots that fit into memory, or 0 if they are too few."""
        fit = min(KNOTS, MOST_KERNEL_BYTES // kernel_bytes(flow, moves))
        return fit if fit >= FEWEST_KNOTS else 0

    @classmethod
    def build(
        cls, flow: Flow, motion: Motion, actions: Array, knots: int, group: int = 1
    ) -> "CrowdTable":
        """Computes the kernels."""
        initial = flow.problem.initial
        if isinstance(motion, AbstractJointMotion) and group > 1:
            return _by_beliefs(flow, motion, actions, knots, group)

        def at(mass: Scalar) -> Array:
            # The same in every cell: the motion looks only at the agent's own.
            return landing_kernel(flow, motion, actions, jnp.full_like(initial, mass), group)

        return cls(jnp.swapaxes(jax.lax.map(at, _masses(flow, knots)), 0, 1))

    def __call__(
        self, joint: Float[Array, "cells moves"], mass: Mass
    ) -> Float[Array, "cells window"]:
        """The mass that lands at each window offset, from the joint mass of cells and moves."""
        last = self.kernels.shape[1] - 1
        place = last * crowd_coordinate(mass)
        low = jnp.clip(jnp.floor(place).astype(jnp.int32), 0, last - 1)
        return _mixed(self.kernels, low, place - low, joint)


@eqx.filter_jit
def _by_beliefs(
    flow: Flow, motion: AbstractJointMotion, actions: Array, knots: int, group: int
) -> CrowdTable:
    """The table of a model's motion, from what the model says at a few masses."""
    beliefs = Beliefs.build(flow, motion, actions, group)
    places = jnp.linspace(0.0, 1.0, knots, dtype=actions.dtype)

    def at(place: Scalar) -> Float[Array, "moves cells window"]:
        everywhere = jnp.full(len(actions), place)
        found = beliefs.displacements(flow, motion, everywhere, actions, group)
        by_move = jnp.swapaxes(found, 0, 1)
        landed: Array = jax.lax.map(
            lambda each: _landed(flow, each), by_move, batch_size=MOVES_AT_ONCE
        )
        return landed

    kernels = jnp.moveaxis(jax.lax.map(at, places), 2, 0)
    return CrowdTable(kernels, beliefs)


def crowd_coordinate(mass: Mass) -> Float[Array, "cells"]:
    """The mass of each cell on a scale from 0, an empty cell, to 1, one that holds everybody."""
    cells = mass.shape[0]
    crowd = jnp.log1p(jnp.maximum(mass, 0.0) * (cells / EVEN_BELOW))
    return jnp.minimum(crowd / _longest(cells), 1.0)


def _masses(flow: Flow, knots: int) -> Float[Array, "knots"]:
    """Masses of a cell at evenly spaced crowd coordinates."""
    initial = flow.problem.initial
    places = jnp.linspace(0.0, 1.0, knots, dtype=initial.dtype)
    return EVEN_BELOW * jnp.expm1(places * _longest(len(initial))) / len(initial)


@lru_cache(maxsize=8)
def _spline(knots: int) -> Float[np.ndarray, "powers intervals knots"]:
    """Coefficients of the cubic splines that are one at one knot; knots run evenly from 0 to 1."""
    from scipy.interpolate import CubicSpline  # slow to import

    return np.asarray(CubicSpline(np.linspace(0.0, 1.0, knots), np.eye(knots)).c)


def _longest(cells: int) -> float:
    """log(1 + mass / even mass) of a cell that holds everybody."""
    return math.log1p(cells / EVEN_BELOW)


def _pair(kernels: Array, cell: Array, low: Array) -> Float[Array, "both window"]:
    """The kernels of one cell at two neighbouring knots, one below the other."""
    _, _, moves, window = kernels.shape
    start = (cell, low, jnp.zeros_like(low), jnp.zeros_like(low))
    found = jax.lax.dynamic_slice(kernels, start, (1, 2, moves, window))
    return found.reshape(2 * moves, window)


@jax.custom_vjp
def _mixed(
    kernels: Float[Array, "cells knots moves window"],
    low: Int[Array, "cells"],
    share: Float[Array, "cells"],
    joint: Float[Array, "cells moves"],
) -> Float[Array, "cells window"]:
    """Sum over moves of the joint mass times the mixture of the kernels at two knots.

    Cell by cell: a pair of kernels then stays in a core's cache, where gathering those of all
    cells would write and read several megabytes.
    """

    def one(inputs: Any) -> Array:
        cell, low, share, mass = inputs
        both = jnp.concatenate([(1 - share) * mass, share * mass])
        return jnp.dot(both, _pair(kernels, cell, low))

    cells = jnp.arange(low.shape[0], dtype=low.dtype)
    landed: Array = jax.lax.map(one, (cells, low, share, joint))
    return landed


def _mixed_forward(kernels: Array, low: Array, share: Array, joint: Array) -> tuple[Array, Any]:
    return _mixed(kernels, low, share, joint), (kernels, low, share, joint)


def _mixed_backward(saved: Any, cotangent: Array) -> tuple[None, None, Array, Array]:
    kernels, low, share, joint = saved

    def one(inputs: Any) -> Array:
        cell, low, values = inputs
        return jnp.dot(_pair(kernels, cell, low), values)

    cells = jnp.arange(low.shape[0], dtype=low.dtype)
    both = jax.lax.map(one, (cells, low, cotangent)).reshape(*joint.shape[:1], 2, -1)
    rise = both[:, 1] - both[:, 0]
    return None, None, jnp.sum(joint * rise, axis=1), both[:, 0] + share[:, None] * rise


_mixed.defvjp(_mixed_forward, _mixed_backward)
