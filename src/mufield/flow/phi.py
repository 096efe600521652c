"""Phi: one step of the mean-field flow (eq. flowdynamics; App. D.2).

The noise is independent on each axis, so the mass of a cell is a product of one factor for each
axis, and each factor is the upper minus the lower value of the cumulative distribution function.
The paper prints lower minus upper (App. D.2, "Transition Function Implementation"), which cancels
in two dimensions and is negative in one.
"""

import math
import string

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._types import Mass, Scalar
from ..space.grid import Grid
from ..space.move import NeighbourNoise, trace
from .fold import FAR, Fold, Routing


class Aims(eqx.Module):
    """Where the agents at all cell centres aim.

    Attributes:
        displacement: Mean displacement for each cell and move.
        weights: Probability of each move in each cell.
        noise_std: Standard deviation of the noise on each axis.
    """

    displacement: Float[Array, "cells moves dim"]
    weights: Float[Array, "cells moves"]
    noise_std: Float[Array, "dim"]


def transition(grid: Grid, fold: Fold, mass: Mass, aims: Aims) -> Mass:
    r"""The next distribution, $\mu_{h+1} = \Phi(\mu_h, \pi_h, f)$.

    $$[\mu_{h+1}]_j = \sum_k [\mu_h]_k \, \mathbb{P}[\text{an agent that leaves the centre of } k
    \text{ rests in } j]$$

    The mass in the window of each cell is a product over the axes of upper minus lower cumulative
    distribution functions, mixed over the moves of a randomised policy; the fold then brings it
    to rest at walls and borders.
    """
    pieces = windows(grid, fold, aims, mass)
    return fold.routing(jnp.concatenate([pieces.window.reshape(-1), pieces.split.reshape(-1)]))


class Pieces(eqx.Module):
    """Mass before it comes to rest: in the windows, and of split pairs by landing cell."""

    window: Float[Array, "cells window"]
    split: Float[Array, "pairs landings"]


def windows(grid: Grid, fold: Fold, aims: Aims, mass: Mass) -> Pieces:
    """The pieces of one flow step, before they come to rest."""
    size = jnp.asarray(grid.cell_size, dtype=mass.dtype)
    displacement = aims.displacement / size
    std = aims.noise_std.astype(mass.dtype) / size
    weights = aims.weights * mass[:, None]
    per_cell = jax.vmap(jax.vmap(slab_masses, in_axes=(0, None, None)), in_axes=(0, None, None))
    coarse = [
        per_cell(displacement[..., axis], std[axis], window_edges(reach).astype(mass.dtype))
        for axis, reach in enumerate(fold.reach)
    ]
    window = _mix(weights, coarse).reshape(mass.shape[0], -1)
    if fold.n_pairs == 0:
        return Pieces(window=window, split=jnp.zeros((0, 1), dtype=mass.dtype))
    return Pieces(window=window, split=_split(fold, weights, displacement, std))


def landed_exactly(grid: Grid, fold: Fold, aims: Aims, mass: Mass) -> Float[Array, "cells window"]:
    """Without noise: the mass that lands at each window offset, by the rule that agents follow."""
    size = jnp.asarray(grid.cell_size, dtype=mass.dtype)
    reach = jnp.asarray(fold.reach, dtype=jnp.int32)
    centres = jnp.asarray(grid.free_cells + 0.5, dtype=mass.dtype)

    def offset(centre: Array, displacement: Array) -> Array:
        path = trace(grid, centre, centre + displacement / size)
        place = jnp.clip(path.cell - path.start, -reach, reach) + reach
        return jnp.ravel_multi_index(tuple(place), fold.window, mode="clip")

    code = jax.vmap(lambda c, ds: jax.vmap(lambda d: offset(c, d))(ds))(centres, aims.displacement)
    chosen = code[..., None] == jnp.arange(math.prod(fold.window))
    return jnp.einsum("km,kme->ke", aims.weights * mass[:, None], chosen.astype(mass.dtype))


