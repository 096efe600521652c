"""How a learner turns what its models believe into a problem to plan in.

With hallucinated control (App. "Hallucinated Control Implementation") the choice of a motion
inside the confidence band becomes one more control: agents choose ``(a, eta)`` with eta in
[-1, 1]^p, and move by

    f~(z) = m(z) + beta sigma(z) eta    (eq. HallucinatedTransitionFunction).

This is a problem like any other, which every planner can solve. A hidden reward is modelled as the
motion is (the paper's footnote on unknown rewards). Optimism about it needs no control: J grows
with the reward, so the best reward inside the band is always its upper edge.
"""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import Action, Key, Scalar, State
from ..actions import Box
from ..errors import UserError
from ..flow.flow import Flow
from ..models.base import AbstractModel, Prediction
from ..problem import AbstractJointMotion, Motion, Problem, Reward
from ..space.measure import MeanField


class AbstractOptimism(eqx.Module):
    """How a learner turns fitted models into a problem and a motion to plan with."""

    def joint(self, problem: Problem) -> Problem:
        """The problem with the actions that planning uses: agents' own, or ``(a, eta)``."""
        return problem

    def joint_reward(self, problem: Problem, reward: Reward) -> Reward:
        """A reward as a function of the actions of the `joint` problem."""
        return reward

    @abstractmethod
    def motion(self, problem: Problem, model: AbstractModel, key: Key) -> Motion:
        """The motion to plan with; arguments as of `imagine`."""

    @abstractmethod
    def hidden_reward(self, model: AbstractModel, key: Key) -> Reward:
        """The reward to plan with if the problem hides it; ``model`` is the reward's."""

    def reward(
        self, problem: Problem, model: AbstractModel, reward_model: AbstractModel | None, key: Key
    ) -> Reward:
        """The reward to plan with; arguments as of `imagine`."""
        if reward_model is None:
            return problem.reward
        return self.hidden_reward(reward_model, jax.random.fold_in(key, 1))

    def imagine(
        self,
        problem: Problem,
        flow: Flow,
        model: AbstractModel,
        reward_model: AbstractModel | None,
        key: Key,
    ) -> tuple[Flow, Motion]:
        """The flow and the motion to plan with; may be compiled.

        Args:
            problem: The true problem.
            flow: The flow of its `joint` problem.
            model: The model of its motion.
            reward_model: The model of its reward, if that is hidden.
            key: Randomness.
        """
        reward = self.reward(problem, model, reward_model, key)
        believed = flow.problem.with_reward(self.joint_reward(problem, reward))
        return flow.of_problem(believed), self.motion(problem, model, key)


class Hallucinated(AbstractOptimism):
    """A control of its own, eta, picks the best motion inside the confidence band.

    Attributes:
        scale: Share that is used of the motion's band and of a hidden reward's. None: of the
            motion's, the share of the epistemic variance that one more observation removes,
            sigma^2 / (sigma^2 + noise^2). Agents explore where an observation is informative, and
            follow the mean where the epistemic variance is small compared with the noise
            (`benchmarks/motions.py`).
    """

    scale: float | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        if self.scale is not None:
            _check_size("scale", self.scale)

    def joint(self, problem: Problem) -> Problem:
        """The problem whose actions are joint ones, ``(a, eta)``; eta costs nothing."""
        # For a finite set of moves only eta = 0 is listed here; planners add other values.
        actions = problem.actions.product(Box(-1.0, 1.0, dim=problem.grid.dim), 1)
        joint: Problem = eqx.tree_at(
            lambda p: (p.actions, p.reward),
            problem,
            (actions, self.joint_reward(problem, problem.reward)),
            is_leaf=lambda x: x is problem.actions or x is problem.reward,
        )
        return joint

    def joint_reward(self, problem: Problem, reward: Reward) -> Reward:
        """The reward of ``(a, eta)``, whatever eta is."""
        return _JointReward(reward, problem.actions.dim)

    def motion(self, problem: Problem, model: AbstractModel, key: Key) -> Motion:
        """The motion m(z) + share(z) beta sigma(z) eta."""
        return HallucinatedMotion(
            model=model,
            scale=self.scale,
            max_move=problem.max_move,
            action_dim=problem.actions.dim,
        )

    def hidden_reward(self, model: AbstractModel, key: Key) -> Reward:
        """The upper edge of the band."""
        return _ModelReward(model, 2 / 3 if self.scale is None else self.scale)


