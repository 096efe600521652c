"""The world that a learner plans in: what the model believes, seen with more or less optimism."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import Action, Key, Scalar, State
from ..errors import UserError
from ..flow.flow import Flow
from ..models.base import AbstractModel
from ..planning.hallucinate import (
    HallucinatedMotion,
    JointReward,
    hallucinated,
    within_reach,
)
from ..problem import Motion, Problem, Reward
from ..space.measure import MeanField, mean_field_at
from .believed import BelievedReward, DrawnReward

OPTIMISM = ("hallucinated", "shared", "bonus", "thompson", "greedy")

DRAWN_REWARD = 1
"""Tells the randomness of a drawn reward apart from that of the drawn motion."""


class MeanMotion(eqx.Module):
    """The model's mean, cut to the farthest move that the problem allows."""

    model: AbstractModel
    max_move: tuple[float, ...] = eqx.field(static=True)

    def __call__(self, state: State, action: Action, mu: MeanField) -> State:
        """Where an agent is expected to aim."""
        return within_reach(state, self.model.predict(state, action, mu).mean, self.max_move)


class DrawnMotion(eqx.Module):
    """One motion out of those that the model holds for possible, for Thompson sampling."""

    model: AbstractModel
    key: Key
    max_move: tuple[float, ...] = eqx.field(static=True)

    def __call__(self, state: State, action: Action, mu: MeanField) -> State:
        """Where an agent aims in the drawn world."""
        return within_reach(state, self.model.draw(self.key)(state, action, mu), self.max_move)


class BonusReward(eqx.Module):
    """The reward and a bonus for going where the model is unsure.

    Attributes:
        reward: The problem's reward, or the believed one.
        model: The fitted model.
        weight: Bonus for an uncertainty as large as the farthest move, on all axes.
        max_move: The farthest move on each axis.
    """

    reward: Reward
    model: AbstractModel
    weight: Scalar
    max_move: tuple[float, ...] = eqx.field(static=True)

    def __call__(self, state: State, action: Action, mu: MeanField) -> Scalar:
        """r(s, a, mu) + weight * |beta sigma(s, a, mu)|, in units of the farthest move."""
        found = self.model.predict(state, action, mu)
        unsure = found.epistemic / jnp.asarray(self.max_move, dtype=state.dtype)
        beta = self.model.beta.astype(state.dtype)
        bonus = self.weight.astype(state.dtype) * beta * jnp.mean(unsure)
        return self.reward(state, action, mu) + bonus


class Imagination(eqx.Module):
    """How the learner turns a model into a problem, a flow and a motion to plan with.

    Attributes:
        kind: ``"hallucinated"`` lets a control of its own pick the motion inside the band,
            ``"shared"`` does so with a network that action and control share; ``"bonus"`` pays
            for uncertainty, ``"thompson"`` plans in a world drawn from the model, ``"greedy"``
            in the expected one.
        problem: The true problem.
        flow: The flow of the problem to plan in; with hallucinated control its actions are
            ``(a, eta)``.
        optimism: Factor on the model's beta, or the bonus's weight.
        estimate_noise: Whether the imagined noise is the model's estimate instead of the
            problem's. The problem's noise then only bounds it from above.
        reward_model: The model of the reward, where the problem hides it: plans are then for the
            upper edge of its band; for a drawn reward with ``"thompson"``, and for the mean with
            ``"greedy"``.
    """

    kind: str = eqx.field(static=True)
    problem: Problem
    flow: Flow
    optimism: Scalar
    estimate_noise: bool = eqx.field(static=True)
    reward_model: AbstractModel | None

    def __init__(
        self,
        problem: Problem,
        kind: str = "hallucinated",
        *,
        optimism: float = 1.0,
        estimate_noise: bool = False,
    ):
        """Prepares the flow."""
        if kind not in OPTIMISM:
            raise UserError(f"optimism must be one of {OPTIMISM}, got {kind!r}")
        if not optimism >= 0:
            raise UserError(f"the scale of optimism must be 0 or more, got {optimism}")
        self.kind = kind
        self.problem = problem
        self.flow = Flow(hallucinated(problem) if kind in ("hallucinated", "shared") else problem)
        self.optimism = jnp.asarray(optimism, dtype=problem.initial.dtype)
        self.estimate_noise = estimate_noise
        self.reward_model = None

    @property
    def controls(self) -> int:
        """Number of axes of eta; zero without hallucinated control."""
        return self.flow.problem.actions.dim - self.problem.actions.dim

    def with_reward(self, reward_model: AbstractModel | None) -> "Imagination":
        """The same with a model of the hidden reward; may be compiled and lifted."""
        changed: Imagination = eqx.tree_at(
            lambda i: i.reward_model,
            self,
            reward_model,
            is_leaf=lambda x: x is None or isinstance(x, AbstractModel),
        )
        return changed

    def world(self, model: AbstractModel, key: Key) -> tuple[Flow, Motion]:
        """The flow and the motion to plan with; may be compiled and lifted."""
        far = self.problem.max_move
        flow = self.flow
        if self.estimate_noise:
            flow = eqx.tree_at(lambda f: f.noise_std, flow, self._noise(model))
        motion: Motion
        if self.controls:
            motion = HallucinatedMotion(model, self.optimism, far, self.problem.actions.dim)
        elif self.kind == "thompson":
            motion = DrawnMotion(model, key, far)
        else:
            motion = MeanMotion(model, far)
        reward = self._reward(key)
        if self.kind == "bonus":
            reward = BonusReward(reward, model, self.optimism, far)
        if reward is not self.problem.reward:
            paid = JointReward(reward, self.problem.actions.dim) if self.controls else reward
            flow = eqx.tree_at(lambda f: f.problem, flow, flow.problem.with_reward(paid))
        return flow, motion

    def _reward(self, key: Key) -> Reward:
        """The problem's reward; where that is hidden, what is believed of it."""
        model = self.reward_model
        if model is None:
            return self.problem.reward
        if self.kind == "thompson":
            return DrawnReward(model, jax.random.fold_in(key, DRAWN_REWARD))
        scale = jnp.zeros_like(self.optimism) if self.kind == "greedy" else self.optimism
        return BelievedReward(model, scale)

    def _noise(self, model: AbstractModel) -> Float[Array, "dim"]:
        """The model's noise, averaged over the space and the actions."""
        problem = self.problem
        grid = problem.grid
        tried = problem.actions.points(3).astype(problem.initial.dtype)
        centres = jnp.asarray(grid.centres, dtype=problem.initial.dtype)

        def one(state: State, action: Action) -> Array:
            mu = mean_field_at(grid, problem.initial, state)
            return model.predict(state, action, mu).aleatoric

        found = jax.vmap(lambda s: jax.vmap(lambda a: one(s, a))(tried))(centres)
        # Windows of the flow were cut for the problem's noise.
        return jnp.minimum(jnp.mean(found, axis=(0, 1)), self.flow.noise_std)
