"""The policies of jobs, played by the whole population in the true system."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtyping import Array, Float

from mufield import _arrays
from mufield.flow.rollout import Rollout
from mufield.io.policies import load_policy
from mufield.jobs.compute import simulated
from mufield.policies.base import Profile, checked_profile
from mufield.space.grid import Grid
from mufield.systems import SimulatedSystem


@dataclass(frozen=True, eq=False)
class Outcome:
    """One episode of the whole population in the true system, under the policy `profile`."""

    system: SimulatedSystem
    profile: Profile
    rollout: Rollout

    @property
    def grid(self) -> Grid:
        """The space."""
        return self.system.problem.grid

    @property
    def mass(self) -> _arrays.Masses:
        """The distributions mu_0, ..., mu_H."""
        return self.rollout.mass

    @property
    def value(self) -> float:
        """J."""
        return float(self.rollout.value)

    @property
    def mean_actions(self) -> Float[Array, "steps cells action_dim"]:
        """Mean action in every cell at each step, for arrows."""
        return self.system.reveal()[0].mean_actions(self.profile, self.mass)


def play(settings: dict[str, Any], policy: Any) -> Outcome:
    """Runs a policy in the system of a job's settings."""
    system = simulated(settings)
    profile = checked_profile(policy, system.problem)
    return Outcome(system, profile, system.evaluate(profile))


def episode_policy(directory: Path, episode: int) -> Any:
    """The policy of an episode of a learning job."""
    return load_policy(directory / "run" / "policies" / f"{episode:04d}.policy")


def planned_policy(directory: Path) -> Any:
    """The policy of a planning job."""
    return load_policy(directory / "plan.policy")
