"""The interface of planners: they plan a policy for any motion, true or imagined."""

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._arrays import Key, Margins, Masses, Scalar
from ..actions import Box, MoveSet
from ..flow.flow import Flow
from ..policies.base import Profile
from ..problem import Motion, Problem

if TYPE_CHECKING:
    from ..flow.paths import Bands

Actions = Box | MoveSet

LeastMargins = Callable[[Float[Array, "steps cells moves"]], Margins]
"""The least margins that a policy, given by its weights on some moves, has in any sampled model."""


class Plan(eqx.Module):
    """What a planner found.

    Attributes:
        profile: The policy profile to run, without hallucinated controls.
        scouts: The policy profile of the tracked agents, if it is another than the population's.
        memory: What the planner starts from next time.
        value: J under the motion that was planned with.
        mass: The population's distributions under that motion.
        control: Mean size of the hallucinated control, |eta|, along the plan; zero without it.
        late_gain: Share of the gain in J made in the ascent's last quarter; None if unknown.
        note: Why the plan is unusual, such as a fallback; else empty.
        refined: The same plan with actions anywhere in the box, if it must first be seen whether
            that satisfies the constraints; its value is NaN if it is no better.
        margins: The least margin of each constraint after each move in any sampled model, as a
            share of it; None without constraints, or if nothing is known of them.
        bands: The spread of what is expected over the paths of the shocks, if there are some.
    """

    profile: Profile
    memory: Any
    value: Scalar
    mass: Masses
    control: Scalar
    late_gain: Scalar | None = None
    note: str = eqx.field(static=True, default="")
    margins: Float[Array, "horizon limits"] | None = None
    scouts: Profile | None = None
    refined: "Plan | None" = None
    bands: "Bands | None" = None

    @property
    def outcome(self) -> str:
        """``"plateau"``, or ``"gaining"`` if J still rose at the end; ``"unknown"``."""
        return "unknown" if self.late_gain is None else outcome_of(self.late_gain)

    def __repr__(self) -> str:
        note = f", note={self.note!r}" if self.note else ""
        return f"Plan(J={float(self.value):.6g}, outcome={self.outcome!r}{note})"


def late_gain(values: Float[Array, "rounds_and_start"]) -> Scalar:
    """Share of an ascent's gain in J that was made in the last quarter of its rounds.

    ``values`` are J before the first round and after each.
    """
    rounds = len(values) - 1
    quarter = min(rounds, max(1, rounds // 4))
    gain, last = values[-1] - values[0], values[-1] - values[-1 - quarter]
    return jnp.where(gain > 0, last / jnp.where(gain > 0, gain, 1.0), 0.0)


def control_size(
    problem: Problem, mass: Masses, controls: Float[Array, "..."], weights: Array | None = None
) -> Scalar:
    """Mean size of the hallucinated control along a plan, from eta in each step and cell.

    With ``weights``, from eta in each of a cell's moves, of each step or of all alike.
    """
    if controls.shape[-1] == 0:
        return jnp.zeros((), dtype=mass.dtype)
    sizes = jnp.minimum(jnp.abs(controls), 1.0)
    if weights is not None:
        sizes = jnp.einsum(f"hkm,{'hkma' if sizes.ndim == 4 else 'kma'}->hka", weights, sizes)
    used = jnp.sum(mass[:-1] * jnp.mean(sizes, axis=-1), axis=1)
    return jnp.sum(jnp.where(problem.begun, used, 0.0)) / jnp.sum(problem.begun)


def outcome_of(share: Scalar | float) -> str:
    """``"gaining"`` if more than a hundredth of the gain in J was made late, else ``"plateau"``."""
    return "gaining" if float(share) > 0.01 else "plateau"


def note_of(outcome: str, rounds: str) -> str:
    """What is to be said of an outcome; ``rounds`` are what was used up, and how to set it."""
    return f"the plan still gains: give its planner more {rounds}" if outcome == "gaining" else ""


class AbstractPlanner(eqx.Module):
    """A way to plan under any motion; its attributes are the settings.

    An own planner implements `plan`, and `first_memory` if a plan starts from the last one. It must
    handle:

    - **joint actions.** The flow's actions may have more axes than the agents' own: joint actions
      ``(a, eta)``, whose last axes are hallucinated controls in [-1, 1]. They steer the imagined
      motion, cost nothing, and are left out of the policy to run;
    - **compilation.** `plan` is traced by JAX: no branches on values. What is not finite is
      returned as it is; the learner then runs its last policy again;
    - **the rest of an episode.** ``flow.problem.begun`` says which steps belong to the problem;
      arrays over the steps keep the whole horizon;
    - **constraints**, if the problem has any: `Problem.margins` are to be 0 or more, and so are
      those of ``least``. The learner mixes a plan that violates them with a safe policy.

    Attributes:
        maximises: Whether plans maximise J; those of equilibria do not.
    """

    maximises: ClassVar[bool] = True

    def first_memory(self, flow: Flow, actions: Actions, key: Key) -> Any:
        """What the first plan starts from; by default nothing. Arguments are as of `plan`."""

    def own_moves(self, actions: Actions) -> Float[Array, "*cells moves action_dim"]:
        """The moves that ``least`` of `plan` is about: the same in all cells, or those of each."""
        return actions.points(9)

    @abstractmethod
    def plan(
        self,
        flow: Flow,
        motion: Motion,
        actions: Actions,
        key: Key,
        memory: Any,
        least: LeastMargins | None = None,
    ) -> Plan:
        """Plans a policy; a pure function that may be compiled.

        Args:
            flow: The flow of the problem to plan in.
            motion: The law of motion.
            actions: What agents can do: the flow's actions without controls.
            key: Randomness.
            memory: The memory of the last plan, or the first one.
            least: From weights on `own_moves` to the least margins in any sampled model, if
                constraints must hold in them, too.
        """
