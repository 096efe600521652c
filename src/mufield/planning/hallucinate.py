"""Optimism by hallucinated control (App. "Hallucinated Control Implementation").

The choice of a motion inside the confidence band becomes one more control: agents choose
``(a, eta)`` with eta in [-1, 1]^p, and move by

    f~(z) = m(z) + beta sigma(z) eta    (eq. HallucinatedTransitionFunction).

Seen so, the optimistic problem is a problem like any other, and every planner serves it.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._types import Action, Scalar, State
from ..models.base import AbstractModel
from ..problem import Box, Problem, Reward
from ..space.measure import MeanField


class JointReward(eqx.Module):
    """The reward as a function of joint moves: eta costs nothing."""

    reward: Reward
    action_dim: int = eqx.field(static=True)

    def __call__(self, state: State, joint: Action, mu: MeanField) -> Scalar:
        """r(s, a, mu) for a joint move (a, eta)."""
        return self.reward(state, joint[: self.action_dim], mu)


class HallucinatedMotion(eqx.Module):
    """m(z) + beta sigma(z) eta, cut to the farthest move that the problem allows.

    Attributes:
        model: The fitted model.
        scale: Factor on the model's own beta; zero plans with the mean.
        max_move: The farthest move on each axis: a motion beyond it is known to be impossible.
        action_dim: Number of action axes; what follows them in a joint move is eta.
    """

    model: AbstractModel
    scale: Scalar
    max_move: tuple[float, ...] = eqx.field(static=True)
    action_dim: int = eqx.field(static=True)

    def __call__(self, state: State, joint: Action, mu: MeanField) -> State:
        """Where an agent aims with a joint move (a, eta)."""
        action, eta = joint[: self.action_dim], joint[self.action_dim :]
        found = self.model.predict(state, action, mu)
        beta = (self.scale * self.model.beta).astype(state.dtype)
        return within_reach(state, found.mean + beta * found.epistemic * eta, self.max_move)


def within_reach(state: State, end: State, max_move: tuple[float, ...]) -> State:
    """Where an agent aims, cut to the farthest move on each axis."""
    farthest = jnp.asarray(max_move, dtype=state.dtype)
    return state + jnp.clip(end - state, -farthest, farthest)


def hallucinated(problem: Problem) -> Problem:
    """The problem whose actions are joint moves ``(a, eta)``."""
    actions, dim = problem.actions, problem.grid.dim
    return Problem(
        grid=problem.grid,
        actions=actions.product(Box(-1.0, 1.0, dim)),
        reward=None if problem.hides_reward else JointReward(problem.reward, actions.dim),
        horizon=problem.horizon,
        initial=problem.initial,
        noise=problem.noise,
        max_move=problem.max_move,
        pay_end=problem.pay_end,
        reward_noise=problem.reward_noise,
    )


def control_points(dim: int, points: int) -> Float[Array, "controls dim"]:
    """A regular set of eta with ``points`` on each axis; one point is zero alone."""
    return Box(-1.0, 1.0, dim).points(points)


def joint_moves(
    actions: Float[Array, "moves action_dim"], controls: Float[Array, "controls dim"]
) -> Float[Array, "joint joint_dim"]:
    """All pairs of an action and an eta; the etas of one action follow each other."""
    many, few = np.asarray(actions), np.asarray(controls)
    left = np.repeat(many, len(few), axis=0)
    right = np.tile(few, (len(many), 1))
    return jnp.asarray(np.concatenate([left, right], axis=1))
