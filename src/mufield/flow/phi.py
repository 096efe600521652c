"""Phi: one step of the mean-field flow (eq. flowdynamics; App. D.2).

The noise is independent on each axis, so the mass of a cell is a product of one factor for each
axis, and each factor is the upper minus the lower value of the cumulative distribution function.
The paper prints lower minus upper (App. D.2, "Transition Function Implementation"), which cancels
in two dimensions and is negative in one.
"""

import itertools
import math
import string
from collections.abc import Callable
from functools import lru_cache, partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._types import Mass, Scalar
from ..space.grid import Grid
from ..space.move import NeighbourNoise, trace
from .fold import FAR, Fold, Routing
from .ground import Ground
from .stencil import Slabs, spread


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

    def of(self, cells: Int[Array, "some"]) -> "Aims":
        """The aims of some of the cells."""
        return Aims(self.displacement[cells], self.weights[cells], self.noise_std)


def transition(
    grid: Grid, fold: Fold, mass: Float[Array, "sources"], aims: Aims, *, exact: bool = False
) -> Float[Array, "ends"]:
    r"""The next distribution, $\mu_{h+1} = \Phi(\mu_h, \pi_h, f)$.

    $$[\mu_{h+1}]_j = \sum_k [\mu_h]_k \, \mathbb{P}[\text{an agent that leaves the centre of } k
    \text{ rests in } j]$$

    The mass in the window of each cell is a product over the axes of upper minus lower cumulative
    distribution functions, mixed over the moves of a randomised policy; the fold then brings it
    to rest at walls and borders.

    Args:
        grid: The space.
        fold: The tables of the cells that have mass, and of their ends.
        mass: Mass of these cells.
        aims: Where they aim.
        exact: Without noise: mass lands by the rule that agents follow.
    """
    if exact:
        return fold.arrival(landed_exactly(grid, fold, aims, mass).reshape(-1))
    return fold.routing(windows(grid, fold, aims, mass).flat)


def into_room(
    grid: Grid, ground: Ground, fold: Fold, mass: Mass, aims: Aims, *, exact: bool = False
) -> Float[Array, "places"]:
    """`transition` on a map with a ground: mass in its room, before it goes round wrapped axes."""
    size = jnp.asarray(grid.cell_size, dtype=mass.dtype)
    std = aims.noise_std.astype(mass.dtype) / size
    carried = jnp.where(ground.open, mass, 0.0)

    def one(displacement: Float[Array, "cells dim"], weight: Mass) -> Float[Array, "places"]:
        moved = [ground.enter(displacement[:, a] / size[a]) for a in range(grid.dim)]
        slabs_of = slab_lists(ground.reach)
        return spread(
            ground.enter(carried * weight), moved, std, slabs_of, ground.room, ground.reach
        )

    moves = aims.weights.shape[1]
    room = one(aims.displacement[:, 0], aims.weights[:, 0])
    if moves > 1:
        later = (jnp.moveaxis(aims.displacement[:, 1:], 1, 0), aims.weights[:, 1:].T)
        add = jax.checkpoint(lambda total, move: (total + one(*move), None))
        room = jax.lax.scan(add, room, later)[0]
    if not len(ground.near):
        return room
    by_tables = transition(grid, fold, mass[ground.near], aims.of(ground.near), exact=exact)
    return room.at[ground.ends].add(by_tables)


class Pieces(eqx.Module):
    """Mass before it comes to rest: in the windows, and of split pairs by landing cell."""

    window: Float[Array, "sources window"]
    split: Float[Array, "pairs landings"]

    def carrying(self, fold: Fold, mass: Float[Array, "sources"]) -> "Pieces":
        """The pieces of sources with this mass, from those of sources with mass one."""
        if fold.n_pairs == 0:
            return Pieces(self.window * mass[:, None], self.split)
        return Pieces(self.window * mass[:, None], self.split * fold.split_pairs(mass)[:, None])

    @property
    def flat(self) -> Float[Array, "pieces"]:
        """All of them, in the order of `Fold`."""
        return jnp.concatenate([self.window.reshape(-1), self.split.reshape(-1)])


