"""Listed moves: how far each leads, and the kernels of where agents come to rest."""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._types import Mass, Scalar, State, Step
from ..problem import Motion
from ..space.grid import Grid
from .motions import AbstractJointMotion, MotionTable, crowd_mass, hallucinated, predictions
from .windows import Windows


class ListedMotion(eqx.Module):
    """A motion and the moves whose displacements or kernels are wanted.

    Attributes:
        motion: The law of motion.
        actions: The moves, for each cell, or for each step and cell.
        group: Number of consecutive moves that share all but their hallucinated control; the costly
            part of an `AbstractJointMotion` is computed once for each group.
    """

    motion: Motion
    actions: Float[Array, "*steps cells moves action_dim"]
    group: int = eqx.field(static=True, default=1)

    @property
    def per_step(self) -> bool:
        """Whether each step has moves of its own."""
        return self.actions.ndim == 4

    def at(self, step: Step) -> Float[Array, "cells moves action_dim"]:
        """The moves of a step."""
        return self.actions[step] if self.per_step else self.actions

    def displacements(
        self, grid: Grid, seen: Mass, step: Step, actions: Array | None = None
    ) -> Float[Array, "cells moves _"]:
        """How far each move leads, or each of other ``actions``, without noise and walls.

        On nodes: with which probabilities.
        """
        actions = self.at(step) if actions is None else actions
        motion, (cells, moves, size) = self.motion, actions.shape
        group, dim = 1, size
        if isinstance(motion, AbstractJointMotion):
            group, dim = self.group, motion.action_dim
        parts = actions.reshape(cells, moves // group, group, size)
        if isinstance(motion, MotionTable) and motion.listed:
            found = motion.listed_predictions(seen, step)
            motion = motion.motion
        else:
            own = parts[:, :, 0, :dim]
            found = predictions(grid, seen, motion, own, step, at_once=max(1, 64 // group))

        def of_cell(centre: State, found: Any, etas: Array) -> Float[Array, "groups group target"]:
            of_group = jax.vmap(partial(hallucinated, motion, centre), (None, 0))
            ends: Array = jax.vmap(of_group)(found, etas)
            return ends

        centres = jnp.asarray(grid.centres, dtype=seen.dtype)
        ends = jax.vmap(of_cell)(centres, found, parts[..., dim:]).reshape(cells, moves, -1)
        return grid.targets(centres[:, None, :], ends)

    @eqx.filter_jit
    def kernels(
        self, windows: Windows, steps: Int[Array, "steps"], knots: int
    ) -> Float[Array, "steps cells knots moves window"]:
        """The kernels of some steps, at evenly spaced crowd coordinates of the cell's mass."""
        cells, dtype = windows.grid.n_cells, self.actions.dtype
        masses = crowd_mass(jnp.linspace(0.0, 1.0, knots, dtype=dtype), cells)

        def at(step: Step, mass: Scalar) -> Float[Array, "cells moves window"]:
            # The same mass in every cell: the motion looks only at the agent's own.
            seen = jnp.full(cells, mass, dtype)
            return windows.kernel(self.displacements(windows.grid, seen, step))

        def at_step(step: Step) -> Float[Array, "cells knots moves window"]:
            return jnp.swapaxes(jax.lax.map(lambda mass: at(step, mass), masses), 0, 1)

        found: Array = jax.lax.map(at_step, steps)
        return found