class Bonus(AbstractOptimism):
    """The expected motion, and a bonus for going where the model is unsure.

    Attributes:
        weight: Bonus where beta sigma equals the farthest move on all axes; also the share that is
            used of a hidden reward's band.
    """

    weight: float = eqx.field(static=True, default=2 / 3)

    def __check_init__(self) -> None:
        _check_size("weight", self.weight)

    def motion(self, problem: Problem, model: AbstractModel, key: Key) -> Motion:
        """The mean."""
        return MeanMotion(model, problem.max_move)

    def hidden_reward(self, model: AbstractModel, key: Key) -> Reward:
        """The upper edge of the band."""
        return _ModelReward(model, self.weight)

    def reward(
        self, problem: Problem, model: AbstractModel, reward_model: AbstractModel | None, key: Key
    ) -> Reward:
        """The reward plus the bonus."""
        paid = super().reward(problem, model, reward_model, key)
        return BonusReward(paid, RelativeWidth(model, problem.max_move), self.weight)


class Thompson(AbstractOptimism):
    """One motion, and one hidden reward, drawn from what the models believe.

    Attributes:
        widened: Whether draws are farther from the mean by `draw_width`.
    """

    widened: bool = eqx.field(static=True, default=False)

    def motion(self, problem: Problem, model: AbstractModel, key: Key) -> Motion:
        """The drawn motion."""
        return _SampledMotion(_Sample(model, key, self.widened), problem.max_move)

    def hidden_reward(self, model: AbstractModel, key: Key) -> Reward:
        """The drawn reward."""
        return _SampledReward(_Sample(model, key, self.widened))


class Greedy(AbstractOptimism):
    """No optimism: the expected motion and the expected reward."""

    def motion(self, problem: Problem, model: AbstractModel, key: Key) -> Motion:
        """The mean."""
        return MeanMotion(model, problem.max_move)

    def hidden_reward(self, model: AbstractModel, key: Key) -> Reward:
        """The mean."""
        return _ModelReward(model, 0.0)


class HallucinatedMotion(AbstractJointMotion):
    """m(z) + share(z) beta sigma(z) eta for a joint action ``(a, eta)``.

    Attributes:
        model: The fitted model.
        scale: The share; None for that which one move would teach.
        max_move: The farthest move on each axis, to which motions are cut.
        action_dim: Number of action axes; what follows them in a joint action is eta.
    """

    model: AbstractModel
    scale: float | None = eqx.field(static=True)
    max_move: tuple[float, ...] = eqx.field(static=True)
    action_dim: int = eqx.field(static=True)

    def believe(self, state: State, action: Action, mu: MeanField) -> Prediction:
        """The model's prediction."""
        return self.model.predict(state, action, mu)

    def steer(self, state: State, belief: Prediction, eta: Float[Array, "dim"]) -> State:
        """Where an agent aims: the point of the band that eta picks."""
        share = variance_reduction(belief) if self.scale is None else self.scale
        half = share * self.model.beta_as(state.dtype) * belief.epistemic
        return within_reach(state, belief.mean + half * eta, self.max_move)


def variance_reduction(found: Prediction) -> Float[Array, "outputs"]:
    """Share of the epistemic variance that one observation removes."""
    variance = found.epistemic**2
    return variance / (variance + found.aleatoric**2 + jnp.finfo(variance.dtype).tiny)


