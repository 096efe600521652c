"""The flow of randomised policies over finitely many moves, forwards and backwards.

For a fixed set of moves the next distribution is linear in the joint mass of cells and moves. If
the motion does not depend on mu, that linear map is a constant kernel: it is computed once, and
every further pass over an episode is cheap. If it depends on the mass of the agent's own cell
alone, sweeps use a table of kernels instead.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .. import _types
from .._types import Mass, Scalar, Step
from ..errors import UserError
from ..policies.base import ActionLaw, Profile
from ..policies.tables import TablePolicy
from ..problem import AbstractJointMotion, Motion
from . import kernels
from .charge import Charge, Prices
from .flow import Flow, Rollout
from .kernels import CrowdTable
from .phi import Aims
from .sight import sees_step, sight, trips_see_mu

Weights = Float[Array, "steps cells moves"]


class Sweep(eqx.Module):
    """An episode's flow and the derivatives of its value.

    Attributes:
        rollout: The flow, its rewards and J; up to the table's error if there is one.
        action_values: Derivative of J by the joint mass of each step, cell and move.
        gap: How much J would gain, to first order, from the best response to this flow. If the
            reward is concave in mu, no randomised policy over the moves earns more than J + gap.
            Infinite if the motion depends on mu: then there is no such bound. With limits: gain of
            the Lagrangian instead of J.
        prices: What breaking limits adds to the figures, if the problem has them.
    """

    rollout: Rollout
    action_values: Weights
    gap: Scalar
    prices: Prices | None = None

    @property
    def objective(self) -> Scalar:
        """What an ascent climbs: J, or with limits the augmented Lagrangian."""
        value = self.rollout.value
        return value if self.prices is None else value + self.prices.augmented

    @property
    def upper(self) -> Scalar:
        """The bound of the optimum: J + gap, or with limits the Lagrangian + gap."""
        bound = self.rollout.value + self.gap
        return bound if self.prices is None else bound + self.prices.plain


class MoveFlow(eqx.Module):
    """The flow of a problem and a motion for policies that draw from finitely many moves.

    Attributes:
        actions: The moves, for each cell.
        kernel: Probability of each window offset for each cell and move, for each step if the
            motion depends on it; none if it depends on mu or the kernel would be too large.
        table: The kernels of a motion that sees the mass of the agent's own cell and no more of
            mu. Sweeps use it; `rollout` does not.
        sees_mu: Whether the motion depends on mu.
        sees_step: Whether it depends on the step.
        shared: Whether all cells have the same moves.
        group: Moves come in groups of this many neighbours with the same reward.
    """

    flow: Flow
    motion: Motion
    actions: Float[Array, "cells moves action_dim"]
    kernel: Float[Array, "*steps cells moves window"] | None
    table: CrowdTable | None
    sees_mu: bool = eqx.field(static=True)
    sees_step: bool = eqx.field(static=True)
    shared: bool = eqx.field(static=True)
    group: int = eqx.field(static=True)

    def __init__(
        self,
        flow: Flow,
        motion: Motion,
        actions: Float[Array, "*cells moves action_dim"],
        *,
        group: int = 1,
    ):
        """Prepares the flow; computes the kernel or the table if the motion allows.

        May be called inside a compiled function, where the values of the moves are not checked.

        Args:
            flow: The problem's flow.
            motion: The law of motion of one agent.
            actions: The moves, the same everywhere or different in each cell.
            group: Number of consecutive moves that share an action and so a reward, and differ
                only in their hallucinated control. The reward is computed once for each group.
        """
        problem = flow.problem
        if flow.within is not None:
            raise UserError(
                "mirror ascent and certificates are for the flow in which mass leaves from the "
                "centres of cells, got one with within_cells=True; give flow.centred"
            )
        if actions.shape[-1] != problem.actions.dim:
            raise UserError(
                f"each move must have {problem.actions.dim} numbers, as the problem's actions, "
                f"got the shape {actions.shape}"
            )
        dtype = problem.initial.dtype
        shape = (problem.grid.n_cells, *actions.shape[-2:])
        # Hallucinated controls are not checked: planners may try others than a `MoveSet` lists.
        inside = True if group > 1 else jnp.all(problem.actions.contains(actions))
        if not isinstance(inside, jax.core.Tracer) and not inside:
            raise UserError(f"some moves are outside {problem.actions.describe()}; leave them out")
        if actions.shape[-2] % group:
            raise UserError(
                f"{actions.shape[-2]} moves cannot be divided into groups of {group} that earn the "
                "same; make them equal in number"
            )
        self.shared = actions.ndim == 2
        self.group = group
        self.flow = flow
        self.motion = motion
        self.actions = jnp.broadcast_to(actions.astype(dtype), shape)
        seen = sight(problem, motion)
        self.sees_mu = seen != "nothing"
        self.sees_step = sees_step(problem, motion)
        self.kernel = self.table = None
        size = kernels.kernel_bytes(flow, shape[1]) * (problem.horizon if self.sees_step else 1)
        knots = 0 if self.sees_step else CrowdTable.knots_for(flow, shape[1])
        if seen == "nothing" and size <= kernels.MOST_KERNEL_BYTES:

            def at(step: Step) -> Float[Array, "cells moves window"]:
                initial = problem.initial
                return kernels.landing_kernel(flow, motion, self.actions, initial, group, step)

            self.kernel = jax.lax.map(at, problem.steps) if self.sees_step else at(0)
        elif seen == "here" and knots:
            self.table = CrowdTable.build(flow, motion, self.actions, knots, group)

    @property
    def n_moves(self) -> int:
        """Number of moves."""
        return int(self.actions.shape[1])

    @property
    def freezes(self) -> bool:
        """Whether sweeps go by kernels that are kept for some of them (`FrozenFlow`).

        So it is if the motion sees more of mu than a table can hold, and the kernels of all steps
        fit into memory.
        """
        size = kernels.kernel_bytes(self.flow, self.n_moves) * self.flow.problem.horizon
        needed = self.sees_mu and self.table is None
        return needed and size <= kernels.MOST_KERNEL_BYTES

    def uniform(self) -> Weights:
        """The weights of the policy that draws uniformly from the moves."""
        shape = (self.flow.problem.horizon, *self.actions.shape[:2])
        return jnp.full(shape, 1.0 / self.n_moves, dtype=self.actions.dtype)

    def profile(self, weights: Weights) -> Profile:
        """The policy profile with these weights."""
        horizon, grid = self.flow.problem.horizon, self.flow.problem.grid
        if self.shared:
            return Profile.stacked(TablePolicy.mixing(self.actions[0], weights, grid), horizon)
        actions = jnp.broadcast_to(self.actions, (horizon, *self.actions.shape))
        return Profile.stacked(TablePolicy(actions, weights, grid), horizon)

    def push(
        self, joint: Float[Array, "cells moves"], mass: Mass, step: Step, *, exact: bool = True
    ) -> Mass:
        """The next distribution, from the joint mass of cells and moves; motions see ``mass``.

        Unless it is to be ``exact``, the table is used if there is one.
        """
        move = partial(self.move, mass=mass, step=step, exact=exact)
        return self.flow.ride(joint, mass, step, move)

    def move(
        self, joint: Float[Array, "cells moves"], mass: Mass, step: Step, *, exact: bool = True
    ) -> Mass:
        """`push` without the problem's trips."""
        if self.kernel is not None:
            place = step - self.flow.problem.first
            return self.land(joint, self.kernel[place] if self.sees_step else self.kernel)
        if self.table is not None and not exact:
            return kernels.arrive(self.flow, self.table(joint, mass))
        after = self._push_in_chunks(joint, mass, step)
        return after if self.flow.neighbours is None else self.flow.neighbours(after)

    def land(
        self, joint: Float[Array, "cells moves"], kernel: Float[Array, "cells moves window"]
    ) -> Mass:
        """The next distribution by a kernel, from the joint mass of cells and moves."""
        return kernels.land(self.flow, joint, kernel)

    def rewards(self, mass: Mass, step: Step) -> Float[Array, "cells moves"]:
        """Reward of one agent in each cell and for each move."""
        moves = self.actions[:, :: self.group]
        law = ActionLaw(actions=moves, weights=jnp.ones_like(moves[..., 0]))
        return jnp.repeat(self.flow.rewards(mass, law, step), self.group, axis=1)

    def rollout(self, weights: Weights) -> Rollout:
        """The flow and J of the policy with these weights.

        By the motion itself; if that is a model's with a table, by a spline through what the
        model says.
        """
        return self._rollout(weights, exact=True)

    def _rollout(self, weights: Weights, *, exact: bool) -> Rollout:
        def step(mass: Mass, inputs: tuple[Array, Array]) -> tuple[Mass, Mass]:
            now, number = inputs
            return self.push(mass[:, None] * now, mass, number, exact=exact), mass

        problem = self.flow.problem
        end, before = jax.lax.scan(step, problem.initial, (weights, problem.steps))
        return self.paid(before, end, weights)

    def paid(self, before: Float[Array, "steps cells"], end: Mass, weights: Weights) -> Rollout:
        """An episode from its distributions, before each step and at the end, and the policy."""
        paid = jax.vmap(lambda m, w, h: jnp.sum(m[:, None] * w * self.rewards(m, h)))(
            before, weights, self.flow.problem.steps
        )
        if self.flow.problem.pay_end:
            paid = jnp.append(paid, self.flow.end_reward(end))
        mass = jnp.concatenate([before, end[None]])
        return Rollout(mass=mass, rewards=paid, value=jnp.sum(paid))

    def sweep(
        self,
        weights: Weights,
        *,
        bound: bool = True,
        charge: Charge | None = None,
        rollout: Rollout | None = None,
    ) -> Sweep:
        """The episode forwards, then the derivatives of J backwards.

        Args:
            weights: The policy's weights.
            bound: Whether to compute the gap, a third of the work; otherwise it is infinite.
            charge: What breaking limits costs, which is subtracted from J.
            rollout: The episode, if it is known from an earlier sweep.
        """
        rollout = self._rollout(weights, exact=False) if rollout is None else rollout

        def choices(inputs: tuple[Array, Array], mass: Mass) -> Choices:
            now, number = inputs
            return Choices(weights=now, step=partial(self.step, step=number))

        bound = bound and not self.sees_mu and not trips_see_mu(self.flow.problem)
        prices = None if charge is None else charge(rollout.mass)
        action_values, gap = backwards(
            self.flow,
            rollout.mass,
            (weights, self.flow.problem.steps),
            choices,
            bound=bound,
            prices=prices,
        )
        return Sweep(rollout, action_values, gap, prices)

    def step(
        self, joint: Float[Array, "cells moves"], mass: Mass, step: Step
    ) -> tuple[Mass, Scalar]:
        """The next distribution, by the table if there is one, and what this one earns."""
        earned = jnp.sum(joint * self.rewards(mass, step))
        return self.push(joint, mass, step, exact=False), earned

    def _push_in_chunks(self, joint: Array, mass: Mass, step: Step) -> Mass:
        """Phi with the windows of a few moves at a time, which gradients do not keep either."""
        aimed, beliefs = self.actions, self.table.beliefs if self.table else None
        if beliefs is not None:
            assert isinstance(self.motion, AbstractJointMotion)
            place = kernels.crowd_coordinate(mass)
            aimed = beliefs.displacements(self.flow, self.motion, place, self.actions, self.group)

        def add(total: Mass, part: tuple[Array, Array]) -> tuple[Mass, None]:
            found, weights = part
            if beliefs is None:
                found = kernels.displacements(self.flow, self.motion, mass, found, self.group, step)
            aims = Aims(found, weights, self.flow.noise_std)
            return total + self.flow.land(jnp.ones_like(mass), aims), None

        if self.n_moves <= kernels.MOVES_AT_ONCE:
            return add(jnp.zeros_like(mass), (aimed, joint))[0]
        size = self.group * max(1, kernels.MOVES_AT_ONCE // self.group)
        chunks = -(-self.n_moves // size)
        pad = (0, chunks * size - self.n_moves)
        aimed = jnp.pad(aimed, ((0, 0), pad, (0, 0)), mode="edge")
        parts = tuple(
            jnp.swapaxes(x.reshape(x.shape[0], chunks, size, *x.shape[2:]), 0, 1)
            for x in (aimed, jnp.pad(joint, ((0, 0), pad)))
        )
        return jax.lax.scan(jax.checkpoint(add), jnp.zeros_like(mass), parts)[0]


class Choices(eqx.Module):
    """What agents in each cell can choose from at one step of an episode.

    Attributes:
        weights: Probability of each choice.
        step: A function of the joint mass of cells and choices, and of the distribution that
            motion and reward see; returns the next distribution and the integrated reward.
        usable: Which choices the best response may use; all of them if it is None.
    """

    weights: Float[Array, "cells choices"]
    step: Callable[[Array, Mass], tuple[Mass, Scalar]]
    usable: Bool[Array, "cells choices"] | None = None


def backwards(
    flow: Flow,
    mass: _types.Masses,
    inputs: Any,
    choices: Callable[[Any, Mass], Choices],
    *,
    bound: bool = True,
    prices: Prices | None = None,
) -> tuple[Weights, Scalar]:
    """The derivatives of J by the joint mass of cells and choices, from the last step to the first.

    Args:
        flow: The problem's flow.
        mass: The distributions of the episode.
        inputs: First arguments of ``choices``, stacked over the steps.
        choices: Returns what agents can choose from, given one step's input and distribution.
        bound: Whether to compute the gap, a third of the work; otherwise it is infinite.
        prices: What is charged for breaking limits, whose derivatives are added.

    Returns:
        The derivatives, and how much the best response to the linearised reward would gain.
    """
    problem = flow.problem

    def back(
        carry: tuple[Mass, Mass], step_inputs: tuple[Any, Mass, Mass | None]
    ) -> tuple[tuple[Mass, Mass], Array]:
        values, best = carry
        step_input, now, price = step_inputs
        options = choices(step_input, now)
        # mu matters twice: as the joint mass that moves, and as what motion and reward see.
        (_, reward), pull = jax.vjp(options.step, now[:, None] * options.weights, now)
        by_choice, by_mu = pull((values, jnp.ones_like(reward)))
        if price is not None:
            by_mu = by_mu + price
        values = jnp.sum(options.weights * by_choice, axis=1) + by_mu
        if bound:
            best_by_choice, _ = pull((best, jnp.ones_like(reward)))
            if options.usable is not None:
                best_by_choice = jnp.where(options.usable, best_by_choice, -jnp.inf)
            best = jnp.max(best_by_choice, axis=1) + by_mu
        return (values, best), by_choice

    last = jnp.zeros_like(problem.initial)
    if problem.pay_end:
        last = jax.grad(flow.end_reward)(mass[-1])
    slopes = None
    if prices is not None:
        slopes, last = prices.slopes[:-1], last + prices.slopes[-1]
    (values, best), action_values = jax.lax.scan(
        back, (last, last), (inputs, mass[:-1], slopes), reverse=True
    )
    gap = jnp.vdot(problem.initial, best - values)
    return action_values, gap if bound else jnp.full_like(gap, jnp.inf)
