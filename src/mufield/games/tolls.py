r"""What selfishness costs, and tolls: what an agent costs all others, as a price that it pays.

J depends on mu twice: on agents who move and are paid, and on what motion, reward and trips see.
An agent thinks of the first alone. Its effect on the others, in cell s at step h, is

$$e_h(s) = \sum_{k, a} \mu_h(k)\, \pi_h(a \mid k)\, \frac{\partial}{\partial \mu_h(s)}
\Bigl( r(k, a, \mu_h) + \mathbb{E}[V_{h+1}(s') \mid k, a, \mu_h] \Bigr),$$

with the derivative V of J by the mass of cells. If agents pay the toll $-e_h(s)$, their own values
are the derivatives of J, so that an optimum of J is an equilibrium (Pigou). Others see where an
agent is, and not its move: tolls are paid by cell and step.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.optimize import minimize

from .._arrays import Action, Masses, Scalar, State
from ..errors import UserError
from ..flow.backward import Weights
from ..flow.flow import Flow
from ..flow.moves import MoveFlow
from ..interfaces import Reward
from ..planning.certificate import plan_derivatives
from ..planning.mirror import MirrorAscent, MirrorResult
from ..policies.base import Profile, checked_profile
from ..problem import Motion, Problem
from ..space.measure import MeanField
from .response import check_game, exploitability
from .solvers import AbstractSolver, Equilibrium, MirrorDescent, even_weights


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


@dataclass(frozen=True)
class Anarchy:
    """The optimum and the equilibrium of one problem, over the same moves, and the tolls between.

    Attributes:
        left: Exploitability of the optimum in the game with the tolls; zero if it is exact.
        solver: How the equilibrium was found.
    """

    optimum: MirrorResult
    equilibrium: Equilibrium
    tolls: Tolls
    left: float
    solver: AbstractSolver

    @property
    def gap(self) -> float:
        """What selfishness costs: J of the optimum minus J of the equilibrium."""
        return float(self.optimum.value) - float(self.equilibrium.value)

    @property
    def price(self) -> float:
        """The price of anarchy, as a share of the optimum's |J|; a ratio of costs is one more."""
        return float(self.gap / jnp.abs(self.optimum.value))

    def under(self, prices: Tolls) -> Equilibrium:
        """The equilibrium in which agents pay tolls, found from the one without; J without them."""
        moves = self.equilibrium.moves
        game = MoveFlow(priced(moves.flow, prices), moves.motion, moves.actions, interpolate=False)
        start = 0.99 * self.equilibrium.weights + 0.01 * even_weights(moves)
        found = self.solver.solve(game, start)
        return replace(found, moves=moves, value=moves.rollout(found.weights).value)

    def closed(self, other: Equilibrium) -> float:
        """The share of the gap that another equilibrium wins back; 1 if there is no gap."""
        return float(other.value - self.equilibrium.value) / self.gap if self.gap > 0 else 1.0

    def __repr__(self) -> str:
        both = f"J={self.optimum.value:.6g} at best, {self.equilibrium.value:.6g} in equilibrium"
        return f"Anarchy(price={self.price:.2%}, {both}, left={self.left:.2g})"


def anarchy(
    moves: MoveFlow,
    ascent: MirrorAscent | None = None,
    solver: AbstractSolver | None = None,
    *,
    rounds: int = 3,
) -> Anarchy:
    """The optimum, the equilibrium and the tolls between them.

    Only at an exact optimum do tolls leave nothing to gain. Sweeps that interpolate between kernels
    end beside it, and mirror ascent creeps near it. Its plan is `sharpened` by the motion itself,
    and sweeps take away what that leaves in stiff directions.

    Args:
        moves: The flow over the moves; of a box without a list of moves, both use the coarse ones.
        ascent: How the optimum is planned first; by default by 400 sweeps.
        solver: How the equilibrium is found; by default by 400 iterations of mirror descent.
        rounds: Of `sharpened`.
    """
    flow, motion, solver = moves.flow, moves.motion, solver or MirrorDescent(400)
    listed = MoveFlow(flow, motion, moves.actions) if moves.free else moves
    plan = (ascent or MirrorAscent(sweeps=400)).solve(listed)
    exact = MoveFlow(flow, motion, moves.actions, interpolate=False)
    optimum = MirrorAscent(sweeps=100).solve(exact, sharpened(exact, plan.weights, rounds))
    prices = tolls(flow, motion, optimum.profile)
    left = exploitability(priced(flow, prices), motion, optimum.profile, moves.actions)
    return Anarchy(optimum, solver.solve(exact), prices, left, solver)


def sharpened(moves: MoveFlow, weights: Weights, rounds: int = 3) -> Weights:
    r"""The weights of a better plan near by: L-BFGS in the variables $\sqrt{\mu\, \pi}$.

    There the entropy is curved alike everywhere. Each round has 200 evaluations, with mu anew.
    """
    for _ in range(rounds):
        mass = moves.rollout(weights).mass[:-1, :, None]
        start = np.sqrt(np.maximum(mass, 1e-9) * np.maximum(weights, 1e-7))
        settings = {"maxfun": 200, "maxiter": 200, "maxcor": 30, "ftol": 0.0, "gtol": 0.0}
        loss = partial(_loss, moves, start.shape)
        found = minimize(loss, start.ravel(), jac=True, method="L-BFGS-B", options=settings)
        weights = _weights(jnp.asarray(found.x.reshape(start.shape), dtype=weights.dtype))
    return weights


def _weights(roots: Array) -> Weights:
    return jnp.square(roots) / jnp.sum(jnp.square(roots), axis=-1, keepdims=True)


@eqx.filter_jit
def _loss(moves: MoveFlow, shape: tuple[int, ...], roots: Array) -> tuple[Scalar, Array]:
    weights, pull = jax.vjp(_weights, jnp.asarray(roots).reshape(shape))
    sweep = moves.sweep(weights, bound=False)
    slopes = pull(sweep.rollout.mass[:-1, :, None] * sweep.action_values)[0]
    return -sweep.rollout.value, -slopes.ravel()
