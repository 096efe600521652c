"""What a learner sees of a system: episodes, but not the motion."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from . import _types
from ._types import Key, Scalar
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
        carried: Which of them were trips that carried the agent off, and so no moves; None if the
            problem has no trips.
    """

    states: Float[Array, "agents steps dim"]
    actions: Float[Array, "agents steps action_dim"]
    next_states: Float[Array, "agents steps dim"]
    stopped: Bool[Array, "agents steps dim"]
    mass: _types.Masses
    rewards: Float[Array, "paid_steps"]
    earned: Float[Array, "agents steps"] | None = None
    present: Bool[Array, "agents steps"] | None = None
    carried: Bool[Array, "agents steps"] | None = None

    @property
    def value(self) -> Scalar:
        """The episode's total reward J."""
        return jnp.sum(self.rewards)


class AbstractSystem(eqx.Module):
    """A population that can be run for one episode under a policy profile.

    A real fleet, a black-box simulator and a `SimulatedSystem` look the same to a learner: it
    sees `problem` and episodes, but not the motion.
    """

    problem: eqx.AbstractVar[Problem]

    @abstractmethod
    def run(self, policy: Any, key: Key, *, agents: int = 1) -> Episode:
        """Runs one episode from the problem's initial distribution.

        Args:
            policy: A profile, a policy, or a function ``(state, mu, step) -> action``.
            key: Randomness of the tracked agents.
            agents: How many agents to track.
        """


Known = AbstractSystem | Problem
"""A system that can be run here, or the problem of a real fleet, which cannot."""
