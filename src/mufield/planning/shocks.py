"""Mirror ascent over the paths of shocks, by policies that do not know the future.

A policy is a table by step, last shocks and cell. Each path has a flow and a backward sweep of its
own. A table's entry is used on all paths that have its shocks then, so that its derivative is the
mean over them, weighted by their probabilities and by the mass in the cell: what comes later on a
path counts only by its probability. Planned alone, each path earns at least what it can earn under
any such policy; the expectation of that, *perfect information*, bounds J from above.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._runtime import enable_compilation_cache
from .._types import Key, Mass, Scalar, Step
from ..constraints.lagrangian import AugmentedLagrangian
from ..flow.backward import Choices, Sweep, Weights, backward
from ..flow.flow import Flow
from ..flow.motions import affects
from ..flow.moves import MoveFlow
from ..flow.paths import (
    PathRollouts,
    averaged,
    flow_under,
    motion_under,
    over_paths,
    shocks_of,
)
from ..flow.rollout import Rollout, assemble_rollout, forward
from ..policies.base import Profile
from ..policies.by_shock import ByShock
from ..policies.tables import TablePolicy
from ..problem import Motion, Problem
from ..shocks import Path, Paths
from ..space.measure import MeanField
from .ascent import (
    MirrorState,
    StepRule,
    ascend,
    begin_ascent,
    best_of,
)
from .certificate import is_concave
from .planner import Actions, Plan, control_size, late_gain, note_of, outcome_of


class PathMoves(MoveFlow):
    """A `MoveFlow` over paths of the shocks; its "cells" are pairs of last shocks and a cell.

    Fields of `MoveFlow` are those under the first shock.

    Attributes:
        source: The flow of the problem with shocks.
        cases: The flow over the moves under the first shock.
        differing: Arrays of it that differ from shock to shock, stacked.
        places: Which of its arrays these are.
        paths: The paths.
        rows: Which table each step of each path uses.
        tables: Number of tables of a step.
    """

    source: Flow
    cases: MoveFlow
    differing: tuple[Array, ...]
    places: tuple[int, ...] = eqx.field(static=True)
    numbers: Int[Array, "paths steps_and_end"]
    chances: Float[Array, "paths"]
    rows: Int[Array, "paths steps_and_end"]
    tables: int = eqx.field(static=True)

    def __init__(
        self, source: Flow, cases: MoveFlow, differing: Any, places: Any, paths: Any, tables: int
    ):
        """Use `of`."""
        self.flow, self.listed, self.bank = cases.flow, cases.listed, cases.bank
        self.sees_mu, self.shared, self.free = cases.sees_mu, cases.shared, False
        self.source, self.cases, self.differing, self.places = source, cases, differing, places
        (self.numbers, self.chances, self.rows), self.tables = paths, tables

    @classmethod
    def of(
        cls,
        flow: Flow,
        motion: Motion,
        paths: Paths,
        memory: int = 1,
        build: Callable[[Flow, Motion], MoveFlow] = MoveFlow,
    ) -> "PathMoves":
        """Prepares the flow; may be compiled.

        Args:
            flow: The flow of a problem with shocks.
            motion: The law of motion.
            paths: The paths.
            memory: How many of the last shocks a policy sees; 0 for none.
            build: Makes a flow over moves for a problem without shocks.
        """
        problem, shocks = flow.problem, shocks_of(flow.problem)
        each: list[MoveFlow] = []
        for number in (jnp.asarray(n, jnp.int32) for n in range(shocks.count)):
            under = flow_under(flow, number)
            if each and not _sees_shock(problem, motion):
                each.append(eqx.tree_at(lambda m: m.flow, each[0], under))
            else:
                each.append(build(under, motion_under(problem, motion, number)))
        columns = list(zip(*map(jax.tree.leaves, each), strict=True))
        places = [i for i, row in enumerate(columns) if any(x is not row[0] for x in row)]
        differing = tuple(jnp.stack([jnp.asarray(x) for x in columns[i]]) for i in places)
        rows = jax.vmap(partial(shocks.history, memory=memory))(paths.numbers)
        chances = paths.chances.astype(problem.initial.dtype)
        parts = (paths.numbers, chances, rows)
        return cls(flow, each[0], differing, tuple(places), parts, shocks.count**memory)

    def under(self, number: Int[Array, ""]) -> MoveFlow:
        """The flow under one shock."""
        leaves, tree = jax.tree.flatten(self.cases)
        for place, stacked in zip(self.places, self.differing, strict=True):
            leaves[place] = stacked[number]
        found: MoveFlow = jax.tree.unflatten(tree, leaves)
        return found

    def alone(self, path: Path) -> "PathMoves":
        """The flow of one path, whose policy knows all of it."""
        paths = (path[None], jnp.ones_like(self.chances[:1]), jnp.zeros_like(path)[None])
        return PathMoves(self.source, self.cases, self.differing, self.places, paths, 1)

    def uniform(self) -> Weights:
        """The weights of the policy that draws uniformly from the moves."""
        return jnp.tile(self.cases.uniform(), (1, self.tables, 1))

    def rollout(self, weights: Weights, *, exact: bool = True) -> Rollout:
        """The expected rewards, and the distribution of last shocks and cells."""
        return self._mean(
            self._over_paths(lambda path, row: self._episode(self._on(weights, row), path, exact))
        )

    def sweep(
        self,
        weights: Weights,
        *,
        bound: bool = True,
        lagrangian: AugmentedLagrangian | None = None,
        rollout: Rollout | None = None,
    ) -> Sweep:
        """The episodes of all paths forwards and backwards, and the derivatives of their mean J.

        The gap is that of policies that know their path.
        """
        bound = bound and not self.sees_mu

        def one(path: Path, row: Array) -> tuple[Rollout, Array, Scalar]:
            now = self._on(weights, row)
            rollout = self._episode(now, path, exact=False)

            def choices(inputs: Any, mass: Mass, number: Step) -> Choices:
                moves = self.under(inputs[1])
                return Choices(inputs[0], lambda joint, seen, _: moves.step(joint, seen, number))

            problem, inputs = self.source.problem.under_shock(path), (now, path[: len(now)])
            phi = replace(self.source.transition, trips=problem.trips)
            found = backward(phi, problem, rollout.mass, inputs, choices, bound=bound)
            return rollout, found.by_joint, found.gap

        rollouts, by_joint, gaps = self._over_paths(one)
        gap, mean = jnp.vdot(self.chances, gaps), self._mean(rollouts)
        if len(self.numbers) == 1:
            return Sweep(mean, by_joint[0], gap)
        # A cell that no path reaches takes the mean over the paths.
        share = self.chances[:, None, None] * (rollouts.mass[:, :-1] + 1e-9)
        sums = self._by_table(share[..., None] * by_joint)
        values = sums / jnp.maximum(self._by_table(share), 1e-30)[..., None]
        return Sweep(mean, values, gap)

    def _episode(self, weights: Weights, path: Path, exact: bool) -> Rollout:
        """One path with the weights of its steps."""
        problem = self.source.problem.under_shock(path)
        phi = replace(self.source.transition, trips=problem.trips)

        def step(mass: Mass, inputs: Any, number: Step) -> tuple[Mass, Scalar]:
            moves, joint = self.under(inputs[1]), mass[:, None] * inputs[0]
            after = moves.push(joint, mass, number, exact=exact)
            return after, jnp.sum(joint * moves.rewards(mass, number))

        mass, end, rewards = forward(phi, problem, (weights, path[: len(weights)]), step)
        return assemble_rollout(phi, problem, mass, rewards, end)

    def _over_paths(self, one: Callable[[Path, Array], Any]) -> Any:
        if len(self.numbers) == 1:  # nothing to batch
            found = one(self.numbers[0], self.rows[0])
            return jax.tree.map(lambda leaf: leaf[None], found)
        return jax.lax.map(lambda each: one(*each), (self.numbers, self.rows), batch_size=32)

    def _on(
        self, weights: Weights, row: Int[Array, "steps_and_end"]
    ) -> Float[Array, "steps own_cells moves"]:
        """The weights of a path's steps."""
        steps, cells, moves = weights.shape
        split = weights.reshape(steps, self.tables, cells // self.tables, moves)
        return split[jnp.arange(steps), row[:steps]]

    def _by_table(self, values: Float[Array, "paths steps cells ..."]) -> Array:
        """Sums over the paths of what they have in each table."""
        steps, cells = values.shape[1:3]
        zeros = jnp.zeros((steps, self.tables, *values.shape[2:]), values.dtype)
        sums = zeros.at[jnp.arange(steps), self.rows[:, :steps]].add(values)
        return sums.reshape(steps, self.tables * cells, *values.shape[3:])

    def _mean(self, rollouts: Rollout) -> Rollout:
        mean = averaged(rollouts, self.chances)
        mass = self._by_table(self.chances[:, None, None] * rollouts.mass)
        return Rollout(mass=mass, rewards=mean.rewards, value=mean.value)

    def table_profile(self, weights: Weights, action_dim: int, memory: int) -> Profile:
        """The profile by step, last shocks and cell of agents' own actions."""
        own = weights.reshape(*weights.shape[:2], -1, self.group).sum(axis=-1)
        split = own.reshape(len(own), self.tables, -1, own.shape[-1])
        actions = self.actions[:, :: self.group, :action_dim]
        actions = actions[:1] if self.shared else actions
        every = jnp.broadcast_to(actions, (*split.shape[:2], *actions.shape))
        policy = ByShock(TablePolicy(every, split, self.flow.problem.grid), memory)
        return Profile.stacked(policy, len(own))


def _sees_shock(problem: Problem, motion: Motion) -> bool:
    """Whether the result of a motion may depend on the shock."""
    grid, dtype = problem.grid, problem.initial.dtype
    action = jnp.asarray(problem.actions.rest, dtype=dtype)

    def under(number: Array) -> Any:
        mu = MeanField(mass=problem.initial, here=problem.initial[0], grid=grid)
        state = jnp.asarray(grid.centres[0], dtype=dtype)
        return jnp.asarray(motion_under(problem, motion, number)(state, action, mu))

    program = jax.make_jaxpr(under)(jnp.zeros((), jnp.int32)).jaxpr
    return affects(program, program.invars[0])


class PathPlan(eqx.Module):
    """A plan for a problem with shocks.

    Attributes:
        profile: The policy, by step, last shocks and cell.
        outcomes: Its episodes on the paths, for J and its standard error. Where paths are drawn,
            these are others than those of the plan, which it suits by chance.
        perfect: What each of these paths earns if it is planned alone, with perfect information;
            None if that was not asked for.
        proved: Whether no plan of a path earns more than that: the motion ignores mu and the reward
            is concave in it. Otherwise it is the best that was found.
        outcome: ``"plateau"``, or ``"gaining"`` if J still rose at the end.
    """

    profile: Profile
    outcomes: PathRollouts
    perfect: Float[Array, "paths"] | None
    proved: bool = eqx.field(static=True)
    outcome: str = eqx.field(static=True)

    @property
    def value(self) -> Scalar:
        """J, the expectation over the paths."""
        return self.outcomes.value

    @property
    def upper(self) -> Scalar:
        """The bound by perfect information; infinite if it was not computed."""
        if self.perfect is None:
            return jnp.full_like(self.value, jnp.inf)
        return jnp.vdot(self.outcomes.paths.chances.astype(self.perfect.dtype), self.perfect)

    @property
    def note(self) -> str:
        """What is unusual, in words; empty if nothing is."""
        return note_of(self.outcome, "sweeps")

    def __repr__(self) -> str:
        kind = "proved" if self.proved else "found"
        error = self.outcomes.standard_error
        return (
            f"PathPlan(J={float(self.value):.6g} +- {float(error):.2g}, perfect information="
            f"{float(self.upper):.6g} ({kind}), paths={len(self.outcomes.paths.chances)}, "
            f"outcome={self.outcome!r})"
        )


def plan_over_paths(
    flow: Flow,
    motion: Motion,
    *,
    actions: Float[Array, "moves action_dim"] | None = None,
    memory: int = 1,
    sweeps: int = 200,
    samples: int = 256,
    perfect: bool = True,
    key: Key | None = None,
) -> PathPlan:
    """Plans for a problem with shocks, by mirror ascent.

    Args:
        flow: The problem's flow.
        motion: The law of motion; it may read ``mu.shock``.
        actions: The moves; by default those of a `MoveSet`, of a box some on each axis.
        memory: How many of the last shocks the policy sees: 1 for the present one, 0 for none,
            which shows what seeing it is worth. The population depends on all past ones.
        sweeps: Sweeps of mirror ascent.
        samples: All paths are used if there are at most so many; else so many are drawn.
        perfect: Whether to compute the bound by perfect information: as long as the plan again.
        key: Randomness of drawn paths.
    """
    enable_compilation_cache()
    problem, shocks = flow.problem, shocks_of(flow.problem)
    plan_key, judge_key = jax.random.split(jax.random.key(0) if key is None else key)
    paths = shocks.paths(problem.paid_steps, key=plan_key, samples=samples)
    moves = PathMoves.of(flow, motion, paths, memory, lambda f, m: MoveFlow(f, m, actions))
    state, gain = ascent_over_paths(moves, sweeps)
    profile = moves.table_profile(state.weights, problem.actions.dim, memory)
    outcomes = over_paths(flow, profile, motion, key=judge_key, samples=samples)
    found, proved = None, False
    if perfect:
        each = (jnp.asarray(n, jnp.int32) for n in range(shocks.count))
        proved = all(
            is_concave(flow_under(flow, n), motion_under(problem, motion, n)) for n in each
        )
        found = _perfect(moves, outcomes.paths.numbers, sweeps, proved)
    return PathPlan(profile, outcomes, found, proved, outcome_of(gain))


def plan_for_learner(
    flow: Flow,
    motion: Motion,
    actions: Actions,
    build: Callable[[Flow, Motion], MoveFlow],
    sweeps: int,
    key: Key,
) -> Plan:
    """A learner's plan over paths in its model, by policies that see the present shock.

    Arguments are as of `AbstractPlanner.plan` and `PathMoves.of`.
    """
    problem, dim = flow.problem, actions.dim
    paths = shocks_of(problem).paths(problem.paid_steps, key=key)
    moves = PathMoves.of(flow, motion, paths, 1, build)
    state, gain = ascent_over_paths(moves, sweeps)
    rollout = state.sweep.rollout
    sizes = jnp.minimum(jnp.abs(moves.actions[..., dim:]), 1.0)
    controls = jnp.einsum("hkm,kma->hka", state.weights, jnp.tile(sizes, (moves.tables, 1, 1)))
    mass = rollout.mass.reshape(len(rollout.mass), moves.tables, -1).sum(axis=1)
    return Plan(
        profile=moves.table_profile(state.weights, dim, 1),
        memory=None,
        value=jnp.where(jnp.isfinite(state.planned), rollout.value, jnp.nan),
        mass=mass,
        control=control_size(problem, rollout.mass, controls),
        late_gain=gain,
    )


@eqx.filter_jit
def ascent_over_paths(
    moves: PathMoves, sweeps: int, bound: bool = False
) -> tuple[MirrorState, Scalar]:
    """The last state of an ascent from uniform weights, and its `late_gain`."""
    start = begin_ascent(moves, rule=StepRule(), bound=bound)
    end, figures = ascend(moves, start, jnp.asarray(sweeps), max(sweeps, 20))
    return best_of(moves, end, start), late_gain(start.value, figures[:sweeps, 0])


@eqx.filter_jit
def _perfect(moves: PathMoves, numbers: Array, sweeps: int, proved: bool) -> Float[Array, "paths"]:
    """What each path earns if it is planned alone: a bound, or the best that was found."""

    def one(path: Path) -> Scalar:
        alone = moves.alone(path)
        state, _ = ascent_over_paths(alone, sweeps, proved)
        return state.upper if proved else alone.rollout(state.weights).value

    found: Array = jax.lax.map(one, numbers, batch_size=16)
    return found
