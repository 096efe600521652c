"""How far finite populations are from the mean-field limit, and how fast that gap closes."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float, Int, Real

from .._types import Key
from ..errors import UserError
from ..systems import SimulatedSystem
from .system import FiniteSystem


class PowerLaw(NamedTuple):
    """The power law ``figure = factor * size ** slope``, fitted to measured figures.

    Attributes:
        slope: -1/2 if the figures fall with the square root of the size.
        slope_error: Standard error of the slope; NaN for two sizes, which a line fits exactly.
        factor: The figure of size one.
    """

    slope: float
    slope_error: float
    factor: float

    def __call__(self, sizes: Real[np.ndarray, "sizes"]) -> Float[np.ndarray, "sizes"]:
        """The figures by the law."""
        return np.asarray(self.factor * np.asarray(sizes, dtype=float) ** self.slope)


class PopulationGap(eqx.Module):
    """What populations of several sizes earned, compared with the limit.

    Attributes:
        sizes: Numbers of agents.
        values: J of every episode.
        limit: J of the infinite population.
        distances: Total variation distance between histograms and the flow's distributions,
            averaged over episodes and all steps but the start.
    """

    sizes: Int[np.ndarray, "sizes"]
    values: Float[np.ndarray, "sizes episodes"]
    limit: float
    distances: Float[np.ndarray, "sizes"]

    @property
    def means(self) -> Float[np.ndarray, "sizes"]:
        """Mean J."""
        return np.asarray(self.values.mean(axis=1))

    @property
    def stds(self) -> Float[np.ndarray, "sizes"]:
        """Standard deviation of J from episode to episode."""
        return np.asarray(self.values.std(axis=1, ddof=1))

    @property
    def gaps(self) -> Float[np.ndarray, "sizes"]:
        """Root mean squared difference between J and the limit: spread and bias together."""
        return np.asarray(np.sqrt(np.mean((self.values - self.limit) ** 2, axis=1)))

    @property
    def law(self) -> PowerLaw:
        """The power law of the gaps."""
        return fit_power(self.sizes, self.gaps)


def population_gap(
    system: SimulatedSystem,
    policy: Any,
    sizes: Sequence[int],
    episodes: int,
    key: Key,
    *,
    limit: float | None = None,
    **options: Any,
) -> PopulationGap:
    r"""Compares the J of finite populations with that of the infinite one.

    The agents' randomness makes J spread like $1 / \sqrt{N}$. Two more effects may show:

    - A reward that is not linear in mu is biased by the histogram's randomness. The bias falls
      like 1 / N; for an entropy it is about cells / 2N at each step, more than the spread until N
      is large. While it dominates, the gap falls faster than $1 / \sqrt{N}$.
    - Unless agents are ``centred``, an error of discretisation remains for any N, because the flow
      moves mass from cell centres. It is small if cells are small compared with the noise, or if
      the system's flow is ``within_cells``.

    Args:
        system: The infinite population.
        policy: A profile, a policy, or a function ``(state, mu, step) -> action``.
        sizes: Numbers of agents, at least two.
        episodes: Episodes of each size, at least two.
        key: Randomness.
        limit: J to compare with; by default that of the flow.
        options: Options of [`FiniteSystem`][].
    """
    if len(set(sizes)) < 2 or episodes < 2:
        raise UserError(
            f"a gap needs at least two sizes and two episodes, got the sizes {list(sizes)} and "
            f"{episodes} episodes"
        )
    flow = system.evaluate(policy)
    values, distances = [], []
    for size, one in zip(sizes, jax.random.split(key, len(sizes)), strict=True):
        seen = FiniteSystem.of(system, size, **options).evaluate(policy, one, episodes=episodes)
        values.append(np.asarray(seen.values, dtype=float))
        apart = np.abs(np.asarray(seen.mass, dtype=float) - np.asarray(flow.mass, dtype=float))
        distances.append(0.5 * apart[:, 1:].sum(axis=-1).mean())
    return PopulationGap(
        sizes=np.asarray(sizes),
        values=np.stack(values),
        limit=float(flow.value) if limit is None else limit,
        distances=np.asarray(distances),
    )


def fit_power(sizes: Int[np.ndarray, "sizes"], figures: Float[np.ndarray, "sizes"]) -> PowerLaw:
    """Fits a power law by least squares of the logarithms."""
    if len(sizes) < 2 or not (np.all(np.isfinite(figures)) and np.all(figures > 0)):
        raise UserError(f"a power law needs two or more positive figures, got {figures}")
    # SciPy is slow to import, and only needed here.
    from scipy.stats import linregress

    line = linregress(np.log(sizes), np.log(figures))
    error = float(line.stderr) if len(sizes) > 2 else math.nan
    return PowerLaw(float(line.slope), error, math.exp(line.intercept))
