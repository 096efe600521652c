"""The world that a learner plans in: what the model believes, seen with more or less optimism."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import Action, Key, Scalar, State
from ..flow.objective import Flow
from ..models.base import AbstractModel
from ..planning.hallucinate import HallucinatedMotion, hallucinated, within_reach
from ..policies.randomised import spread_actions
from ..problem import Box, Motion, Problem, Reward
from ..space.measure import MeanField, seen_from

OPTIMISM = ("hallucinated", "shared", "bonus", "thompson", "greedy")


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
        reward: The problem's reward.
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
    """

    kind: str = eqx.field(static=True)
    problem: Problem
    flow: Flow
    optimism: Scalar
    estimate_noise: bool = eqx.field(static=True)

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
            raise ValueError(f"optimism must be one of {OPTIMISM}, got {kind!r}")
        if not optimism >= 0:
            raise ValueError(f"the scale of optimism must be 0 or more, got {optimism}")
        self.kind = kind
        self.problem = problem
        self.flow = Flow(hallucinated(problem) if kind in ("hallucinated", "shared") else problem)
        self.optimism = jnp.asarray(optimism, dtype=problem.initial.dtype)
        self.estimate_noise = estimate_noise

    @property
    def controls(self) -> int:
        """Number of axes of eta; zero without hallucinated control."""
        return self.flow.problem.actions.dim - self.problem.actions.dim

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
        if self.kind == "bonus":
            paid = BonusReward(self.problem.reward, model, self.optimism, far)
            flow = eqx.tree_at(lambda f: f.problem.reward, flow, paid)
        return flow, motion

    def _noise(self, model: AbstractModel) -> Float[Array, "dim"]:
        """The model's noise, averaged over the space and the actions."""
        problem = self.problem
        grid, actions = problem.grid, problem.actions
        if isinstance(actions, Box):
            tried = spread_actions(actions.lower, actions.upper, 3, border=True)
        else:
            tried = actions.moves
        tried = tried.astype(problem.initial.dtype)
        centres = jnp.asarray(grid.centres, dtype=problem.initial.dtype)

        def one(state: State, action: Action) -> Array:
            mu = seen_from(grid, problem.initial, state)
            return model.predict(state, action, mu).aleatoric

        found = jax.vmap(lambda s: jax.vmap(lambda a: one(s, a))(tried))(centres)
        # Windows of the flow were cut for the problem's noise.
        return jnp.minimum(jnp.mean(found, axis=(0, 1)), self.flow.noise_std)
