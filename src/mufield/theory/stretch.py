r"""By how much a grid stretches the distance of two landings.

The paper's corollary W1NormalBound, $W_1(X + x, X + y) \le \|x - y\|_2$, is for laws in continuous
space. A flow on a grid keeps only the mass of each cell, as if agents stood in its centre. On one
axis, with noise of standard deviation $\sigma$ and cells of size $\Delta$, the distance of two such
laws is the sum over the cells' edges of $\Delta$ times the difference of the cumulative
distribution functions. Its derivative in the shift is the sum of $\Delta$ times the density at the
edges, which is greatest when an agent aims at an edge:

$$\kappa = \Delta \sum_k \varphi_\sigma(k \Delta) = 1 + 2 e^{-2 \pi^2 \sigma^2 / \Delta^2} + \dots$$

It is 1 for all practical purposes where the noise is no smaller than a cell, and 1.6 where it is a
quarter of one. Over several axes the masses can be moved one axis after the other, at the cost
of the sum of the axes' shifts, at most $\sqrt{p}$ times the Euclidean shift.

The proof of lemma MFFlowW1Bound uses the corollary in each of its terms, so that kappa multiplies
its right-hand side and nothing else changes.
"""

import math

import numpy as np

from ..problem import Problem
from ..space.noise import GaussianNoise
from .constants import Constant

WIDEST = 40.0
"""Standard deviations beyond which the density is nothing."""


def axis_stretch(noise_std: float, cell_size: float) -> float:
    """Kappa on one axis; infinite without noise, where a hair's breadth decides on the cell."""
    if noise_std == 0:
        return math.inf
    step = cell_size / noise_std
    if step < 0.5:  # The other terms of Poisson's sum are below 1e-34.
        return 1.0
    edges = step * np.arange(-math.ceil(WIDEST / step), math.ceil(WIDEST / step) + 1)
    return float(step * np.sum(np.exp(-0.5 * edges**2)) / math.sqrt(2 * math.pi))


def grid_stretch(problem: Problem) -> Constant:
    """Kappa of a problem's flow.

    Borders stop agents axis by axis, which brings landings nearer to each other. Walls inside the
    space do not: on two sides of a wall's end, agents that aim at almost the same point come to
    rest far apart. No constant holds there, and what is returned is an estimate.
    """
    grid = problem.grid
    if not isinstance(problem.noise, GaussianNoise):
        note = "the noise depends on the cell, which the paper's additive noise does not"
        return Constant(math.sqrt(grid.dim), "estimate", note)
    worst = max(map(axis_stretch, problem.noise.std, grid.cell_size))
    value = worst * math.sqrt(grid.dim)
    if grid.walls.any():
        note = "walls inside the space tear near landings apart: no constant holds at their ends"
        return Constant(value, "estimate", note)
    return Constant(value, "bound", "" if value < math.inf else "there is no noise on some axis")
