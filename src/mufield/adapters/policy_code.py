"""Policies of the whole population as vectors, for learners whose actions are vectors."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..actions import Box, MoveSet
from ..checks import whole_number
from ..errors import UserError
from ..policies.tables import TablePolicy
from ..problem import Problem
from ..space.grid import Grid


class PolicyCode(eqx.Module):
    """Turns a vector of numbers in [-1, 1] into the policy of one step.

    The vector is a table of points. For a box, each point holds an action, scaled to [-1, 1]. For
    a set of moves, each point holds logits, whose softmax mixes the options.

    Attributes:
        actions: What agents can do.
        grid: The space whose cells policies are for.
        blend: Weights with which cells mix the points; None if each cell has a point of its own.
        points: Number of points.
        width: Numbers of each point.
    """

    actions: Box | MoveSet
    grid: Grid = eqx.field(static=True)
    blend: Float[Array, "cells points"] | None
    points: int = eqx.field(static=True)
    width: int = eqx.field(static=True)

    def __init__(self, problem: Problem, policy: str, resolution: int):
        """Builds the code: ``"cells"``, or ``"coarse"`` with ``resolution`` points an axis."""
        if policy not in ("cells", "coarse"):
            raise UserError(f"policy must be 'cells' or 'coarse', got {policy!r}")
        self.actions, self.grid = problem.actions, problem.grid
        actions = self.actions
        self.width = actions.dim if isinstance(actions, Box) else int(actions.options.shape[0])
        self.blend = None
        self.points = problem.grid.n_cells
        if policy == "coarse" and problem.on_nodes:
            raise UserError(
                "nodes have no order to interpolate along; take policy='cells' in place of 'coarse'"
            )
        if policy == "coarse":
            blend = interpolation(problem.grid, whole_number(resolution, "resolution"))
            self.blend = jnp.asarray(blend, dtype=problem.initial.dtype)
            self.points = blend.shape[1]

    @property
    def size(self) -> int:
        """Length of the vector."""
        return self.points * self.width

    def policy(self, numbers: Float[Array, "*steps size"]) -> TablePolicy:
        """The policy of one step; with one more axis, of all steps, for `Profile.stacked`."""
        table = numbers.reshape(*numbers.shape[:-1], self.points, self.width)
        if self.blend is not None:
            table = jnp.einsum("cp,...pw->...cw", self.blend, table)
        if isinstance(self.actions, Box):
            bounds = (self.actions.lower, self.actions.upper)
            lower, upper = (jnp.asarray(bound, dtype=table.dtype) for bound in bounds)
            inside = lower + (upper - lower) * 0.5 * (table + 1.0)
            return TablePolicy.deterministic(inside, self.grid)
        # Logit of the number 1: an option at 1 is 22,000 times as likely as one at -1.
        logit_range = 5.0
        weights = jax.nn.softmax(logit_range * table) @ self.actions.options
        return TablePolicy.mixing(self.actions.moves, weights, self.grid)


def interpolation(grid: Grid, resolution: int) -> Float[np.ndarray, "cells points"]:
    """Weights of linear interpolation between ``resolution`` points on each axis.

    The outermost points are the centres of the outermost cells; on periodic axes the points are
    evenly spaced. Walls are ignored: cells on both sides of a wall act alike.
    """
    blend = np.ones((grid.n_cells, 1))
    for axis, count in enumerate(grid.shape):
        cell = grid.free_cells[:, axis]
        if grid.periodic[axis]:
            place = cell * resolution / count
        else:
            place = cell * (resolution - 1) / max(1, count - 1)
        # The last cell belongs to the interval before the last point, if there is one.
        last = resolution - 1 if grid.periodic[axis] else max(0, resolution - 2)
        left = np.minimum(np.floor(place).astype(int), last)
        share = place - left
        rows, along = np.arange(grid.n_cells), np.zeros((grid.n_cells, resolution))
        along[rows, left] = 1.0 - share
        along[rows, (left + 1) % resolution] += share
        blend = (blend[:, :, None] * along[:, None, :]).reshape(grid.n_cells, -1)
    return blend
