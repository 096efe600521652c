"""The interface of planners: they plan a policy for any motion, true or imagined."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
from jaxtyping import Array, Float

from .. import _types
from .._types import Key, Scalar
from ..actions import Box, MoveSet
from ..constraints.model_samples import Outcomes
from ..flow.flow import Flow
from ..policies.base import Profile
from ..problem import Motion

Actions = Box | MoveSet


class Plan(eqx.Module):
    """What a planner found.

    Attributes:
        profile: The policy profile to run, without hallucinated controls.
        memory: What the planner starts from next time.
        value: J under the motion that was planned with.
        mass: The population's distributions under that motion.
        control: Mean size of the hallucinated control, |eta|, along the plan; zero without it.
        note: Why the plan is unusual, such as a fallback; else empty.
        least: The least margin of each constraint after each move in any sampled model, as a share
            of it; None without constraints, or if nothing is known of them.
    """

    profile: Profile
    memory: Any
    value: Scalar
    mass: _types.Masses
    control: Scalar
    note: str = eqx.field(static=True, default="")
    least: Float[Array, "horizon limits"] | None = None


class AbstractPlanner(eqx.Module):
    """A way to plan under any motion; its attributes are the settings.

    The flow's actions may have more axes than the agents' own: joint actions ``(a, eta)``, whose
    last axes are hallucinated controls. They steer the imagined motion, cost nothing, and are left
    out of the policy to run.
    """

    @abstractmethod
    def first_memory(self, flow: Flow, actions: Actions, key: Key) -> Any:
        """What the first plan starts from; arguments as of `plan`."""

    def own_moves(self, actions: Actions) -> Float[Array, "moves action_dim"]:
        """The moves for which `plan` asks what they lead to in sampled models."""
        return actions.points(9)

    @abstractmethod
    def plan(
        self,
        flow: Flow,
        motion: Motion,
        actions: Actions,
        key: Key,
        memory: Any,
        outcomes: Outcomes | None = None,
    ) -> Plan:
        """Plans a policy; a pure function that may be compiled.

        Args:
            flow: The flow of the problem to plan in.
            motion: The law of motion.
            actions: What agents can do: the flow's actions without controls.
            key: Randomness.
            memory: The memory of the last plan, or the first one.
            outcomes: What plans lead to in sampled models, if constraints must hold in them, too.
        """
