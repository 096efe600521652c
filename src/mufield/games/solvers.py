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
from .response import Followers, Response, check_game, respond, usable


class GameState(eqx.Module):
    """The state of a solver.

    Attributes:
        logits: Logarithms of the weights, up to a constant.
        response: The policy in its population, and the best response to it.
        rate: Unit of the steps, from the spread of the first values.
        least: The least exploitability so far.
        best_logits: The policy that had it.
        iterations: Number of iterations done.
        followers: The part of the population that follows a plan.
    """

    logits: Weights
    response: Response
    rate: Scalar
    least: Scalar
    best_logits: Weights
    iterations: Int[Array, ""]
    followers: Followers | None = None

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

    iterations: eqx.AbstractVar[int]
    tolerance: eqx.AbstractVar[float]
    at_once: eqx.AbstractVar[int]

    @abstractmethod
    def update(self, moves: MoveFlow, state: GameState) -> Weights:
        """The logits of the next policy."""

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
        if weights is None:
            weights, mask = moves.uniform(), usable(moves)
            if mask is not None:
                some = mask / jnp.sum(mask, axis=1, keepdims=True)
                weights = jnp.broadcast_to(some, weights.shape).astype(weights.dtype)
        elif weights.shape != moves.uniform().shape:
            wanted = moves.uniform().shape
            raise UserError(f"weights must have the shape {wanted}, got {weights.shape}")
        else:
            distribution(weights, "weights of each step and cell", "divide them by their sum")
        return _begin(moves, weights, followers)

    def step(
        self, moves: MoveFlow, state: GameState, count: int = 1
    ) -> tuple[GameState, Float[Array, "count 2"]]:
        """Does ``count`` iterations; also returns J and exploitability after each."""
        most = max(count, self.at_once)
        state, figures = _iterate(self, moves, state, jnp.asarray(count), most)
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
        history: list[Any] = []
        done = 0
        with progress_bar("equilibrium", self.iterations, shown=progress) as report:
            while done < self.iterations and not float(state.least) <= self.tolerance:
                state, figures = self.step(moves, state, min(self.at_once, self.iterations - done))
                done += len(figures)
                history.append(figures)
                report(done, J=float(figures[-1, 0]), exploitability=float(state.least))
        if not bool(jnp.isfinite(state.least)):
            raise UserError(
                "the exploitability is not finite: motion or reward are not finite for a policy "
                "that was tried; check them with system.evaluate"
            )
        found, response = _exactly(moves, state)
        return Equilibrium(
            moves=moves,
            weights=found,
            value=response.rollout.value,
            exploitability=jnp.maximum(response.exploitability, 0.0),
            mass=response.rollout.mass,
            history=jnp.concatenate(history) if history else jnp.zeros((0, 2)),
            state=state,
        )


class MirrorDescent(AbstractSolver):
    r"""Online mirror descent: $\log \pi_{t+1} = \log \pi_t + \eta\, Q^{\pi_t}$, up to a constant.

    Perolat and others, "Scaling up Mean Field Games with Online Mirror Descent" (2021). Munchausen
    mirror descent (Lauriere and others, 2022) is the same update, written by the last policy
    instead of the sum of all values.

    Attributes:
        iterations: As of `AbstractSolver`, with `tolerance` and `at_once`.
        rate: The step size eta; by default `relative_rate` by the spread of the first values, so
            that results do not depend on the unit of the reward.
        relative_rate: See `rate`.
    """

    iterations: int = eqx.field(static=True, default=200)
    tolerance: float = eqx.field(static=True, default=0.0)
    at_once: int = eqx.field(static=True, default=20)
    rate: float | None = eqx.field(static=True, default=None)
    relative_rate: float = eqx.field(static=True, default=0.1)

    def update(self, moves: MoveFlow, state: GameState) -> Weights:
        """Adds the values of the policy."""
        rate = self.relative_rate * state.rate if self.rate is None else self.rate
        return state.logits + rate * state.response.values


class FictitiousPlay(AbstractSolver):
    """Fictitious play: the average of all best responses so far, each with its own population.

    Perrin and others, "Fictitious Play for Mean Field Games" (2020). The first policy counts as one
    response.

    Attributes:
        iterations: As of `AbstractSolver`, with `tolerance` and `at_once`.
        rate: Weight of a new response; by default 1 / (t + 1) in iteration t.
        temperature: The response is a softmax of Q over this; by default the best move.
    """

    iterations: int = eqx.field(static=True, default=200)
    tolerance: float = eqx.field(static=True, default=0.0)
    at_once: int = eqx.field(static=True, default=20)
    rate: float | None = eqx.field(static=True, default=None)
    temperature: float | None = eqx.field(static=True, default=None)

    def update(self, moves: MoveFlow, state: GameState) -> Weights:
        """Averages the joint mass of cells and moves."""
        share = 1.0 / (state.iterations + 2.0) if self.rate is None else self.rate
        new = jax.nn.softmax(_response(moves, state.response.best, self.temperature), axis=-1)
        before = (1.0 - share) * state.response.rollout.mass[:-1, :, None] * state.weights
        after = share * moves.rollout(new, exact=False).mass[:-1, :, None] * new
        # Where neither comes, the last policy stays.
        joint = before + after
        empty = jnp.sum(joint, axis=-1, keepdims=True) <= 0
        return jnp.where(empty, state.logits, jnp.log(joint.astype(state.logits.dtype)))


