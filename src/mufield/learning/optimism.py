"""How a learner turns fitted models into a problem and a motion to plan with.

With hallucinated control (App. "Hallucinated Control Implementation") the choice of a motion
inside the confidence band becomes one more control: agents choose ``(a, eta)`` with eta in
[-1, 1]^p, and move by

    f~(z) = m(z) + beta sigma(z) eta    (eq. HallucinatedTransitionFunction).

This is a problem like any other, which every planner can solve. A hidden reward is modelled as the
motion is (the paper's footnote on unknown rewards). Optimism about it needs no control: J grows
with the reward, so the best reward inside the band is always its upper edge.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._arrays import Action, Key, Scalar, State, Target
from ..actions import Box
from ..errors import number
from ..flow.flow import Flow
from ..flow.motions import AbstractJointMotion
from ..interfaces import AbstractLifted
from ..models.base import AbstractModel, Prediction
from ..problem import Motion, Problem, Reward
from ..space.grid import Grid
from ..space.measure import MeanField


class AbstractOptimism(eqx.Module):
    """How a learner turns fitted models into a problem and a motion to plan with.

    By default these are the models' means. An own optimism overrides `motion`; `hidden_reward`, if
    rewards may be hidden; `reward`, to change those that are known; and `joint`, if agents choose
    controls besides their actions: the motion then gets ``(a, eta)`` in one array, rewards get a
    alone. All but `joint` are compiled, so they must be pure functions, and motions must be cut to
    the farthest move (`Grid.cut`). A motion whose costly part does not depend on eta should
    be an `AbstractJointMotion`: planners then ask the model once for all controls of an action.
    """

    def joint(self, problem: Problem) -> Problem:
        """The problem with the actions that planning uses: agents' own, or ``(a, eta)``."""
        return problem

    def motion(self, problem: Problem, model: AbstractModel, key: Key) -> Motion:
        """The motion to plan with; arguments as of `imagine`."""
        return MeanMotion(model, problem.max_move)

    def hidden_reward(self, model: AbstractModel, key: Key) -> Reward:
        """The reward to plan with if the problem hides it; ``model`` is the reward's."""
        return _UpperBound(model, 0.0)

    def reward(
        self, problem: Problem, model: AbstractModel, reward_model: AbstractModel | None, key: Key
    ) -> Reward:
        """The reward of agents' own actions to plan with; arguments as of `imagine`."""
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

        ``flow`` is that of the `joint` problem, ``reward_model`` is given if the reward is hidden.
        """
        reward = self.reward(problem, model, reward_model, key)
        if flow.problem.actions.dim > problem.actions.dim:
            reward = _JointReward(reward, problem.actions.dim)
        imagined = flow.of_problem(flow.problem.replace(reward=reward))
        return imagined, self.motion(problem, model, key)


class Greedy(AbstractOptimism):
    """No optimism: the expected motion and the expected reward."""


class Hallucinated(AbstractOptimism):
    """A control of its own, eta, picks the best motion inside the confidence band.

    Attributes:
        scale: Share that is used of the motion's band and of a hidden reward's. None: of the
            motion's, the share of the epistemic variance that one more observation removes,
            sigma^2 / (sigma^2 + noise^2): agents explore where an observation is informative, and
            follow the mean where sigma is small beside the noise (`benchmarks/motions.py`); of a
            reward's, two thirds.
    """

    scale: float | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        number(self.scale or 0.0, "the scale of optimism", 0.0)

    def joint(self, problem: Problem) -> Problem:
        """The problem whose actions are joint ones, ``(a, eta)``; eta costs nothing."""
        # For a finite set of moves only eta = 0 is listed here; planners add other values.
        actions = problem.actions.product(Box(-1.0, 1.0, dim=problem.grid.dim), 1)
        reward = _JointReward(problem.reward, problem.actions.dim)
        return problem.replace(actions=actions, reward=reward)

    def motion(self, problem: Problem, model: AbstractModel, key: Key) -> Motion:
        """The motion m(z) + share(z) beta sigma(z) eta."""
        return HallucinatedMotion(
            model=model,
            scale=self.scale,
            grid=problem.grid,
            max_move=problem.max_move,
            action_dim=problem.actions.dim,
        )

    def hidden_reward(self, model: AbstractModel, key: Key) -> Reward:
        """The upper edge of the band."""
        return _UpperBound(model, 2 / 3 if self.scale is None else self.scale)


class Bonus(AbstractOptimism):
    """The expected motion, and a bonus for going where the model is unsure.

    Attributes:
        weight: Bonus where beta sigma equals the farthest move on all axes; also the share that is
            used of a hidden reward's band.
    """

    weight: float = eqx.field(static=True, default=2 / 3)

    def __check_init__(self) -> None:
        number(self.weight, "the weight of optimism", 0.0)

    def hidden_reward(self, model: AbstractModel, key: Key) -> Reward:
        """The upper edge of the band."""
        return _UpperBound(model, self.weight)

    def reward(
        self, problem: Problem, model: AbstractModel, reward_model: AbstractModel | None, key: Key
    ) -> Reward:
        """The reward plus the bonus."""
        paid = super().reward(problem, model, reward_model, key)
        return _BonusReward(paid, model, problem.max_move, self.weight)


class Thompson(AbstractOptimism):
    """One motion, and one hidden reward, drawn from the models' posteriors.

    Attributes:
        scale: Factor on the distance of the draw from the mean; None for 1.
    """

    scale: Scalar | float | None = None

    def motion(self, problem: Problem, model: AbstractModel, key: Key) -> Motion:
        """The drawn motion."""
        return _Draw(model, key, self.scale, problem.max_move)

    def hidden_reward(self, model: AbstractModel, key: Key) -> Reward:
        """The drawn reward."""
        return _Draw(model, key, self.scale)


class _OfModel(AbstractLifted):
    model: eqx.AbstractVar[AbstractModel]

    @property
    def sees_centre(self) -> bool:
        """As its model."""
        return self.model.sees_centre


class HallucinatedMotion(AbstractJointMotion, _OfModel):
    """m(z) + share(z) beta sigma(z) eta for a joint action ``(a, eta)``.

    On nodes m(z) are probabilities of successors, and eta chooses one of them: that of successor
    eta - 1 becomes ``m + share beta sigma``, at most one, and the others shrink in proportion;
    eta = 0 leaves the mean. It is the inner maximisation of UCRL: the plan chooses the successor
    that is worth most.

    Attributes:
        scale: The share; None for that of the epistemic variance which one observation removes, on
            nodes for twice that, about 2 / (2 + observations).
        max_move: The farthest move on each axis, to which motions are cut.
        action_dim: Number of action axes; what follows them in a joint action is eta.
    """

    model: AbstractModel
    scale: float | None = eqx.field(static=True)
    grid: Grid = eqx.field(static=True)
    max_move: tuple[float, ...] = eqx.field(static=True)
    action_dim: int = eqx.field(static=True)

    def predict(self, state: State, action: Action, mu: MeanField) -> Prediction:
        """The model's prediction."""
        return self.model.predict(state, action, mu)

    def hallucinate(self, state: State, prediction: Prediction, eta: Float[Array, "dim"]) -> Target:
        """Where an agent aims: the point of the band that eta picks."""
        mean, sigma, noise = prediction.mean, prediction.epistemic, prediction.aleatoric
        removed = sigma**2 / (sigma**2 + noise**2 + jnp.finfo(sigma.dtype).tiny)
        share = self.grid.band_share(removed) if self.scale is None else self.scale
        half = share * self.model.beta_as(mean.dtype) * sigma
        return self.grid.in_band(state, mean, half, eta, self.max_move)


