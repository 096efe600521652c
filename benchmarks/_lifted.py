"""The mean-field problem as a Gymnasium environment whose state is the whole population.

The lifted decision process of lemma DistMDP: the state is mu, the action a policy for all agents,
the next state Phi(mu, pi) and the reward r-hat(mu, pi). Nothing in it is random. On it the
algorithms of Stable-Baselines3 are compared with ours (`peers.py`).
"""

import math
from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, ArrayLike, Float
from scipy import ndimage

from mufield._arrays import Mass, Scalar, Step
from mufield.actions import Box, MoveSet
from mufield.adapters.parallel import as_simulated, compile_with
from mufield.episode import AbstractSystem
from mufield.errors import UserError, whole_number
from mufield.flow.flow import Flow
from mufield.flow.rollout import end_reward
from mufield.policies.base import Profile
from mufield.policies.tables import TablePolicy
from mufield.problem import Motion, Problem
from mufield.space.grid import Grid

Numbers = Float[np.ndarray, "..."]


class LiftedEnv(gymnasium.Env[Numbers, Numbers]):
    """One episode of an infinite population, step by step.

    An observation is the mass of every free cell, then the share of the episode that is over.
    An action is a vector of numbers in [-1, 1] that `PolicyCode` turns into the policy of a step.
    The reward is r-hat. If the problem pays the last distribution, its reward is added to that of
    the last step, so that the sum of the rewards is J. Episodes end after the problem's horizon.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 (Gymnasium's type)

    def __init__(
        self,
        system: str | AbstractSystem,
        *,
        policy: str = "cells",
        resolution: int = 4,
        **options: Any,
    ):
        """Builds the environment.

        Args:
            system: A simulated system, or the name of a registered one.
            policy: ``"cells"`` has an action for every cell; ``"coarse"`` interpolates between a
                few points, which is far less to learn.
            resolution: Points on each axis, for ``"coarse"``.
            **options: Options of a system that is given by name.
        """
        self.system = as_simulated(system, options)
        self._problem = self.system.problem
        self.code = PolicyCode(self._problem, policy, resolution)
        flow, motion = self.system.reveal()
        self._advance = compile_with(_advance, flow, motion, self.code)
        self._end_reward = compile_with(end_reward, flow.problem)
        cells = self._problem.grid.n_cells
        self.observation_space = spaces.Box(0.0, 1.0, (cells + 1,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (self.code.size,), np.float32)
        self._mass = self._problem.initial
        self._step = self._problem.horizon

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Numbers, dict[str, Any]]:
        """Starts an episode from the initial distribution; seed and options change nothing."""
        super().reset(seed=seed)
        self._mass, self._step = self._problem.initial, self._problem.steps_done
        return self._observation(self._mass, self._step), {}

    def step(self, action: Numbers) -> tuple[Numbers, float, bool, bool, dict[str, Any]]:
        """Lets the whole population make one move."""
        if self._step >= self._problem.horizon:
            raise gymnasium.error.ResetNeeded(
                f"an episode of {self._problem.horizon} steps must be begun first; call reset()"
            )
        self._mass, paid = self._advance(self._mass, self._checked(action, ()), self._step)
        self._step += 1
        over = self._step == self._problem.horizon
        reward = float(paid)
        if over and self._problem.pay_end:
            reward += float(self._end_reward(self._mass))
        if not math.isfinite(reward):
            raise UserError(
                "expected a finite reward, got NaN or infinity: check the system's motion and "
                f"reward for the distribution after step {self._step}"
            )
        return self._observation(self._mass, self._step), reward, over, False, {}

    def profile(self, actions: ArrayLike) -> Profile:
        """The profile of an episode's actions, one action of this environment for each step."""
        horizon = self._problem.horizon
        numbers = jnp.asarray(self._checked(actions, (horizon,)))
        return Profile.stacked(self.code.policy(numbers), horizon)

    def policy_profile(self, model: Any) -> Profile:
        """The profile of the actions that a trained model takes in an episode of its own.

        The flow is not random, so the profile earns what the model earns. But it does not look at
        mu: from another initial distribution the model itself might act differently. The current
        episode of this environment is not affected.

        Args:
            model: Anything with ``predict(observation, deterministic=True)``, which returns an
                action and a state; for example a model of Stable-Baselines3.
        """
        mass, chosen = self._problem.initial, []
        for step in range(self._problem.steps_done, self._problem.horizon):
            seen = self._observation(mass, step)
            chosen.append(self._checked(model.predict(seen, deterministic=True)[0], ()))
            mass, _ = self._advance(mass, chosen[-1], step)
        # What is chosen before the first step of the rest of an episode does not matter.
        return self.profile(np.stack(chosen[:1] * self._problem.steps_done + chosen))

    def _observation(self, mass: Mass, step: int) -> Numbers:
        seen = np.append(np.asarray(mass), step / self._problem.horizon)
        return np.asarray(np.clip(seen, 0.0, 1.0), dtype=np.float32)

    def _checked(self, action: ArrayLike, steps: tuple[int, ...]) -> Numbers:
        numbers = np.asarray(action, dtype=self._problem.initial.dtype)
        if numbers.shape != (*steps, self.code.size):
            raise UserError(
                f"an action must have the shape {(*steps, self.code.size)}, got {numbers.shape}"
            )
        # How far beyond -1 or 1 a number of an action may be, for rounding.
        slack = 1e-5
        if not np.all(np.abs(numbers) <= 1.0 + slack):
            raise UserError(
                "an action must be of numbers between -1 and 1, got numbers from "
                f"{numbers.min()} to {numbers.max()}; clip them, for example with "
                "gymnasium.wrappers.ClipAction"
            )
        return numbers


