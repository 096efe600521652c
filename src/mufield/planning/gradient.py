"""Plans tables or networks by gradient ascent, with the true motion or an imagined one.

From random starts gradient ascent ends in local optima. Mirror ascent does not if the motion
ignores mu and the reward is concave, so ascents start from its plan: a table takes the means of its
randomised moves, networks are fitted to that table.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from .._arrays import Key, Mass, Masses
from .._runtime import enable_compilation_cache
from ..actions import Box
from ..constraints.lagrangian import AugmentedLagrangian
from ..errors import is_a, whole_number
from ..flow.flow import Flow
from ..flow.motion_table import tabulated
from ..flow.moves import MoveFlow
from ..policies.base import Profile
from ..problem import Motion
from .bptt import BPTT, BPTTResult
from .kinds import Network, PolicyKind, Table, box_of, perturbed, table_of, without_controls
from .mirror import MirrorAscent
from .moves import regular_moves
from .planner import AbstractPlanner, Actions, LeastMargins, Plan, control_size


def plan(
    flow: Flow,
    motion: Motion,
    policy: PolicyKind | None = None,
    *,
    key: Key | None = None,
    starts: int = 1,
    random: bool = False,
    ascent: BPTT | None = None,
    progress: bool = False,
) -> BPTTResult:
    """Plans a table or networks by gradient ascent for a known motion; see also `MirrorAscent`.

    Without constraints the plan earns no less than its best start, as a policy of that kind.

    Args:
        flow: The problem's flow; the start by mirror ascent is of the flow from cell centres.
        motion: The law of motion.
        policy: `Table`, the default, or `Network`.
        key: Randomness of networks and of random starts.
        starts: Number of starts, the best of which is kept: of tables the first alone is made
            from mirror ascent's plan.
        random: Whether they are random instead of made from mirror ascent's plan. In the four
            rooms networks then end with a J about one lower.
        ascent: The gradient ascent; by default one that suits the kind of policy.
        progress: Whether to show a bar.

    Compiled programs are kept on disk (`enable_compilation_cache`).
    """
    enable_compilation_cache()
    kind: PolicyKind = Table() if policy is None else policy
    is_a(flow, Flow, "the flow", "give mufield.Flow(problem)")
    is_a(kind, (Table, Network), "the kind of policy", "give mufield.Table() or mufield.Network()")
    whole_number(starts, "the number of starts")
    problem, actions = flow.problem, box_of(flow.problem.actions)
    keys = jax.random.split(jax.random.key(0) if key is None else key, starts)
    profiles, lagrangian = [kind.random(problem, actions, each) for each in keys], None
    if not random:
        moves = regular_moves(flow, motion, actions, points=9)
        table, lagrangian = table_start(flow, actions, moves, sweeps=100)
        profiles = _fitted(kind, flow, motion, table, lagrangian, profiles, Table.steps, 500)
    ascent = ascent or BPTT(steps=kind.steps, learning_rate=kind.learning_rate)
    result = ascent.solve(flow, motion, profiles, lagrangian=lagrangian, progress=progress)
    return dataclasses.replace(result, profile=without_controls(result.profile, problem.grid))


class GradientPlanner(AbstractPlanner):
    """Plans by gradient ascent through the flow, the paper's class of policies.

    Each plan ascends from the last plan and from a new start side by side, and after a quarter of
    the steps goes on with the better one. Without constraints it is never worse than the last plan.
    The new start is a table from mirror ascent, because random starts end in local optima. Networks
    are fitted to it from those of the last plan, which loses less J than from random weights.

    Attributes:
        policy: `Network`, one for each step, or `Table`, an action for each cell and step.
        steps: Steps of the ascent.
        learning_rate: Its first step size; by default one that suits the kind of policy.
        table_steps: Steps of ascent on the table that networks are fitted to.
        fit_steps: Steps of that fit.
        sweeps: Sweeps of mirror ascent for a new start.
        points: Moves of mirror ascent on each axis of the action box.
    """

    policy: PolicyKind = Network()
    steps: int = eqx.field(static=True, default=140)
    learning_rate: float | None = eqx.field(static=True, default=None)
    table_steps: int = eqx.field(static=True, default=60)
    fit_steps: int = eqx.field(static=True, default=200)
    sweeps: int = eqx.field(static=True, default=40)
    points: int = eqx.field(static=True, default=7)

    def first_memory(self, flow: Flow, actions: Actions, key: Key) -> Profile:
        """Agents at rest, or random networks."""
        box, kind = box_of(actions), self.policy
        if isinstance(kind, Table):
            return kind.at_rest(flow.problem, box)
        return kind.random(flow.problem, box, key)

    def own_moves(self, actions: Actions) -> Float[Array, "moves action_dim"]:
        """The moves of a new start's mirror ascent, without controls."""
        return box_of(actions).points(self.points)

    def plan(
        self,
        flow: Flow,
        motion: Motion,
        actions: Actions,
        key: Key,
        memory: Profile,
        least: LeastMargins | None = None,
    ) -> Plan:
        """Ascends from the last plan and from a new start; keeps the better."""
        box, kind = box_of(actions), self.policy
        moves = regular_moves(flow, motion, box, points=self.points)
        exact, motion = motion, tabulated(flow.problem, motion, box)
        table, lagrangian = table_start(flow, box, moves, sweeps=self.sweeps, least=least)
        # Before data the model is symmetric, so that the gradient at rest is zero.
        table = perturbed(table, key, 0.1)
        steps = (self.table_steps, self.fit_steps)
        both = [memory, *_fitted(kind, flow, motion, table, lagrangian, [memory], *steps)]
        rate = self.learning_rate or kind.learning_rate
        trial = max(1, round(0.25 * self.steps))
        joint, _ = BPTT(steps=trial, learning_rate=rate).ascend(flow, motion, both, lagrangian)
        rest = BPTT(steps=max(1, self.steps - trial), learning_rate=rate)
        joint, planned = rest.ascend(flow, motion, [joint], lagrangian)
        rollout = flow.rollout(joint, exact)
        if motion is not exact and flow.problem.constraints is None:
            # By the tabulated motion it is no worse than the last plan; by the motion itself:
            last = flow.rollout(memory, exact)
            joint, rollout = jax.tree.map(
                lambda a, b: jnp.where(last.value > rollout.value, a, b) if eqx.is_array(b) else b,
                (memory, last),
                (joint, rollout),
            )
        controls = flow.mean_actions(joint, rollout.mass)[..., box.dim :]
        return Plan(
            profile=without_controls(joint, flow.problem.grid),
            memory=joint,
            # Where no gradient was finite, nothing was planned, whatever the start earns.
            value=jnp.where(jnp.isfinite(planned), rollout.value, jnp.nan),
            mass=rollout.mass,
            control=control_size(flow.problem, rollout.mass, controls),
        )


