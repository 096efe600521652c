"""Phi from the centres of cells, with Gaussian noise: the flow of the paper (App. D.2).

The noise is independent on each axis, so the mass that lands in a cell of the *window* around an
agent is a product over the axes, and each factor is the upper minus the lower value of the
cumulative distribution function. The paper prints lower minus upper (App. D.2, "Transition Function
Implementation"), which cancels in two dimensions and is negative in one. A *landing* knows what
walls and borders make of it; its lengths are in units of cells.
"""

import math
import string
from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._arrays import Mass, Scalar, Step, map_in_parts
from ..space.grid import Grid
from .motions import crowd_coordinate
from .phi import AbstractPhi, Displacements, Joint
from .traces import FAR

if TYPE_CHECKING:
    from ..fleet.trips import Trips

SourceMass = Float[Array, "sources moves"]
"""Joint mass of some cells, from which windows start, and their moves."""

Targets = Float[Array, "sources moves _"]
"""How far each of those moves aims, in cells; on nodes, probabilities of successors."""

Std = Float[Array, "dim"]
"""Standard deviation of the noise, in cells."""

WindowMass = Float[Array, "sources window"]
"""Mass at each offset of the windows of those cells, offsets in row-major order."""


class AbstractLanding(eqx.Module):
    """Where mass comes to rest that leaves the centres of cells; linear in the joint mass.

    `Tables` and the stencil have quicker ways to do all at once than by the kernels.
    """

    cheap: ClassVar[bool] = False
    """Whether kernels cost so little that they need not be interpolated."""

    reach: eqx.AbstractVar[tuple[int, ...]]
    """Number of cells that windows extend to each side, on each axis."""

    @property
    def window(self) -> tuple[int, ...]:
        """Cells of the window on each axis."""
        return tuple(2 * r + 1 for r in self.reach)

    def __call__(self, joint: SourceMass, targets: Targets, std: Std) -> Mass:
        """The next distribution, if each move displaces its mass by its target and the noise."""
        kernels = jax.vmap(self.kernel, in_axes=(1, None), out_axes=1)(targets, std)
        return self.arrive(jnp.einsum("km,kme->ke", joint, kernels))

    @abstractmethod
    def kernel(self, targets: Float[Array, "sources _"], std: Std) -> WindowMass:
        """Probability of coming to rest at each offset of the window, for one move."""

    @abstractmethod
    def arrive(self, landed: WindowMass) -> Mass:
        """The next distribution, from the mass that rests at each offset of the windows."""


