"""The flow of randomised policies over listed moves, forwards and backwards."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import Mass, Scalar, Step
from ..constraints.lagrangian import AugmentedLagrangian, Penalty
from ..errors import UserError
from ..policies.base import Profile
from ..policies.tables import TablePolicy
from ..problem import AbstractJointMotion, Motion
from ..space.measure import at_all_cells
from .bank import KernelBank, ListedMotion, kernel_bank, kernel_bytes
from .dependence import dependence, sees_step, trips_see_mu
from .flow import Flow
from .motion_table import tabulated
from .phi import AbstractPhi
from .rollout import Choices, Rollout, backward, complete, forward
from .windows import TargetsLater, Windows

Weights = Float[Array, "steps cells moves"]


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
        problem, core = flow.problem, flow.core
        if not isinstance(core, Windows):
            raise UserError(
                "mirror ascent and certificates are for the flow in which mass leaves from the "
                "centres of cells, got one with within_cells=True; give flow.centred"
            )
        if actions.shape[-1] != problem.actions.dim:
            raise UserError(
                f"each move must have {problem.actions.dim} numbers, as the problem's actions, "
                f"got the shape {actions.shape}"
            )
        # Hallucinated controls are not checked: planners may try others than a `MoveSet` lists.
        inside = True if group > 1 else jnp.all(problem.actions.contains(actions))
        if not isinstance(inside, jax.core.Tracer) and not inside:
            raise UserError(f"some moves are outside {problem.actions.describe()}; leave them out")
        if actions.shape[-2] % group:
            raise UserError(
                f"{actions.shape[-2]} moves cannot be divided into groups of {group} that earn the "
                "same; make them equal in number"
            )
        shape = (problem.grid.n_cells, *actions.shape[-2:])
        everywhere = jnp.broadcast_to(actions.astype(problem.initial.dtype), shape)
        seen, clocked = dependence(problem, motion), sees_step(problem, motion)
        self.shared = actions.ndim == 2
        self.flow = flow
        self.sees_mu = seen != "nothing"
        costly = isinstance(motion, AbstractJointMotion) and group > 1 and seen == "here"
        if costly and self.shared:
            assert isinstance(motion, AbstractJointMotion)
            motion = tabulated(problem, motion, everywhere[0, ::group, : motion.action_dim])
        self.listed = ListedMotion(motion, everywhere, group)
        self.bank = None
        steps = problem.steps if clocked else jnp.zeros(1, dtype=jnp.int32)
        fit = bank_bytes // (kernel_bytes(core, shape[1]) * len(steps))
        if seen == "nothing" and fit >= 1:
            self.bank = kernel_bank(core, self.listed.kernels(core, steps, 1))
        elif seen == "here" and interpolate and fit >= 12:  # with fewer knots it would be coarse
            self.bank = kernel_bank(core, self.listed.kernels(core, steps, min(16, fit)))

    @property
    def motion(self) -> Motion:
        """The law of motion."""
        table = self.listed.table
        return self.listed.motion if table is None else table.motion

    @property
    def actions(self) -> Float[Array, "cells moves action_dim"]:
        """The moves, for each cell."""
        return self.listed.actions

    @property
    def n_moves(self) -> int:
        """Number of moves."""
        return int(self.actions.shape[1])

    @property
    def group(self) -> int:
        """Moves come in groups of this many neighbours with the same reward."""
        return self.listed.group

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

    def _uses_bank(self, exact: bool) -> bool:
        return self.bank is not None and not (exact and self.bank.interpolates)

    def phi(self, *, exact: bool = False, trips: bool = True) -> AbstractPhi:
        """The transition that `push` uses; if ``exact``, no interpolation."""
        phi = self.flow.phi if trips else self.flow.moves
        return phi.map_core(lambda core: self.bank or core) if self._uses_bank(exact) else phi

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
        targets = None if self._uses_bank(exact) else self._targets(seen, step)
        after: Mass = self.phi(exact=exact, trips=trips).push(joint, targets, seen, step)
        return after

    def _targets(self, seen: Mass, step: Step) -> TargetsLater:
        """Where moves lead, for transitions without kernels."""
        listed, grid = self.listed, self.flow.problem.grid
        if listed.table is not None:
            moved = listed.displacements(grid, seen, step)
            return TargetsLater(lambda some: some, moved)
        return TargetsLater(
            lambda some: listed.displacements(grid, seen, step, some), listed.actions, listed.group
        )

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
        return complete(phi, problem, mass, rewards, end)

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
        action_values, gap = backward(
            self.phi(), problem, rollout.mass, weights, choices, bound=bound, penalty=penalty
        )
        return Sweep(rollout, action_values, gap, penalty)

    def step(
        self, joint: Float[Array, "cells moves"], seen: Mass, step: Step
    ) -> tuple[Mass, Scalar]:
        """The next distribution, by the bank if there is one, and what this one earns."""
        return self.push(joint, seen, step), jnp.sum(joint * self.rewards(seen, step))
