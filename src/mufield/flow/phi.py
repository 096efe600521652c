r"""Phi: one step of the mean-field flow, $\mu_{h+1} = \Phi(\mu_h, \pi_h, f)$ (eq. flowdynamics).

Given what agents see of mu, the next distribution is linear in the *joint mass* of cells and moves,

$$[\mu_{h+1}]_j = \sum_{k, m} \mu_h(k)\, \pi_h(m \mid k)\, \mathbb{P}[\text{an agent of cell } k
\text{ that makes move } m \text{ rests in } j],$$

so every variant of the transition is one `push`. `Flow` builds the transition of a problem; the
implementations:

- `mufield.flow.windows.Windows`: mass leaves the centres of cells and spreads by Gaussian noise
  over a window; walls and borders stop it (`mufield.flow.landing`: tables, exact rule, stencil).
- `mufield.flow.bank.KernelBank`: stands in for windows where all moves are listed (`MoveFlow`): the
  probabilities of landing are computed ahead, for each step or crowd if the motion sees them.
- `mufield.flow.within.WithinCells`: agents stand anywhere in their cells; the population carries
  the moments of where.
- `mufield.flow.wrappers.WithNeighbourNoise`: the discrete rooms' noise after an inner push.
- `mufield.flow.wrappers.WithTrips`: some agents are taken on trips, the others go by an inner push.

`mufield.flow.rollout` has the one scan forwards over an episode and the one backwards.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import Mass, Scalar, Step
from ..policies.base import AbstractPolicy, ActionLaw
from ..problem import Motion, Problem, Reward
from ..space.grid import Grid
from ..space.measure import at_all_cells

Joint = Float[Array, "cells moves"]
"""Mass of the agents of each cell that make each move."""


class Departure(eqx.Module):
    """What the agents of all cells do in one step.

    Attributes:
        law: Their moves, with probabilities that sum to one in each cell.
        displacement: How far each move would carry them without noise and walls.
        targets: What `AbstractPhi.push` needs to know of the moves; mostly the displacement.
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

    @property
    def centred(self) -> bool:
        """Whether agents stand at the centres of their cells."""
        return True

    @property
    def floats_kept(self) -> int:
        """About how many numbers the gradient of one step keeps in each of a few arrays."""
        return self.grid.n_cells

    def start(self, mass: Mass) -> Any:
        """The population at the start of an episode."""
        return mass

    def mass(self, population: Any) -> Mass:
        """The distribution mu of a population."""
        found: Mass = population
        return found

    def depart(
        self, population: Any, policy: AbstractPolicy, motion: Motion, step: Step
    ) -> Departure:
        """What agents who follow a policy do; policy and motion are evaluated where they stand."""
        mass = self.mass(population)
        law = policy.at_cells(self.grid, mass, step)
        moved = displacements(self.grid, mass, motion, law.actions, step)
        return Departure(law, moved, moved)

    def earn(self, population: Any, leaving: Departure, reward: Reward, step: Step) -> Scalar:
        """The integrated reward r-hat(mu, pi) (eq. integratedReward)."""
        return integrated_reward(self.grid, self.mass(population), leaving.law, reward, step)

    @abstractmethod
    def push(self, joint: Joint, targets: Any, seen: Mass, step: Step) -> Any:
        """The next population; from cell centres it is linear in ``joint``.

        Args:
            joint: Mass of each cell and move.
            targets: Of a `Departure`; `mufield.flow.windows.TargetsLater` where all of them would
                fill the memory; None where kernels are computed ahead.
            seen: The distribution that agents see.
            step: Number of the step.
        """

    def add(self, population: Any, mass: Mass) -> Any:
        """The population with more mass, whose agents stand anywhere in their cells."""
        return population + mass

    @property
    def core(self) -> "AbstractPhi":
        """The innermost transition."""
        return self

    def map_core(self, change: Callable[["AbstractPhi"], "AbstractPhi"]) -> "AbstractPhi":
        """The same wrappers around another innermost transition."""
        return change(self)


def displacements(
    grid: Grid,
    mass: Mass,
    motion: Motion,
    actions: Float[Array, "cells moves action_dim"],
    step: Step,
) -> Float[Array, "cells moves dim"]:
    """How far each move carries an agent at each cell centre, without noise and walls."""
    centres = jnp.asarray(grid.centres, dtype=mass.dtype)
    ends = at_all_cells(grid, mass, motion, actions, step)
    return grid.displacement(centres[:, None, :], ends)


def integrated_reward(grid: Grid, mass: Mass, law: ActionLaw, reward: Reward, step: Step) -> Scalar:
    """r-hat(mu, pi) (eq. integratedReward) of agents at cell centres who follow ``law``."""
    paid = at_all_cells(grid, mass, reward, law.actions, step)
    return jnp.sum(mass[:, None] * law.weights * paid)


def rest_law(problem: Problem) -> ActionLaw:
    """The law of agents at rest in all cells."""
    cells, dtype = problem.grid.n_cells, problem.initial.dtype
    rest = jnp.asarray(problem.actions.rest, dtype=dtype)
    return ActionLaw(jnp.broadcast_to(rest, (cells, 1, len(rest))), jnp.ones((cells, 1), dtype))


def end_reward(problem: Problem, mass: Mass) -> Scalar:
    """The integrated reward of the last distribution, with agents at rest at cell centres."""
    law, last = rest_law(problem), problem.horizon
    return integrated_reward(problem.grid, mass, law, problem.reward, last)
