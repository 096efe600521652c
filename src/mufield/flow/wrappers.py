"""Transitions around an inner one: the discrete rooms' noise, and trips."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._types import Mass, Scalar, Step
from ..fleet.trips import Trips
from ..policies.base import AbstractPolicy
from ..problem import Motion, Reward
from ..space.grid import Grid
from ..space.move import NeighbourNoise
from .phi import AbstractPhi, Departure, Joint
from .routing import Routing


class _Around(AbstractPhi):
    """What all wrappers leave to the inner transition."""

    inner: eqx.AbstractVar[AbstractPhi]

    @property
    def centred(self) -> bool:
        return self.inner.centred

    @property
    def floats_kept(self) -> int:
        return self.inner.floats_kept

    def start(self, mass: Mass) -> Any:
        return self.inner.start(mass)

    def mass(self, population: Any) -> Mass:
        return self.inner.mass(population)

    def depart(
        self, population: Any, policy: AbstractPolicy, motion: Motion, step: Step
    ) -> Departure:
        return self.inner.depart(population, policy, motion, step)

    def earn(self, population: Any, leaving: Departure, reward: Reward, step: Step) -> Scalar:
        return self.inner.earn(population, leaving, reward, step)

    def add(self, population: Any, mass: Mass) -> Any:
        return self.inner.add(population, mass)

    @property
    def core(self) -> AbstractPhi:
        return self.inner.core

    def map_core(self, change: Callable[[AbstractPhi], AbstractPhi]) -> AbstractPhi:
        return replace(self, inner=self.inner.map_core(change))


class WithNeighbourNoise(_Around):
    """After their moves, agents may be pushed to a neighbouring cell.

    Attributes:
        inner: The moves.
        routing: From (cell, direction) to the cell reached.
        weights: Probability of each direction in each cell.
    """

    inner: AbstractPhi
    routing: Routing
    weights: Float[Array, "cells directions"]
    grid: Grid = eqx.field(static=True)

    @classmethod
    def build(cls, inner: AbstractPhi, noise: NeighbourNoise) -> "WithNeighbourNoise":
        """Adds the noise to a transition."""
        grid = inner.grid
        ends = grid.neighbours
        links = np.flatnonzero(ends.ravel() >= 0)
        routing = Routing.build(links, ends.ravel()[links], ends.size, grid.n_cells)
        weights = jnp.asarray(noise.weights(grid), dtype=jnp.result_type(float))
        return cls(inner=inner, routing=routing, weights=weights, grid=grid)

    def push(self, joint: Joint, targets: Any, seen: Mass, step: Step) -> Mass:
        """See `AbstractPhi`."""
        mass = self.inner.push(joint, targets, seen, step)
        return self.routing((mass[:, None] * self.weights.astype(mass.dtype)).reshape(-1))


class WithTrips(_Around):
    r"""Some agents are taken on trips: $\Phi((1 - p)\, J) + P^\top (p\, J)$ for joint mass J.

    Attributes:
        inner: The moves of those who are not taken.
        trips: The chance p of being taken, and the origin-destination matrix P.
    """

    inner: AbstractPhi
    trips: Trips
    grid: Grid = eqx.field(static=True)

    def push(self, joint: Joint, targets: Any, seen: Mass, step: Step) -> Any:
        """See `AbstractPhi`."""
        chance = self.trips.chances(self.grid, seen, step)
        # A chance that is no probability would make negative mass: it ends in NaN, which every
        # caller refuses, and `mufield.flow.diagnose` then names the cell and the step.
        inside = (chance >= 0) & (chance <= 1 + 1e-6)
        chance = jnp.where(inside, jnp.minimum(chance, 1.0), jnp.nan)
        taken = joint * chance[:, None]
        moved = self.inner.push(joint - taken, targets, seen, step)
        return self.inner.add(moved, self.trips.land(jnp.sum(taken, axis=1), step))
