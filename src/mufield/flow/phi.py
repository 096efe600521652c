r"""Phi: one step of the mean-field flow, $\mu_{h+1} = \Phi(\mu_h, \pi_h, f)$ (eq. flowdynamics).

Given what agents see of mu, the next distribution is linear in the *joint mass* of cells and moves,

$$[\mu_{h+1}]_j = \sum_{k, m} \mu_h(k)\, \pi_h(m \mid k)\, \mathbb{P}[\text{an agent of cell } k
\text{ that makes move } m \text{ rests in } j],$$

so every variant of the transition is one method, `AbstractPhi.move`. The implementations:

- `mufield.flow.windows.Windows`: mass leaves the centres of cells and spreads by Gaussian noise
  over a window. What walls and borders make of it is told by `mufield.flow.landings`, on large
  open maps by `mufield.flow.stencil`.
- `mufield.flow.windows.KernelBank`: the same for listed moves, whose probabilities of landing are
  computed ahead, for each step or crowd if the motion sees them.
- `mufield.flow.within.WithinCells`: agents stand anywhere in their cells; the population carries
  the moments of where.

On nodes (`mufield.space.nodes`) the motion returns the probabilities of successors, which are the
kernel itself: they have a landing of their own, and everything else is the same.

`mufield.flow.Flow` chooses one; `mufield.flow.rollout` scans an episode, forwards and backwards.
"""

from abc import abstractmethod
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import Mass, Scalar, Step
from ..interfaces import AbstractTrips
from ..policies.base import AbstractPolicy, ActionLaw
from ..problem import Motion, Reward
from ..space.grid import Grid
from ..space.measure import at_all_cells

Joint = Float[Array, "cells moves"]
"""Mass of the agents of each cell that make each move."""


class Departure(eqx.Module):
    """What the agents of all cells do in one step.

    Attributes:
        law: Their moves, with probabilities that sum to one in each cell.
        displacement: How far each move would carry them without noise and walls; on nodes, the
            probabilities of its successors.
        targets: What `AbstractPhi.move` needs to know of the moves; mostly the displacement.
    """

    law: ActionLaw
    displacement: Float[Array, "cells moves dim"]
    targets: Any


class AbstractPhi(eqx.Module):
    """The transition of the population.

    A *population* is what the flow carries from step to step. Here it is the distribution itself;
    `mufield.flow.within.WithinCells` knows more of it.
    """

    grid: eqx.AbstractVar[Grid]
    trips: eqx.AbstractVar[AbstractTrips | None]
    """Known transitions of agents that make no move of their own; None if all make one."""

    centred: ClassVar[bool] = True
    """Whether agents stand at the centres of their cells."""

    @property
    def residual_size(self) -> int:
        """About how many numbers the gradient of one step keeps."""
        return 4 * self.grid.n_cells

    def start(self, mass: Mass) -> Any:
        """The population at the start of an episode."""
        return mass

    def mass(self, population: Any) -> Mass:
        """The distribution mu of a population."""
        return population

    def add(self, population: Any, mass: Mass) -> Any:
        """The population with more mass, whose agents stand anywhere in their cells."""
        return population + mass

    def depart(
        self, population: Any, policy: AbstractPolicy, motion: Motion, step: Step
    ) -> Departure:
        """What agents who follow a policy do; policy and motion are evaluated where they stand."""
        mass = self.mass(population)
        law = policy.at_cells(self.grid, mass, step)
        moved = displacements(self.grid, mass, motion, law.actions, step)
        return Departure(law, moved, moved)

    def earn(
        self, population: Any, law: ActionLaw, targets: Any, reward: Reward, step: Step
    ) -> Scalar:
        """The integrated reward r-hat(mu, pi) (eq. integratedReward); no targets for the end."""
        return integrated_reward(self.grid, self.mass(population), law, reward, step)

    @abstractmethod
    def move(self, joint: Joint, targets: Any, seen: Mass, step: Step) -> Any:
        """The population after its own moves; from cell centres it is linear in ``joint``.

        Args:
            joint: Mass of each cell and move.
            targets: Those of a `Departure`; None where kernels are computed ahead.
            seen: The distribution that agents see.
            step: Number of the step.
        """

    def push(self, joint: Joint, targets: Any, seen: Mass, step: Step) -> Any:
        r"""The next population: $M((1 - p)\, J) + P^\top (p\, J)$ for joint mass J.

        M is `move`; p is the chance of a trip and P the matrix of destinations, of trips that take
        one step; `later` has the others. Without trips it is `move` alone.
        """
        if self.trips is None:
            return self.move(joint, targets, seen, step)
        taken = joint * self._chances(seen, step)[:, None]
        moved = self.move(joint - taken, targets, seen, step)
        return self.add(moved, self.trips.land(jnp.sum(taken, axis=1), step))

    def later(self, leaving: Mass, seen: Mass, step: Step) -> Float[Array, "stages cells"]:
        """Agents of each cell whose trips take longer, by when they arrive: after two steps, ...

        ``leaving`` is the mass of each cell, of which `push` moves the others.
        """
        assert self.trips is not None
        return self.trips.later(leaving * self._chances(seen, step), step)

    def _chances(self, seen: Mass, step: Step) -> Mass:
        assert self.trips is not None
        chance = self.trips.chances(self.grid, seen, step)
        # A chance that is no probability would make negative mass: it ends in NaN, which every
        # caller refuses, and `mufield.flow.checks` then names the cell and the step.
        inside = (chance >= 0) & (chance <= 1 + 1e-6)
        return jnp.where(inside, jnp.minimum(chance, 1.0), jnp.nan)


def displacements(
    grid: Grid,
    mass: Mass,
    motion: Motion,
    actions: Float[Array, "cells moves action_dim"],
    step: Step,
) -> Float[Array, "cells moves dim"]:
    """How far each move carries an agent at each cell centre, without noise and walls.

    On nodes, the probabilities of its successors.
    """
    centres = jnp.asarray(grid.centres, dtype=mass.dtype)
    ends = at_all_cells(grid, mass, motion, actions, step)
    return grid.targets(centres[:, None, :], ends)


def integrated_reward(grid: Grid, mass: Mass, law: ActionLaw, reward: Reward, step: Step) -> Scalar:
    """r-hat(mu, pi) (eq. integratedReward) of agents at cell centres who follow ``law``."""
    paid = at_all_cells(grid, mass, reward, law.actions, step)
    return jnp.sum(mass[:, None] * law.weights * paid)
