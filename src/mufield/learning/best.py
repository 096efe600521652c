"""A policy to use, not to explore with: what a model expects of it, and how sure that is.

`M3UCRL.ask` plans in an optimistic world, to learn; `M3UCRL.best` plans in the world that the data
make most likely, and judges policies in worlds that are drawn from what the model believes.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from jaxtyping import Key as KeyArray

from .._types import Action, Key, Scalar, State
from ..flow.flow import Flow
from ..flow.moves import MoveFlow
from ..models.base import AbstractModel
from ..policies.base import Profile
from ..policies.tables import TablePolicy
from ..problem import Motion, Problem, Reward
from ..space.measure import MeanField
from .optimism import AbstractOptimism, Greedy, within_reach

DRAWS = 19
"""Worlds that an interval is made from by default; then it is one of 95%."""

BAND = 2.0
"""A model whose beta is larger knows that its deviations are too small, and draws are as much
farther from the mean."""


class BestPlan(eqx.Module):
    """The plan that the data make best.

    Attributes:
        profile: The policy to use.
        expected: J under the mean of the model, and under the mean of a hidden reward; what the
            policy earned, if that is why a cautious choice fell on it.
        lower: Lower end of the interval for J. It lies around `expected`; its half-width is the
            greatest difference to J in any of the drawn worlds.
        upper: Its upper end.
        draws: Number of drawn worlds n. If the truth were one more draw, J would lie outside with
            a probability of 1 / (n + 1).
        how: Which of the candidates it is, in words.
        transitions: Number of transitions that the model has seen.
    """

    profile: Profile
    expected: float
    lower: float
    upper: float
    draws: int
    how: str
    transitions: int = 0


class Outlook(eqx.Module):
    """What a policy earns in the worlds that a model believes in.

    Attributes:
        problem: The true problem.
        flow: Its flow; if the reward is hidden, that of the model is put in.
        model: The model of the motion.
        reward_model: The model of the reward, if that is hidden.
        keys: Randomness of the drawn worlds, one key for each.
    """

    problem: Problem
    flow: Flow
    model: AbstractModel
    reward_model: AbstractModel | None
    keys: KeyArray[Array, "draws"]

    def judge(self, profile: Profile, how: str, *, interval: bool = True) -> BestPlan:
        """What can be expected of a policy; without ``interval``, that has no width."""
        parts = (profile, _shared_moves(profile))
        expected, width = float(_expected(self, Greedy(), *parts)), 0.0
        if interval:
            width = float(np.max(np.abs(np.asarray(_drawn(self, *parts)) - expected)))
        return BestPlan(
            profile=profile,
            expected=expected,
            lower=expected - width,
            upper=expected + width,
            draws=self.keys.shape[0],
            how=how,
        )

    def known(self, profile: Profile, earned: float, how: str) -> BestPlan:
        """A policy whose J is known, because it was run."""
        return BestPlan(profile, earned, earned, earned, self.keys.shape[0], how)

    def price(self, plan: BestPlan) -> Scalar:
        """What a unit of doubt costs, if all doubt along the plan costs half of its interval."""
        doubt = _expected(self, _Doubt(), plan.profile, _shared_moves(plan.profile))
        return (plan.expected - plan.lower) / jnp.maximum(doubt, 1e-12)


class Shy(Greedy):
    """The expected motion, and a price for going where the model is unsure.

    Attributes:
        price: What is paid where beta sigma equals the farthest move on all axes.
    """

    price: Scalar

    def reward(
        self, problem: Problem, model: AbstractModel, reward_model: AbstractModel | None, key: Key
    ) -> Reward:
        """The reward minus the price."""
        paid = super().reward(problem, model, reward_model, key)
        return _PricedReward(paid, _DoubtReward(model, problem.max_move), self.price)


class _PricedReward(eqx.Module):
    reward: Reward
    doubt: Reward
    price: Scalar

    def __call__(self, state: State, action: Action, mu: MeanField) -> Scalar:
        doubt = jnp.asarray(self.doubt(state, action, mu))
        return self.reward(state, action, mu) - self.price.astype(doubt.dtype) * doubt


class _Doubt(Greedy):
    """Only the doubt is paid."""

    def reward(
        self, problem: Problem, model: AbstractModel, reward_model: AbstractModel | None, key: Key
    ) -> Reward:
        return _DoubtReward(model, problem.max_move)


class _DoubtReward(eqx.Module):
    """beta sigma(s, a, mu) by the farthest move, averaged over the axes."""

    model: AbstractModel
    max_move: tuple[float, ...] = eqx.field(static=True)

    def __call__(self, state: State, action: Action, mu: MeanField) -> Scalar:
        unsure = self.model.predict(state, action, mu).epistemic
        far = jnp.asarray(self.max_move, dtype=state.dtype)
        return self.model.beta.astype(state.dtype) * jnp.mean(unsure / far)


class _Drawn(AbstractOptimism):
    """A world drawn from what the models believe, farther from the mean if beta is above `BAND`."""

    def motion(self, problem: Problem, model: AbstractModel, key: Key) -> Motion:
        return _DrawnMotion(model, key, problem.max_move)

    def hidden_reward(self, model: AbstractModel, key: Key) -> Reward:
        return _DrawnReward(model, key)


class _DrawnMotion(eqx.Module):
    model: AbstractModel
    key: Key
    max_move: tuple[float, ...] = eqx.field(static=True)

    def __call__(self, state: State, action: Action, mu: MeanField) -> State:
        return within_reach(state, _draw(self.model, self.key, state, action, mu), self.max_move)


class _DrawnReward(eqx.Module):
    model: AbstractModel
    key: Key

    def __call__(self, state: State, action: Action, mu: MeanField) -> Scalar:
        return _draw(self.model, self.key, state, action, mu)[0]


def _draw(model: AbstractModel, key: Key, state: State, action: Action, mu: MeanField) -> Array:
    mean = model.predict(state, action, mu).mean
    apart = jnp.asarray(model.draw(key)(state, action, mu)) - mean
    wide = jnp.maximum(1.0, model.beta / BAND).astype(mean.dtype)
    return jnp.asarray(mean + wide * apart)


def _shared_moves(profile: Profile) -> Float[Array, "moves action_dim"] | None:
    """A policy's moves, if they are the same in all cells and at all steps.

    Then their kernel need be computed only once for all steps, which is many times faster.
    """
    policy = profile.join(profile.per_step)
    if not isinstance(policy, TablePolicy):
        return None
    moves = np.asarray(policy.actions).reshape(-1, *policy.actions.shape[-2:])
    alike = policy.actions.shape[-3] == 1 and bool((moves == moves[0]).all())
    return jnp.asarray(moves[0]) if alike else None


def _value(flow: Flow, motion: Motion, profile: Profile, moves: Any) -> Scalar:
    if moves is None:
        return flow.value(profile, motion)
    policy = profile.join(profile.per_step)
    assert isinstance(policy, TablePolicy)
    shape = (profile.horizon, flow.problem.grid.n_cells, moves.shape[0])
    weights = jnp.ones(shape[-1:]) if moves.shape[0] == 1 else policy.weights
    return MoveFlow(flow, motion, moves).rollout(jnp.broadcast_to(weights, shape)).value


@eqx.filter_jit
def _expected(outlook: Outlook, world: AbstractOptimism, profile: Profile, moves: Any) -> Scalar:
    key = outlook.keys[0]  # not used: nothing is drawn
    flow, motion = world.imagine(
        outlook.problem, outlook.flow, outlook.model, outlook.reward_model, key
    )
    return _value(flow, motion, profile, moves)


@eqx.filter_jit
def _drawn(outlook: Outlook, profile: Profile, moves: Any) -> Float[Array, "draws"]:
    def one(key: Key) -> Scalar:
        flow, motion = _Drawn().imagine(
            outlook.problem, outlook.flow, outlook.model, outlook.reward_model, key
        )
        return _value(flow, motion, profile, moves)

    values: Array = jax.lax.map(one, outlook.keys)
    return values