class FixedPoint(AbstractSolver):
    """The response to the last population, again and again; with damping, mixed with the last.

    Attributes:
        iterations: As of `AbstractSolver`, with `tolerance` and `at_once`.
        temperature: The response is a softmax of Q over this; by default the best move.
        damping: Weight of the last policy in the next.
        best: Whether Q is that of the best response. Otherwise it is that of the policy itself:
            Boltzmann policy iteration, which needs a temperature.
    """

    iterations: int = eqx.field(static=True, default=200)
    tolerance: float = eqx.field(static=True, default=0.0)
    at_once: int = eqx.field(static=True, default=20)
    temperature: float | None = eqx.field(static=True, default=None)
    damping: float = eqx.field(static=True, default=0.0)
    best: bool = eqx.field(static=True, default=True)

    def update(self, moves: MoveFlow, state: GameState) -> Weights:
        """Responds."""
        values = state.response.best if self.best else state.response.values
        new = _response(moves, values, self.temperature)
        if not self.damping:
            return new
        mixed = (1 - self.damping) * jax.nn.softmax(new, axis=-1) + self.damping * state.weights
        return jnp.log(mixed)


def _response(moves: MoveFlow, values: Weights, temperature: float | None) -> Weights:
    """The logits of a response to values: the best of the cell's moves, or a softmax."""
    mask = usable(moves)
    if mask is not None:
        values = jnp.where(mask, values, -jnp.inf)
    if temperature is not None:
        return values / temperature
    return jnp.log(
        jax.nn.one_hot(jnp.argmax(values, axis=-1), values.shape[-1], dtype=values.dtype)
    )


@eqx.filter_jit
def _begin(moves: MoveFlow, weights: Weights, followers: Followers | None) -> GameState:
    logits, response = jnp.log(weights), respond(moves, weights, followers)
    spread = jnp.sqrt(jnp.mean(jnp.sum(response.rollout.mass[:-1] * _variance(response), axis=1)))
    return GameState(
        logits=logits,
        response=response,
        rate=jnp.where(spread > 0, 1.0 / jnp.where(spread > 0, spread, 1.0), 1.0),
        least=response.exploitability,
        best_logits=logits,
        iterations=jnp.asarray(0, dtype=jnp.int32),
        followers=followers,
    )


def _variance(response: Response) -> Float[Array, "steps cells"]:
    return jnp.var(response.values, axis=-1)


@eqx.filter_jit
def _iterate(
    solver: AbstractSolver, moves: MoveFlow, state: GameState, count: Array, most: int
) -> tuple[GameState, Float[Array, "most 2"]]:
    """Does ``count`` iterations; one compiled program serves all counts up to ``most``."""

    def one(i: Array, carry: tuple[GameState, Array]) -> tuple[GameState, Array]:
        state = carry[0]
        logits = solver.update(moves, state)
        # Only differences between moves matter; with the best at zero the logits do not drift.
        logits = (logits - jnp.max(logits, axis=-1, keepdims=True)).astype(state.logits.dtype)
        response = respond(moves, jax.nn.softmax(logits, axis=-1), state.followers)
        better = ~(response.exploitability >= state.least)
        found = GameState(
            logits=logits,
            response=response,
            rate=state.rate,
            least=jnp.where(better, response.exploitability, state.least),
            best_logits=jnp.where(better, logits, state.best_logits),
            iterations=state.iterations + 1,
            followers=state.followers,
        )
        figures = jnp.stack([response.rollout.value, response.exploitability])
        return found, carry[1].at[i].set(figures)

    figures = jnp.zeros((most, 2), dtype=state.logits.dtype)
    done: tuple[GameState, Array] = jax.lax.fori_loop(0, count, one, (state, figures))
    return done


@eqx.filter_jit
def _exactly(moves: MoveFlow, state: GameState) -> tuple[Weights, Response]:
    """The least exploitable policy in its population, by the motion itself."""
    weights = jax.nn.softmax(state.best_logits, axis=-1)
    return weights, respond(moves, weights, state.followers, exact=True)
