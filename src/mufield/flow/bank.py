"""Where listed moves lead, computed ahead: landing kernels of motions that see little of mu.

A motion that ignores mu has one kernel, or one for each step. A motion that sees no more of mu than
the mass of the agent's own cell has one for each value of that mass; here it is computed at some
values, and in between a mixture of two kernels stands in for it.
"""

import math
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._types import Mass, Scalar, State, Step
from ..problem import AbstractJointMotion, Motion, Motions
from ..space.grid import Grid
from ..space.measure import MeanField, at_all_cells
from .landing import AbstractLanding
from .motion_table import MotionTable, crowd_coordinate, crowd_mass
from .phi import AbstractPhi, Joint, displacements
from .windows import Windows


class KernelBank(AbstractPhi):
    """Phi for listed moves by kernels: probabilities of each window offset for each cell and move.

    Attributes:
        kernels: One kernel for each step, or one for all steps; and one for each of some crowd
            coordinates of the cell's mass, between which it is interpolated, or one for all. The
            derivative by that mass is the interpolation's.
        landing: Where window offsets are.
        grid: The space.
    """

    kernels: Float[Array, "steps cells knots moves window"]
    landing: AbstractLanding
    grid: Grid = eqx.field(static=True)

    @property
    def interpolates(self) -> bool:
        """Whether kernels are mixed by the mass of the agent's cell."""
        return self.kernels.shape[2] > 1

    def push(self, joint: Joint, targets: None, seen: Mass, step: Step) -> Mass:
        """See `AbstractPhi`."""
        steps, cells, knots, moves, window = self.kernels.shape
        now = step if steps > 1 else 0
        if not self.interpolates:
            kernel = self.kernels.reshape(steps, cells, moves, window)[now]
            return self.landing.arrive(jnp.einsum("km,kme->ke", joint, kernel))
        place = (knots - 1) * crowd_coordinate(seen, cells)
        low = jnp.clip(jnp.floor(place).astype(jnp.int32), 0, knots - 2)
        row = now * cells + jnp.arange(cells, dtype=jnp.int32)
        flat = self.kernels.reshape(-1, knots, moves, window)
        return self.landing.arrive(_mixed(flat, row, low, place - low, joint))


def kernel_bank(
    core: Windows, kernels: Float[Array, "steps cells knots moves window"]
) -> KernelBank:
    """The kernels in place of a transition's windows."""
    return KernelBank(kernels=kernels, landing=core.landing, grid=core.grid)


def with_kernel(phi: AbstractPhi, kernel: Float[Array, "cells moves window"]) -> AbstractPhi:
    """The transition with one kernel in place of its windows."""

    def change(core: AbstractPhi) -> AbstractPhi:
        assert isinstance(core, Windows)
        return kernel_bank(core, kernel[None, :, None])

    return phi.map_core(change)


