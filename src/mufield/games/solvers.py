"""Nash equilibria: policies over listed moves that no agent gains by leaving; also as plans."""

from abc import abstractmethod
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._arrays import Key, Masses, Scalar
from ..errors import UserError, distribution
from ..flow.backward import Weights
from ..flow.flow import Flow
from ..flow.moves import MoveFlow
from ..planning.moves import own_moves, regular_moves
from ..planning.planner import AbstractPlanner, Actions, LeastMargins, Plan, control_size
from ..policies.base import Profile
from ..problem import Motion
from .response import Followers, Response, check_game, finite_gain, respond, usable


class GameState(eqx.Module):
    """The state of a solver.

    Attributes:
        logits: Logarithms of the policy's weights, up to a constant.
        step_size: Size of the next step of `MirrorDescent`; at first 1 / the standard deviation of
            the moves' values.
        last: The exploitability before the last iteration.
        least: The least exploitability so far, that of ``best_logits``.
    """

    logits: Weights
    response: Response
    step_size: Scalar
    last: Scalar
    least: Scalar
    best_logits: Weights
    iterations: Int[Array, ""]
    followers: Followers | None

    @property
    def weights(self) -> Weights:
        """The policy's weights."""
        return jax.nn.softmax(self.logits, axis=-1)


class Equilibrium(eqx.Module):
    """What a solver found: of all iterations the policy that is least exploitable.

    Attributes:
        value: J; with followers, of the whole population, as is `mass`.
        exploitability: What one agent gains by leaving the policy for any other of the moves.
        history: J and exploitability after each iteration.
    """

    moves: MoveFlow
    weights: Weights
    value: Scalar
    exploitability: Scalar
    mass: Masses
    history: Float[Array, "iterations 2"]

    @property
    def profile(self) -> Profile:
        """The randomised policy profile."""
        return self.moves.profile(self.weights)

    def __repr__(self) -> str:
        figures = f"J={float(self.value):.6g}, exploitability={float(self.exploitability):.3g}"
        return f"Equilibrium({figures}, iterations={len(self.history)})"


class AbstractSolver(eqx.Module):
    """A method: `init`, `step`, and the driver `solve`, which uses only those two.

    Attributes:
        iterations: Greatest number of iterations.
        tolerance: Stop when the exploitability is this small; it is looked at every 20 iterations.
    """

    iterations: int = eqx.field(static=True, default=200)
    tolerance: float = eqx.field(static=True, default=0.0, kw_only=True)

    @abstractmethod
    def update(self, moves: MoveFlow, state: GameState) -> tuple[Weights, Scalar]:
        """The logits of the next policy, and the next step size."""

    def init(
        self, moves: MoveFlow, weights: Weights | None = None, followers: Followers | None = None
    ) -> GameState:
        """The state before the first step.

        ``weights`` are the first policy's; by default all moves of a cell are equally likely.
        """
        check_game(moves.flow.problem)
        even = even_weights(moves)
        for given in (weights, None if followers is None else followers.weights):
            if given is not None and given.shape != even.shape:
                raise UserError(f"weights must have the shape {even.shape}, got {given.shape}")
            if given is not None and not isinstance(given, jax.core.Tracer):
                distribution(given, "weights of each step and cell", "divide them by their sum")
        return _begin(moves, even if weights is None else weights, followers)

    @eqx.filter_jit
    def step(
        self, moves: MoveFlow, state: GameState, count: int = 1
    ) -> tuple[GameState, Float[Array, "count 2"]]:
        """Does ``count`` iterations; also returns J and exploitability after each."""

        def one(state: GameState, _: None) -> tuple[GameState, Array]:
            logits, size = self.update(moves, state)
            # Only differences between moves matter; with the best at zero the logits do not drift.
            logits = (logits - jnp.max(logits, axis=-1, keepdims=True)).astype(state.logits.dtype)
            response = respond(moves, jax.nn.softmax(logits, axis=-1), state.followers)
            gain = response.exploitability
            better = gain < state.least  # false if it is NaN: then the best so far stays
            found = GameState(
                logits=logits,
                response=response,
                step_size=size,
                last=state.response.exploitability,
                least=jnp.where(better, gain, state.least),
                best_logits=jnp.where(better, logits, state.best_logits),
                iterations=state.iterations + 1,
                followers=state.followers,
            )
            return found, jnp.stack([response.rollout.value, gain])

        done: tuple[GameState, Array] = jax.lax.scan(one, state, length=count)
        return done

    def solve(
        self, moves: MoveFlow, weights: Weights | None = None, followers: Followers | None = None
    ) -> Equilibrium:
        """Iterates until the exploitability is small enough or the iterations are used up."""
        state = self.init(moves, weights, followers)
        history: list[Any] = [jnp.zeros((0, 2), dtype=state.logits.dtype)]
        left = self.iterations
        while left > 0 and not float(state.least) <= self.tolerance:
            state, figures = self.step(moves, state, min(20, left))
            history.append(figures)
            left -= len(figures)
        weights, response = least_exploitable(moves, state)
        return Equilibrium(
            moves=moves,
            weights=weights,
            value=response.rollout.value,
            exploitability=jnp.asarray(finite_gain(response.exploitability)),
            mass=response.rollout.mass,
            history=jnp.concatenate(history),
        )