def windows(grid: Grid, fold: Fold, aims: Aims, mass: Mass, *, many: bool = False) -> Pieces:
    """The pieces of one flow step, before they come to rest.

    If ``many``, for many steps at once: sums along short axes, of which derivatives consist, are
    then written out. Compiled sums of large arrays along such axes are slow, those of small ones
    are not.
    """
    window = unfolded(grid, fold.reach, aims, mass, many=many)
    if fold.n_pairs == 0:
        return Pieces(window=window, split=jnp.zeros((0, 1), dtype=mass.dtype))
    size = jnp.asarray(grid.cell_size, dtype=mass.dtype)
    std = aims.noise_std.astype(mass.dtype) / size
    weights = aims.weights * mass[:, None]
    split = _split(fold, weights, aims.displacement / size, std, many=many)
    return Pieces(window=window, split=split)


def unfolded(
    grid: Grid, reach: tuple[int, ...], aims: Aims, mass: Mass, *, many: bool = False
) -> Float[Array, "sources window"]:
    """The mass in the window of each cell, as if there were no walls; ``many`` as of `windows`."""
    size = jnp.asarray(grid.cell_size, dtype=mass.dtype)
    displacement = aims.displacement / size
    std = aims.noise_std.astype(mass.dtype) / size
    masses = partial(slab_masses, many=many)
    per_cell = jax.vmap(jax.vmap(masses, in_axes=(0, None, None)), in_axes=(0, None, None))
    slabs = [
        per_cell(displacement[..., axis], std[axis], window_edges(r).astype(mass.dtype))
        for axis, r in enumerate(reach)
    ]
    return mixed(aims.weights * mass[:, None], slabs, many=many).reshape(mass.shape[0], -1)


def landed_exactly(
    grid: Grid, fold: Fold, aims: Aims, mass: Mass
) -> Float[Array, "sources window"]:
    """Without noise: the mass that lands at each window offset, by the rule that agents follow."""
    size = jnp.asarray(grid.cell_size, dtype=mass.dtype)
    reach = jnp.asarray(fold.reach, dtype=jnp.int32)
    centres = fold.sources.astype(mass.dtype) + 0.5

    def offset(centre: Array, displacement: Array) -> Array:
        path = trace(grid, centre, centre + displacement / size)
        place = jnp.clip(path.cell - path.start, -reach, reach) + reach
        return jnp.ravel_multi_index(tuple(place), fold.window, mode="clip")

    code = jax.vmap(lambda c, ds: jax.vmap(lambda d: offset(c, d))(ds))(centres, aims.displacement)
    chosen = code[..., None] == jnp.arange(math.prod(fold.window))
    return jnp.einsum("km,kme->ke", aims.weights * mass[:, None], chosen.astype(mass.dtype))


def _split(fold: Fold, weights: Array, displacement: Array, std: Array, *, many: bool) -> Array:
    """Mass of each split pair in each of its landing cells."""
    dtype = weights.dtype
    aims = fold.split_pairs(displacement)
    edges = fold.split_edges.astype(dtype)
    masses = partial(slab_masses, many=many)
    per_pair = jax.vmap(jax.vmap(masses, in_axes=(0, None, None)), in_axes=(0, None, 0))
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
        shared = jnp.einsum(f"ac{letters},a{letters}->ac", shares, mixed(weights, fine))
    totals = [jnp.sum(factor, axis=-1) for factor in fine]
    whole = jnp.sum(weights * math.prod(totals[1:], start=totals[0]), axis=1)
    rest = whole - jnp.sum(shared, axis=1)
    # Rounding must not make it negative; the derivative is unchanged by this correction.
    rest = rest + jax.lax.stop_gradient(jnp.maximum(rest, 0.0) - rest)
    return jnp.concatenate([shared, rest[:, None]], axis=1)


