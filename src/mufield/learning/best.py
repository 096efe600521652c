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

from .._types import Action, Key, Mass, Masses, Scalar, State
from ..flow.flow import Flow, Rollout
from ..flow.kernels import displacements
from ..flow.moves import MoveFlow, Weights
from ..flow.sight import depends_on_mu
from ..models.base import AbstractModel
from ..planning.tabulated import tabulated
from ..policies.base import ActionLaw, Profile
from ..policies.tables import TablePolicy
from ..problem import Box, Motion, Problem, Reward
from ..space.measure import MeanField
from .optimism import AbstractOptimism, Greedy, within_reach

DRAWS = 19
"""Worlds that an interval is made from by default; then it is one of 95%."""

BAND = 2.5
"""Deviations that hold 99% of a normal distribution. A model whose beta is larger says that its own
are too small, and draws are as much farther from the mean."""


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
            width = float(jnp.max(jnp.abs(_gains(self, *parts))))
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
        doubt: Motion = _AxisDoubt(model, problem.max_move)
        if isinstance(problem.actions, Box):
            # Planners ask in every sweep for all cells and moves, and a model's doubt is costly.
            doubt = tabulated(problem, doubt, problem.actions)
        return _PricedReward(paid, _DoubtReward(doubt), self.price)


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
        return _DoubtReward(_AxisDoubt(model, problem.max_move))


class _DoubtReward(eqx.Module):
    """The doubt, averaged over the axes."""

    doubt: Motion

    def __call__(self, state: State, action: Action, mu: MeanField) -> Scalar:
        return jnp.mean(self.doubt(state, action, mu))


class _AxisDoubt(eqx.Module):
    """beta sigma(s, a, mu) by the farthest move, on each axis."""

    model: AbstractModel
    max_move: tuple[float, ...] = eqx.field(static=True)

    def __call__(self, state: State, action: Action, mu: MeanField) -> State:
        unsure = self.model.predict(state, action, mu).epistemic
        far = jnp.asarray(self.max_move, dtype=state.dtype)
        return self.model.beta.astype(state.dtype) * unsure / far


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
        end = drawn_end(self.model, self.key, state, action, mu)
        return within_reach(state, end, self.max_move)


class _DrawnReward(eqx.Module):
    model: AbstractModel
    key: Key

    def __call__(self, state: State, action: Action, mu: MeanField) -> Scalar:
        return drawn_end(self.model, self.key, state, action, mu)[0]


def drawn_end(
    model: AbstractModel,
    key: Key,
    state: State,
    action: Action,
    mu: MeanField,
) -> Array:
    """Where an agent aims, or what it earns, by a draw; farther from the mean if beta is large."""
    mean = model.predict(state, action, mu).mean
    apart = jnp.asarray(model.draw(key)(state, action, mu)) - mean
    return jnp.asarray(mean + wideness(model).astype(mean.dtype) * apart)


def wideness(model: AbstractModel) -> Scalar:
    """Factor on the distance of draws from the mean."""
    return jnp.maximum(1.0, model.beta / BAND)


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


def _rollout(flow: Flow, motion: Motion, profile: Profile, moves: Any) -> Rollout:
    if moves is None:
        return flow.rollout(profile, motion)
    return MoveFlow(flow, motion, moves).rollout(_weights(profile, flow, moves.shape[0]))


def _weights(profile: Profile, flow: Flow, moves: int) -> Weights:
    policy = profile.join(profile.per_step)
    assert isinstance(policy, TablePolicy)
    shape = (profile.horizon, flow.problem.grid.n_cells, moves)
    return jnp.broadcast_to(jnp.ones(()) if moves == 1 else policy.weights, shape)


@eqx.filter_jit
def _expected(outlook: Outlook, world: AbstractOptimism, profile: Profile, moves: Any) -> Scalar:
    key = outlook.keys[0]  # not used: nothing is drawn
    flow, motion = world.imagine(
        outlook.problem, outlook.flow, outlook.model, outlook.reward_model, key
    )
    return _rollout(flow, motion, profile, moves).value


@eqx.filter_jit
def _gains(outlook: Outlook, profile: Profile, moves: Any) -> Float[Array, "draws"]:
    """How much more the policy earns in each drawn world than in the mean."""
    arguments = (outlook.problem, outlook.flow, outlook.model, outlook.reward_model)
    flow, mean = Greedy().imagine(*arguments, outlook.keys[0])
    whole = _rollout(flow, mean, profile, moves)
    aims = None
    if moves is not None and depends_on_mu(outlook.problem, mean):
        aims = _Aims.along(flow, mean, moves, whole.mass)

    def one(key: Key) -> Scalar:
        world, motion = _Drawn().imagine(*arguments, key)
        if aims is None:
            return _rollout(world, motion, profile, moves).value
        return aims.value(world, motion, profile)

    values: Array = jax.lax.map(one, outlook.keys)
    return values - whole.value


class _Aims(eqx.Module):
    """Where moves lead in the mean, at all steps, for motions that look at mu.

    In a drawn world such a motion would have to be evaluated anew for every step and move. Instead
    it sees the mean's population, and differs from the mean as it does at the average of that. In
    crowds that all begin in one cell intervals come out up to a fifth narrower.

    Attributes:
        actions: The moves, for each cell.
        average: The mean's population, averaged over the episode.
        there: Displacements in the mean, given that average.
        steps: Displacements in the mean at each step.
    """

    actions: Float[Array, "cells moves action_dim"]
    average: Mass
    there: Float[Array, "cells moves dim"]
    steps: Float[Array, "steps cells moves dim"]

    @classmethod
    def along(cls, flow: Flow, mean: Motion, moves: Array, mass: Masses) -> "_Aims":
        """Those along a flow of the mean."""
        actions = jnp.broadcast_to(moves, (flow.problem.grid.n_cells, *moves.shape))
        average = jnp.mean(mass, axis=0)
        inputs = (mass[:-1], flow.problem.steps)
        steps = jax.lax.map(lambda at: displacements(flow, mean, at[0], actions, 1, at[1]), inputs)
        return cls(actions, average, displacements(flow, mean, average, actions), steps)

    def value(self, flow: Flow, motion: Motion, profile: Profile) -> Scalar:
        """J in a drawn world."""
        apart = displacements(flow, motion, self.average, self.actions) - self.there
        far = jnp.asarray(flow.problem.max_move, dtype=apart.dtype)
        weights = _weights(profile, flow, self.actions.shape[1])

        def step(mass: Mass, inputs: tuple[Array, ...]) -> tuple[Mass, Scalar]:
            now, aims, number = inputs
            law = ActionLaw(self.actions, now)
            after = flow.carry(mass, mass, law, jnp.clip(aims + apart, -far, far), number)
            return after, flow.reward(mass, law, number)

        inputs = (weights, self.steps, flow.problem.steps)
        end, paid = jax.lax.scan(step, flow.problem.initial, inputs)
        return jnp.sum(paid) + (flow.end_reward(end) if flow.problem.pay_end else 0.0)
