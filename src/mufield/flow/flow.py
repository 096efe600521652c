"""The flow of a problem: its transition Phi, and what episodes earn."""

import math
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._arrays import Mass, Masses, Scalar, Step
from ..errors import UserError
from ..policies.base import ActionLaw, checked_profile
from ..problem import Motion, Problem
from ..space.grid import Grid
from ..space.measure import at_all_cells
from .checks import real_motion
from .landings import build_noiseless, build_successors, build_tables
from .phi import displacements
from .rollout import Rollout, rollout
from .traces import open_cells
from .windows import AbstractLanding, Windows


class WindowSettings(eqx.Module):
    """How windows are built.

    Attributes:
        deviations: Standard deviations of noise that windows cover on top of the farthest move.
            Of the farthest moves 3e-7 of the mass would go farther, about what single precision
            resolves; it lands at the window's edge, so that none is lost.
        subcells: Subcells on each axis into which cells near the ends of walls are cut. By default
            each is about half a standard deviation of the noise, but there are at most 16 in two
            dimensions and 8 in three; smaller noise is then resolved only to the subcell.
        stencil: Whether open cells land by a stencil. By default on maps of at least
            ``stencil_cells`` cells of which at least half are open.
        stencil_cells: See `stencil`.
        most_window: Cells in the window around a cell; more are refused.
        most_entries: Cells in all windows of tables; more are refused.
    """

    deviations: float = 5.0
    subcells: int | None = None
    stencil: bool | None = None
    stencil_cells: int = 10_000
    most_window: int = 5_000
    most_entries: int = 100_000_000


class Flow(eqx.Module):
    """The mean-field flow of a problem under any motion.

    Building one prepares the tables for walls and borders; keep it and use it many times.

    Attributes:
        windows: The transition of agents that no trip takes; it knows the problem's space, noise
            and farthest moves, so that problems that differ in the rest can share it.
    """

    problem: Problem
    windows: Windows

    def __init__(
        self,
        problem: Problem,
        *,
        settings: WindowSettings | None = None,
        windows: Windows | None = None,
    ):
        """Prepares the flow.

        Args:
            problem: The problem.
            settings: How windows are built.
            windows: Those of another flow, to be shared; then settings do not matter.
        """
        self.problem = problem
        self.windows = windows or _build_windows(problem, settings or WindowSettings())

    def __repr__(self) -> str:
        return f"Flow(landing={type(self.windows.landing).__name__}, problem={self.problem!r})"

    @property
    def phi(self) -> Windows:
        """The transition of the problem; raises if that needs a path of shocks."""
        if self.problem.shocks is not None:
            raise UserError(
                "the problem has shocks, so that this needs a path of them; J over the paths is "
                "mufield.flow.over_paths(flow, policy, motion), plans are made by "
                "mufield.planning.plan_over_paths(flow, motion)"
            )
        return replace(self.windows, trips=self.problem.trips)

    def of_problem(self, problem: Problem) -> "Flow":
        """The flow of a problem with the same space, noise and farthest moves."""
        return Flow(problem, windows=self.windows)

    def from_step(self, step: int, mass: Any, shock: int | None = None) -> "Flow":
        """The flow of the rest of an episode; see `Problem.from_step`."""
        return self.of_problem(self.problem.from_step(step, mass, shock))

    def step(self, mass: Mass, law: ActionLaw, motion: Motion, step: Step = 0) -> Mass:
        """Phi: the next distribution under ``law``, without those whose trips take longer."""
        lifted = real_motion(self.problem, motion)
        moved = displacements(self.problem.grid, mass, lifted, law.actions, step)
        return self.phi.push(mass[:, None] * law.weights, moved, mass, step)[0]

    def rewards(self, mass: Mass, law: ActionLaw, step: Step = 0) -> Float[Array, "cells moves"]:
        """Reward of one agent in each cell and for each of its moves."""
        return at_all_cells(self.problem.grid, mass, self.problem.reward, law.actions, step)

    def rollout(self, policy: Any, motion: Motion) -> Rollout:
        """The flow of an episode under a policy profile and a motion.

        Args:
            policy: A profile, a policy, or a function ``(state, mu, step) -> action``.
            motion: The law of motion of one agent, ``(state, action, mu) -> next state``.
        """
        return self.inspect(policy, motion)[0]

    def inspect(self, policy: Any, motion: Motion) -> tuple[Rollout, Bool[Array, "steps"]]:
        """`rollout`, and at which steps policy and motion did what they must not."""
        return rollout(self.phi, self.problem, policy, real_motion(self.problem, motion))

    def value(self, policy: Any, motion: Motion) -> Scalar:
        """J(pi) under a motion (lemma DistMDP)."""
        return self.rollout(policy, motion).value

    def mean_actions(
        self, policy: Any, mass: Masses, shocks: Int[Array, "steps"] | None = None
    ) -> Float[Array, "steps cells action_dim"]:
        """Average action in every cell at each step, given an episode's distributions, shocks."""
        profile = checked_profile(policy, self.problem)
        if shocks is not None:
            from ..policies.shocks import profile_on_path  # not needed without shocks

            profile = profile_on_path(profile, self.problem.shocks, shocks)
        return profile.laws(self.problem.grid, mass[:-1]).mean()