class MirrorDescent(AbstractSolver):
    r"""Online mirror descent: $\log \pi_{t+1} = \log \pi_t + \eta\, Q^{\pi_t}$, up to a constant.

    Perolat and others, "Scaling up Mean Field Games with Online Mirror Descent" (2021). Munchausen
    mirror descent (Lauriere and others, 2022) is the same update.

    Attributes:
        rate: The step size eta; by default it adapts.
        first: The first step size, relative to 1 / the standard deviation of the moves' values, so
            that results do not depend on the unit of the reward.
        growth, shrinkage: Factors after the exploitability fell, after it rose.
    """

    rate: float | None = eqx.field(static=True, default=None)
    first: float = eqx.field(static=True, default=0.5)
    growth: float = eqx.field(static=True, default=1.1)
    shrinkage: float = eqx.field(static=True, default=0.7)

    def update(self, moves: MoveFlow, state: GameState) -> tuple[Weights, Scalar]:
        """Adds the values of the policy."""
        fell = state.response.exploitability < state.last
        size = state.step_size * jnp.where(fell, self.growth, self.shrinkage)
        rate = self.first * size if self.rate is None else self.rate
        return state.logits + rate * state.response.values, size


class FictitiousPlay(AbstractSolver):
    """Responses to the population, averaged: fictitious play, fixed points, damped ones.

    Perrin and others, "Fictitious Play for Mean Field Games" (2020). Averages are those of the
    joint mass of cells and moves; the first policy counts as one response.

    Attributes:
        rate: Weight of a new response; by default 1 / (t + 1) in iteration t. With 1 each policy is
            the response to the last, a fixed-point iteration; below 1 that is damped.
        temperature: The response is a softmax of Q over this; by default the best move.
        best: Whether Q is the best response's; otherwise it is the policy's own: with rate 1 and a
            temperature, Boltzmann policy iteration.
    """

    rate: float | None = eqx.field(static=True, default=None)
    temperature: float | None = eqx.field(static=True, default=None)
    best: bool = eqx.field(static=True, default=True)

    def update(self, moves: MoveFlow, state: GameState) -> tuple[Weights, Scalar]:
        """Averages the last policy and a response to it."""
        values = state.response.best if self.best else state.response.values
        values = jnp.where(usable(moves), values, -jnp.inf)
        if self.temperature is None:
            new = jax.nn.one_hot(jnp.argmax(values, -1), values.shape[-1], dtype=values.dtype)
        else:
            new = jax.nn.softmax(values / self.temperature, axis=-1)
        share = 1.0 / (state.iterations + 2.0) if self.rate is None else self.rate
        there = [state.response.rollout.mass, moves.rollout(new, exact=False).mass]
        # Where nobody comes of whom a share is kept, the policies themselves are averaged.
        empty = ((1.0 - share) * there[0] + share * there[1] <= 0)[:-1, :, None]
        old_mass, new_mass = (jnp.where(empty, 1.0, mass[:-1, :, None]) for mass in there)
        joint = (1.0 - share) * old_mass * state.weights + share * new_mass * new
        return jnp.log(joint), state.step_size


@eqx.filter_jit
def _begin(moves: MoveFlow, weights: Weights, followers: Followers | None) -> GameState:
    logits, response = jnp.log(weights), respond(moves, weights, followers)
    variance = jnp.var(response.values, axis=-1)
    unit = jnp.sqrt(jnp.mean(jnp.sum(response.rollout.mass[:-1] * variance, axis=1)))
    gain, none = response.exploitability, jnp.asarray(0, dtype=jnp.int32)
    size = 1.0 / jnp.where(unit > 0, unit, 1.0)
    return GameState(logits, response, size, gain, gain, logits, none, followers)


@eqx.filter_jit
def least_exploitable(moves: MoveFlow, state: GameState) -> tuple[Weights, Response]:
    """The least exploitable policy in its population, by the motion itself."""
    weights = jax.nn.softmax(state.best_logits, axis=-1)
    return weights, respond(moves, weights, state.followers, exact=True)


def even_weights(moves: MoveFlow) -> Weights:
    """The policy that draws evenly from the moves that each cell has."""
    even, mask = moves.uniform(), usable(moves)
    return even * mask / jnp.mean(mask.astype(even.dtype), axis=-1, keepdims=True)


class EquilibriumPlanner(AbstractPlanner):
    """Plans Nash equilibria under the learned motion, for ``M3UCRL(problem, planner=...)``.

    With `mufield.Hallucinated` each agent responds as if the motion within the confidence band were
    the one that is best for itself. ``points`` are those of `mufield.MirrorPlanner`.
    """

    solver: AbstractSolver = eqx.field(static=True, default=MirrorDescent())
    maximises: ClassVar[bool] = False
    points: int | None = eqx.field(static=True, default=None)

    def own_moves(self, actions: Actions) -> Float[Array, "*cells moves action_dim"]:
        """The moves without controls."""
        return own_moves(actions, self.points)

    def plan(
        self,
        flow: Flow,
        motion: Motion,
        actions: Actions,
        key: Key,
        memory: None,
        least: LeastMargins | None = None,
    ) -> Plan:
        """Solves the game from all moves equally likely; the policy is that of a alone."""
        moves = regular_moves(flow, motion, actions, points=self.points)
        state, _ = self.solver.step(moves, self.solver.init(moves), self.solver.iterations)
        weights, response = least_exploitable(moves, state)
        own = weights.reshape(*weights.shape[:2], -1, moves.group).sum(axis=-1)
        mass, controls = response.rollout.mass, moves.actions[..., actions.dim :]
        return Plan(
            profile=moves.profile(own, actions.dim),
            memory=None,
            value=response.rollout.value,
            mass=mass,
            control=control_size(flow.problem, mass, controls, weights),
        )