class MeanMotion(_OfModel):
    """The model's mean, cut to the farthest move."""

    model: AbstractModel
    max_move: tuple[float, ...] = eqx.field(static=True)

    def __call__(self, state: State, action: Action, mu: MeanField) -> Target:
        """Where an agent is expected to aim."""
        mean = self.model.predict(state, action, mu).mean
        return mu.grid.cut(state, mean, self.max_move)


class _Draw(_OfModel):
    """A draw from the model's posterior; the key makes it the same at every call.

    A motion is cut to the farthest move; a reward, without one, is a number.
    """

    model: AbstractModel
    key: Key
    scale: Scalar | float | None
    max_move: tuple[float, ...] | None = eqx.field(static=True, default=None)

    def __call__(self, state: State, action: Action, mu: MeanField) -> Float[Array, "*dim"]:
        found = jnp.asarray(self.model.draw(self.key)(state, action, mu))
        if self.scale is not None:
            mean = self.model.predict(state, action, mu).mean
            found = mean + jnp.asarray(self.scale, mean.dtype) * (found - mean)
        return found[0] if self.max_move is None else mu.grid.cut(state, found, self.max_move)


def draw_width(model: AbstractModel) -> Scalar:
    """Factor on the distance of draws from the mean.

    2.5 deviations hold 99% of a normal distribution. A model with a larger beta says that its
    deviations are too small.
    """
    return jnp.maximum(1.0, model.beta_as(float) / 2.5)


class _JointReward(eqx.Module):
    """A reward as a function of joint actions ``(a, eta)``: eta costs nothing."""

    reward: Reward
    action_dim: int = eqx.field(static=True)

    def __call__(self, state: State, joint: Action, mu: MeanField) -> Scalar:
        return self.reward(state, joint[: self.action_dim], mu)


class _BonusReward(eqx.Module):
    """r(s, a, mu) + weight times the mean over the axes of beta sigma(s, a, mu) / max_move."""

    reward: Reward
    model: AbstractModel
    max_move: tuple[float, ...] = eqx.field(static=True)
    weight: float = eqx.field(static=True)

    def __call__(self, state: State, action: Action, mu: MeanField) -> Scalar:
        farthest = jnp.asarray(self.max_move, mu.mass.dtype)
        width = jnp.mean(self.model.predict(state, action, mu).epistemic / farthest)
        bonus = self.weight * self.model.beta_as(mu.mass.dtype) * width
        return self.reward(state, action, mu) + bonus


class _UpperBound(eqx.Module):
    """m(z) + scale beta sigma(z) of a hidden reward; with scale 0 its mean."""

    model: AbstractModel
    scale: float = eqx.field(static=True)

    def __call__(self, state: State, action: Action, mu: MeanField) -> Scalar:
        found = self.model.predict(state, action, mu)
        beta = self.scale * self.model.beta_as(state.dtype)
        return (found.mean + beta * found.epistemic)[0]