def _advance(
    flow: Flow,
    motion: Motion,
    code: "PolicyCode",
    mass: Mass,
    numbers: Float[Array, "..."],
    step: Step,
) -> tuple[Mass, Scalar]:
    """Phi and r-hat of one step."""
    law = code.policy(numbers).at_cells(flow.problem.grid, mass, step)
    paid = flow.rewards(mass, law, step)
    return flow.step(mass, law, motion, step), jnp.sum(mass[:, None] * law.weights * paid)


class PolicyCode(eqx.Module):
    """Turns a vector of numbers in [-1, 1] into the policy of one step.

    The vector is a table of points. For a box, each point holds an action, scaled to [-1, 1]. For
    a set of moves, each point holds logits, whose softmax mixes the options.

    Attributes:
        actions: What agents can do.
        grid: The space whose cells policies are for.
        blend: Weights with which cells mix the points; None if each cell has a point of its own.
        points: Number of points.
        width: Numbers of each point.
    """

    actions: Box | MoveSet
    grid: Grid = eqx.field(static=True)
    blend: Float[Array, "cells points"] | None
    points: int = eqx.field(static=True)
    width: int = eqx.field(static=True)

    def __init__(self, problem: Problem, policy: str, resolution: int):
        """Builds the code: ``"cells"``, or ``"coarse"`` with ``resolution`` points an axis."""
        if policy not in ("cells", "coarse"):
            raise UserError(f"policy must be 'cells' or 'coarse', got {policy!r}")
        self.actions, self.grid = problem.actions, problem.grid
        actions = self.actions
        self.width = actions.dim if isinstance(actions, Box) else int(actions.options.shape[0])
        self.blend = None
        self.points = problem.grid.n_cells
        if policy == "coarse" and problem.on_nodes:
            raise UserError(
                "nodes have no order to interpolate along; take policy='cells' in place of 'coarse'"
            )
        if policy == "coarse":
            blend = interpolation(problem.grid, whole_number(resolution, "resolution"))
            self.blend = jnp.asarray(blend, dtype=problem.initial.dtype)
            self.points = blend.shape[1]

    @property
    def size(self) -> int:
        """Length of the vector."""
        return self.points * self.width

    def policy(self, numbers: Float[Array, "*steps size"]) -> TablePolicy:
        """The policy of one step; with one more axis, of all steps, for `Profile.stacked`."""
        table = numbers.reshape(*numbers.shape[:-1], self.points, self.width)
        if self.blend is not None:
            table = jnp.einsum("cp,...pw->...cw", self.blend, table)
        if isinstance(self.actions, Box):
            bounds = (self.actions.lower, self.actions.upper)
            lower, upper = (jnp.asarray(bound, dtype=table.dtype) for bound in bounds)
            inside = lower + (upper - lower) * 0.5 * (table + 1.0)
            return TablePolicy.deterministic(inside, self.grid)
        # Logit of the number 1: an option at 1 is 22,000 times as likely as one at -1.
        logit_range = 5.0
        weights = jax.nn.softmax(logit_range * table) @ self.actions.options
        return TablePolicy.mixing(self.actions.moves, weights, self.grid)


def interpolation(grid: Grid, resolution: int) -> Float[np.ndarray, "cells points"]:
    """Weights of linear interpolation between ``resolution`` points on each axis.

    The outermost points are the centres of the outermost cells; on periodic axes the points are
    evenly spaced. Walls are ignored: cells on both sides of a wall act alike.
    """
    shape, wraps = np.asarray(grid.shape), np.asarray(grid.periodic)
    spans = np.where(wraps, resolution / shape, (resolution - 1) / np.maximum(1, shape - 1))
    places, once_more = (grid.free_cells * spans).T, [(0, int(wrap)) for wrap in wraps]
    points = np.eye(resolution**grid.dim).reshape(-1, *[resolution] * grid.dim)
    weights = [
        ndimage.map_coordinates(np.pad(p, once_more, "wrap"), places, order=1, mode="nearest")
        for p in points
    ]
    return np.stack(weights, axis=1)
