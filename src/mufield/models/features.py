r"""What models see and predict: features z(s, a, mu), scaled outputs, and regression data.

Of a move that a wall stopped all that is known on the stopped axis is that the agent, noise
included, aimed beyond the wall. With the side $d = \pm 1$ and the wall at $t$, its likelihood is
$\Phi(d (f - t) / \sqrt{\lambda})$. Leaving these moves out would teach that walls push: the moves
that reach no wall are those whose noise pointed away from it. Expectation propagation replaces each
likelihood by the Gaussian one that gives the same mean and variance, given all other data.
"""

from itertools import pairwise
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._arrays import Action, State
from ..policies.encoders import AbstractEncoder, Unseen, position_features, position_size
from ..problem import Problem
from ..space.grid import Grid
from ..space.measure import MeanField
from .data import Transitions


class FeatureMap(eqx.Module):
    """z(s, a, mu): the vector that a model sees.

    Periodic axes enter as cosine and sine; other axes and the actions, which lie between ``lower``
    and ``upper``, are scaled to [-1, 1].
    """

    grid: Grid = eqx.field(static=True)
    lower: tuple[float, ...] = eqx.field(static=True)
    upper: tuple[float, ...] = eqx.field(static=True)
    mu: AbstractEncoder = eqx.field(static=True)

    def __init__(self, problem: Problem, mu: AbstractEncoder = Unseen()):
        self.grid, self.mu = problem.grid, mu
        self.lower, self.upper = problem.actions.lower, problem.actions.upper

    @property
    def own_size(self) -> int:
        """Number of features of state and action; those of mu follow."""
        return position_size(self.grid) + len(self.lower)

    @property
    def size(self) -> int:
        """Length of the vector."""
        return self.own_size + self.mu.size(self.grid)

    @property
    def parts(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Indices of the features of the state, of the action, and of mu."""
        first, own = position_size(self.grid), self.own_size
        return tuple(range(first)), tuple(range(first, own)), tuple(range(own, self.size))

    @property
    def inputs(self) -> tuple[tuple[int, ...], ...]:
        """Indices of the features of each input that mu consists of."""
        sizes = [each.size(self.grid) for each in self.mu.inputs]
        ends = np.cumsum([self.own_size, *sizes])
        return tuple(tuple(range(a, b)) for a, b in pairwise(ends.tolist()))

    def __call__(self, state: State, action: Action, mu: MeanField) -> Float[Array, "features"]:
        """The features of one agent."""
        dtype = state.dtype
        low, high = (jnp.asarray(bound, dtype=dtype) for bound in (self.lower, self.upper))
        width = jnp.where(high > low, high - low, 1.0)
        own = [position_features(self.grid, state), 2 * (action - low) / width - 1]
        return jnp.concatenate([*own, self.mu(state, mu).astype(dtype)])


Outputs = Float[Array, "*points outputs"]
"""One number for each axis of a motion, a single one for a reward."""


class Units(eqx.Module):
    """Converts between a model's outputs, of the order of one, and motions or rewards.

    Attributes:
        scale: Unit of the outputs: the farthest move, or the rewards' standard deviation.
        centre: Mean of the rewards; None for motions, whose outputs are displacements.
    """

    scale: Float[Array | np.ndarray, "*runs outputs"]
    centre: Float[Array | np.ndarray, "*runs outputs"] | None

    @classmethod
    def of(cls, data: Transitions) -> "Units":
        """The units for a model of the data, in double precision on the host."""
        if not data.of_reward:
            return cls(np.asarray(data.problem.max_move, dtype=float), None)
        assert data.earned is not None
        if len(data) == 0:
            return cls(np.ones(1), np.zeros(1))
        centre, scale = float(data.earned.mean()), float(data.earned.std())
        equal = scale <= 1e-6 * max(1.0, abs(centre))  # up to rounding
        return cls(np.array([1.0 if equal else scale]), np.array([centre]))

    def cast(self, dtype: Any) -> "Units":
        """The units in another precision, for planning."""
        centre = None if self.centre is None else jnp.asarray(self.centre, dtype)
        return Units(jnp.asarray(self.scale, dtype), centre)

    def decode(self, state: State, outputs: Outputs) -> Outputs:
        """The target of an agent, or its reward."""
        start = state if self.centre is None else jnp.asarray(self.centre)
        return start + self.rescale(outputs)

    def rescale(self, deviation: Outputs) -> Outputs:
        """A standard deviation of outputs, as one of motions or rewards."""
        return jnp.asarray(self.scale) * deviation

    def encode(self, data: Transitions) -> Float[np.ndarray, "rows outputs"]:
        """The outputs that a perfect model would have for the transitions."""
        if self.centre is None:
            moved = data.problem.grid.displacement(data.states, data.next_states)
            return np.asarray(moved / self.scale)
        assert data.earned is not None
        return np.asarray((data.earned[:, None] - self.centre) / self.scale)


class Rows(NamedTuple):
    """Data of a regression of outputs on features; on the host in double precision, or padded.

    Attributes:
        targets: What was observed; where a wall is, if one stopped the agent.
        weight: Inverse of the factor on the noise's variance: 1 for what was observed, 0 for what
            was not.
        side: 1 or -1 if the agent aimed beyond the target in that direction, else 0.
    """

    inputs: Float[Any, "rows features"]
    targets: Float[Any, "*members rows outputs"]
    weight: Float[Any, "*members rows outputs"]
    side: Float[Any, "rows outputs"]

    @classmethod
    def of(cls, features: FeatureMap, data: Transitions) -> "Rows":
        """Features, scaled targets, and the sides on which walls censored them."""
        observed = data.observed_outputs
        # Walls stop moves, not rewards.
        side = np.zeros(observed.shape) if data.of_reward else data.side.astype(float)
        targets = np.where(observed | (side != 0), Units.of(data).encode(data), 0.0)
        return cls(data.map(features), targets, observed.astype(float), side)

    @property
    def observed(self) -> Bool[np.ndarray, "rows outputs"]:
        """Which targets say something by themselves."""
        return np.asarray(self.weight > 0)

    def at(self, index: Any) -> "Rows":
        """The rows that a mask, or indices, choose."""
        return Rows(*(part[index] for part in self))

    def padded(self, size: int) -> "Rows":
        """With rows that say nothing, up to a size that rarely changes."""
        missing = size - len(self.inputs)
        return Rows(*(np.pad(part, ((0, missing), (0, 0))) for part in self))


def with_stopped_moves(
    rows: Rows, phi: Float[np.ndarray, "rows points"], noise: Float[np.ndarray, "outputs"]
) -> Rows:
    """The rows with a Gaussian observation for each axis that a wall stopped.

    The function is linear in the coordinates ``phi`` of the rows, with independent standard normal
    weights; ``noise`` is lambda of each axis.
    """
    from scipy.linalg import cho_solve, solve_triangular  # slow to import
    from scipy.special import log_ndtr

    # After eight rounds of expectation propagation the sites hardly change; damped, they converge.
    rounds, damping = 8, 0.8
    side, walls = rows.side, rows.targets
    targets, weight = walls.copy(), np.where(side != 0, 0.0, rows.weight)
    for axis, variance in enumerate(noise):
        stopped = np.flatnonzero(side[:, axis])
        if not len(stopped):
            continue
        own, towards, wall = phi[stopped], side[stopped, axis], walls[stopped, axis]
        share = weight[:, axis] / variance
        precision = np.eye(phi.shape[1]) + (phi.T * share) @ phi
        pulled = phi.T @ (share * walls[:, axis])
        tau, nu = np.zeros(len(stopped)), np.zeros(len(stopped))
        for _ in range(rounds):
            lower = np.linalg.cholesky(precision + (own.T * tau) @ own)
            mean = own @ cho_solve((lower, True), pulled + own.T @ nu)
            spread = np.sum(solve_triangular(lower, own.T, lower=True) ** 2, axis=0)
            # The posterior without the site itself, then what the likelihood makes of it.
            cavity = 1 / np.maximum(1 / spread - tau, 1e-12)
            centre = cavity * (mean / spread - nu)
            total = np.sqrt(variance + cavity)
            z = towards * (centre - wall) / total
            ratio = np.exp(-0.5 * z**2 - 0.5 * np.log(2 * np.pi) - log_ndtr(z))
            after = cavity - (cavity / total) ** 2 * ratio * (z + ratio)
            moved = centre + towards * cavity * ratio / total
            tau += damping * (np.maximum(1 / after - 1 / cavity, 0.0) - tau)
            nu += damping * (moved / after - centre / cavity - nu)
        kept = tau * variance > 1e-6  # what weighs less, in observations, is left out
        weight[stopped, axis] = np.where(kept, tau * variance, 0.0)
        targets[stopped, axis] = np.where(kept, nu / np.where(kept, tau, 1.0), 0.0)
    return Rows(rows.inputs, targets, weight, np.zeros_like(side))
