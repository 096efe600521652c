"""What a learner knows, and the randomness of each of its episodes."""

from enum import IntEnum
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import Key, Mass
from ..models.base import AbstractModel
from ..models.data import Transitions
from ..policies.base import Profile
from ..space.measure import uniform


class Use(IntEnum):
    """Uses of an episode's randomness; each has a key of its own."""

    FIT = 1
    PLAN = 2
    RUN = 3
    FIT_REWARD = 4
    USABLE_PLAN = 5
    DRAW = 6
    JUDGE = 7
    MODEL_SAMPLES = 8
    REPLAN = 9


class LearnerState(eqx.Module):
    """All that a learner knows.

    Attributes:
        data: The transitions of all episodes so far, and those of logs.
        ends: Number of transitions after each episode.
        model: The model of the motion, fitted to the data.
        memory: What the planner starts from.
        profile: The last policy that was planned; None before the first.
        key: The run's randomness, from which every episode derives its own.
        notes: What went wrong since the last episode, in words.
        reward_model: The model of the reward, if the problem hides it.
        last_mass: The population before each move of the last episode, if that ran `profile`.
    """

    data: Transitions
    ends: tuple[int, ...] = eqx.field(static=True)
    model: AbstractModel
    memory: Any
    profile: Profile | None
    key: Key
    notes: tuple[str, ...] = eqx.field(static=True, default=())
    reward_model: AbstractModel | None = None
    last_mass: Float[Array, "steps cells"] | None = None

    @property
    def episode(self) -> int:
        """Number of episodes so far."""
        return len(self.ends)

    @property
    def mean_mass(self) -> Mass:
        """The population that was seen last, averaged; before that, an even one."""
        mass = self.data.mass
        if not len(mass):
            return uniform(self.data.problem.grid)
        last = mass[-self.data.problem.horizon :]
        return jnp.asarray(last.mean(axis=0), dtype=self.data.problem.initial.dtype)

    def key_for(self, use: Use) -> Key:
        """The key of the next episode for one use."""
        return key_after(self.key, self.episode, use)


def key_after(key: Key, episodes: int, use: Use) -> Key:
    """The key of a run after some episodes, for one use."""
    return jax.random.fold_in(jax.random.fold_in(key, episodes), int(use))