def _build_windows(problem: Problem, settings: WindowSettings) -> Windows:
    grid, dtype = problem.grid, problem.initial.dtype
    landing: AbstractLanding
    std = jnp.asarray(problem.noise_std, dtype=dtype)
    if grid.nodes is not None:
        return Windows(landing=build_successors(grid.nodes), noise_std=std, grid=grid, trips=None)
    reach = _reach(problem, settings.deviations)
    noiseless = not any(problem.noise_std)
    stencil = settings.stencil
    if stencil is None:
        fits = math.prod(2 * r + 1 for r in reach) <= settings.most_window
        large = grid.n_cells >= settings.stencil_cells and fits
        stencil = large and bool(open_cells(grid, reach).mean() >= 0.5)
    _check_size(problem, reach, settings, stencil and not noiseless)
    if noiseless:
        landing = build_noiseless(grid, reach, problem.noise)
    else:
        build: Any = build_tables
        if stencil:  # loaded when a map is large enough
            from .stencil import build_stencil

            build = build_stencil
        cut = settings.subcells or _subcells(grid, problem.noise_std)
        landing = build(grid, reach, cut, dtype.name)
    return Windows(landing=landing, noise_std=std, grid=grid, trips=None)


def _reach(problem: Problem, deviations: float) -> tuple[int, ...]:
    """Cells to each side that the farthest move and some deviations of the noise can touch."""
    reach = []
    for axis, size in enumerate(problem.grid.cell_size):
        cells = (problem.max_move[axis] + deviations * problem.noise_std[axis]) / size
        # The centre is half a cell from the cell's edge; the rest is slack for rounding.
        needed = max(1, math.ceil(cells - 0.5 - 1e-9))
        if not problem.grid.periodic[axis]:
            needed = min(needed, max(1, problem.grid.shape[axis] - 1))
        reach.append(needed)
    return tuple(reach)


def _check_size(
    problem: Problem, reach: tuple[int, ...], settings: WindowSettings, stencil: bool
) -> None:
    """Raises if windows would take minutes to prepare, or more memory than there is."""
    grid, size = problem.grid, math.prod(2 * r + 1 for r in reach)
    tables = int(np.sum(~open_cells(grid, reach))) if stencil else grid.n_cells
    if size > settings.most_window or tables * size > settings.most_entries:
        near = f"; {tables:,} of them have walls within reach" if stencil else ""
        raise UserError(
            f"expected agents that move a few cells in one step, got a max_move of "
            f"{problem.max_move} and the noise {problem.noise}, which reach "
            f"{' x '.join(str(2 * r + 1) for r in reach)} cells around each of "
            f"{grid.n_cells:,}{near}; give a smaller max_move (by default it is the whole space), "
            "less noise or larger cells"
        )


def _subcells(grid: Grid, noise_std: tuple[float, ...]) -> int:
    """Number of subcells on each axis, a power of two: each about half a standard deviation."""
    finest, most = 1, {1: 1, 2: 16, 3: 8}[grid.dim]
    for size, std in zip(grid.cell_size, noise_std, strict=True):
        wanted = most if std == 0 else math.ceil(2.0 * size / std)
        finest = max(finest, 1 << max(0, math.ceil(math.log2(wanted))))
    return min(finest, most)
