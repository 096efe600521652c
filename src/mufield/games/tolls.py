r"""Tolls: what an agent costs all others, as a price that it pays.

J depends on mu twice: on agents who move and are paid, and on what motion, reward and trips see.
An agent thinks of the first alone. Its effect on the others, in cell s at step h, is

$$e_h(s) = \sum_{k, a} \mu_h(k)\, \pi_h(a \mid k)\, \frac{\partial}{\partial \mu_h(s)}
\Bigl( r(k, a, \mu_h) + \mathbb{E}[V_{h+1}(s') \mid k, a, \mu_h] \Bigr),$$

with the derivative V of J by the mass of cells. If agents pay the toll $-e_h(s)$, their own values
are the derivatives of J, so that an optimum of J is an equilibrium (Pigou). Motion and reward see
where agents are, and not what they do: a move matters to others by where it leads, and tolls are
paid by cell and step.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._types import Action, Masses, Scalar, State
from ..errors import UserError
from ..flow.flow import Flow
from ..flow.moves import MoveFlow
from ..interfaces import Reward
from ..planning.certificate import plan_derivatives
from ..policies.base import Profile, checked_profile
from ..problem import Motion, Problem
from ..space.measure import MeanField
from .response import check_game


class Tolls(eqx.Module):
    """Prices of being in a cell at a step.

    Attributes:
        prices: For steps 0, ..., H and each cell; the last row counts only if the end is paid.
        mass: The population along the plan that the tolls are for.
    """

    prices: Float[Array, "steps cells"]
    mass: Masses

    @property
    def revenue(self) -> Scalar:
        """What the population pays in an episode of the plan."""
        return jnp.sum(self.mass * self.prices)

    def from_zero(self) -> "Tolls":
        """The same tolls, at every step least zero: what all pay alike changes nothing.

        The least is taken over the cells where the plan has agents. Where trips take several steps
        agents under way pay nothing, so that this does change something.
        """
        used = self.mass > 1e-6 * jnp.max(self.mass, axis=1, keepdims=True)
        least = jnp.min(jnp.where(used, self.prices, jnp.inf), axis=1, keepdims=True)
        return Tolls(self.prices - least, self.mass)

    def projected(
        self,
        districts: Int[Any, "cells"],
        hours: Int[Any, "steps"] | None = None,
        most: float = float("inf"),
    ) -> "Tolls":
        """Simpler tolls: one price for each district and hour, within bounds.

        Each price is the mean of `from_zero` over the agents of the plan who are there then.

        Args:
            districts: The number of each cell's district.
            hours: The number of each step's hour, for steps 0, ..., H; by default each step is one.
            most: No price is above; none is below zero.
        """
        steps, cells = self.prices.shape
        place = np.asarray(districts)
        when = np.arange(steps) if hours is None else np.asarray(hours)
        for name, given, wanted in (("districts", place, cells), ("hours", when, steps)):
            if given.shape != (wanted,) or given.dtype.kind not in "iu" or (given < 0).any():
                raise UserError(
                    f"{name} must be {wanted} whole numbers from 0, got the shape {given.shape} of "
                    f"{given.dtype}; number the {name} and give one number for each"
                )
        group = when[:, None] * (place.max() + 1) + place
        weights, paid = np.asarray(self.mass), np.asarray(self.from_zero().prices)
        total = np.bincount(group.ravel(), weights.ravel())
        sums = np.bincount(group.ravel(), (weights * paid).ravel())
        mean = sums / np.where(total > 0, total, 1.0)
        prices = jnp.asarray(np.clip(mean, 0.0, most)[group], dtype=self.prices.dtype)
        return Tolls(prices, self.mass)

    def table(self, districts: Int[Any, "cells"]) -> Float[np.ndarray, "steps districts"]:
        """The mean price of each step and district, over the agents of the plan who are there."""
        place, weights = np.asarray(districts), np.asarray(self.mass)
        inside = np.eye(place.max() + 1)[place]
        total = weights @ inside
        paid = (weights * np.asarray(self.prices)) @ inside
        return np.asarray(paid / np.where(total > 0, total, np.nan))


def tolls(flow: Flow, motion: Motion, policy: Any) -> Tolls:
    """The external effects of agents along a plan, as prices.

    Where the plan is an optimum, it is an equilibrium of the game with these tolls:
    ``exploitability(priced(flow, tolls(flow, motion, plan)), motion, plan)`` is zero.

    Args:
        flow: The problem's flow.
        motion: The law of motion.
        policy: The plan: a profile, a policy or a function.
    """
    check_game(flow.problem)
    profile = checked_profile(policy, flow.problem)
    rest = jnp.asarray([flow.problem.actions.rest], dtype=flow.problem.initial.dtype)
    moves = MoveFlow(flow, motion, rest, bank_bytes=0)
    mass, effects = _effects(moves, profile)
    if not bool(jnp.all(jnp.isfinite(effects))):
        raise UserError(
            "the tolls are not finite: motion or reward have no derivative by mu along the plan; "
            "for logarithms of mu use mufield.log_mass"
        )
    return Tolls(-effects, mass)


@eqx.filter_jit
def _effects(moves: MoveFlow, profile: Profile) -> tuple[Masses, Masses]:
    mass = moves.flow.rollout(profile, moves.motion).mass
    return mass, plan_derivatives(moves, profile, mass, bound=False).by_mu


class PricedReward(eqx.Module):
    """A reward minus the toll of the agent's cell and step."""

    reward: Reward
    prices: Float[Array, "steps cells"]

    def __call__(self, state: State, action: Action, mu: MeanField) -> Scalar:
        """What is left of the reward."""
        price = self.prices[mu.step, mu.grid.index_of(state)]
        return jnp.asarray(self.reward(state, action, mu)) - price


def priced(flow: Flow, prices: Tolls) -> Flow:
    """The flow of the game in which agents pay tolls: its J is what they keep.

    ``priced(...).problem`` is a problem as any other, for `exploitability`, solvers and learners.
    """
    problem: Problem = flow.problem
    if prices.prices.shape != (problem.horizon + 1, problem.grid.n_cells):
        raise UserError(
            f"tolls must have a row for each of {problem.horizon + 1} steps and a column for each "
            f"of {problem.grid.n_cells} cells, got the shape {prices.prices.shape}"
        )
    reward = PricedReward(problem.reward, prices.prices)
    return flow.of_problem(problem.replace(reward=reward))