def mixed(weights: Array, factors: list[Array], *, many: bool = False) -> Array:
    """Sum over moves of the weight times the outer product of the axes' factors."""
    letters = string.ascii_lowercase[2 : 2 + len(factors)]
    if weights.shape[1] == 1:  # A plain product compiles to better code than a contraction.
        result = weights[:, 0]
        for factor in factors:
            result = (_outer_written_out if many else _outer)(result, factor[:, 0])
        return result
    inputs = ",".join(f"ab{letter}" for letter in letters)
    return jnp.einsum(f"ab,{inputs}->a{letters}", weights, *factors)


def _outer(left: Float[Array, "cells *rest"], right: Float[Array, "cells slabs"]) -> Array:
    """Each cell's products of its entries on the left with those on the right."""
    return left[..., None] * right.reshape(len(right), *(1,) * (left.ndim - 1), -1)


def _outer_backward(saved: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    left, right = saved
    rows, columns = left.reshape(len(left), -1).T, right.T
    values = cotangent.reshape(len(left), len(rows), len(columns))
    by_left = sum(values[..., j] * column[:, None] for j, column in enumerate(columns))
    by_right = sum(values[:, i] * row[:, None] for i, row in enumerate(rows))
    return jnp.reshape(by_left, left.shape), jnp.asarray(by_right)


_outer_written_out = jax.custom_vjp(_outer)
_outer_written_out.defvjp(lambda *factors: (_outer(*factors), factors), _outer_backward)


def window_edges(reach: int) -> Float[Array, "edges"]:
    """Edges of the cells from ``-reach`` to ``reach`` around an agent's cell.

    In units of cells, measured from the cell's centre, where the agent stands. The outermost
    edges are far away, so that the outermost cells include the tails.
    """
    edges = jnp.arange(2 * reach + 2) - (reach + 0.5)
    return edges.at[0].set(-FAR).at[-1].set(FAR)


def slab_masses(
    displacement: Scalar, noise_std: Scalar, edges: Float[Array, "edges"], *, many: bool = False
) -> Float[Array, "slabs"]:
    """Mass between consecutive edges for one agent on one axis, all in units of cells.

    Without noise all mass is in the slab that holds the displacement; slabs contain their lower
    edges. ``many`` as of `windows`.
    """
    if many:
        below = [_below(edge - displacement, noise_std) for edge in edges]
        slabs = jnp.stack([high - low for low, high in itertools.pairwise(below)])
    else:
        slabs = jnp.diff(_below(edges - displacement, noise_std))
    # The error function is monotone only up to rounding.
    return jnp.maximum(slabs, 0.0)


@lru_cache(maxsize=8)
def slab_lists(reach: tuple[int, ...]) -> Callable[[list[Array], Array], Slabs]:
    """The function from displacements on the axes, and the noise, to windows' slabs."""

    def slabs(displacement: list[Array], noise_std: Array) -> Slabs:
        return [slab_list(d, noise_std[a], reach[a]) for a, d in enumerate(displacement)]

    return slabs


def slab_list(
    displacement: Float[Array, "places"], noise_std: Scalar, reach: int
) -> list[Float[Array, "places"]]:
    """`slab_masses` of a window for many agents, an array for each slab.

    As separate arrays they compile to much better code than as one: gradients above all.
    """
    edges = [k - reach + 0.5 for k in range(2 * reach)]
    inner = [_below(edge - displacement, noise_std) for edge in edges]
    sums = [jnp.zeros_like(displacement), *inner, jnp.ones_like(displacement)]
    return [jnp.maximum(high - low, 0.0) for low, high in itertools.pairwise(sums)]


def _below(distance: Float[Array, "*edges"], noise_std: Scalar) -> Float[Array, "*edges"]:
    """Mass below an edge at this distance from an agent's aim."""
    # The compiler would rather keep a quotient than compute it again; a product it computes again.
    scale = 1.0 / (jnp.where(noise_std > 0, noise_std, 1.0) * math.sqrt(2.0))
    smooth = 0.5 * (1.0 + jax.lax.erf(distance * scale))
    step = (distance > 0).astype(smooth.dtype)
    return jnp.where(noise_std > 0, smooth, step)


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
