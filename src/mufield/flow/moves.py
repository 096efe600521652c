"""The flow of randomised policies over listed moves, forwards and backwards."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._arrays import Margins, Mass, Scalar, Step, device_array
from ..actions import Box, MoveSet
from ..errors import UserError, is_a
from ..interfaces import with_fields
from ..policies.base import Profile
from ..policies.tables import TablePolicy
from ..problem import Motion
from ..space.measure import at_all_cells
from .backward import Choices, Sweep, Weights, backward
from .checks import real_motion
from .flow import Flow
from .motion_table import MotionTable, actions_at, kernels_ahead, move_targets, tabulated
from .motions import AbstractJointMotion, dependence, trips_see_mu
from .phi import AbstractPhi, Arrivals, Displacements
from .rollout import Rollout, assemble_rollout, forward
from .windows import KernelBank, Windows

if TYPE_CHECKING:
    from ..constraints.lagrangian import AugmentedLagrangian


class MoveFlow(eqx.Module):
    """The flow of a problem and a motion for policies that draw from listed moves.

    A `Flow` knows the problem and how mass moves, for any motion. To it come a motion and moves,
    and what stands in for them where they are costly: a table for the motion, kernels for both.

    Attributes:
        quick: The motion, or the `MotionTable` that stands in for a model's.
        actions: The moves, for each cell, or for each step and cell.
        group: Number of consecutive moves with the same reward, which share all but their
            hallucinated control.
        bank: Kernels computed ahead, if the motion sees no more of mu than the agent's own cell and
            they fit into memory. Sweeps use it; `rollout` does not if it interpolates.
        shared: Whether all cells have the same moves.
        free: Whether the moves are only a start, and plans may use any action of the box.
    """

    flow: Flow
    quick: Motion
    actions: Float[Array, "*steps cells moves action_dim"]
    group: int = eqx.field(static=True)
    bank: KernelBank | None
    sees_mu: bool = eqx.field(static=True)
    shared: bool = eqx.field(static=True)
    free: bool = eqx.field(static=True)

    def __init__(
        self,
        flow: Flow,
        motion: Motion | None = None,
        actions: Float[Array, "*steps_cells moves action_dim"] | None = None,
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
            actions: The moves: the same everywhere, different in each cell, or in each step and
                cell. By default those of a `MoveSet`; in a box some on each axis, from which plans
                may go on to any other action.
            group: Number of consecutive moves that share an action and so a reward, and differ
                only in their hallucinated control. The reward is computed once for each group.
            bank_bytes: Memory that kernels may take.
            interpolate: Whether to compute kernels between which the own cell's mass decides.
        """
        is_a(flow, Flow, "the flow", "write MoveFlow(*system.reveal()), or MoveFlow(flow, motion)")
        problem, windows = flow.problem, replace(flow.phi, trips=None)
        self.free = actions is None and isinstance(problem.actions, Box)
        actions = coarse_moves(problem.actions) if actions is None else actions
        actions = jnp.asarray(actions, dtype=problem.initial.dtype)
        if actions.ndim < 2 or actions.shape[-1] != problem.actions.dim:
            raise UserError(
                f"each move must have {problem.actions.dim} numbers, as the problem's actions, "
                f"got the shape {actions.shape}; problem.actions.points(9) lists some"
            )
        # Hallucinated controls are not checked: planners may try others than a `MoveSet` lists.
        shape = (problem.grid.n_cells, *actions.shape[-2:])
        everywhere = jnp.broadcast_to(actions, (*actions.shape[:-3], *shape))
        own = jnp.arange(shape[0])[:, None]
        inside = True if group > 1 else jnp.all(problem.actions.contains(everywhere, own))
        if not isinstance(inside, jax.core.Tracer) and not inside:
            raise UserError(
                f"some moves are outside {problem.actions.describe()}, or not available in all "
                "cells; leave them out, or name no moves, so that each cell has its own"
            )
        if actions.shape[-2] % group:
            raise UserError(
                f"{actions.shape[-2]} moves cannot be divided into groups of {group} that earn the "
                "same; make them equal in number"
            )
        motion = real_motion(problem, motion)
        sees = dependence(problem, motion)
        self.shared = actions.ndim == 2
        self.flow = flow
        self.sees_mu = sees.mu
        joint = isinstance(motion, AbstractJointMotion)
        if self.shared and (sees.mass or (sees.here and group > 1 and joint)):
            dim = getattr(motion, "action_dim", None)
            motion = tabulated(problem, motion, everywhere[0, ::group, :dim])
        self.quick, self.actions, self.group, self.bank = motion, everywhere, group, None
        by_step = sees.step or everywhere.ndim == 4
        steps = problem.steps if by_step else jnp.zeros(1, dtype=jnp.int32)
        entries = len(steps) * math.prod((*shape[:2], *windows.landing.window))
        fit = bank_bytes // (entries * actions.dtype.itemsize)
        needed = 12 if sees.here else 1  # knots: with fewer, interpolation would be coarse
        interpolate = interpolate and not windows.landing.cheap
        if fit >= needed and not sees.mass and (interpolate or not sees.here):
            knots = min(16, fit) if sees.here else 1
            self.bank = kernels_ahead(windows, motion, everywhere, steps, knots, group)

    @property
    def motion(self) -> Motion:
        """The law of motion."""
        return self.quick.motion if isinstance(self.quick, MotionTable) else self.quick

    def only(self, move: Int[Array, ""]) -> "MoveFlow":
        """The flow over one of the moves alone, which costs as much less."""

        def one(leaf: Array, axis: int, index: Array = move) -> Array:
            return jax.lax.dynamic_index_in_dim(leaf, index, axis % leaf.ndim)

        motion, bank = self.quick, self.bank
        if isinstance(motion, MotionTable) and not isinstance(motion.actions, Box):
            motion = motion.only(move // self.group)
        if bank is not None:
            bank = replace(bank, kernels=one(bank.kernels, 4))
        return with_fields(self, quick=motion, actions=one(self.actions, -2), group=1, bank=bank)

    def uniform(self) -> Weights:
        """The weights of the policy that draws uniformly from the moves."""
        shape = (self.flow.problem.horizon, *self.actions.shape[-3:-1])
        return jnp.full(shape, 1.0 / shape[-1], dtype=self.actions.dtype)

    @property
    def active(self) -> Bool[Array, "*paths steps margins"]:
        """Which constraints must hold after each move."""
        assert self.flow.problem.constraints is not None
        return self.flow.problem.constraints.active(self.flow.problem.begun)

    def margins(self, rollout: Rollout) -> Margins:
        """How far inside its constraints an episode over the moves is."""
        return self.flow.problem.margins(rollout.mass)

    def profile(self, weights: Weights, own_axes: int | None = None) -> Profile:
        """The policy profile with these weights; of a stationary problem that of its first step.

        With ``own_axes``, the axes of agents' own actions, weights are of groups, and the profile
        is of these actions without controls.
        """
        problem, actions = self.flow.problem, self.actions
        if own_axes is not None:
            actions = actions[..., :: self.group, :own_axes]
        if self.shared:
            table = TablePolicy.mixing(actions[0], weights, problem.grid)
        else:
            every = jnp.broadcast_to(actions, (problem.horizon, *actions.shape[-3:]))
            table = TablePolicy(every, weights, problem.grid)
        profile = Profile.stacked(table, problem.horizon)
        return Profile.stationary(profile.at(0), problem.horizon) if problem.stationary else profile

    def phi(self, *, exact: bool = False) -> AbstractPhi:
        """The transition of `step`; if ``exact``, without interpolation."""
        if self.bank is None or (exact and self.bank.interpolates):
            return self.flow.phi
        return replace(self.bank, trips=self.flow.problem.trips)

    def targets(
        self, phi: AbstractPhi, seen: Mass, step: Step, actions: Array | None = None
    ) -> Displacements | None:
        """Where the moves lead, or other ``actions``; None if ``phi`` has kernels of the moves."""
        if not isinstance(phi, Windows):
            return None
        actions = actions_at(self.actions, step) if actions is None else actions
        return move_targets(phi.grid, self.quick, seen, actions, step, self.group)

    def rewards(
        self, mass: Mass, step: Step, actions: Array | None = None
    ) -> Float[Array, "cells moves"]:
        """Reward of one agent in each cell and for each move, or each of other ``actions``."""
        actions = actions_at(self.actions, step) if actions is None else actions
        problem, moves = self.flow.problem, actions[:, :: self.group]
        paid = at_all_cells(problem.grid, mass, problem.reward, moves, step)
        return jnp.repeat(paid, self.group, axis=1)

    def rollout(self, weights: Weights, *, exact: bool = True) -> Rollout:
        """The flow and J of the policy with these weights.

        By the motion itself; if that is a model's that sees mu, by a spline through what the model
        says. Unless ``exact``, by the bank.
        """
        problem, phi = self.flow.problem, self.phi(exact=exact)

        def step(mass: Mass, now: Array, number: Step) -> tuple[Arrivals, Scalar]:
            return self.step(mass[:, None] * now, mass, number, exact=exact)

        return assemble_rollout(problem, *forward(phi, problem, weights, step))

    def sweep(
        self,
        weights: Weights,
        *,
        bound: bool = True,
        lagrangian: "AugmentedLagrangian | None" = None,
    ) -> Sweep:
        """The episode forwards, then the derivatives of J backwards.

        Args:
            weights: The policy's weights.
            bound: Whether to compute the gap, a third of the work; otherwise it is infinite.
            lagrangian: The multipliers of the problem's constraints.
        """
        problem = self.flow.problem
        rollout = self.rollout(weights, exact=False)

        def choices(row: Any, mass: Mass, number: Step) -> Choices:
            def step(joint: Array, seen: Mass, actions: Array | None) -> tuple[Arrivals, Scalar]:
                return self.step(joint, seen, number, actions)

            return Choices(row[0], step, actions=row[1])

        bound = bound and not self.sees_mu and not trips_see_mu(problem)
        penalty = None if lagrangian is None else lagrangian(rollout.mass)
        slopes = None if penalty is None else penalty.slopes
        rows = (weights, self.actions if self.actions.ndim == 4 and self.bank is None else None)
        found = backward(problem, rollout.mass, rows, choices, bound=bound, slopes=slopes)
        action_values = found.by_joint
        if problem.stationary:
            # One policy for all steps: of their derivatives by its weights, the sum over the steps,
            # for each agent that uses it.
            now = rollout.mass[:-1, :, None]
            mean = jnp.sum(now * action_values, axis=0) / jnp.maximum(jnp.sum(now, axis=0), 1e-12)
            action_values = jnp.broadcast_to(mean, action_values.shape)
        return Sweep(rollout, action_values, found.gap, penalty, found.by_actions)

    def step(
        self, joint: Array, seen: Mass, step: Step, actions: Any = None, *, exact: bool = False
    ) -> tuple[Arrivals, Scalar]:
        """Where agents arrive, from the joint mass of cells and moves, and what this one earns.

        Motions and rewards see ``seen``. Unless ``exact``, interpolated kernels are used. Where
        there are no kernels, other ``actions`` may stand in for the moves.
        """
        phi = self.phi(exact=exact)
        after = phi.push(joint, self.targets(phi, seen, step, actions), seen, step)
        return after, jnp.sum(joint * self.rewards(seen, step, actions))


def coarse_points(axes: int) -> int:
    """Moves on each axis of a box that a plan starts from: fewer where there are many axes."""
    return 9 if axes <= 2 else 5


def coarse_moves(actions: Box | MoveSet) -> Float[Array, "*cells moves action_dim"]:
    """The moves that a plan starts from: of a box some on each axis, rest among them.

    Of a `MoveSet` its moves; those of each cell, if they are not the same everywhere.
    """
    if isinstance(actions, MoveSet):
        own = actions.available
        return actions.moves if own is None else actions.by_cell(len(own))
    axes = np.linspace(actions.lower, actions.upper, coarse_points(actions.dim), axis=1)
    for axis, rest in zip(axes, actions.rest, strict=True):
        axis[np.argmin(np.abs(axis - rest))] = rest
    table = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
    return device_array(table.reshape(-1, actions.dim))
