"""Mirror ascent over randomised per-cell policies on a finite set of moves.

Every sweep multiplies each move's weight by the exponential of its value. Where the motion does
not depend on mu and the reward is concave in mu, the problem over randomised policies is concave
and the ascent is global; the gap of every sweep says how far the optimum can be.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._progress import progress_bar
from .._types import Scalar
from ..errors import UserError
from ..flow.moves import MoveFlow, Sweep, Weights
from ..policies.base import Profile
from .certificate import is_concave

FIRST_STEP = 0.1
GROWTH, SHRINKAGE = 1.1, 0.5
"""Step sizes adapt: a little larger after every gain, half after a loss, which is undone."""

LOWEST_WEIGHT = 1e-12
"""Floor of the weights of a warm start, so that every move can come back."""


class MirrorState(eqx.Module):
    """Where an ascent is.

    Attributes:
        logits: Logarithms of the weights, up to a constant.
        sweep: The flow and the derivatives at these weights.
        step_size: Size of the next step.
        upper: Least upper bound J + gap of all sweeps so far.
        sweeps: Number of sweeps done.
    """

    logits: Weights
    sweep: Sweep
    step_size: Scalar
    upper: Scalar
    sweeps: Int[Array, ""]

    @property
    def weights(self) -> Weights:
        """The policy's weights."""
        return jax.nn.softmax(self.logits, axis=-1)

    @property
    def value(self) -> Scalar:
        """J of the policy."""
        return self.sweep.rollout.value


class MirrorResult(eqx.Module):
    """What an ascent found.

    Attributes:
        weights: The policy's weights.
        value: Its J.
        upper: Least J + gap seen: no randomised policy over the moves earns more. Infinite if
            the motion depends on mu or the reward is not concave in it.
        history: J and gap after each sweep.
        outcome: ``"bracket"`` if the bracket became as narrow as asked for, else ``"sweeps"``.
        state: Where to go on from.
    """

    weights: Weights
    value: Scalar
    upper: Scalar
    history: Float[Array, "sweeps 2"]
    outcome: str = eqx.field(static=True)
    state: MirrorState

    @property
    def bracket(self) -> Scalar:
        """Width of the interval that holds the optimum, for concave problems."""
        return self.upper - self.value

    def profile(self, moves: MoveFlow) -> Profile:
        """The randomised policy profile."""
        return moves.profile(self.weights)

    def mean_actions(self, moves: MoveFlow) -> Float[Array, "steps cells action_dim"]:
        """Average action of each step and cell: where gradient ascent may start."""
        return jnp.einsum("hkm,kma->hka", self.weights, moves.actions)


class MirrorAscent(eqx.Module):
    """The planner: `init`, `step` and the driver `solve`, which uses only those two.

    Attributes:
        sweeps: Most sweeps.
        bracket: Stop when J + gap - J is this small; zero to use all sweeps.
        sweeps_at_once: Sweeps between two looks at the result.
    """

    sweeps: int = eqx.field(static=True, default=200)
    bracket: float = eqx.field(static=True, default=0.0)
    sweeps_at_once: int = eqx.field(static=True, default=20)

    def init(self, moves: MoveFlow, weights: Weights | None = None) -> MirrorState:
        """The state before the first step.

        Args:
            moves: The flow over a set of moves.
            weights: Weights to start from; all moves alike by default.
        """
        if weights is None:
            weights = moves.uniform()
        elif weights.shape != moves.uniform().shape or not bool(
            jnp.all(weights >= 0) & jnp.all(jnp.abs(jnp.sum(weights, axis=-1) - 1) < 1e-3)
        ):
            raise UserError(
                f"weights must have the shape {moves.uniform().shape}, be non-negative and sum to "
                f"1 in every cell; got the shape {weights.shape}"
            )
        return _init(moves, weights)

    def step(self, moves: MoveFlow, state: MirrorState) -> MirrorState:
        """One sweep: take a step, keep it if J did not fall, adapt the step size."""
        return _steps(moves, state, jnp.asarray(1), self.sweeps_at_once)[0]

    def solve(
        self, moves: MoveFlow, weights: Weights | None = None, *, progress: bool = False
    ) -> MirrorResult:
        """Ascends until the bracket is narrow enough or the sweeps are used up.

        The upper bound is infinite where the problem is not of the class that has one.
        """
        if self.sweeps < 1:
            raise UserError(f"mirror ascent needs at least one sweep, got {self.sweeps}")
        concave = is_concave(moves.flow, moves.motion)
        state = self.init(moves, weights)
        history, done, outcome = [], 0, "sweeps"
        with progress_bar("mirror ascent", self.sweeps, shown=progress) as report:
            while done < self.sweeps:
                count = min(self.sweeps_at_once, self.sweeps - done)
                state, figures = _steps(moves, state, jnp.asarray(count), self.sweeps_at_once)
                history.append(figures[:count])
                done += count
                bracket = float(state.upper - state.value) if concave else math.inf
                report(done, J=float(state.value), bracket=bracket)
                if bracket <= self.bracket:
                    outcome = "bracket"
                    break
        return MirrorResult(
            weights=state.weights,
            value=state.value,
            upper=state.upper if concave else jnp.full_like(state.upper, jnp.inf),
            history=jnp.concatenate(history),
            outcome=outcome,
            state=state,
        )