class Windows(AbstractPhi):
    """Mass leaves the centres of cells and spreads over the windows around them.

    Attributes:
        landing: How mass comes to rest at walls and borders.
    """

    landing: AbstractLanding
    noise_std: Float[Array, "dim"]
    grid: Grid = eqx.field(static=True)
    trips: "Trips | None"

    def move(self, joint: Joint, targets: Displacements | None, seen: Mass, step: Step) -> Mass:
        """See `AbstractPhi`."""
        assert targets is not None
        targets, std = self._in_cells(targets), self._in_cells(self.noise_std.astype(joint.dtype))
        parts = -(-joint.shape[1] // 64)
        if parts == 1:
            return self.landing(joint, targets, std)

        def add(total: Mass, part: tuple[Array, Array]) -> tuple[Mass, None]:
            return total + self.landing(*part, std), None

        def parted(values: Float[Array, "cells moves *rest"]) -> Float[Array, "parts cells ..."]:
            rest = ((0, 0),) * (values.ndim - 2)
            full = jnp.pad(values, ((0, 0), (0, -joint.shape[1] % parts), *rest))
            return jnp.swapaxes(full.reshape(len(joint), parts, -1, *values.shape[2:]), 0, 1)

        # The windows of all moves could fill the memory, and gradients must not keep them either.
        each = (parted(joint), parted(targets))
        return jax.lax.scan(jax.checkpoint(add), jnp.zeros_like(joint[:, 0]), each)[0]

    def kernel(self, displacement: Displacements) -> Float[Array, "cells moves window"]:
        """Probability of coming to rest at each offset of the window, for moves of each cell."""
        std = self._in_cells(self.noise_std.astype(displacement.dtype))
        by_move = jnp.swapaxes(self._in_cells(displacement), 0, 1)
        found = map_in_parts(lambda move: self.landing.kernel(move, std), by_move, 64)
        return jnp.swapaxes(found, 0, 1)

    def with_kernels(self, kernels: Float[Array, "steps cells knots window moves"]) -> "KernelBank":
        """The transition for listed moves whose kernels are known."""
        return KernelBank(kernels=kernels, landing=self.landing, grid=self.grid, trips=self.trips)

    def _in_cells(self, lengths: Float[Array, "... dim"]) -> Float[Array, "... dim"]:
        return lengths / jnp.asarray(self.grid.cell_size, dtype=lengths.dtype)


class KernelBank(AbstractPhi):
    """Windows of listed moves by kernels: the probability of each window offset, computed ahead.

    A motion that ignores mu has one kernel, or one for each step. A motion that sees no more of mu
    than the mass of the agent's own cell has one for each value of that mass; it is computed at
    some values, the *knots*, and in between a mixture of two kernels stands in for it.

    Attributes:
        kernels: For each step, or one for all; and for each of some evenly spaced values of
            `mufield.flow.motions.crowd_coordinate`, or one for all. Sums along rows are quicker.
        landing: Where window offsets are.
    """

    kernels: Float[Array, "steps cells knots window moves"]
    landing: AbstractLanding
    grid: Grid = eqx.field(static=True)
    trips: "Trips | None"

    @property
    def interpolates(self) -> bool:
        """Whether kernels are mixed by the mass of the agent's cell."""
        return self.kernels.shape[2] > 1

    def move(self, joint: Joint, targets: Displacements | None, seen: Mass, step: Step) -> Mass:
        """See `AbstractPhi`."""
        steps, cells, knots, *each = self.kernels.shape
        now = step if steps > 1 else 0
        if not self.interpolates:
            kernel = self.kernels.reshape(steps, cells, *each)[now]
            return self.landing.arrive(jnp.einsum("km,kem->ke", joint, kernel))
        place = (knots - 1) * crowd_coordinate(seen, cells)
        low = jnp.clip(jnp.floor(place).astype(jnp.int32), 0, knots - 2)
        row = now * cells + jnp.arange(cells, dtype=jnp.int32)
        rows = self.kernels.reshape(-1, knots, *each)
        share = (place - low)[:, None]
        both = jnp.stack([(1 - share) * joint, share * joint], axis=1)

        # Cell by cell, forwards and backwards: a pair of kernels then stays in a core's cache,
        # where gathering those of all cells would write and read several megabytes.
        @jax.checkpoint
        def of_cell(inputs: tuple[Array, Array, Array]) -> Float[Array, "window"]:
            row, low, masses = inputs
            pair = jax.lax.dynamic_slice(rows, (row, low, 0 * low, 0 * low), (1, 2, *each))[0]
            # A batched product takes half as long as a sum of two.
            return jnp.sum(jnp.einsum("bem,bm->be", pair, masses), axis=0)

        return self.landing.arrive(jax.lax.map(of_cell, (row, low, both)))


def window_masses(
    joint: SourceMass, targets: Targets, std: Std, reach: tuple[int, ...]
) -> WindowMass:
    """The mass in the window of each source, as if there were no walls."""
    edges = [window_edges(r).astype(joint.dtype)[None] for r in reach]
    return slab_products(joint, targets, std, edges).reshape(len(joint), -1)


def slab_products(
    joint: SourceMass, targets: Targets, std: Std, edges: list[Float[Array, "_ _"]]
) -> Float[Array, "sources *slabs"]:
    """Sum over moves of the joint mass times the outer product of the axes' `slab_masses`."""
    if joint.shape[1] > 1:
        return _summed_over_moves(joint, targets, std, edges)
    result = joint[:, 0]  # A plain product compiles to better code than a contraction.
    for axis, ends in enumerate(edges):
        factor = slab_masses(targets[..., axis], std[axis], ends)
        result = result[..., None] * jnp.expand_dims(factor, tuple(range(1, result.ndim)))
    return result


def _contracted(
    order: str, joint: SourceMass, targets: Targets, std: Std, edges: list[Float[Array, "_ _"]]
) -> Float[Array, "sources *slabs"]:
    """The sum over moves; ``order`` is that of the slabs' axes: sources a, moves b, slabs c."""
    at, letters = order.index("c"), string.ascii_lowercase[2 : 2 + len(edges)]
    slabs = [
        slab_masses(jnp.expand_dims(targets[..., a], at), std[a], jnp.expand_dims(ends, 3 - at), at)
        for a, ends in enumerate(edges)
    ]
    inputs = ",".join(order.replace("c", letter) for letter in letters)
    return jnp.einsum(f"ab,{inputs}->a{letters}", joint, *slabs)


# Sums along rows are several times faster, but not their gradients.
_summed_over_moves = jax.custom_vjp(partial(_contracted, "acb"))


def _sum_backward(saved: Any, cotangent: Array) -> tuple[Array, Array, Array, None]:
    *inputs, edges = saved
    _, pull = jax.vjp(lambda j, t, s: _contracted("abc", j, t, s, edges), *inputs)
    return *pull(cotangent), None


_summed_over_moves.defvjp(lambda *inputs: (_summed_over_moves(*inputs), inputs), _sum_backward)


def window_edges(reach: int) -> Float[Array, "edges"]:
    """Edges of the cells around an agent, from its own centre; the outermost hold the tails."""
    edges = jnp.arange(2 * reach + 2) - (reach + 0.5)
    return edges.at[0].set(-FAR).at[-1].set(FAR)


def slab_masses(
    displacement: Float[Array, "..."], noise_std: Scalar, edges: Float[Array, "..."], axis: int = -1
) -> Float[Array, "..."]:
    """Mass of agents between consecutive edges on one axis; slabs contain their lower edges."""
    # The error function is monotone only up to rounding.
    return jnp.maximum(jnp.diff(mass_below(edges - displacement, noise_std), axis=axis), 0.0)


def mass_below(distance: Float[Array, "*edges"], noise_std: Scalar) -> Float[Array, "*edges"]:
    """Mass below an edge at this distance from an agent's target."""
    # The compiler would rather keep a quotient than compute it again; a product it computes again.
    scale = 1.0 / (jnp.where(noise_std > 0, noise_std, 1.0) * math.sqrt(2.0))
    smooth = 0.5 * (1.0 + jax.lax.erf(distance * scale))
    step = (distance > 0).astype(smooth.dtype)
    return jnp.where(noise_std > 0, smooth, step)
