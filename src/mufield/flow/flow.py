"""The flow of a problem: its transition Phi, and what episodes earn."""

from dataclasses import replace
from typing import Any

import equinox as eqx
from jaxtyping import Array, Float

from .. import _types
from .._types import Mass, Scalar, Step
from ..errors import UserError
from ..policies.base import ActionLaw, as_profile
from ..problem import Motion, Problem
from ..space.measure import at_all_cells
from ..space.move import NeighbourNoise
from .phi import AbstractPhi, displacements, end_reward, integrated_reward
from .rollout import PolicyCheck, Rollout, rollout
from .windows import Windows, WindowSettings, build_windows
from .within import WithinCells, build_within
from .wrappers import WithNeighbourNoise, WithTrips


class Flow(eqx.Module):
    """The mean-field flow of a problem under any motion.

    Building one prepares the tables for walls and borders; keep it and use it many times.

    Attributes:
        problem: The problem.
        moves: The transition of agents that no trip takes; it knows the problem's space, noise and
            farthest moves, so that problems that differ in the rest can share it.
    """

    problem: Problem
    moves: AbstractPhi

    def __init__(
        self,
        problem: Problem,
        *,
        within_cells: bool = False,
        settings: WindowSettings | None = None,
        moves: AbstractPhi | None = None,
    ):
        """Prepares the flow.

        Args:
            problem: The problem.
            within_cells: Whether `rollout` follows where in their cells agents stand, so that J is
                close to what many agents earn who are not ``centred`` (`benchmarks/limit.py`).
                By default mass leaves from the centres of cells, as in the paper; plans by mirror
                ascent and certificates are of that flow. In the discrete rooms, where agents
                stand in the middle, both are the same.
            settings: How windows are built.
            moves: The transition of another flow, to be shared.
        """
        self.problem = problem
        if settings is not None and (within_cells or moves is not None):
            raise UserError(
                "settings are of windows, which neither within_cells=True nor another flow's moves "
                "use; leave them out"
            )
        if moves is not None:
            self.moves = moves
            return
        if within_cells and not problem.noise.centred:
            self.moves = build_within(problem)
            return
        self.moves = build_windows(problem, settings)
        if isinstance(problem.noise, NeighbourNoise):
            self.moves = WithNeighbourNoise.build(self.moves, problem.noise)

    @property
    def phi(self) -> AbstractPhi:
        """The transition of the problem."""
        trips, moves = self.problem.trips, self.moves
        return moves if trips is None else WithTrips(inner=moves, trips=trips, grid=moves.grid)

    @property
    def core(self) -> AbstractPhi:
        """The innermost transition, without wrappers."""
        return self.moves.core

    @property
    def centred(self) -> "Flow":
        """The flow of the same problem in which mass leaves from the centres of cells."""
        return self if self.moves.centred else Flow(self.problem)

    def of_problem(self, problem: Problem) -> "Flow":
        """The flow of a problem with the same space, noise and farthest moves."""
        return Flow(problem, moves=self.moves)

    def with_noise(self, noise_std: Float[Array, "dim"]) -> "Flow":
        """The flow with less Gaussian noise than the problem's."""

        def change(core: AbstractPhi) -> AbstractPhi:
            assert isinstance(core, Windows | WithinCells)
            return replace(core, noise_std=noise_std)

        return Flow(self.problem, moves=self.moves.map_core(change))

    def starting_from(self, initial: Any) -> "Flow":
        """The same flow with episodes that start from another distribution."""
        return self.of_problem(self.problem.starting_from(initial))

    def from_step(self, step: int, mass: Any) -> "Flow":
        """The flow of the rest of an episode; see `Problem.from_step`."""
        return self.of_problem(self.problem.from_step(step, mass))

    def step(self, mass: Mass, law: ActionLaw, motion: Motion, step: Step = 0) -> Mass:
        """Phi: the next distribution when agents at the cells follow ``law`` at step ``step``."""
        if not self.moves.centred:
            raise UserError(
                "a distribution does not say where in their cells agents stand, which a flow with "
                "within_cells=True follows from the start of an episode: use rollout, or "
                "flow.centred for single steps"
            )
        moved = displacements(self.problem.grid, mass, motion, law.actions, step)
        after: Mass = self.phi.push(mass[:, None] * law.weights, moved, mass, step)
        return after

    def rewards(self, mass: Mass, law: ActionLaw, step: Step = 0) -> Float[Array, "cells moves"]:
        """Reward of one agent in each cell and for each of its moves."""
        return at_all_cells(self.problem.grid, mass, self.problem.reward, law.actions, step)

    def reward(self, mass: Mass, law: ActionLaw, step: Step = 0) -> Scalar:
        """The integrated reward r-hat(mu, pi) (eq. integratedReward)."""
        return integrated_reward(self.problem.grid, mass, law, self.problem.reward, step)

    def end_reward(self, mass: Mass) -> Scalar:
        """The integrated reward of the last distribution, with agents at rest."""
        return end_reward(self.problem, mass)

    def rollout(self, policy: Any, motion: Motion) -> Rollout:
        """The flow of an episode under a policy profile and a motion.

        Args:
            policy: A profile, a policy, or a function ``(state, mu, step) -> action``.
            motion: The law of motion of one agent, ``(state, action, mu) -> next state``.
        """
        return self.inspect(policy, motion)[0]

    def inspect(self, policy: Any, motion: Motion) -> tuple[Rollout, PolicyCheck]:
        """`rollout`, and the figures by which the policy and the motion can be checked."""
        return rollout(self.phi, self.problem, policy, motion)

    def value(self, policy: Any, motion: Motion) -> Scalar:
        """J(pi) under a motion (lemma DistMDP)."""
        return self.rollout(policy, motion).value

    def mean_actions(
        self, policy: Any, mass: _types.Masses
    ) -> Float[Array, "steps cells action_dim"]:
        """Average action in every cell at each step, given the distributions of an episode."""
        return as_profile(policy, self.problem.horizon).laws(self.problem.grid, mass[:-1]).mean()
