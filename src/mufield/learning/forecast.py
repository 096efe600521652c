"""What a policy earns under the models that a learner holds possible: the mean, and draws."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from jaxtyping import Key as KeyArray

from .._types import Action, Key, Scalar, State
from ..flow.flow import Flow
from ..flow.motion_table import tabulated
from ..flow.moves import MoveFlow
from ..models.base import AbstractModel
from ..policies.base import Profile
from ..policies.tables import TablePolicy
from ..problem import Motion, Problem, Reward
from ..space.measure import MeanField
from .optimism import AbstractOptimism, BonusReward, Greedy, RelativeWidth, Thompson


class BestPlan(eqx.Module):
    """The plan that the data make best.

    Attributes:
        profile: The policy to use.
        expected: J under the mean of the model, and under the mean of a hidden reward; what the
            policy earned, if that is why a cautious choice fell on it.
        lower: Lower end of the interval for J. It lies around `expected`; its half-width is the
            greatest difference to J under any of the drawn models.
        upper: Its upper end.
        draws: Number of drawn models n. If the truth were one more draw, J would lie outside with
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


class Forecast(eqx.Module):
    """What a policy earns under the mean model and under drawn ones.

    Attributes:
        problem: The true problem.
        flow: Its flow; if the reward is hidden, that of the model is put in.
        model: The model of the motion.
        reward_model: The model of the reward, if that is hidden.
        keys: Randomness of the drawn models, one key for each.
    """

    problem: Problem
    flow: Flow
    model: AbstractModel
    reward_model: AbstractModel | None
    keys: KeyArray[Array, "draws"]

    def judge(self, profile: Profile, how: str, *, interval: bool = True) -> BestPlan:
        """What can be expected of a policy; without ``interval``, that has no width."""
        moves = _shared_moves(profile)
        expected, width = float(_expected(self, Greedy(), profile, moves)), 0.0
        if interval:
            width = float(jnp.max(jnp.abs(_gains(self, profile, moves))))
        ends = (expected, expected - width, expected + width)
        return BestPlan(profile, *ends, draws=self.keys.shape[0], how=how)

    def known(self, profile: Profile, earned: float, how: str) -> BestPlan:
        """A policy whose J is known, because it was run."""
        return BestPlan(profile, earned, earned, earned, self.keys.shape[0], how)

    def penalty(self, plan: BestPlan) -> Scalar:
        """The weight at which a plan's uncertainty penalty equals its interval's half-width."""
        unsure = _expected(self, _Uncertainty(), plan.profile, _shared_moves(plan.profile))
        return (plan.expected - plan.lower) / jnp.maximum(unsure, 1e-12)


class UncertaintyPenalty(Greedy):
    """The mean motion, with a penalty on epistemic uncertainty.

    Attributes:
        weight: Penalty where beta sigma equals the farthest move on all axes.
    """

    weight: Scalar

    def reward(
        self, problem: Problem, model: AbstractModel, reward_model: AbstractModel | None, key: Key
    ) -> Reward:
        """The reward minus the penalty."""
        paid = super().reward(problem, model, reward_model, key)
        # Planners ask in every sweep for all cells and moves, and a model's deviation is costly.
        width = tabulated(problem, RelativeWidth(model, problem.max_move), problem.actions)
        return BonusReward(paid, width, -self.weight)


class _Uncertainty(Greedy):
    """Only the uncertainty is paid."""

    def reward(
        self, problem: Problem, model: AbstractModel, reward_model: AbstractModel | None, key: Key
    ) -> Reward:
        return BonusReward(_nothing, RelativeWidth(model, problem.max_move), 1.0)


def _nothing(state: State, action: Action, mu: MeanField) -> Scalar:
    return jnp.zeros((), dtype=state.dtype)


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


def _value(
    flow: Flow, motion: Motion, profile: Profile, moves: Float[Array, "moves dim"] | None
) -> Scalar:
    """J of a policy."""
    problem = flow.problem
    if moves is None:
        return flow.rollout(profile, motion).value
    policy = profile.join(profile.per_step)
    assert isinstance(policy, TablePolicy)
    shape = (profile.horizon, problem.grid.n_cells, len(moves))
    weights = jnp.broadcast_to(jnp.ones(()) if len(moves) == 1 else policy.weights, shape)
    return MoveFlow(flow, motion, moves, interpolate=False).rollout(weights).value


@eqx.filter_jit
def _expected(
    forecast: Forecast, optimism: AbstractOptimism, profile: Profile, moves: Array | None
) -> Scalar:
    arguments = (forecast.problem, forecast.flow, forecast.model, forecast.reward_model)
    flow, motion = optimism.imagine(*arguments, forecast.keys[0])  # nothing is drawn
    return _value(flow, motion, profile, moves)


@eqx.filter_jit
def _gains(forecast: Forecast, profile: Profile, moves: Array | None) -> Float[Array, "draws"]:
    """How much more the policy earns under each drawn model than under the mean.

    Models that see the own cell's mass are asked at a few masses only.
    """
    arguments = (forecast.problem, forecast.flow, forecast.model, forecast.reward_model)
    listed = forecast.problem.actions if moves is None else moves

    def value(optimism: AbstractOptimism, key: Key) -> Scalar:
        flow, motion = optimism.imagine(*arguments, key)
        return _value(flow, tabulated(flow.problem, motion, listed), profile, moves)

    values: Array = jax.lax.map(lambda key: value(Thompson(widened=True), key), forecast.keys)
    return values - value(Greedy(), forecast.keys[0])
