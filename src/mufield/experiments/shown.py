"""A policy's episode in its true system, as figures show it."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import _types
from ..environments.registry import make
from ..flow.flow import Rollout
from ..policies.base import Profile, as_profile
from ..space.grid import Grid
from ..systems import SimulatedSystem


@dataclass(frozen=True, eq=False)
class Shown:
    """One episode of the whole population.

    Attributes:
        system: The true system.
        profile: What its agents follow.
        rollout: What comes of it.
    """

    system: SimulatedSystem
    profile: Profile
    rollout: Rollout

    @property
    def grid(self) -> Grid:
        """The space."""
        return self.system.problem.grid

    @property
    def mass(self) -> _types.Masses:
        """The distributions mu_0, ..., mu_H."""
        return self.rollout.mass

    @property
    def value(self) -> float:
        """J."""
        return float(self.rollout.value)

    @property
    def rewards(self) -> list[float]:
        """What each step pays."""
        return [float(reward) for reward in np.asarray(self.rollout.rewards)]

    @property
    def arrows(self) -> Float[Array, "steps cells action_dim"]:
        """Average action in every cell at each step."""
        return self.system.mean_actions(self.profile, self.mass)

    @property
    def action_sizes(self) -> list[float]:
        """Mean length of the population's actions at each step."""
        sizes = _action_sizes(self.grid, self.profile, self.mass)
        return [float(size) for size in np.asarray(sizes)]


def system_of(settings: dict[str, Any]) -> SimulatedSystem:
    """The system of a job's settings, built once."""
    options = tuple(sorted(settings["options"].items()))
    return _system(settings["environment"], options, str(jnp.result_type(float)))


# The number format is part of a system, so it tells systems apart.
@lru_cache
def _system(name: str, options: tuple[tuple[str, Any], ...], precision: str) -> SimulatedSystem:
    system = make(name, **dict(options))
    assert isinstance(system, SimulatedSystem)
    return system


def show(settings: dict[str, Any], policy: Any) -> Shown:
    """Runs a policy in the system of a job's settings."""
    system = system_of(settings)
    profile = as_profile(policy, system.problem.horizon)
    return Shown(system, profile, system.evaluate(profile))


@eqx.filter_jit
def _action_sizes(grid: Grid, profile: Profile, mass: _types.Masses) -> Float[Array, "steps"]:
    def step(_: None, inputs: Any) -> tuple[None, Array]:
        part, now = inputs
        law = profile.join(part).at_cells(grid, now)
        # Of the actions themselves: those of a randomised policy may cancel in the mean.
        sizes = jnp.linalg.norm(law.actions, axis=-1)
        return None, jnp.einsum("k,km,km->", now, law.weights.astype(now.dtype), sizes)

    steps = (profile.per_step, mass[:-1])
    return jax.lax.scan(step, None, steps, length=profile.horizon)[1]
