"""The flow of a whole episode and what it earns: r-hat and J (lemma DistMDP)."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .. import _types
from .._types import Mass, Scalar, Step
from ..errors import UserError
from ..policies.base import AbstractPolicy, ActionLaw, Profile, as_profile
from ..problem import Motion, Problem
from ..space.grid import Grid
from ..space.measure import at_all_cells
from ..space.move import GaussianNoise, NeighbourNoise
from .fold import Fold, build_fold
from .ground import Ground, open_cells, survey
from .phi import Aims, NeighbourKernel, Pieces, into_room, transition, windows
from .sight import depends_on_mu
from .stencil import UNROLLED
from .within import Departures, Spread, Within, build_within, departures

NOISE_REACH = 5.0
"""Standard deviations of noise that windows cover on top of the farthest move. Of the farthest
moves 3e-7 of the mass would go farther, about what single precision resolves; it lands at the
window's edge, so that none is lost."""

MOST_WINDOW, MOST_ENTRIES = 5_000, 100_000_000
"""Cells in the window around a cell, and in all windows of tables; flows with more are refused."""

FEWEST_CELLS, LEAST_OPEN = 10_000, 0.5
"""Maps with fewer cells, or a smaller share of open ones, go by tables alone."""

MOST_KEPT_BYTES = 1 << 28
"""Memory that a gradient may take to avoid computing windows twice."""

MOST_SUBCELLS = {1: 1, 2: 16, 3: 8}
"""Most subcells on each axis of a split target cell, by dimension; see `mufield.flow.fold`."""


class Rollout(eqx.Module):
    """One episode of the population.

    Attributes:
        mass: The distributions mu_0, ..., mu_H.
        rewards: The integrated rewards r-hat, one for each paid step.
        value: Their sum J.
    """

    mass: _types.Masses
    rewards: Float[Array, "paid_steps"]
    value: Scalar


class Conduct(eqx.Module):
    """What a policy and a motion did at each step, to be checked afterwards.

    Attributes:
        allowed: Whether all actions with weight, in cells with mass, are in the action space.
        weight_error: Largest difference from one of the sum of a cell's weights, where it has mass.
        least_weight: The smallest weight, which must not be negative.
        farthest: The longest displacement on each axis that agents aimed at.
    """

    allowed: Bool[Array, "*steps"]
    weight_error: Float[Array, "*steps"]
    least_weight: Float[Array, "*steps"]
    farthest: Float[Array, "*steps dim"]