class ListedMotion(eqx.Module):
    """A motion and the moves whose kernels are wanted.

    Attributes:
        motion: The law of motion.
        actions: The moves, for each cell.
        group: Number of consecutive moves that share all but their hallucinated control; the costly
            part of an `AbstractJointMotion` is computed once for each group.
    """

    motion: Motion
    actions: Float[Array, "cells moves action_dim"]
    group: int = eqx.field(static=True, default=1)

    @property
    def table(self) -> MotionTable | None:
        """The motion, if it is a table of just these moves."""
        found = self.motion
        return found if isinstance(found, MotionTable) and found.listed is not None else None

    def displacements(
        self, grid: Grid, seen: Mass, step: Step, actions: Array | None = None
    ) -> Float[Array, "cells moves dim"]:
        """How far each move leads; of all moves, or of whole groups of them."""
        actions = self.actions if actions is None else actions
        if self.table is not None and actions is self.actions:
            return self.table.displacements(seen, actions, self.group, step)
        if self.group == 1 or not isinstance(self.motion, AbstractJointMotion):
            return displacements(grid, seen, self.motion, actions, step)
        joint: AbstractJointMotion = self.motion
        cells, moves, _ = actions.shape

        def together(state: Array, flat: Array, mu: MeanField) -> Array:
            parts = flat.reshape(self.group, -1)
            found = joint.believe(state, parts[0, : joint.action_dim], mu)
            etas = parts[:, joint.action_dim :]
            return jax.vmap(lambda eta: joint.steer(state, found, eta))(etas)

        groups = actions.reshape(cells, moves // self.group, -1)
        ends = at_all_cells(grid, seen, together, groups, step).reshape(cells, moves, -1)
        centres = jnp.asarray(grid.centres, dtype=seen.dtype)
        return grid.displacement(centres[:, None, :], ends)

    @eqx.filter_jit
    def kernel(
        self, core: Windows, seen: Mass, step: Step = 0
    ) -> Float[Array, "cells moves window"]:
        """The kernel of agents who see ``seen``, with the windows of a few moves at a time."""
        if self.table is not None:
            moved = jnp.swapaxes(self.displacements(core.grid, seen, step), 0, 1)
            by_move = jax.lax.map(partial(landed, core), moved, batch_size=64)
            return jnp.swapaxes(by_move, 0, 1)

        def one(some: Float[Array, "cells group action_dim"]) -> Float[Array, "group cells window"]:
            moved = self.displacements(core.grid, seen, step, some)
            return jax.vmap(partial(landed, core), in_axes=1)(moved)

        cells, _, size = self.actions.shape
        groups = jnp.swapaxes(self.actions.reshape(cells, -1, self.group, size), 0, 1)
        by_move = jax.lax.map(one, groups, batch_size=max(1, 64 // self.group))
        return jnp.swapaxes(by_move.reshape(-1, *by_move.shape[2:]), 0, 1)

    def kernels(
        self, core: Windows, steps: Int[Array, "steps"], knots: int
    ) -> Float[Array, "steps cells knots moves window"]:
        """The kernels of some steps, at evenly spaced crowd coordinates of the cell's mass."""
        cells, dtype = core.grid.n_cells, self.actions.dtype
        masses = crowd_mass(jnp.linspace(0.0, 1.0, knots, dtype=dtype), cells)

        def at(step: Step) -> Float[Array, "cells knots moves window"]:
            # The same mass in every cell: the motion looks only at the agent's own.
            seen = lambda mass: self.kernel(core, jnp.full(cells, mass, dtype), step)  # noqa: E731
            return jnp.swapaxes(jax.lax.map(seen, masses), 0, 1)

        found: Array = jax.lax.map(at, steps)
        return found


def landed(core: Windows, moved: Float[Array, "cells dim"]) -> Float[Array, "cells window"]:
    """Probability of each window offset, for one move of each cell."""
    return core.landing.kernel(core.in_cells(moved), core.std(moved.dtype))


def kernel_bytes(core: Windows, moves: int) -> int:
    """Size of one kernel."""
    return (
        core.grid.n_cells * moves * math.prod(core.landing.window) * core.noise_std.dtype.itemsize
    )


def kernels_of(
    core: Windows, motions: Motions, actions: Float[Array, "moves action_dim"], seen: Mass
) -> Float[Array, "motions cells moves window"]:
    """The landing kernels of several motions, which see ``seen``; each cell has the same moves."""
    grid = core.grid
    centres = jnp.asarray(grid.centres, dtype=seen.dtype)

    def of_cell(cell: tuple[State, Scalar]) -> Float[Array, "moves motions dim"]:
        state, here = cell
        mu = MeanField(mass=seen, here=here, grid=grid)
        found = jax.vmap(lambda action: motions(state, action, mu))(actions)
        return grid.displacement(state, found)

    moved = jax.lax.map(of_cell, (centres, seen), batch_size=8)

    # One move after the other: the pieces of several would not fit into a core's cache.
    def of_motion(moves: Float[Array, "moves cells dim"]) -> Float[Array, "cells moves window"]:
        return jnp.swapaxes(jax.lax.map(partial(landed, core), moves), 0, 1)

    kernels: Array = jax.lax.map(of_motion, jnp.transpose(moved, (2, 1, 0, 3)))
    return kernels


def _pair(kernels: Array, row: Array, low: Array) -> Float[Array, "both window"]:
    """The kernels of one row at two neighbouring knots, one below the other."""
    _, _, moves, window = kernels.shape
    start = (row, low, jnp.zeros_like(low), jnp.zeros_like(low))
    found = jax.lax.dynamic_slice(kernels, start, (1, 2, moves, window))
    return found.reshape(2 * moves, window)


@jax.custom_vjp
def _mixed(
    kernels: Float[Array, "rows knots moves window"],
    row: Int[Array, "cells"],
    low: Int[Array, "cells"],
    share: Float[Array, "cells"],
    joint: Float[Array, "cells moves"],
) -> Float[Array, "cells window"]:
    """Sum over moves of the joint mass times the mixture of the kernels at two knots.

    Cell by cell: a pair of kernels then stays in a core's cache, where gathering those of all
    cells would write and read several megabytes.
    """

    def one(inputs: Any) -> Array:
        row, low, share, mass = inputs
        both = jnp.concatenate([(1 - share) * mass, share * mass])
        return jnp.dot(both, _pair(kernels, row, low))

    found: Array = jax.lax.map(one, (row, low, share, joint))
    return found


def _mixed_forward(
    kernels: Array, row: Array, low: Array, share: Array, joint: Array
) -> tuple[Array, Any]:
    return _mixed(kernels, row, low, share, joint), (kernels, row, low, share, joint)


def _mixed_backward(saved: Any, cotangent: Array) -> tuple[None, None, None, Array, Array]:
    kernels, row, low, share, joint = saved

    def one(inputs: Any) -> Array:
        row, low, values = inputs
        return jnp.dot(_pair(kernels, row, low), values)

    both = jax.lax.map(one, (row, low, cotangent)).reshape(*joint.shape[:1], 2, -1)
    rise = both[:, 1] - both[:, 0]
    return None, None, None, jnp.sum(joint * rise, axis=1), both[:, 0] + share[:, None] * rise


_mixed.defvjp(_mixed_forward, _mixed_backward)