def table_start(
    flow: Flow, actions: Box, moves: MoveFlow, *, sweeps: int, least: LeastMargins | None = None
) -> tuple[Profile, AugmentedLagrangian | None]:
    """A table of the mean actions that mirror ascent finds, and the multipliers of constraints."""
    state = MirrorAscent(sweeps, bound=False).ascend(moves, least)[0]
    means = jnp.einsum("hkm,kma->hka", state.weights, moves.actions)
    return table_of(flow.problem, actions, means), state.lagrangian


def _fitted(
    kind: PolicyKind,
    flow: Flow,
    motion: Motion,
    table: Profile,
    lagrangian: AugmentedLagrangian | None,
    profiles: list[Profile],
    table_steps: int,
    fit_steps: int,
) -> list[Profile]:
    """Profiles to climb from: all networks, fitted to the table; or it in place of the first."""
    if isinstance(kind, Table):
        return [table, *profiles[1:]]
    table, _ = BPTT(table_steps, Table.learning_rate).ascend(flow, motion, [table], lagrangian)
    mass = eqx.filter_jit(flow.rollout)(table, motion).mass
    return [fit(flow, profile, table, mass, steps=fit_steps) for profile in profiles]


@eqx.filter_jit
def fit(flow: Flow, profile: Profile, wanted: Profile, mass: Masses, *, steps: int) -> Profile:
    """Fits a profile, such as networks, to act like another, above all where the population is.

    It imitates ``wanted``. Policies see the episode's ``mass``, by which cells are weighted, too.
    """
    grid, box = flow.problem.grid, flow.problem.actions
    sizes = jnp.asarray(box.upper, mass.dtype) - jnp.asarray(box.lower, mass.dtype)
    weight = mass[:-1] * grid.n_cells + 0.05  # a little for empty cells

    def actions(profile: Profile) -> Float[Array, "steps cells moves action_dim"]:
        def step(part: Any, now: Mass, number: Array) -> Array:
            return profile.join(part).at_cells(grid, now, number).actions

        return jax.vmap(step)(profile.per_step, mass[:-1], flow.problem.steps)

    arrays, rest = eqx.partition(profile, eqx.is_inexact_array)
    target = actions(wanted)
    optimiser = optax.adam(optax.cosine_decay_schedule(1e-2, steps, alpha=0.01))

    def loss(arrays: Any) -> Array:
        found = actions(eqx.combine(arrays, rest))
        return jnp.mean(weight[..., None, None] * (2 * (found - target) / sizes) ** 2)

    def step(carry: tuple[Any, Any], _: None) -> tuple[tuple[Any, Any], None]:
        arrays, memory = carry
        updates, memory = optimiser.update(jax.grad(loss)(arrays), memory, arrays)
        return (optax.apply_updates(arrays, updates), memory), None

    (arrays, _), _ = jax.lax.scan(step, (arrays, optimiser.init(arrays)), None, length=steps)
    return eqx.combine(arrays, rest)
