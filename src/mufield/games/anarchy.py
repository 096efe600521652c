"""What selfishness costs, and how much of it tolls win back."""

from dataclasses import dataclass, replace
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from scipy.optimize import minimize

from .._arrays import Scalar
from ..flow.backward import Weights
from ..flow.moves import MoveFlow
from ..planning.mirror import MirrorAscent, MirrorResult
from .response import exploitability
from .solvers import AbstractSolver, Equilibrium, MirrorDescent, even_weights
from .tolls import Tolls, priced, tolls


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
