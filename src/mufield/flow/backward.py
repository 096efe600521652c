"""The derivatives of J along an episode: one scan backwards."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._arrays import Mass, Masses, Scalar, Step
from ..problem import Problem
from .phi import Arrivals
from .rollout import Rollout, end_rewards, if_begun

if TYPE_CHECKING:
    from ..constraints.lagrangian import Penalty
    from .moves import MoveFlow

Weights = Float[Array, "steps cells moves"]


class Sweep(eqx.Module):
    """An episode's flow and the derivatives of its value.

    Attributes:
        rollout: The flow, its rewards and J; up to the bank's error if it interpolates.
        action_values: Derivative of J by the joint mass of each step, cell and move.
        gap: How much J, or with constraints the Lagrangian, would gain to first order by the best
            response to this flow. If the reward is concave in mu, no randomised policy over the
            moves earns more than J + gap. Infinite if the motion depends on mu: no such bound.
        penalty: What constraints add to the figures, if the problem has them.
        slopes: Derivative of J by the moves themselves, if each step has its own.
    """

    rollout: Rollout
    action_values: Weights
    gap: Scalar
    penalty: "Penalty | None" = None
    slopes: Float[Array, "steps cells moves action_dim"] | None = None

    @property
    def objective(self) -> Scalar:
        """What an ascent climbs: J, or with constraints the augmented Lagrangian."""
        value = self.rollout.value
        return value if self.penalty is None else value + self.penalty.augmented

    @property
    def upper(self) -> Scalar:
        """The bound of the optimum: J + gap, or with constraints the Lagrangian + gap."""
        bound = self.rollout.value + self.gap
        return bound if self.penalty is None else bound + self.penalty.plain


class Choices(eqx.Module):
    """What agents in each cell can choose from at one step of an episode.

    Attributes:
        weights: Probability of each choice.
        step: A function of the joint mass of cells and choices, of the distribution that motion
            and reward see, and of ``actions``; returns where agents arrive (see
            `AbstractPhi.push`) and the integrated reward.
        usable: Which choices the best response may use; all of them if it is None.
        actions: The actions, if derivatives by them are wanted.
        best: The values of a best response that may use more than these choices, from those of
            where agents arrive.
    """

    weights: Float[Array, "cells choices"]
    step: Callable[[Array, Mass, Array | None], tuple[Arrivals, Scalar]]
    usable: Bool[Array, "cells choices"] | None = None
    actions: Float[Array, "cells choices action_dim"] | None = None
    best: Callable[[Arrivals], Mass] | None = None


class Derivatives(NamedTuple):
    """The derivatives of J along an episode.

    Attributes:
        by_joint: By the joint mass of each step, cell and choice: Q_h(s, a).
        by_actions: By the actions of the choices, if `Choices` has them.
        gap: How much the best response to the linearised reward would gain.
        best: As ``by_joint``, if from the next step on agents respond best.
        by_mu: By mu_0, ..., mu_H as what motion and reward see: what an agent does to all others.
    """

    by_joint: Float[Array, "steps cells choices"]
    by_actions: Float[Array, "steps cells choices action_dim"] | None
    gap: Scalar
    best: Float[Array, "steps cells choices"] | None
    by_mu: Masses


def backward(
    problem: Problem,
    mass: Masses,
    inputs: Any,
    choices: Callable[[Any, Mass, Step], Choices],
    *,
    bound: bool = True,
    slopes: Masses | None = None,
    own: bool = False,
) -> Derivatives:
    """The derivatives of J by the joint mass of cells and choices: the one scan backwards.

    Args:
        problem: The problem.
        mass: The distributions of the episode.
        inputs: What is given to ``choices`` for each step, stacked.
        choices: Returns what agents can choose from, given a step's input, distribution, number.
        bound: Whether to compute the gap, a third of the work; otherwise it is infinite.
        slopes: Derivative by mu_0, ..., mu_H of what is added to J, such as a penalty.
        own: Whether to leave out what an agent does to others: values of one in a population that
            it cannot change, instead of derivatives of J. The gap is then the exploitability.
    """

    def one(values: tuple[Array, Array], rows: tuple[Any, ...]) -> tuple[Any, Any]:
        return if_begun(problem, rows[-1], lambda now: back(now, *rows), values)

    def back(
        carry: tuple[Array, Array], row: Any, now: Mass, slope: Mass | None, number: Step
    ) -> tuple[tuple[Array, Array], Any]:
        values, best = carry
        options = choices(row, now, number)

        def step(joint: Array, seen: Mass, actions: Array | None) -> tuple[Arrivals, Scalar]:
            return options.step(joint, jax.lax.stop_gradient(seen) if own else seen, actions)

        # mu matters twice: as the joint mass that moves, and as what motion and reward see.
        joint = now[:, None] * options.weights
        (_, reward), pull = jax.vjp(step, joint, now, options.actions)
        by_choice, by_mu, by_action = pull((values, jnp.ones_like(reward)))
        if slope is not None:
            by_mu = by_mu + slope
        values = before(values, jnp.sum(options.weights * by_choice, axis=1) + by_mu)
        best_by_choice = None
        if bound:
            best_by_choice = pull((best, jnp.ones_like(reward)))[0]
            if options.usable is not None:
                best_by_choice = jnp.where(options.usable, best_by_choice, -jnp.inf)
            most = jnp.max(best_by_choice, axis=1)
            if options.best is not None:
                most = jnp.maximum(most, options.best(best))
            best = before(best, most + by_mu)
        return (values, best), (by_choice, by_action, best_by_choice, by_mu)

    def before(values: Array, now: Mass) -> Array:
        """Values of cells by step from the present one on; agents under way arrive later."""
        return jnp.concatenate([now[None], values[:-1]])

    last = by_last = jnp.zeros_like(problem.initial)
    if problem.pay_end:
        last, pull_end = jax.vjp(lambda end: end_rewards(problem, end), mass[-1])
        by_last = jnp.zeros_like(last) if own else pull_end(mass[-1])[0]
    if slopes is not None:
        slopes, by_last = slopes[:-1], by_last + slopes[-1]
    start = problem.initial_arrivals
    ends = jnp.zeros_like(start).at[0].set(last + by_last)
    (values, best), (by_joint, by_actions, best_by_joint, by_mu) = jax.lax.scan(
        one, (ends, ends), (inputs, mass[:-1], slopes, problem.steps), reverse=True
    )
    gap = jnp.where(bound, jnp.vdot(start, best - values), jnp.inf)
    by_mu = jnp.concatenate([by_mu, by_last[None]])
    return Derivatives(by_joint, by_actions, gap, best_by_joint, by_mu)


def tried_masses(moves: "MoveFlow") -> list[float]:
    """Masses of a cell, from none to all, at which a motion that sees it is evaluated."""
    if not moves.sees_mu:
        return [0.0]
    return [0.0, *np.geomspace(0.1 / moves.flow.problem.grid.n_cells, 1.0, 7).tolist()]


def expected_values(
    moves: "MoveFlow", seen: Mass, values: Float[Array, "rows cells"], step: Step
) -> Float[Array, "rows cells moves"]:
    """Expected value of the cell where each move lands, for each row of ``values``.

    The motion sees the masses ``seen``.
    """
    dtype = moves.actions.dtype
    # The landed mass is linear in the joint mass of cells and moves, so its derivative is exact.
    phi, seen = moves.phi(exact=True), seen.astype(dtype)
    targets = moves.targets(phi, seen, step)
    move = partial(phi.move, targets=targets, seen=seen, step=step)
    _, pull = jax.vjp(move, jnp.zeros(moves.actions.shape[:2], dtype=dtype))
    return jax.lax.map(lambda row: pull(row)[0], values.astype(dtype), batch_size=16)