class Flow(eqx.Module):
    """The mean-field flow of a problem under any motion.

    Building one prepares the tables for walls and borders; keep it and use it many times.

    Attributes:
        fold: The tables that say where mass comes to rest: of all cells, or of those that
            `ground` leaves to them.
        ground: On large maps, which cells go by a stencil instead.
        neighbours: The discrete rooms' noise, if the problem has it.
        noise_std: Standard deviation of the Gaussian noise on each axis.
        checkpoint: Whether gradients compute steps again to save memory.
        noiseless: Whether there is no Gaussian noise. Then mass lands exactly where an agent
            would, and a small change of the actions does not change the flow.
        within: The tables for agents who stand anywhere in their cells; None if mass leaves from
            the cells' centres.
    """

    problem: Problem
    fold: Fold
    ground: Ground | None
    neighbours: NeighbourKernel | None
    noise_std: Float[Array, "dim"]
    within: Within | None
    checkpoint: bool = eqx.field(static=True)
    noiseless: bool = eqx.field(static=True)

    def __init__(
        self,
        problem: Problem,
        *,
        subcells: int | None = None,
        checkpoint: bool | None = None,
        stencil: bool | None = None,
        within_cells: bool = False,
    ):
        """Prepares the flow.

        Args:
            problem: The problem.
            subcells: Near the ends of walls, cells are cut into this many subcells on each axis.
                By default subcells are half a standard deviation of the noise, but not smaller
                than a sixteenth of a cell in two dimensions and an eighth in three; smaller noise
                is then resolved only to the subcell.
            checkpoint: Whether gradients keep one distribution for each step and compute the
                rest again, which takes longer. By default only where keeping what the gradients
                of all steps need would take more than `MOST_KEPT_BYTES`.
            stencil: Whether cells without walls within reach go by a stencil, not by tables. The
                result is the same; by default it is so on large maps that are mostly open.
            within_cells: Whether `rollout` follows where in their cells agents stand, so that J is
                close to what many agents earn who are not `centred` (`benchmarks/limit.py`).
                By default mass leaves from the centres of cells, as in the paper; plans by mirror
                ascent and certificates are of that flow. In the discrete rooms, where agents
                stand in the middle, both are the same.
        """
        grid, noise = problem.grid, problem.noise
        spread = noise.std if isinstance(noise, GaussianNoise) else (0.0,) * grid.dim
        self.problem = problem
        reach = window_reach(problem, spread)
        if stencil is None:
            stencil = goes_by_stencil(grid, reach)
        check_windows(problem, reach, stencil)
        tables = (
            grid,
            reach,
            subcells or subcells_for(problem, spread),
            problem.initial.dtype.name,
        )
        if stencil:
            self.ground, self.fold = survey(*tables)
        else:
            self.ground, self.fold = None, build_fold(*tables)
        self.noiseless = not any(spread)
        self.neighbours = None
        if isinstance(noise, NeighbourNoise):
            self.neighbours = NeighbourKernel.build(problem.grid, noise)
        self.noise_std = jnp.asarray(spread, dtype=problem.initial.dtype)
        self.within = None
        if within_cells and not problem.noise.centred:
            self.within = _build_within(problem, spread)
        # A step's gradient needs a few arrays of the size of the tables' windows; with a stencil
        # besides, of the distribution and where agents aim.
        size = len(self.fold.sources) * math.prod(self.fold.window) + self.fold.split_shares.size
        size += 0 if self.ground is None else grid.n_cells * (1 + grid.dim)
        kept = 4 * size * problem.horizon * problem.initial.dtype.itemsize
        self.checkpoint = kept > MOST_KEPT_BYTES if checkpoint is None else checkpoint

    def step(self, mass: Mass, law: ActionLaw, motion: Motion, step: Step = 0) -> Mass:
        """Phi: the next distribution when agents at the cells follow ``law`` at step ``step``."""
        return self.step_joint(mass, mass, law, motion, step)

    def step_joint(
        self, carried: Mass, mass: Mass, law: ActionLaw, motion: Motion, step: Step = 0
    ) -> Mass:
        """Phi with two roles of mu apart: ``carried`` is moved, ``mass`` is what the motion sees.

        The result is linear in ``carried`` and in the law's weights.
        """
        if self.within is not None:
            raise UserError(
                "a distribution does not say where in their cells agents stand, which a flow with "
                "within_cells=True follows from the start of an episode: use rollout, or "
                "flow.centred for single steps"
            )
        aims = self.displacements(motion, mass, law, step)
        return self.carry(carried, mass, law, aims, step)

    def carry(
        self, carried: Mass, mass: Mass, law: ActionLaw, displacements: Array, step: Step
    ) -> Mass:
        """Phi for agents who aim at these displacements, one for each cell and move."""

        def move(staying: Mass) -> Mass:
            landed = self.land(staying, Aims(displacements, law.weights, self.noise_std))
            return landed if self.neighbours is None else self.neighbours(landed)

        trips = self.problem.trips
        if trips is None:
            return move(carried)
        taken = trips.chances(self.problem.grid, mass, step)
        agents = carried * jnp.sum(law.weights, axis=1)
        return move(carried * (1 - taken)) + trips.land(agents * taken, step)

    @property
    def centred(self) -> "Flow":
        """The flow of the same problem in which mass leaves from the centres of cells."""
        if self.within is None:
            return self
        changed: Flow = eqx.tree_at(lambda f: f.within, self, None)
        return changed

    def spread_on(self, spread: Spread, leaving: Departures, step: Step) -> Spread:
        """`carry` for agents who stand anywhere in their cells."""
        assert self.within is not None
        grid, trips = self.problem.grid, self.problem.trips
        std = self.noise_std / jnp.asarray(grid.cell_size, dtype=self.noise_std.dtype)
        if trips is None:
            return Spread.of_sums(self.within.land(spread.mass, leaving, std))
        taken = trips.chances(grid, spread.mass, step)
        moved = self.within.land(spread.mass * (1 - taken), leaving, std)
        agents = spread.mass * jnp.sum(leaving.law.weights, axis=1)
        carried = trips.land(agents * taken, step)
        return Spread.of_sums(moved + Spread.sums_of_even(carried, grid.dim))

    def ride(
        self,
        joint: Float[Array, "cells moves"],
        mass: Mass,
        step: Step,
        move: Callable[[Float[Array, "cells moves"]], Mass],
    ) -> Mass:
        """The next distribution from the joint mass of cells and moves, with the problem's trips.

        ``mass`` is what the chance of a trip sees, ``move`` lands those that are not taken.
        """
        trips = self.problem.trips
        if trips is None:
            return move(joint)
        taken = joint * trips.chances(self.problem.grid, mass, step)[:, None]
        return move(joint - taken) + trips.land(jnp.sum(taken, axis=1), step)

    def land(self, carried: Mass, aims: Aims) -> Mass:
        """Where mass at the cell centres comes to rest, before the discrete rooms' noise."""
        grid, exact = self.problem.grid, self.noiseless
        if self.ground is None:
            return transition(grid, self.fold, carried, aims, exact=exact)
        return self.ground.leave(
            into_room(grid, self.ground, self.fold, carried, aims, exact=exact)
        )

    def displacements(
        self, motion: Motion, mass: Mass, law: ActionLaw, step: Step = 0
    ) -> Float[Array, "cells moves dim"]:
        """The displacement that each move of an agent at each cell centre aims at."""
        grid = self.problem.grid
        centres = jnp.asarray(grid.centres, dtype=mass.dtype)
        aims = at_all_cells(grid, mass, motion, law.actions, step)
        return grid.displacement(centres[:, None, :], aims)

    def rewards(self, mass: Mass, law: ActionLaw, step: Step = 0) -> Float[Array, "cells moves"]:
        """Reward of one agent in each cell and for each of its moves."""
        return at_all_cells(self.problem.grid, mass, self.problem.reward, law.actions, step)

    def reward(self, mass: Mass, law: ActionLaw, step: Step = 0) -> Scalar:
        """The integrated reward r-hat(mu, pi) (eq. integratedReward)."""
        return integrated_reward(self.problem, mass, law, step)

    def end_reward(self, mass: Mass) -> Scalar:
        """The integrated reward of the last distribution, with agents at rest."""
        return end_reward(self.problem, mass)

    def rollout(self, policy: Any, motion: Motion) -> Rollout:
        """The flow of an episode under a policy profile and a motion.

        Args:
            policy: A profile, a policy, or a function ``(state, mu, step) -> action``.
            motion: The law of motion of one agent, ``(state, action, mu) -> next state``.
        """
        return self._rollout(policy, motion, lambda *seen: None)[0]

    def inspect(self, policy: Any, motion: Motion) -> tuple[Rollout, "Conduct"]:
        """`rollout`, and the figures by which the policy and the motion can be checked."""
        actions = self.problem.actions

        def look(mass: Mass, law: ActionLaw, displacements: Array) -> Conduct:
            used = (law.weights != 0) & (mass[:, None] > 0)
            total = jnp.where(mass > 0, jnp.sum(law.weights, axis=1), 1.0)
            return Conduct(
                allowed=jnp.all(actions.contains(law.actions) | ~used),
                weight_error=jnp.max(jnp.abs(total - 1.0)),
                least_weight=jnp.min(law.weights),
                farthest=jnp.max(
                    jnp.abs(displacements), axis=(0, 1), where=used[..., None], initial=0.0
                ),
            )

        return self._rollout(policy, motion, look)

    def _rollout(
        self, policy: Any, motion: Motion, look: Callable[..., Any]
    ) -> tuple[Rollout, Any]:
        problem = self.problem
        profile = as_profile(policy, problem.horizon, problem.first)

        def law_of(part: Any, mass: Mass) -> ActionLaw:
            pi: AbstractPolicy = profile.join(part)
            law = pi.at_cells(problem.grid, mass)
            problem.check_action(law.actions.shape[2:])
            return law

        if self.within is not None:
            return self._rollout_within(profile, motion, look)
        # What does not depend on mu is computed ahead, for all steps at once, which is faster: the
        # laws of networks, and the windows. Laws of tables alone would only take memory.
        parts = profile.per_step
        blind = not (parts is None or profile.sees_mu)
        laws_ahead = blind and not profile.by_cell
        if laws_ahead:
            parts = jax.vmap(lambda part: law_of(part, problem.initial))(parts)

        def aims_of(part: Any, mass: Mass, number: Step) -> tuple[ActionLaw, Array]:
            law = part if laws_ahead else law_of(part, mass)
            return law, self.displacements(motion, mass, law, number)

        def windows_of(part: Any, number: Step) -> tuple[ActionLaw, Array, Pieces]:
            law, aims = aims_of(part, problem.initial, number)
            ones = jnp.ones_like(problem.initial)
            leaving = Aims(aims, law.weights, self.noise_std)
            return law, aims, windows(problem.grid, self.fold, leaving, ones, many=True)

        windows_ahead = blind and self._fixes_windows(motion)
        if windows_ahead:
            first = jax.tree.map(lambda leaf: leaf[0], parts)
            law = jax.eval_shape(lambda part: aims_of(part, problem.initial, 0)[0], first)
            windows_ahead = law.weights.shape[1] == 1
        if windows_ahead:
            parts = jax.vmap(windows_of)(parts, problem.steps)

        def step(mass: Mass, inputs: Any) -> tuple[Mass, tuple[Mass, Scalar | None, Any]]:
            part, number = inputs
            if windows_ahead:
                law, aims, pieces = part
                after = self.fold.routing(pieces.carrying(self.fold, mass).flat)
                return after, (mass, None, look(mass, law, aims))
            law, aims = aims_of(part, mass, number)
            after = self.carry(mass, mass, law, aims, number)
            return after, (mass, self.reward(mass, law, number), look(mass, law, aims))

        end, (before, rewards, seen) = jax.lax.scan(
            jax.checkpoint(step) if self.checkpoint else step,
            problem.initial,
            (parts, problem.steps),
        )
        if windows_ahead:
            rewards = jax.vmap(self.reward)(before, parts[0], problem.steps)
        return self._whole(before, end, rewards), seen

    def _fixes_windows(self, motion: Motion) -> bool:
        """Whether mass moves by windows alone that do not depend on mu, and all steps' are small.

        They are computed ahead for laws of one action; for others they would take much memory.
        """
        problem = self.problem
        others = (self.ground, self.neighbours, problem.trips)
        by_windows = all(other is None for other in others) and not self.noiseless
        small = not self.checkpoint and math.prod(self.fold.window) <= UNROLLED
        return by_windows and small and not depends_on_mu(problem, motion)

    def _rollout_within(
        self, profile: Profile, motion: Motion, look: Callable[..., Any]
    ) -> tuple[Rollout, Any]:
        problem = self.problem
        size = jnp.asarray(problem.grid.cell_size, dtype=problem.initial.dtype)

        def step(spread: Spread, inputs: Any) -> tuple[Spread, tuple[Mass, Scalar, Any]]:
            part, number = inputs
            leaving = departures(problem.grid, spread, profile.join(part), motion, number)
            law, mass = leaving.law, spread.mass
            problem.check_action(law.actions.shape[2:])
            after = self.spread_on(spread, leaving, number)
            seen = look(mass, law, leaving.displacement * size)
            return after, (mass, self.reward(mass, law, number), seen)

        # Always: to keep all that derivatives need takes longer than to compute it again.
        end, (before, rewards, seen) = jax.lax.scan(
            jax.checkpoint(step),
            Spread.even(problem.initial, problem.grid.dim),
            (profile.per_step, problem.steps),
        )
        return self._whole(before, end.mass, rewards), seen

    def _whole(
        self, before: Float[Array, "steps cells"], end: Mass, rewards: Float[Array, "steps"]
    ) -> Rollout:
        """An episode from its distributions, before each step and at the end, and its rewards."""
        if self.problem.pay_end:
            rewards = jnp.append(rewards, self.end_reward(end))
        mass = jnp.concatenate([before, end[None]])
        return Rollout(mass=mass, rewards=rewards, value=jnp.sum(rewards))

    def starting_from(self, initial: Any) -> "Flow":
        """The same flow with episodes that start from another distribution."""
        return self.of_problem(self.problem.starting_from(initial))

    def from_step(self, step: int, mass: Any) -> "Flow":
        """The flow of the rest of an episode; see `Problem.from_step`."""
        return self.of_problem(self.problem.from_step(step, mass))

    def of_problem(self, problem: Problem) -> "Flow":
        """The same tables for a problem with the same grid, noise and farthest moves."""
        changed: Flow = eqx.tree_at(lambda f: f.problem, self, problem)
        return changed

    def value(self, policy: Any, motion: Motion) -> Scalar:
        """J(pi) under a motion (lemma DistMDP)."""
        return self.rollout(policy, motion).value

    def mean_actions(
        self, policy: Any, mass: _types.Masses
    ) -> Float[Array, "steps cells action_dim"]:
        """Average action in every cell at each step, given the distributions of an episode."""
        profile = as_profile(policy, self.problem.horizon, self.problem.first)

        def step(_: None, inputs: Any) -> tuple[None, Array]:
            part, now = inputs
            return None, profile.join(part).at_cells(self.problem.grid, now).mean()

        return jax.lax.scan(step, None, (profile.per_step, mass[:-1]))[1]


