"""Nash equilibria: policies over listed moves that no agent gains by leaving."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._progress import progress_bar
from .._types import Masses, Scalar
from ..checks import distribution
from ..errors import UserError
from ..flow.backward import Weights
from ..flow.moves import MoveFlow
from ..policies.base import Profile
from .response import Followers, Response, check_game, finite_gain, respond, usable


class GameState(eqx.Module):
    """The state of a solver.

    Attributes:
        logits: Logarithms of the weights, up to a constant.
        response: The policy in its population, and the best response to it.
        step_size: Size of the next step of `MirrorDescent`; at first one by how much moves differ
            in value, as a standard deviation.
        last: The exploitability before the last iteration.
        least: The least exploitability so far.
        best_logits: The policy that had it.
        iterations: Number of iterations done.
        followers: The part of the population that follows a plan.
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
        moves: The flow over the moves.
        weights: The policy's weights.
        value: J of the policy; with followers, of the whole population.
        exploitability: What one agent gains by leaving it for any other of the moves.
        mass: The population's distributions.
        history: J and exploitability after each iteration.
        state: The last state, to go on from.
    """

    moves: MoveFlow
    weights: Weights
    value: Scalar
    exploitability: Scalar
    mass: Masses
    history: Float[Array, "iterations 2"]
    state: GameState

    @property
    def profile(self) -> Profile:
        """The randomised policy profile."""
        return self.moves.profile(self.weights)

    def __repr__(self) -> str:
        return (
            f"Equilibrium(J={float(self.value):.6g}, "
            f"exploitability={float(self.exploitability):.3g}, iterations={len(self.history)})"
        )


class AbstractSolver(eqx.Module):
    """A method: `init`, `step`, and the driver `solve`, which uses only those two.

    Attributes:
        iterations: Greatest number of iterations.
        tolerance: Stop when the exploitability is this small; zero to use all iterations.
        at_once: Iterations of one compiled call, between two tests of the tolerance.
    """

    iterations: int = eqx.field(static=True, default=200)
    tolerance: float = eqx.field(static=True, default=0.0, kw_only=True)
    at_once: int = eqx.field(static=True, default=20, kw_only=True)

    @abstractmethod
    def update(self, moves: MoveFlow, state: GameState) -> tuple[Weights, Scalar]:
        """The logits of the next policy, and the next step size."""

    def init(
        self, moves: MoveFlow, weights: Weights | None = None, followers: Followers | None = None
    ) -> GameState:
        """The state before the first step.

        Args:
            moves: The flow over the moves.
            weights: The first policy's; by default all moves of a cell are equally likely.
            followers: A part of the population that follows a plan and does not respond.
        """
        check_game(moves.flow.problem)
        even, mask = moves.uniform(), usable(moves)
        for given in (weights, None if followers is None else followers.weights):
            if given is not None and given.shape != even.shape:
                raise UserError(f"weights must have the shape {even.shape}, got {given.shape}")
            if given is not None and not isinstance(given, jax.core.Tracer):
                distribution(given, "weights of each step and cell", "divide them by their sum")
        if mask is not None:
            even = even * mask / jnp.mean(mask.astype(even.dtype), axis=1, keepdims=True)
        return _begin(moves, even if weights is None else weights, followers)

    def step(
        self, moves: MoveFlow, state: GameState, count: int = 1
    ) -> tuple[GameState, Float[Array, "count 2"]]:
        """Does ``count`` iterations; also returns J and exploitability after each."""
        most = max(count, self.at_once)
        state, figures = iterate(self, moves, state, jnp.asarray(count), most)
        return state, figures[:count]

    def solve(
        self,
        moves: MoveFlow,
        weights: Weights | None = None,
        followers: Followers | None = None,
        *,
        progress: bool = False,
    ) -> Equilibrium:
        """Iterates until the exploitability is small enough or the iterations are used up."""
        if self.iterations < 1:
            raise UserError(f"a solver needs at least one iteration, got {self.iterations}")
        state = self.init(moves, weights, followers)
        history: list[Any] = [jnp.zeros((0, 2), dtype=state.logits.dtype)]
        done = 0
        with progress_bar("equilibrium", self.iterations, shown=progress) as report:
            while done < self.iterations and not float(state.least) <= self.tolerance:
                state, figures = self.step(moves, state, min(self.at_once, self.iterations - done))
                done += len(figures)
                history.append(figures)
                report(done, J=float(figures[-1, 0]), exploitability=float(state.least))
        weights, response = least_exploitable(moves, state)
        return Equilibrium(
            moves=moves,
            weights=weights,
            value=response.rollout.value,
            exploitability=jnp.asarray(finite_gain(response.exploitability)),
            mass=response.rollout.mass,
            history=jnp.concatenate(history),
            state=state,
        )


class MirrorDescent(AbstractSolver):
    r"""Online mirror descent: $\log \pi_{t+1} = \log \pi_t + \eta\, Q^{\pi_t}$, up to a constant.

    Perolat and others, "Scaling up Mean Field Games with Online Mirror Descent" (2021). Munchausen
    mirror descent (Lauriere and others, 2022) is the same update.

    Attributes:
        rate: The step size eta; by default it adapts.
        first: The first step size, relative to one by how much moves differ in value, so that
            results do not depend on the unit of the reward.
        growth: Factor after the exploitability fell.
        shrinkage: Factor after it rose.
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
        best: Whether Q is that of the best response. Otherwise it is that of the policy itself:
            with rate 1 and a temperature, Boltzmann policy iteration.
    """

    rate: float | None = eqx.field(static=True, default=None)
    temperature: float | None = eqx.field(static=True, default=None)
    best: bool = eqx.field(static=True, default=True)

    def update(self, moves: MoveFlow, state: GameState) -> tuple[Weights, Scalar]:
        """Averages the last policy and a response to it."""
        values, mask = state.response.best if self.best else state.response.values, usable(moves)
        if mask is not None:
            values = jnp.where(mask, values, -jnp.inf)
        if self.temperature is None:
            new = jax.nn.one_hot(jnp.argmax(values, -1), values.shape[-1], dtype=values.dtype)
        else:
            new = jax.nn.softmax(values / self.temperature, axis=-1)
        share = 1.0 / (state.iterations + 2.0) if self.rate is None else self.rate
        there = [state.response.rollout.mass, moves.rollout(new, exact=False).mass]
        # Where neither of the two comes, the policies themselves are averaged.
        empty = (there[0] + there[1] <= 0)[:-1, :, None]
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
def iterate(
    solver: AbstractSolver, moves: MoveFlow, state: GameState, count: Array, most: int
) -> tuple[GameState, Float[Array, "most 2"]]:
    """Does ``count`` iterations; one compiled program serves all counts up to ``most``."""

    def one(i: Array, carry: tuple[GameState, Array]) -> tuple[GameState, Array]:
        state = carry[0]
        logits, size = solver.update(moves, state)
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
        return found, carry[1].at[i].set(jnp.stack([response.rollout.value, gain]))

    figures = jnp.zeros((most, 2), dtype=state.logits.dtype)
    done: tuple[GameState, Array] = jax.lax.fori_loop(0, count, one, (state, figures))
    return done


@eqx.filter_jit
def least_exploitable(moves: MoveFlow, state: GameState) -> tuple[Weights, Response]:
    """The least exploitable policy in its population, by the motion itself."""
    weights = jax.nn.softmax(state.best_logits, axis=-1)
    return weights, respond(moves, weights, state.followers, exact=True)
