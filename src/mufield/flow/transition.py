"""Phi: one step of the mean-field flow (eq. flowdynamics; App. D.2)."""

import math
import string

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import Mass
from ..space.grid import Grid
from ..space.move import trace
from .fold import Fold
from .kernel import slab_masses, window_edges


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
    """Mass on its way: in the windows, and in the shares of split pairs."""

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
    """Without noise: the mass of each window offset where the agents' own rule lets moves end."""
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
    """Mass of the split pairs, shared out among their landings by subcells."""
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
    # Not below zero by rounding; the derivative is that of the difference, also at zero.
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