def integrated_reward(problem: Problem, mass: Mass, law: ActionLaw, step: Step = 0) -> Scalar:
    """The integrated reward r-hat(mu, pi) (eq. integratedReward) of agents who follow ``law``."""
    rewards = at_all_cells(problem.grid, mass, problem.reward, law.actions, step)
    return jnp.sum(mass[:, None] * law.weights * rewards)


def end_reward(problem: Problem, mass: Mass) -> Scalar:
    """The integrated reward of the last distribution, with agents at rest."""
    rest = jnp.asarray(problem.actions.rest, dtype=mass.dtype)
    law = ActionLaw(
        actions=jnp.broadcast_to(rest, (*mass.shape, 1, *rest.shape)),
        weights=jnp.ones((*mass.shape, 1), dtype=mass.dtype),
    )
    return integrated_reward(problem, mass, law, problem.end)


def window_reach(problem: Problem, spread: tuple[float, ...]) -> tuple[int, ...]:
    """Cells to each side that the farthest move and `NOISE_REACH` deviations can touch."""
    reach = []
    for axis, size in enumerate(problem.grid.cell_size):
        cells = (problem.max_move[axis] + NOISE_REACH * spread[axis]) / size
        # Agents stand half a cell from their own cell's edge; the rest is slack for rounding.
        needed = max(1, math.ceil(cells - 0.5 - 1e-9))
        if not problem.grid.periodic[axis]:
            needed = min(needed, max(1, problem.grid.shape[axis] - 1))
        reach.append(needed)
    return tuple(reach)