def ascend(moves: MoveFlow, sweeps: int) -> MirrorState:
    """A fixed number of sweeps from all moves alike, without bounds.

    Nothing is looked at on the way, so that it may be compiled and lifted over many motions.
    """
    # A constant the size of all weights would be folded while compiling, which takes seconds.
    weights = jax.lax.optimization_barrier(moves.uniform())
    state = _init(moves, weights, bound=False)

    def one(_: Array, state: MirrorState) -> MirrorState:
        return _advance(moves, state, bound=False)

    end: MirrorState = jax.lax.fori_loop(0, sweeps, one, state)
    return end


@eqx.filter_jit
def _init(moves: MoveFlow, weights: Weights, bound: bool = True) -> MirrorState:
    logits = jnp.log(jnp.maximum(weights, LOWEST_WEIGHT))
    sweep = moves.sweep(jax.nn.softmax(logits, axis=-1), bound=bound)
    dtype = weights.dtype
    return MirrorState(
        logits=logits,
        sweep=sweep,
        step_size=jnp.asarray(FIRST_STEP, dtype=dtype),
        upper=sweep.rollout.value + sweep.gap,
        sweeps=jnp.asarray(0, dtype=jnp.int32),
    )


def _advance(moves: MoveFlow, state: MirrorState, bound: bool = True) -> MirrorState:
    old = state.sweep
    logits = state.logits + state.step_size * old.action_values
    # Only differences between moves matter; the best at zero keeps the logits from drifting.
    logits = logits - jnp.max(logits, axis=-1, keepdims=True)
    new = moves.sweep(jax.nn.softmax(logits, axis=-1), bound=bound)
    slack = 2 * jnp.finfo(logits.dtype).eps * jnp.abs(old.rollout.value)
    # A comparison with NaN is false, so a step that is not finite is undone as well.
    better = new.rollout.value >= old.rollout.value - slack
    upper = new.rollout.value + new.gap

    def choose(yes: Any, no: Any) -> Any:
        return jax.tree.map(lambda a, b: jnp.where(better, a, b), yes, no)

    return MirrorState(
        logits=choose(logits, state.logits),
        sweep=choose(new, old),
        step_size=state.step_size * jnp.where(better, GROWTH, SHRINKAGE).astype(logits.dtype),
        upper=jnp.where(jnp.isfinite(upper), jnp.minimum(upper, state.upper), state.upper),
        sweeps=state.sweeps + 1,
    )


@eqx.filter_jit
def _steps(
    moves: MoveFlow, state: MirrorState, count: Int[Array, ""], most: int
) -> tuple[MirrorState, Float[Array, "most 2"]]:
    """``count`` sweeps; one compiled program serves all counts up to ``most``."""

    def one(i: Array, carry: tuple[MirrorState, Array]) -> tuple[MirrorState, Array]:
        state = _advance(moves, carry[0])
        return state, carry[1].at[i].set(jnp.stack([state.value, state.sweep.gap]))

    figures = jnp.zeros((most, 2), dtype=state.logits.dtype)
    state, figures = jax.lax.fori_loop(0, count, one, (state, figures))
    return state, figures
