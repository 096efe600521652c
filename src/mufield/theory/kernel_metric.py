r"""Lipschitz constant $L_d$ of a kernel's metric $d_k$ in state, action and mu (assumption Kernel).

Between z and z', a function of norm B in the kernel's space changes by at most $B \, d_k(z, z')$,
and posterior standard deviations by at most $d_k(z, z')$ (lemma sigmaLipschitz). So $L_d$ bounds
both $L_f$ and $L_\sigma$. It is computed from the kernel's formula: nothing here is sampled.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..models.features import FeatureMap
from ..models.kernels import (
    AbstractKernel,
    AbstractStationary,
    Linear,
    Matern32,
    Matern52,
    Product,
    Select,
    SquaredExponential,
    Sum,
)
from ..policies.encoders import Here, LogHere, Seen
from ..space.measure import mean_field_at
from .lipschitz import between_cells


class Block(NamedTuple):
    """Indices of features that change together, and by how much (2-norm) per unit of the cause."""

    features: tuple[int, ...]
    slope: float


Blocks = tuple[Block, ...]
"""Blocks that depend on different axes, so that their changes are orthogonal."""


class KernelBounds(NamedTuple):
    """Greatest change of d_k per unit of the cause of the blocks' changes; greatest k(z, z)."""

    slope: float
    variance: float


def kernel_bounds(
    kernel: AbstractKernel, blocks: Blocks, reach: Float[np.ndarray, "features"]
) -> KernelBounds:
    """Bounds for a kernel if ``blocks`` change, and features are at most ``reach`` in size.

    Raises:
        NotImplementedError: If the kernel is not one of mufield's; give the constants then.
    """
    # Greatest $d_k^2 / d^2$ at unit variance, with the distance d in length scales: minus the
    # second derivative of the correlation at zero.
    curvatures = {SquaredExponential: 1.0, Matern32: 3.0, Matern52: 5.0 / 3.0}
    steepest = next((each for kind, each in curvatures.items() if isinstance(kernel, kind)), None)
    if isinstance(kernel, AbstractStationary) and steepest is not None:
        variance = float(kernel.variance)
        scales = np.broadcast_to(np.asarray(kernel.length_scale), reach.shape)
        return KernelBounds(_moved(blocks, 1 / scales) * math.sqrt(steepest * variance), variance)
    if isinstance(kernel, Linear):
        variance = float(kernel.variance)
        return KernelBounds(
            _moved(blocks, np.ones_like(reach)) * math.sqrt(variance),
            variance * float(np.sum(reach**2)) + float(kernel.bias),
        )
    if isinstance(kernel, Sum):
        a, b = (kernel_bounds(part, blocks, reach) for part in (kernel.left, kernel.right))
        return KernelBounds(math.hypot(a.slope, b.slope), a.variance + b.variance)
    if isinstance(kernel, Product):
        a, b = (kernel_bounds(part, blocks, reach) for part in (kernel.first, kernel.second))
        # |x (x) y - x' (x) y'| <= |x - x'| |y| + |x'| |y - y'| for the factors' features.
        slope = a.slope * math.sqrt(b.variance) + b.slope * math.sqrt(a.variance)
        return KernelBounds(slope, a.variance * b.variance)
    if isinstance(kernel, Select):
        place = {axis: index for index, axis in enumerate(kernel.axes)}
        seen = [tuple(place[f] for f in block.features if f in place) for block in blocks]
        moved = tuple(Block(s, block.slope) for s, block in zip(seen, blocks, strict=True))
        return kernel_bounds(kernel.kernel, moved, reach[list(kernel.axes)])
    raise NotImplementedError(
        f"no Lipschitz constant is known for the kernel {type(kernel).__name__}; give L_f and "
        "L_sigma"
    )


@dataclass(frozen=True, eq=False)
class FeatureSlopes:
    """How fast features change with state, action and mu.

    Attributes:
        state: Blocks that change with the state, per unit of distance.
        action: Blocks that change with the action.
        mu: Blocks that change with mu, per unit of W1.
        here: The mass of the agent's cell, which changes with the state as well.
        reach: Greatest absolute value of each feature.
    """

    state: Blocks
    action: Blocks
    mu: Blocks
    here: Blocks
    reach: Float[np.ndarray, "features"]

    def metric_slopes(self, kernel: AbstractKernel) -> dict[str, float]:
        """Bounds of the kernel metric's slope in state, action and mu."""
        each = (self.state, self.here, self.action, self.mu)
        state, here, action, mu = (kernel_bounds(kernel, b, self.reach).slope for b in each)
        # These two are added, as they are not orthogonal.
        return {"state": state + here, "action": action, "mu": mu}


def feature_slopes(features: FeatureMap) -> FeatureSlopes:
    """The slopes of a feature map on the grid, between cell centres.

    Raises:
        NotImplementedError: If mu enters by its logarithm, whose slope has no bound, or by a
            function of the user's.
    """
    grid = features.grid
    state, place = [], 0
    for periodic, extent in zip(grid.periodic, grid.extent, strict=True):
        size = 2 if periodic else 1
        slope = (2 * math.pi if periodic else 2.0) / extent
        state.append(Block(tuple(range(place, place + size)), slope))
        place += size
    action = []
    for low, high in zip(features.lower, features.upper, strict=True):
        action.append(Block((place,), 2.0 / (high - low) if high > low else 2.0))
        place += 1
    rest = tuple(range(place, features.size))
    mu, here = (), ()  # type: tuple[Blocks, Blocks]
    reach = np.ones(features.size)
    if isinstance(features.mu, Here):
        # The mass of a cell changes by at most W1 over the least distance between cells; from
        # one cell to the next it may be anything.
        cell = min(grid.cell_size)
        highest = math.log1p(grid.n_cells)
        mu = (Block(rest, grid.n_cells / cell),)
        here = (Block(rest, highest / cell),)
        reach[place:] = highest
    elif isinstance(features.mu, LogHere):
        raise NotImplementedError(
            "the logarithm of mu at the agent has no Lipschitz constant, as its slope grows "
            "without bound in empty cells; give L_f and L_sigma"
        )
    elif rest and not isinstance(features.mu, Seen):
        table = _of_point_masses(features)
        mu = (Block(rest, between_cells(features.grid, table)),)
        reach[place:] = np.abs(table).max(axis=0)
    elif rest:
        raise NotImplementedError(
            "no Lipschitz constant is known for your function of mu; give L_f and L_sigma"
        )
    return FeatureSlopes(tuple(state), tuple(action), mu, here, reach)


def _of_point_masses(features: FeatureMap) -> Float[np.ndarray, "cells size"]:
    grid = features.grid
    state = jnp.asarray(grid.centres[0])
    rows = [features.mu(state, mean_field_at(grid, row, state)) for row in jnp.eye(grid.n_cells)]
    return np.asarray(jnp.stack(rows), dtype=float)


def _moved(blocks: Blocks, weights: Float[np.ndarray, "features"]) -> float:
    """Greatest change of the weighted features: the largest block's, as blocks are orthogonal."""
    return max(
        (b.slope * float(np.max(weights[list(b.features)])) for b in blocks if b.features),
        default=0.0,
    )