def _split(fold: Fold, weights: Array, displacement: Array, std: Array) -> Array:
    """Mass of each split pair in each of its landing cells."""
    dtype = weights.dtype
    aims = fold.split_pairs(displacement)
    edges = fold.split_edges.astype(dtype)
    per_pair = jax.vmap(jax.vmap(slab_masses, in_axes=(0, None, None)), in_axes=(0, None, 0))
    fine = [per_pair(aims[..., a], std[a], edges[:, a]) for a in range(edges.shape[1])]
    weights = fold.split_pairs(weights)
    shares = fold.split_shares.astype(dtype)
    letters = string.ascii_lowercase[3 : 3 + len(fine)]
    if weights.shape[1] == 1:
        # One axis at a time: matrix-vector products compile to better code than one product.
        shared = shares
        for factor in reversed(fine):
            shared = jnp.einsum("a...b,ab->a...", shared, factor[:, 0])
        shared = shared * weights
    else:
        shared = jnp.einsum(f"ac{letters},a{letters}->ac", shares, _mix(weights, fine))
    totals = [jnp.sum(factor, axis=-1) for factor in fine]
    whole = jnp.sum(weights * math.prod(totals[1:], start=totals[0]), axis=1)
    rest = whole - jnp.sum(shared, axis=1)
    # Rounding must not make it negative; the derivative is unchanged by this correction.
    rest = rest + jax.lax.stop_gradient(jnp.maximum(rest, 0.0) - rest)
    return jnp.concatenate([shared, rest[:, None]], axis=1)


def _mix(weights: Array, factors: list[Array]) -> Array:
    """Sum over moves of the weight times the outer product of the axes' factors."""
    letters = string.ascii_lowercase[2 : 2 + len(factors)]
    if weights.shape[1] == 1:  # A plain product compiles to better code than a contraction.
        result = weights[:, 0]
        for factor in factors:
            result = result[..., None] * factor[:, 0].reshape(
                factor.shape[0], *(1,) * (result.ndim - 1), -1
            )
        return result
    inputs = ",".join(f"ab{letter}" for letter in letters)
    return jnp.einsum(f"ab,{inputs}->a{letters}", weights, *factors)


def window_edges(reach: int) -> Float[Array, "edges"]:
    """Edges of the cells from ``-reach`` to ``reach`` around an agent's cell.

    In units of cells, measured from the cell's centre, where the agent stands. The outermost
    edges are far away, so that the outermost cells include the tails.
    """
    edges = jnp.arange(2 * reach + 2) - (reach + 0.5)
    return edges.at[0].set(-FAR).at[-1].set(FAR)


def slab_masses(
    displacement: Scalar, noise_std: Scalar, edges: Float[Array, "edges"]
) -> Float[Array, "slabs"]:
    """Mass between consecutive edges for one agent on one axis, all in units of cells.

    Without noise all mass is in the slab that holds the displacement; slabs contain their lower
    edges.
    """
    distance = edges - displacement
    scale = jnp.where(noise_std > 0, noise_std, 1.0) * math.sqrt(2.0)
    smooth = 0.5 * (1.0 + jax.lax.erf(distance / scale))
    step = (distance > 0).astype(smooth.dtype)
    cumulative = jnp.where(noise_std > 0, smooth, step)
    # The error function is monotone only up to rounding.
    return jnp.maximum(jnp.diff(cumulative), 0.0)


class NeighbourKernel(eqx.Module):
    """The effect of `NeighbourNoise` on a distribution.

    Attributes:
        routing: From (cell, direction) to the cell reached.
        weights: Probability of each direction in each cell.
    """

    routing: Routing
    weights: Float[Array, "cells directions"]

    @classmethod
    def build(cls, grid: Grid, noise: NeighbourNoise) -> "NeighbourKernel":
        """Builds the map for a grid."""
        ends = grid.neighbours
        links = np.flatnonzero(ends.ravel() >= 0)
        return cls(
            routing=Routing.build(links, ends.ravel()[links], ends.size, grid.n_cells),
            weights=jnp.asarray(noise.weights(grid), dtype=jnp.result_type(float)),
        )

    def __call__(self, mass: Mass) -> Mass:
        """The distribution after the noise."""
        return self.routing((mass[:, None] * self.weights.astype(mass.dtype)).reshape(-1))
