"""A flow whose motion sees more of mu than the agent's own cell, near one of its episodes.

To evaluate such a motion in every pass would take most of a plan's time, and mu changes little from
one sweep to the next. So its kernels are kept for some sweeps as they are along one episode. How
the motion would change with mu enters by its derivative: a reward that is linear in mu stands in
for it, so that value and derivatives are exact at that episode.
"""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import Mass, Scalar, Step
from . import kernels
from .charge import Charge
from .flow import Rollout
from .moves import Choices, MoveFlow, Sweep, Weights, backwards


class Kept(eqx.Module):
    """What is kept of an episode.

    Attributes:
        kernels: The kernels of each step.
        slopes: Derivative of J by what the motion sees of mu, at each step.
        mass: The distributions before each step.
    """

    kernels: Float[Array, "steps cells moves window"]
    slopes: Float[Array, "steps cells"]
    mass: Float[Array, "steps cells"]


class FrozenFlow(eqx.Module):
    """The flow over finitely many moves, near an episode.

    Attributes:
        moves: The flow that it stands in for.
        kept: What is kept of the episode.
    """

    moves: MoveFlow
    kept: Kept

    def sweep(
        self,
        weights: Weights,
        *,
        bound: bool = False,
        charge: Charge | None = None,
        rollout: Rollout | None = None,
    ) -> Sweep:
        """`MoveFlow.sweep` by the kernels; there is never a bound."""
        moves = self.moves
        flow, steps = moves.flow, moves.flow.problem.steps

        def forth(mass: Mass, inputs: tuple[Array, ...]) -> tuple[Mass, Mass]:
            now, kernel, number = inputs
            land = partial(moves.land, kernel=kernel)
            return flow.ride(mass[:, None] * now, mass, number, land), mass

        if rollout is None:
            rows = (weights, self.kept.kernels, steps)
            end, before = jax.lax.scan(forth, flow.problem.initial, rows)
            paid = moves.paid(before, end, weights)
            value = paid.value + jnp.vdot(self.kept.slopes, before - self.kept.mass)
            rollout = eqx.tree_at(lambda r: r.value, paid, value)

        def choices(inputs: tuple[Array, ...], mass: Mass) -> Choices:
            now, kernel, slope, number = inputs

            def step(joint: Array, seen: Mass) -> tuple[Mass, Scalar]:
                after, paid = _step(moves, kernel, joint, seen, number)
                return after, paid + jnp.vdot(slope, seen)

            return Choices(weights=now, step=step)

        inputs = (weights, self.kept.kernels, self.kept.slopes, steps)
        prices = None if charge is None else charge(rollout.mass)
        action_values, gap = backwards(
            flow, rollout.mass, inputs, choices, bound=False, prices=prices
        )
        return Sweep(rollout, action_values, gap, prices)


def keep(moves: MoveFlow, weights: Weights, charge: Charge | None = None) -> tuple[Kept, Sweep]:
    """What to keep of the episode of a policy, and that episode, computed by the motion itself.

    The motion and its derivative are evaluated once for each step.
    """
    flow, steps = moves.flow, moves.flow.problem.steps

    def forth(mass: Mass, inputs: tuple[Array, Array]) -> tuple[Mass, tuple[Mass, Array]]:
        now, number = inputs
        kernel = kernels.landing_kernel(
            flow, moves.motion, moves.actions, mass, moves.group, number
        )
        land = partial(moves.land, kernel=kernel)
        return flow.ride(mass[:, None] * now, mass, number, land), (mass, kernel)

    end, (before, found) = jax.lax.scan(forth, flow.problem.initial, (weights, steps))
    rollout = moves.paid(before, end, weights)

    one = jnp.ones_like(rollout.value)
    prices = None if charge is None else charge(rollout.mass)

    def back(values: Mass, inputs: tuple[Any, ...]) -> tuple[Mass, Any]:
        now, mass, kernel, number, price = inputs
        joint = mass[:, None] * now
        _, pull = jax.vjp(lambda j, seen: _step(moves, kernel, j, seen, number), joint, mass)
        by_choice, by_reward = pull((values, one))
        if price is not None:
            by_reward = by_reward + price

        def moved(seen: Mass) -> Mass:
            """What changes with what the motion sees; what trips see is in the other derivative."""
            move = partial(moves.move, mass=seen, step=number)
            return flow.ride(joint, mass, number, move)

        slope = jax.vjp(moved, mass)[1](values)[0]
        return jnp.sum(now * by_choice, axis=1) + by_reward + slope, (by_choice, slope)

    last = jnp.zeros_like(end)
    if flow.problem.pay_end:
        last = jax.grad(flow.end_reward)(end)
    charged = None
    if prices is not None:
        charged, last = prices.slopes[:-1], last + prices.slopes[-1]
    inputs = (weights, before, found, steps, charged)
    _, (action_values, slopes) = jax.lax.scan(back, last, inputs, reverse=True)
    sweep = Sweep(rollout, action_values, jnp.inf * one, prices)
    return Kept(found, slopes, before), sweep


def _step(
    moves: MoveFlow, kernel: Array, joint: Array, mass: Mass, step: Step
) -> tuple[Mass, Scalar]:
    """The next distribution by a kernel, and what this one earns."""
    land = partial(moves.land, kernel=kernel)
    return moves.flow.ride(joint, mass, step, land), jnp.sum(joint * moves.rewards(mass, step))