class MeanMotion(eqx.Module):
    """The model's mean, cut to the farthest move."""

    model: AbstractModel
    max_move: tuple[float, ...] = eqx.field(static=True)

    def __call__(self, state: State, action: Action, mu: MeanField) -> State:
        """Where an agent is expected to aim."""
        return within_reach(state, self.model.predict(state, action, mu).mean, self.max_move)


class _Sample(eqx.Module):
    """A draw from the model; the key makes it the same at every call."""

    model: AbstractModel
    key: Key
    widened: bool = eqx.field(static=True)

    def __call__(self, state: State, action: Action, mu: MeanField) -> Array:
        found = jnp.asarray(self.model.draw(self.key)(state, action, mu))
        if not self.widened:
            return found
        mean = self.model.predict(state, action, mu).mean
        return mean + draw_width(self.model).astype(mean.dtype) * (found - mean)


def draw_width(model: AbstractModel) -> Scalar:
    """Factor on the distance of draws from the mean.

    2.5 deviations hold 99% of a normal distribution. A model with a larger beta says that its
    deviations are too small.
    """
    return jnp.maximum(1.0, model.beta_as(float) / 2.5)


class _SampledMotion(eqx.Module):
    sample: _Sample
    max_move: tuple[float, ...] = eqx.field(static=True)

    def __call__(self, state: State, action: Action, mu: MeanField) -> State:
        return within_reach(state, self.sample(state, action, mu), self.max_move)


class _JointReward(eqx.Module):
    """A reward as a function of joint actions ``(a, eta)``: eta costs nothing."""

    reward: Reward
    action_dim: int = eqx.field(static=True)

    def __call__(self, state: State, joint: Action, mu: MeanField) -> Scalar:
        return self.reward(state, joint[: self.action_dim], mu)


class RelativeWidth(eqx.Module):
    """Width of the confidence band by the farthest move, beta sigma(s, a, mu) / max_move."""

    model: AbstractModel
    max_move: tuple[float, ...] = eqx.field(static=True)

    def __call__(self, state: State, action: Action, mu: MeanField) -> Float[Array, "dim"]:
        """One number for each axis."""
        far = jnp.asarray(self.max_move, dtype=state.dtype)
        width = self.model.predict(state, action, mu).epistemic / far
        return self.model.beta_as(state.dtype) * width


class BonusReward(eqx.Module):
    """A reward and a bonus: r(s, a, mu) + weight times the mean relative width of the band."""

    reward: Reward
    width: Motion
    weight: float | Scalar

    def __call__(self, state: State, action: Action, mu: MeanField) -> Scalar:
        """The sum."""
        width = jnp.mean(self.width(state, action, mu))
        weight = jnp.asarray(self.weight, dtype=width.dtype)
        return self.reward(state, action, mu) + weight * width


class _ModelReward(eqx.Module):
    """m(z) + scale beta sigma(z) by the model of a hidden reward; with scale 0 its mean."""

    model: AbstractModel
    scale: float = eqx.field(static=True)

    def __call__(self, state: State, action: Action, mu: MeanField) -> Scalar:
        found = self.model.predict(state, action, mu)
        beta = self.scale * self.model.beta_as(state.dtype)
        return (found.mean + beta * found.epistemic)[0]


class _SampledReward(eqx.Module):
    sample: _Sample

    def __call__(self, state: State, action: Action, mu: MeanField) -> Scalar:
        return self.sample(state, action, mu)[0]


def within_reach(state: State, end: State, max_move: tuple[float, ...]) -> State:
    """Where an agent aims, cut to the farthest move on each axis."""
    farthest = jnp.asarray(max_move, dtype=state.dtype)
    return state + jnp.clip(end - state, -farthest, farthest)


def _check_size(name: str, size: float) -> None:
    if not size >= 0:
        raise UserError(f"the {name} of optimism must be 0 or more, got {size}")
