"""Functions of one agent: the motion and the reward."""

import math
from collections.abc import Callable
from typing import NoReturn

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._types import Action, Scalar, State, Target
from .errors import UserError
from .space.measure import MeanField

Motion = Callable[[State, Action, MeanField], Target]
"""The law of motion f(s, a, mu) of one agent (eq. transitionDynamics), without noise.

It may depend on the time of day: ``mu.step`` is the number of the step. On `Nodes` it returns the
probabilities of successors instead.
"""

Motions = Callable[[State, Action, MeanField], Float[Array, "motions outputs"]]
"""Several motions, or rewards, of one agent."""

Reward = Callable[[State, Action, MeanField], Scalar]
"""The reward r(s, a, mu) of one agent; it may depend on ``mu.step``, too."""


class HiddenReward(eqx.Module):
    """Stands in for a reward that only the true system knows; calling it raises an error."""

    def __call__(self, state: State, action: Action, mu: MeanField) -> NoReturn:
        """Raises."""
        raise UserError(
            "the reward is hidden: it is known to the true system alone; learn it with M3UCRL, "
            "or, where the system is simulated, take the flow of system.reveal(), which has it"
        )


class AbstractLifted(eqx.Module):
    """A motion of the library, a function of states and actions on every space."""


class Discounted(eqx.Module):
    """A reward times the discount to the power of the step."""

    reward: Reward
    discount: float = eqx.field(static=True)

    def __call__(self, state: State, action: Action, mu: MeanField) -> Scalar:
        """The discounted reward."""
        paid = jnp.asarray(self.reward(state, action, mu))
        return paid * jnp.asarray(self.discount, mu.mass.dtype) ** mu.step


def long_enough(discount: float, share: float = 1e-3) -> int:
    """The horizon H after which less than a share of the discounted reward is left: g^H < share."""
    if discount == 1:
        raise UserError("without a horizon the discount must be below 1; give discount=0.95")
    return max(1, math.ceil(math.log(share) / math.log(discount))) if discount > 0 else 1


def within_reach(state: Array, end: Array, max_move: tuple[float, ...]) -> Array:
    """Where an agent aims, cut to the farthest move on each axis; on nodes, to probabilities."""
    if not max_move:  # on nodes
        positive = jnp.maximum(end, 0.0)
        return positive / jnp.sum(positive)
    farthest = jnp.asarray(max_move, dtype=state.dtype)
    return state + jnp.clip(end - state, -farthest, farthest)
