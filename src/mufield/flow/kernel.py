"""Gaussian masses of the cells around an agent (App. D.2, "Transition Function Implementation").

The noise is independent on each axis, so the mass of a cell is a product of one factor for each
axis, and each factor is the upper minus the lower value of the cumulative distribution function.
The paper prints lower minus upper, which cancels in two dimensions and is negative in one.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import Scalar

FAR = 1e6
"""Cells: an edge that lies beyond any mass, for slabs that include the tails."""


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
