"""Mirror ascent over the paths of shocks, by policies that do not know the future.

A policy is a table by step, last shocks and cell. Each path has a flow and a backward sweep of its
own. A table's entry is used on all paths that have its shocks then: its derivative is the mean over
them, weighted by their probabilities and by the mass in the cell. Planned alone, each path earns at
least as much; the expectation of that, *perfect information*, bounds J from above.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._arrays import Key, Margins, Mass, Scalar, Step, as_key
from .._runtime import enable_compilation_cache
from ..errors import whole_number
from ..flow import paths as along
from ..flow.backward import Sweep, Weights
from ..flow.checks import check_motion
from ..flow.flow import Flow
from ..flow.moves import MoveFlow
from ..flow.phi import Arrivals
from ..flow.rollout import Rollout
from ..policies.base import Profile
from ..policies.shocks import ByShock
from ..policies.tables import TablePolicy
from ..problem import Motion
from ..shocks import Path, Paths
from .ascent import StepRule, ascend, initial_state
from .concavity import why_unbounded
from .constrained import make_feasible
from .mirror import MirrorAscent
from .planner import Actions, LeastMargins, Plan, control_size, outcome_of


class Cases(eqx.Module):
    """The flows over moves under each shock, in two: arrays that all share, and stacked ones."""

    shared: MoveFlow
    own: MoveFlow

    def under(self, number: Int[Array, ""]) -> MoveFlow:
        """The flow under one shock."""
        return eqx.combine(self.shared, jax.tree.map(lambda leaf: leaf[number], self.own))

    def common(self, flow: Flow) -> dict[str, Any]:
        """What all of them have as a `MoveFlow`, with the flow of a path."""
        return vars(self.under(jnp.zeros((), jnp.int32))) | {"flow": flow, "free": False}


class OnPath(MoveFlow):
    """A `MoveFlow` on one path of the shocks."""

    cases: Cases
    path: Path

    def __init__(self, source: Flow, cases: Cases, path: Path):
        """Use `PathMoves.on`; ``source`` is the flow of the problem with shocks."""
        self.cases, self.path = cases, path
        for name, value in cases.common(along.flow_under(source, path)).items():
            setattr(self, name, value)

    def step(
        self, joint: Array, seen: Mass, step: Step, actions: Any = None, *, exact: bool = False
    ) -> tuple[Arrivals, Scalar]:
        """As of `MoveFlow`, under the shock of the step."""
        return self.cases.under(self.path[step]).step(joint, seen, step, actions, exact=exact)


class PathMoves(MoveFlow):
    """A `MoveFlow` over paths of the shocks; its "cells" are pairs of last shocks and a cell.

    Of a `MoveFlow` it has what all paths share; its ``flow`` is that of the first path, of which
    plans read what does not depend on the path.

    Attributes:
        cases: The flows under each shock.
        source: The flow of the problem with shocks.
        numbers: The paths.
        chances: Their probabilities.
        rows: Which table each step of each path uses.
        tables: Number of tables of a step.
    """

    cases: Cases
    source: Flow
    numbers: Int[Array, "paths steps_and_end"]
    chances: Float[Array, "paths"]
    rows: Int[Array, "paths steps_and_end"]
    tables: int = eqx.field(static=True)

    def __init__(
        self,
        flow: Flow,
        motion: Motion,
        paths: Paths,
        memory: int = 1,
        build: Callable[[Flow, Motion], MoveFlow] = MoveFlow,
    ):
        """Prepares the flow of a problem with shocks; may be compiled.

        Policies see the last ``memory`` shocks. ``build`` makes a flow over moves without shocks.
        """
        problem, shocks = flow.problem, along.shocks_of(flow.problem)
        each: list[MoveFlow] = []
        for number in map(jnp.int32, range(shocks.count)):
            under = along.flow_under(flow, number)
            if each and not along.sees_shock(problem, motion):  # then kernels are the same
                each.append(eqx.tree_at(lambda m: m.flow, each[0], under))
            else:
                each.append(build(under, along.motion_under(problem, motion, number)))
        same = jax.tree.map(lambda *x: all(leaf is x[0] for leaf in x), *each)
        own = jax.tree.map(lambda alike, *x: None if alike else jnp.asarray(x), same, *each)
        self.cases = Cases(eqx.filter(each[0], same), own)
        for name, value in self.cases.common(along.flow_under(flow, paths.numbers[0])).items():
            setattr(self, name, value)
        self.rows = jax.vmap(partial(shocks.history, memory=memory))(paths.numbers)
        self.source, self.numbers, self.tables = flow, paths.numbers, shocks.count**memory
        self.chances = paths.chances.astype(problem.initial.dtype)

    def on(self, path: Path) -> OnPath:
        """The flow of one path, whose policy knows all of it."""
        return OnPath(self.source, self.cases, path)

    def uniform(self) -> Weights:
        """All moves equally likely, in all tables."""
        return jnp.tile(super().uniform(), (1, self.tables, 1))

    @property
    def active(self) -> Bool[Array, "*paths steps margins"]:
        """Which constraints must hold after each move of each path that can occur."""
        problem = self.source.problem
        assert problem.constraints is not None
        under = partial(problem.constraints.under_shock, horizon=problem.horizon)
        active = jax.vmap(lambda path: under(path).active(problem.begun))(self.numbers)
        return active & (self.chances > 0)[:, None, None]

    def margins(self, rollout: Rollout) -> Margins:
        """As of `MoveFlow`, on each path."""
        return super().margins(rollout) if rollout.margins is None else rollout.margins

    def rollout(self, weights: Weights, *, exact: bool = True) -> Rollout:
        """The expected rewards, and the distribution of last shocks and cells."""
        return self._mean(self.map_paths(lambda on, now: on.rollout(now, exact=exact), weights))

    def sweep(self, weights: Weights, *, bound: bool = True, lagrangian: Any = None) -> Sweep:
        """The derivatives of the mean J of all paths; the gap is that of agents who know it.

        Constraints have multipliers of their own on each path. What they add to J there is weighted
        by the path's probability, as J is.
        """
        names = () if lagrangian is None else ("active", "multipliers", "margin")

        def of_path(on: OnPath, now: Weights, *own: Array) -> Sweep:
            given = lagrangian and replace(lagrangian, **dict(zip(names, own, strict=True)))
            return on.sweep(now, bound=bound, lagrangian=given)

        each = self.map_paths(of_path, weights, *(getattr(lagrangian, name) for name in names))
        gap, mean = jnp.vdot(self.chances, each.gap), self._mean(each.rollout)
        # A cell that no path reaches takes the mean over the paths.
        share = self.chances[:, None, None] * (each.rollout.mass[:, :-1] + 1e-9)
        sums = self._by_table(share[..., None] * each.action_values)
        values = sums / jnp.maximum(self._by_table(share), 1e-30)[..., None]
        if (penalty := each.penalty) is not None:
            added = (penalty.augmented, penalty.plain, penalty.slopes)
            augmented, plain, slopes = along.averaged(added, self.chances)
            penalty = replace(penalty, augmented=augmented, plain=plain, slopes=slopes)
        return Sweep(mean, values, gap, penalty)

    def map_paths(self, one: Callable[..., Any], weights: Weights, *more: Array) -> Any:
        """What a function of each path's flow, its weights and entries of ``more`` returns."""
        steps, cells, moves = weights.shape
        split = weights.reshape(steps, self.tables, cells // self.tables, moves)

        def on(path: Path, row: Array, *own: Array) -> Any:
            return one(self.on(path), split[jnp.arange(steps), row[:steps]], *own)

        rows = (self.numbers, self.rows, *more)
        return jax.lax.map(lambda rows: on(*rows), rows, batch_size=32)

    def _by_table(self, values: Float[Array, "paths steps cells ..."]) -> Array:
        """Sums over the paths of what they have in each table."""
        steps, cells = values.shape[1:3]
        zeros = jnp.zeros((steps, self.tables, *values.shape[2:]), values.dtype)
        sums = zeros.at[jnp.arange(steps), self.rows[:, :steps]].add(values)
        return sums.reshape(steps, self.tables * cells, *values.shape[3:])

    def _mean(self, rollouts: Rollout) -> Rollout:
        mass = self._by_table(self.chances[:, None, None] * rollouts.mass)
        rewards, value = along.averaged((rollouts.rewards, rollouts.value), self.chances)
        constraints, margins = self.source.problem.constraints, None
        if constraints is not None:
            every = jax.vmap(jax.vmap(constraints))(rollouts.mass[:, 1:])
            margins = jnp.where(self.active, every, jnp.inf)
        return Rollout(mass=mass, rewards=rewards, value=value, margins=margins)

    def table_profile(self, weights: Weights, action_dim: int, memory: int) -> Profile:
        """The profile by step, last shocks and cell of agents' own actions."""
        steps, cells, moves = weights.shape
        own = weights.reshape(steps, self.tables, cells // self.tables, moves // self.group, -1)
        split = own.sum(axis=-1)
        actions = self.actions[: 1 if self.shared else None, :: self.group, :action_dim]
        every = jnp.broadcast_to(actions, (*split.shape[:2], *actions.shape))
        policy = ByShock(TablePolicy(every, split, self.flow.problem.grid), memory)
        return Profile.stacked(policy, steps)


class PathPlan(eqx.Module):
    """A plan for a problem with shocks.

    Attributes:
        profile: The policy, by step, last shocks and cell.
        outcomes: Its episodes on the paths, for J and its standard error. Where paths are drawn,
            these are not the ones that it was planned on, which it fits by chance.
        perfect: What each of these paths earns if it is planned alone, with perfect information;
            None if that was not asked for.
        proved: Whether no plan of a path earns more than that: the motion ignores mu and the reward
            is concave in it. Otherwise it is the best that was found.
        outcome: ``"plateau"``, or ``"gaining"`` if J still rose at the end; ``"violated"`` if a
            constraint is, on one of the paths that it was planned on.
    """

    profile: Profile
    outcomes: along.PathRollouts
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

    def __repr__(self) -> str:
        bound = f"{float(self.upper):.6g} ({'proved' if self.proved else 'found'})"
        return f"PathPlan({self.outcomes}, perfect information={bound}, outcome={self.outcome!r})"


def plan_over_paths(
    flow: Flow,
    motion: Motion,
    *,
    actions: Float[Array, "moves action_dim"] | None = None,
    memory: int = 1,
    sweeps: int = 200,
    samples: int = 256,
    perfect: bool = True,
    key: Key | int | None = None,
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
    problem, shocks = flow.problem, along.shocks_of(flow.problem)
    motion = check_motion(problem, motion)
    plan_key, judge_key = jax.random.split(jax.random.key(0) if key is None else as_key(key))
    paths = shocks.paths(problem.paid_steps, key=plan_key, samples=samples)
    moves = PathMoves(flow, motion, paths, memory, lambda f, m: MoveFlow(f, m, actions))
    known = moves if shocks.count > 1 else moves.cases.under(jnp.int32(0))
    method = MirrorAscent(whole_number(sweeps, "the number of sweeps"), bound=False)
    state, gain = eqx.filter_jit(method.ascend)(known, starts=[known.uniform()])
    outcome = "plateau" if gain is None else outcome_of(gain)
    if problem.constraints is not None:
        state = make_feasible(known, state)
        if jnp.min(known.margins(state.sweep.rollout)) < -problem.constraints.rule.tolerance:
            outcome = "violated"
    profile = moves.table_profile(state.weights, problem.actions.dim, memory)
    outcomes = along.over_paths(flow, profile, motion, key=judge_key, samples=samples)
    proved = perfect and not any(
        why_unbounded(along.flow_under(flow, n), along.motion_under(problem, motion, n))
        for n in map(jnp.int32, range(shocks.count))
    )
    found = _perfect(moves, outcomes.paths.numbers, sweeps, proved) if perfect else None
    return PathPlan(profile, outcomes, found, proved, outcome)


def plan_for_learner(
    flow: Flow,
    motion: Motion,
    actions: Actions,
    build: Callable[[Flow, Motion], MoveFlow],
    sweeps: int,
    key: Key,
    least: LeastMargins | None = None,
) -> Plan:
    """A learner's plan over paths in its model, by policies that see the present shock.

    Arguments are as of `AbstractPlanner.plan` and `PathMoves`.
    """
    problem, dim = flow.problem, actions.dim
    paths = along.shocks_of(problem).paths(problem.paid_steps, key=key)
    moves = PathMoves(flow, motion, paths, 1, build)
    state, gain = MirrorAscent(sweeps, bound=False).ascend(moves, least, [moves.uniform()])
    rollout = state.sweep.rollout
    each = moves.map_paths(lambda on, now: on.rollout(now), state.weights)
    controls = jnp.tile(moves.actions[..., dim:], (moves.tables, 1, 1))
    return Plan(
        profile=moves.table_profile(state.weights, dim, 1),
        memory=None,
        value=jnp.where(jnp.isfinite(state.planned), rollout.value, jnp.nan),
        mass=rollout.mass.reshape(len(rollout.mass), moves.tables, -1).sum(axis=1),
        control=control_size(problem, rollout.mass, controls, state.weights),
        late_gain=gain,
        bands=along.PathRollouts(each, paths).bands,
    )


@eqx.filter_jit
def _perfect(moves: PathMoves, numbers: Array, sweeps: int, proved: bool) -> Float[Array, "paths"]:
    """What each path earns if it is planned alone: a bound, or the best that was found."""

    def one(path: Path) -> Scalar:
        on = moves.on(path)
        if proved:  # only the bound counts, which holds inside the constraints, too
            start = initial_state(on, on.uniform(), rule=StepRule(), bound=True)
            return ascend(on, start, jnp.asarray(sweeps), sweeps)[0].upper
        state, _ = MirrorAscent(sweeps, bound=False).ascend(on, starts=[on.uniform()])
        return on.rollout(state.weights).value

    return jax.lax.map(one, numbers, batch_size=16)
