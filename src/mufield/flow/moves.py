"""The flow of randomised policies over listed moves, forwards and backwards."""

from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._types import Mass, Scalar, State, Step
from ..constraints.lagrangian import AugmentedLagrangian, Penalty
from ..errors import UserError
from ..policies.base import Profile
from ..policies.tables import TablePolicy
from ..problem import Motion
from ..space.grid import Grid
from ..space.measure import at_all_cells
from .flow import Flow
from .motions import (
    AbstractJointMotion,
    MotionTable,
    crowd_mass,
    dependence,
    hallucinated,
    predictions,
    tabulated,
    trips_see_mu,
)
from .phi import AbstractPhi
from .rollout import Choices, Rollout, assemble_rollout, backward, forward
from .windows import KernelBank, Windows

Weights = Float[Array, "steps cells moves"]


class ListedMotion(eqx.Module):
    """A motion and the moves whose displacements or kernels are wanted.

    Attributes:
        motion: The law of motion.
        actions: The moves, for each cell.
        group: Number of consecutive moves that share all but their hallucinated control; the costly
            part of an `AbstractJointMotion` is computed once for each group.
    """

    motion: Motion
    actions: Float[Array, "cells moves action_dim"]
    group: int = eqx.field(static=True, default=1)

    def displacements(self, grid: Grid, seen: Mass, step: Step) -> Float[Array, "cells moves _"]:
        """How far each move leads, without noise and walls; on nodes, with which probabilities."""
        motion, (cells, moves, size) = self.motion, self.actions.shape
        group, dim = 1, size
        if isinstance(motion, AbstractJointMotion):
            group, dim = self.group, motion.action_dim
        parts = self.actions.reshape(cells, moves // group, group, size)
        if isinstance(motion, MotionTable) and motion.listed:
            found = motion.listed_predictions(seen, step)
            motion = motion.motion
        else:
            own = parts[:, :, 0, :dim]
            found = predictions(grid, seen, motion, own, step, at_once=max(1, 64 // group))

        def of_cell(centre: State, found: Any, etas: Array) -> Float[Array, "groups group target"]:
            of_group = jax.vmap(partial(hallucinated, motion, centre), (None, 0))
            ends: Array = jax.vmap(of_group)(found, etas)
            return ends

        centres = jnp.asarray(grid.centres, dtype=seen.dtype)
        ends = jax.vmap(of_cell)(centres, found, parts[..., dim:]).reshape(cells, moves, -1)
        return grid.targets(centres[:, None, :], ends)

    @eqx.filter_jit
    def kernels(
        self, windows: Windows, steps: Int[Array, "steps"], knots: int
    ) -> Float[Array, "steps cells knots moves window"]:
        """The kernels of some steps, at evenly spaced crowd coordinates of the cell's mass."""
        cells, dtype = windows.grid.n_cells, self.actions.dtype
        masses = crowd_mass(jnp.linspace(0.0, 1.0, knots, dtype=dtype), cells)

        def at(step: Step, mass: Scalar) -> Float[Array, "cells moves window"]:
            # The same mass in every cell: the motion looks only at the agent's own.
            seen = jnp.full(cells, mass, dtype)
            return windows.kernel(self.displacements(windows.grid, seen, step))

        def at_step(step: Step) -> Float[Array, "cells knots moves window"]:
            return jnp.swapaxes(jax.lax.map(lambda mass: at(step, mass), masses), 0, 1)

        found: Array = jax.lax.map(at_step, steps)
        return found


class Sweep(eqx.Module):
    """An episode's flow and the derivatives of its value.

    Attributes:
        rollout: The flow, its rewards and J; up to the bank's error if it interpolates.
        action_values: Derivative of J by the joint mass of each step, cell and move.
        gap: How much J would gain, to first order, from the best response to this flow. If the
            reward is concave in mu, no randomised policy over the moves earns more than J + gap.
            Infinite if the motion depends on mu: then there is no such bound. With constraints:
            gain of the Lagrangian instead of J.
        penalty: What constraints add to the figures, if the problem has them.
    """

    rollout: Rollout
    action_values: Weights
    gap: Scalar
    penalty: Penalty | None = None

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


class MoveFlow(eqx.Module):
    """The flow of a problem and a motion for policies that draw from listed moves.

    Attributes:
        flow: The problem's flow.
        listed: The motion and the moves; a model's motion that sees the mass of the agent's own
            cell is a `MotionTable`.
        bank: Kernels computed ahead, if the motion sees no more of mu than the agent's own cell and
            they fit into memory. Sweeps use it; `rollout` does not if it interpolates.
        sees_mu: Whether the motion depends on mu.
        shared: Whether all cells have the same moves.
    """

    flow: Flow
    listed: ListedMotion
    bank: KernelBank | None
    sees_mu: bool = eqx.field(static=True)
    shared: bool = eqx.field(static=True)

    def __init__(
        self,
        flow: Flow,
        motion: Motion,
        actions: Float[Array, "*cells moves action_dim"],
        *,
        group: int = 1,
        bank_bytes: int = 1 << 29,
        interpolate: bool = True,
    ):
        """Prepares the flow; computes kernels ahead if the motion allows.

        May be called inside a compiled function, where the values of the moves are not checked.

        Args:
            flow: The problem's flow.
            motion: The law of motion of one agent.
            actions: The moves, the same everywhere or different in each cell.
            group: Number of consecutive moves that share an action and so a reward, and differ
                only in their hallucinated control. The reward is computed once for each group.
            bank_bytes: Memory that kernels may take.
            interpolate: Whether to compute kernels between which the own cell's mass decides.
        """
        problem, windows = flow.problem, flow.windows
        if actions.shape[-1] != problem.actions.dim:
            raise UserError(
                f"each move must have {problem.actions.dim} numbers, as the problem's actions, "
                f"got the shape {actions.shape}"
            )
        # Hallucinated controls are not checked: planners may try others than a `MoveSet` lists.
        shape = (problem.grid.n_cells, *actions.shape[-2:])
        everywhere = jnp.broadcast_to(actions.astype(problem.initial.dtype), shape)
        own = jnp.arange(shape[0])[:, None]
        inside = True if group > 1 else jnp.all(problem.allowed(everywhere, own))
        if not isinstance(inside, jax.core.Tracer) and not inside:
            raise UserError(f"some moves are outside {problem.actions.describe()}; leave them out")
        if actions.shape[-2] % group:
            raise UserError(
                f"{actions.shape[-2]} moves cannot be divided into groups of {group} that earn the "
                "same; make them equal in number"
            )
        motion = problem.lifted(motion)
        sees = dependence(problem, motion)
        self.shared = actions.ndim == 2
        self.flow = flow
        self.sees_mu = sees.mu
        costly = group > 1 and self.shared and sees.here and not sees.mass
        if costly and isinstance(motion, AbstractJointMotion):
            motion = tabulated(problem, motion, everywhere[0, ::group, : motion.action_dim])
        self.listed = ListedMotion(motion, everywhere, group)
        self.bank = None
        steps = problem.steps if sees.step else jnp.zeros(1, dtype=jnp.int32)
        fit = bank_bytes // (windows.kernel_bytes(shape[1]) * len(steps))
        needed = 12 if sees.here else 1  # knots: with fewer, interpolation would be coarse
        # Probabilities on nodes cost too little to be interpolated.
        interpolate = interpolate and not problem.on_nodes
        if fit >= needed and not sees.mass and (interpolate or not sees.here):
            knots = min(16, fit) if sees.here else 1
            self.bank = windows.with_kernels(self.listed.kernels(windows, steps, knots))

    @property
    def motion(self) -> Motion:
        """The law of motion."""
        motion = self.listed.motion
        return motion.motion if isinstance(motion, MotionTable) else motion

    @property
    def actions(self) -> Float[Array, "cells moves action_dim"]:
        """The moves, for each cell."""
        return self.listed.actions

    @property
    def group(self) -> int:
        """Moves come in groups of this many neighbours with the same reward."""
        return self.listed.group

    def uniform(self) -> Weights:
        """The weights of the policy that draws uniformly from the moves."""
        shape = (self.flow.problem.horizon, *self.actions.shape[:2])
        return jnp.full(shape, 1.0 / shape[-1], dtype=self.actions.dtype)

    def profile(self, weights: Weights) -> Profile:
        """The policy profile with these weights; of a stationary problem that of its first step."""
        return self._profile(self.actions, weights)

    def own_profile(self, weights: Weights, action_dim: int) -> Profile:
        """The profile of agents' own actions, whatever the control; weights are of groups."""
        return self._profile(self.actions[:, :: self.group, :action_dim], weights)

    def _profile(self, actions: Array, weights: Weights) -> Profile:
        problem = self.flow.problem
        if self.shared:
            table = TablePolicy.mixing(actions[0], weights, problem.grid)
        else:
            every = jnp.broadcast_to(actions, (problem.horizon, *actions.shape))
            table = TablePolicy(every, weights, problem.grid)
        profile = Profile.stacked(table, problem.horizon)
        return Profile.stationary(profile.at(0), problem.horizon) if problem.stationary else profile

    def phi(self, *, exact: bool = False) -> AbstractPhi:
        """The transition that `push` uses; if ``exact``, no interpolation."""
        found: AbstractPhi = self.flow.windows
        if self.bank is not None and not (exact and self.bank.interpolates):
            found = self.bank
        return replace(found, trips=self.flow.problem.trips)

    def push(
        self,
        joint: Float[Array, "cells moves"],
        seen: Mass,
        step: Step,
        *,
        exact: bool = False,
        trips: bool = True,
    ) -> Mass:
        """The next distribution, from the joint mass of cells and moves; motions see ``seen``.

        Unless ``exact``, interpolated kernels are used; without ``trips`` nobody is taken.
        """
        phi, targets = self.phi(exact=exact), None
        if isinstance(phi, Windows):
            targets = self.listed.displacements(phi.grid, seen, step)
        after: Mass = (phi.push if trips else phi.move)(joint, targets, seen, step)
        return after

    def rewards(self, mass: Mass, step: Step) -> Float[Array, "cells moves"]:
        """Reward of one agent in each cell and for each move."""
        problem, moves = self.flow.problem, self.actions[:, :: self.group]
        paid = at_all_cells(problem.grid, mass, problem.reward, moves, step)
        return jnp.repeat(paid, self.group, axis=1)

    def rollout(self, weights: Weights, *, exact: bool = True) -> Rollout:
        """The flow and J of the policy with these weights.

        By the motion itself; if that is a model's that sees mu, by a spline through what the model
        says. Unless ``exact``, by the bank.
        """
        problem, phi = self.flow.problem, self.phi(exact=exact)

        def step(mass: Mass, now: Array, number: Step) -> tuple[Mass, None]:
            return self.push(mass[:, None] * now, mass, number, exact=exact), None

        mass, end, _ = forward(phi, problem, weights, step)
        paid: Any = jax.vmap(lambda m, w, h: jnp.sum(m[:, None] * w * self.rewards(m, h)))
        rewards = paid(mass[:-1], weights, problem.steps)
        if problem.first is not None:
            rewards = jnp.where(problem.begun, rewards, 0.0)
        return assemble_rollout(phi, problem, mass, rewards, end)

    def sweep(
        self,
        weights: Weights,
        *,
        bound: bool = True,
        lagrangian: AugmentedLagrangian | None = None,
        rollout: Rollout | None = None,
    ) -> Sweep:
        """The episode forwards, then the derivatives of J backwards.

        Args:
            weights: The policy's weights.
            bound: Whether to compute the gap, a third of the work; otherwise it is infinite.
            lagrangian: The multipliers of the problem's constraints.
            rollout: The episode, if it is known from an earlier sweep.
        """
        problem = self.flow.problem
        rollout = self.rollout(weights, exact=False) if rollout is None else rollout

        def choices(now: Array, mass: Mass, number: Step) -> Choices:
            return Choices(now, lambda joint, seen: self.step(joint, seen, number))

        bound = bound and not self.sees_mu and not trips_see_mu(problem)
        penalty = None if lagrangian is None else lagrangian(rollout.mass)
        slopes = None if penalty is None else penalty.slopes
        action_values, gap = backward(
            self.phi(), problem, rollout.mass, weights, choices, bound=bound, slopes=slopes
        )
        if problem.stationary:
            # One policy for all steps: of their derivatives by its weights, the sum over the steps,
            # for each agent that uses it.
            now = rollout.mass[:-1, :, None]
            mean = jnp.sum(now * action_values, axis=0) / jnp.maximum(jnp.sum(now, axis=0), 1e-12)
            action_values = jnp.broadcast_to(mean, action_values.shape)
        return Sweep(rollout, action_values, gap, penalty)

    def step(
        self, joint: Float[Array, "cells moves"], seen: Mass, step: Step
    ) -> tuple[Mass, Scalar]:
        """The next distribution, by the bank if there is one, and what this one earns."""
        return self.push(joint, seen, step), jnp.sum(joint * self.rewards(seen, step))
