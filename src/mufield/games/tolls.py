r"""Tolls: what an agent costs all others, as a price that it pays.

J depends on mu twice: on agents who move and are paid, and on what motion, reward and trips see.
An agent thinks of the first alone. Its effect on the others, in cell s at step h, is

$$e_h(s) = \sum_{k, a} \mu_h(k)\, \pi_h(a \mid k)\, \frac{\partial}{\partial \mu_h(s)}
\Bigl( r(k, a, \mu_h) + \mathbb{E}[V_{h+1}(s') \mid k, a, \mu_h] \Bigr),$$

with the derivative V of J by the mass of cells. If agents pay the toll $-e_h(s)$, their own values
are the derivatives of J, so that an optimum of J is an equilibrium (Pigou). Others see where an
agent is, and not its move: tolls are paid by cell and step.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._arrays import Action, Masses, Scalar, State
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

    def from_zero(self) -> "Tolls":
        """The same tolls, least zero at every step over the cells where the plan has agents.

        What all pay alike changes nothing, unless agents under way pay nothing.
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
        """Simpler tolls: the `table` of `from_zero`, no price below zero or above ``most``."""
        tariff = np.clip(np.nan_to_num(self.from_zero().table(districts, hours)), 0.0, most)
        by_step = tariff if hours is None else tariff[np.asarray(hours)]
        prices = jnp.asarray(by_step[:, np.asarray(districts)], dtype=self.prices.dtype)
        return Tolls(prices, self.mass)

    def table(
        self, districts: Int[Any, "cells"], hours: Int[Any, "steps"] | None = None
    ) -> Float[np.ndarray, "hours districts"]:
        """The mean price in each hour and district, over the agents there of the plan; else NaN.

        ``districts`` are numbers of cells, ``hours`` of steps 0, ..., H; by default each is one.
        """
        steps, cells = self.prices.shape
        inside = _indicators("districts", districts, cells)
        when = _indicators("hours", np.arange(steps) if hours is None else hours, steps).T
        mass = np.asarray(self.mass, dtype=float)
        there, paid = (when @ each @ inside for each in (mass, mass * np.asarray(self.prices)))
        return np.divide(paid, there, out=np.full_like(paid, np.nan), where=there > 0)


def _indicators(name: str, given: Any, count: int) -> Float[np.ndarray, "count groups"]:
    """Which group each entry is in, as rows of zeros and a one."""
    numbers = np.asarray(given)
    if numbers.shape != (count,) or numbers.dtype.kind not in "iu" or (numbers < 0).any():
        raise UserError(
            f"{name} must be {count} whole numbers from 0, got the shape {numbers.shape} of "
            f"{numbers.dtype}; number the {name} and give one number for each"
        )
    return np.eye(int(numbers.max()) + 1)[numbers]


def tolls(flow: Flow, motion: Motion, policy: Any) -> Tolls:
    """The external effects of agents along a plan, as prices.

    ``exploitability(priced(flow, tolls(flow, motion, plan)), motion, plan)`` is what the plan, as
    an optimum of J, could gain to first order: zero where it is exact.
    """
    check_game(flow.problem)
    profile = checked_profile(policy, flow.problem)
    rest = jnp.asarray([flow.problem.actions.rest], dtype=flow.problem.initial.dtype)
    mass, effects = _effects(MoveFlow(flow, motion, rest, bank_bytes=0), profile)
    if not bool(jnp.all(jnp.isfinite(effects))):
        raise UserError(
            "motion or reward have no finite derivative by mu; for log mu use mufield.log_mass"
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
    """The flow of the game in which agents pay tolls: its J is what they keep."""
    problem: Problem = flow.problem
    if prices.prices.shape != (problem.horizon + 1, problem.grid.n_cells):
        raise UserError(
            f"tolls must have a row for each of {problem.horizon + 1} steps and a column for each "
            f"of {problem.grid.n_cells} cells, got the shape {prices.prices.shape}"
        )
    return flow.of_problem(problem.replace(reward=PricedReward(problem.reward, prices.prices)))
