"""What a learner sees of a system: episodes, but not the motion."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ._arrays import Key, Masses, Scalar
from .actions import MoveSet
from .errors import MASS_TOLERANCE, UserError, distribution, finite
from .problem import Problem


class Episode(eqx.Module):
    """What was observed of tracked agents and of the whole population in one episode.

    Attributes:
        states: States of the tracked agents before each move.
        actions: What they did.
        next_states: Where they came to rest.
        stopped: Axes on which a wall or border stopped them; there the displacement is censored.
        mass: The population's distributions mu_0, ..., mu_H.
        rewards: Integrated rewards r-hat of the population, one for each paid step.
        earned: What the tracked agents were paid at each move, if the problem hides its reward;
            otherwise None, because a known reward can be computed.
        present: Which moves of tracked agents were seen, if some were not: agents join, leave or
            miss rows. What the other arrays hold there is ignored; None if all were seen.
        shocks: Number of the shock at each step, if the problem has shocks.
        carried: Which of them were trips that carried the agent off, and so no moves; None if the
            problem has no trips.
        joint: On nodes, the mass of each node and action before each move, if `mass` was observed
            of a population that followed a known policy (`mufield.models.with_population`): its
            moves then teach as well. None if that is not known, as where `mass` is the histogram
            of the tracked agents themselves.
        population: With `joint`, the number of agents whose mass it is; infinity for the limit.
    """

    states: Float[Array, "agents steps dim"]
    actions: Float[Array, "agents steps action_dim"]
    next_states: Float[Array, "agents steps dim"]
    stopped: Bool[Array, "agents steps dim"]
    mass: Masses
    rewards: Float[Array, "paid_steps"]
    earned: Float[Array, "agents steps"] | None = None
    present: Bool[Array, "agents steps"] | None = None
    carried: Bool[Array, "agents steps"] | None = None
    shocks: Int[Array, "steps"] | None = None
    joint: Float[Array, "steps cells moves"] | None = None
    population: Scalar | None = None

    @property
    def value(self) -> Scalar:
        """The episode's total reward J."""
        return jnp.sum(self.rewards)

    def check(self, problem: Problem) -> None:
        """Raises if the episode does not fit the problem, or holds NaN or infinity."""
        grid = problem.grid
        agents, steps = self.states.shape[:2]
        if steps != problem.horizon:
            raise UserError(
                f"the episode has {steps} steps, but the problem's horizon is {problem.horizon}; "
                "tell episodes of this problem only"
            )
        if (self.shocks is None) != (problem.shocks is None):
            raise UserError(
                "an episode records the shock of each step, Episode(shocks=...), if and only if "
                "the problem has shocks"
            )
        if problem.shocks is not None:
            problem.shocks.checked_path(self.shocks, steps)
        if problem.hides_reward and self.earned is None:
            raise UserError(
                "the problem's reward is hidden, but the episode does not say what agents were "
                "paid; give it earned, one number for each agent and step"
            )
        if self.present is not None and not np.any(self.present):
            raise UserError("no agent is present at any step of the episode; leave it out")
        dim, action_dim = (grid.dim,), (problem.actions.dim,)
        by_agent: dict[str, tuple[int, ...]] = {"states": dim, "actions": action_dim}
        by_agent |= {"next_states": dim, "stopped": dim, "earned": (), "present": (), "carried": ()}
        remedy = "leave the episode out or repair it before it is told"
        shapes = {name: (agents, steps, *shape) for name, shape in by_agent.items()}
        shapes |= {
            "mass": (steps + 1, grid.n_cells),
            "rewards": (problem.paid_steps,),
            "shocks": (steps,),
        }
        if self.joint is not None:
            shapes["joint"] = (steps, grid.n_cells, self._moves_of_population(problem))
        for name, shape in shapes.items():
            if getattr(self, name) is None or (name == "earned" and not problem.hides_reward):
                continue
            values = np.array(getattr(self, name))
            if values.shape != shape:
                raise UserError(f"the episode's {name} must have shape {shape}, got {values.shape}")
            if name in by_agent and self.present is not None:
                values[~np.asarray(self.present)] = 0  # what is there does not count
            place = "at agent {0[0]}, step {0[1]}" if name in by_agent else "at row {0[0]}"
            finite(values, f"the episode's {name}", remedy, place.format)
        sums = None
        if problem.trips is not None and problem.trips.stages:  # the others are under way
            total = np.asarray(self.mass, dtype=float).sum(axis=1)
            sums = np.where((total > 0) & (total < 1), 1.0, total)
        distribution(self.mass, "every distribution of the episode", sums=sums)

    def _moves_of_population(self, problem: Problem) -> int:
        """The number of moves that a joint mass has; raises unless it can teach a model."""
        moves = problem.actions
        if not isinstance(moves, MoveSet) or not problem.on_nodes or problem.trips is not None:
            raise UserError("an episode has joint masses on nodes only, and not with trips")
        if self.population is None or not float(self.population) >= 1:
            raise UserError(
                "an episode with joint masses says how many agents they are of; give population, "
                f"at least 1, or infinity for the limit, got {self.population}"
            )
        apart = np.abs(np.asarray(self.joint).sum(axis=-1) - np.asarray(self.mass)[:-1]).max()
        if not apart < MASS_TOLERANCE:
            raise UserError(
                "the episode's joint masses must add up to the mass of their nodes, but differ by "
                f"{apart:.3g}; make them by mufield.models.with_population"
            )
        return len(moves.moves)


class AbstractSystem(eqx.Module):
    """A population that can be run for one episode under a policy profile.

    A real fleet, a black-box simulator and a `SimulatedSystem` look the same to a learner: it
    sees `problem` and episodes, but not the motion.
    """

    problem: eqx.AbstractVar[Problem]

    @abstractmethod
    def run(self, policy: Any, key: Key, *, agents: int = 1, scouts: Any = None) -> Episode:
        """Runs one episode from the problem's initial distribution.

        Args:
            policy: A profile, a policy, or a function ``(state, mu, step) -> action``.
            key: Randomness of the tracked agents.
            agents: How many agents to track.
            scouts: The policy of the tracked agents, if it is another than the population's.
        """


SystemOrProblem = AbstractSystem | Problem
"""A system that can be run here, or the problem of a real fleet, which cannot."""
