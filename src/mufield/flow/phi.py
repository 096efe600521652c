r"""Phi: one step of the mean-field flow, $\mu_{h+1} = \Phi(\mu_h, \pi_h, f)$ (eq. flowdynamics).

Given what agents see of mu, the next distribution is linear in the *joint mass* of cells and moves,

$$[\mu_{h+1}]_j = \sum_{k, m} \mu_h(k)\, \pi_h(m \mid k)\, \mathbb{P}[\text{an agent of cell } k
\text{ that makes move } m \text{ rests in } j],$$

so every variant of the transition is one method, `AbstractPhi.move`. The implementations:

- `mufield.flow.windows.Windows`: mass leaves the centres of cells and spreads by Gaussian noise
  over a window. What walls and borders make of it is told by `mufield.flow.landings`, on large
  open maps by `mufield.flow.stencil`. On nodes (`mufield.space.nodes`) the motion returns the
  probabilities of successors, which have a landing of their own.
- `mufield.flow.windows.KernelBank`: the same for listed moves, whose probabilities of landing are
  computed ahead, for each step or crowd if the motion sees them.

`mufield.flow.Flow` builds the first, `mufield.flow.moves.MoveFlow` the second;
`mufield.flow.rollout` scans an episode forwards, `mufield.flow.backward` backwards.
"""

from abc import abstractmethod
from typing import TYPE_CHECKING

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._arrays import Mass, Scalar, Step
from ..policies.base import ActionLaw
from ..problem import Motion, Reward
from ..space.grid import Grid
from ..space.measure import at_all_cells

if TYPE_CHECKING:
    from ..fleet.trips import Trips

Joint = Float[Array, "cells moves"]
"""Mass of the agents of each cell that make each move."""

Displacements = Float[Array, "cells moves _"]
"""Displacement of each move, without noise and walls; on nodes, probabilities of successors."""

Arrivals = Float[Array, "stages_and_one cells"]
"""Mass by when it arrives, from the next step on. More than one row if trips take several steps."""


class AbstractPhi(eqx.Module):
    """The transition of the population's distribution."""

    grid: eqx.AbstractVar[Grid]
    trips: eqx.AbstractVar["Trips | None"]
    """Known transitions of agents that make no move of their own; None if all make one."""

    @abstractmethod
    def move(self, joint: Joint, targets: Displacements | None, seen: Mass, step: Step) -> Mass:
        """The distribution after agents' own moves; linear in ``joint``.

        Args:
            joint: Mass of each cell and move.
            targets: Where the moves lead; None where kernels are computed ahead.
            seen: The distribution that agents see.
            step: Number of the step.
        """

    def push(self, joint: Joint, targets: Displacements | None, seen: Mass, step: Step) -> Arrivals:
        r"""Where agents arrive in the next step: $M((1 - p)\, J) + P^\top (p\, J)$; and later.

        M is `move`, J the joint mass, p the chance of a trip and P the matrix of destinations of
        trips that take one step; further rows are for longer trips. Without trips there is one row.
        """
        if self.trips is None:
            return self.move(joint, targets, seen, step)[None]
        taken = joint * self.chances(seen, step)[:, None]
        moved = self.move(joint - taken, targets, seen, step)
        return self.trips.ends(jnp.sum(taken, axis=1), step).at[0].add(moved)

    def chances(self, seen: Mass, step: Step) -> Mass:
        """The chance of a trip in each cell."""
        assert self.trips is not None
        chance = self.trips.chances(self.grid, seen, step)
        # A chance that is no probability would make negative mass: it ends in NaN, which every
        # caller refuses, and `mufield.flow.checks` then names the cell and the step.
        return jnp.where(self.trips.outside(chance) > 0, jnp.nan, jnp.minimum(chance, 1.0))


def displacements(
    grid: Grid,
    mass: Mass,
    motion: Motion,
    actions: Float[Array, "cells moves action_dim"],
    step: Step,
) -> Displacements:
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