def check_windows(problem: Problem, reach: tuple[int, ...], stencil: bool) -> None:
    """Raises if windows would take minutes to prepare, or more memory than there is."""
    grid, shape = problem.grid, tuple(2 * r + 1 for r in reach)
    tables = int(np.sum(~open_cells(grid, reach))) if stencil else grid.n_cells
    if math.prod(shape) > MOST_WINDOW or tables * math.prod(shape) > MOST_ENTRIES:
        near = f"; {tables:,} of them have walls within reach" if stencil else ""
        raise UserError(
            f"expected agents that move a few cells in one step, got a max_move of "
            f"{problem.max_move} and the noise {problem.noise}, which reach "
            f"{' x '.join(map(str, shape))} cells around each of {grid.n_cells:,}{near}; give a "
            "smaller max_move (by default it is the whole space), less noise or larger cells"
        )


def goes_by_stencil(grid: Grid, reach: tuple[int, ...]) -> bool:
    """Whether a map is better split between a stencil and tables: large, and mostly open."""
    window = math.prod(2 * r + 1 for r in reach)
    if grid.n_cells < FEWEST_CELLS or window > MOST_WINDOW:
        return False
    return bool(open_cells(grid, reach).mean() >= LEAST_OPEN)


def _build_within(problem: Problem, spread: tuple[float, ...]) -> Within:
    """The tables for agents who stand anywhere in their cells."""
    if not all(spread):
        raise UserError(
            f"within_cells=True needs noise on every axis, got {problem.noise}; give a small one, "
            "such as a tenth of a cell"
        )
    cells = zip(problem.max_move, spread, problem.grid.cell_size, strict=True)
    # From the edge of a cell three deviations beyond the farthest move are within reach.
    far = [math.ceil((move + 3.0 * std) / size - 1e-9) for move, std, size in cells]
    sizes = zip(far, problem.grid.shape, problem.grid.periodic, strict=True)
    reach = tuple(wide if wraps else min(wide, max(1, n - 1)) for wide, n, wraps in sizes)
    check_windows(problem, reach, stencil=False)
    return build_within(problem.grid, reach, problem.initial.dtype.name)


def subcells_for(problem: Problem, spread: tuple[float, ...]) -> int:
    """Number of subcells on each axis, a power of two: each about half a standard deviation."""
    finest, most = 1, MOST_SUBCELLS[problem.grid.dim]
    for size, std in zip(problem.grid.cell_size, spread, strict=True):
        wanted = most if std == 0 else math.ceil(2.0 * size / std)
        finest = max(finest, 1 << max(0, math.ceil(math.log2(wanted))))
    return min(finest, most)
