"""Mass in the window around a cell: a product of one factor for each axis.

The noise is independent on each axis, so the mass that lands in a cell is a product over the axes,
and each factor is the upper minus the lower value of the cumulative distribution function. The
paper prints lower minus upper (App. D.2, "Transition Function Implementation"), which cancels in
two dimensions and is negative in one. All lengths here are in units of cells.
"""

import itertools
import math
import string
from collections.abc import Callable
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import Scalar
from .stencil import Slabs
from .walls import FAR


def window_masses(
    joint: Float[Array, "sources moves"],
    targets: Float[Array, "sources moves dim"],
    std: Float[Array, "dim"],
    reach: tuple[int, ...],
    *,
    many: bool = False,
) -> Float[Array, "sources window"]:
    """The mass in the window of each source, as if there were no walls; ``many`` as of `mixed`."""
    masses = partial(slab_masses, many=many)
    per_source = jax.vmap(jax.vmap(masses, in_axes=(0, None, None)), in_axes=(0, None, None))
    slabs = [
        per_source(targets[..., axis], std[axis], window_edges(r).astype(joint.dtype))
        for axis, r in enumerate(reach)
    ]
    return mixed(joint, slabs, many=many).reshape(joint.shape[0], -1)


def window_edges(reach: int) -> Float[Array, "edges"]:
    """Edges of the cells from ``-reach`` to ``reach`` around an agent's cell.

    Measured from the cell's centre, where the agent stands. The outermost edges are far away, so
    that the outermost cells include the tails.
    """
    edges = jnp.arange(2 * reach + 2) - (reach + 0.5)
    return edges.at[0].set(-FAR).at[-1].set(FAR)


def slab_masses(
    displacement: Scalar, noise_std: Scalar, edges: Float[Array, "edges"], *, many: bool = False
) -> Float[Array, "slabs"]:
    """Mass between consecutive edges for one agent on one axis.

    Without noise all mass is in the slab that holds the displacement; slabs contain their lower
    edges. ``many`` as of `mixed`.
    """
    if many:
        below = [_below(edge - displacement, noise_std) for edge in edges]
        slabs = jnp.stack([high - low for low, high in itertools.pairwise(below)])
    else:
        slabs = jnp.diff(_below(edges - displacement, noise_std))
    # The error function is monotone only up to rounding.
    return jnp.maximum(slabs, 0.0)


def _below(distance: Float[Array, "*edges"], noise_std: Scalar) -> Float[Array, "*edges"]:
    """Mass below an edge at this distance from an agent's target."""
    # The compiler would rather keep a quotient than compute it again; a product it computes again.
    scale = 1.0 / (jnp.where(noise_std > 0, noise_std, 1.0) * math.sqrt(2.0))
    smooth = 0.5 * (1.0 + jax.lax.erf(distance * scale))
    step = (distance > 0).astype(smooth.dtype)
    return jnp.where(noise_std > 0, smooth, step)


@lru_cache(maxsize=8)
def slab_lists(reach: tuple[int, ...]) -> Callable[[list[Array], Array], Slabs]:
    """The function from displacements on the axes, and the noise, to windows' slabs.

    Slabs are separate arrays here: they compile to much better code than one array would.
    """

    def of_axis(displacement: Float[Array, "places"], noise_std: Scalar, far: int) -> list[Array]:
        edges = [k - far + 0.5 for k in range(2 * far)]
        inner = [_below(edge - displacement, noise_std) for edge in edges]
        sums = [jnp.zeros_like(displacement), *inner, jnp.ones_like(displacement)]
        return [jnp.maximum(high - low, 0.0) for low, high in itertools.pairwise(sums)]

    def slabs(displacement: list[Array], noise_std: Array) -> Slabs:
        return [of_axis(d, noise_std[a], reach[a]) for a, d in enumerate(displacement)]

    return slabs


def mixed(
    joint: Float[Array, "sources moves"],
    factors: list[Float[Array, "sources moves _"]],
    *,
    many: bool = False,
) -> Array:
    """Sum over moves of the joint mass times the outer product of the axes' factors.

    If ``many``, for the windows of many steps at once: sums along short axes, of which derivatives
    consist, are then written out. Compiled sums of large arrays along such axes are slow, those of
    small ones are not.
    """
    letters = string.ascii_lowercase[2 : 2 + len(factors)]
    if joint.shape[1] == 1:  # A plain product compiles to better code than a contraction.
        result = joint[:, 0]
        for factor in factors:
            result = (_outer_written_out if many else _outer)(result, factor[:, 0])
        return result
    inputs = ",".join(f"ab{letter}" for letter in letters)
    return jnp.einsum(f"ab,{inputs}->a{letters}", joint, *factors)


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
