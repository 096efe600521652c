"""Plans tables or networks by gradient ascent, with the true motion or an imagined one.

Mirror ascent finds randomised moves; a table takes their means, networks are fitted to that table,
and gradient ascent through the flow improves the table or the networks.
"""

import dataclasses
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import Key
from ..actions import Box
from ..constraints.lagrangian import AugmentedLagrangian
from ..constraints.model_samples import Outcomes
from ..errors import UserError
from ..flow.flow import Flow
from ..flow.motion_table import tabulated
from ..flow.moves import MoveFlow
from ..policies.base import Profile
from ..policies.squashed import SquashedTable
from ..policies.tables import TablePolicy
from ..problem import Motion
from .bptt import BPTT, BPTTResult
from .mirror import regular_moves
from .planner import AbstractPlanner, Actions, Plan
from .starts import (
    AtUniformMu,
    Network,
    PolicyKind,
    Table,
    around,
    at_rest,
    box_of,
    fit,
    shaken,
    table_start,
    without_controls,
)


def plan(
    flow: Flow,
    motion: Motion,
    policy: PolicyKind | None = None,
    *,
    key: Key | None = None,
    starts: int = 1,
    random: bool = False,
    warm: Sequence[Profile] = (),
    ascent: BPTT | None = None,
    progress: bool = False,
) -> BPTTResult:
    """Plans the best policy of a kind for a known motion: the reference line of every figure.

    Args:
        flow: The problem's flow. With ``within_cells=True`` gradient ascent goes through that flow;
            the start by mirror ascent is of the flow from cell centres.
        motion: The law of motion.
        policy: `Table`, the default, or `Network`. With a ``scatter`` of 5 or so, agents draw
            their actions at random; if agents start together, this earns more than any
            deterministic plan.
        key: Randomness of networks and of random starts.
        starts: Number of new starts, the best of which is kept; zero to use ``warm`` alone.
        random: Whether new starts are random instead of made from mirror ascent's plan. In the
            four rooms networks then end with a J about one lower.
        warm: More profiles to start from, such as earlier plans: networks of the same sizes, or
            for a table any `TablePolicy`.
        ascent: The gradient ascent; by default one that suits the kind of policy.
        progress: Whether to show a bar.
    """
    kind = Table() if policy is None else policy
    if not isinstance(kind, Table | Network):
        raise UserError(
            f"expected the kind of policy to be a Table or a Network, got {policy!r}; give an "
            "object such as mufield.Table(), mufield.Table(scatter=5) or mufield.Network()"
        )
    actions = box_of(flow.problem.actions)
    keys = list(jax.random.split(jax.random.key(0) if key is None else key, max(starts, 1)))
    profiles = [_warm(flow, kind, actions, profile) for profile in warm]
    lagrangian = None
    if starts and random:
        profiles += [kind.random(flow.problem, actions, each) for each in keys]
    elif starts:
        moves = regular_moves(flow.centred, motion, actions, points=9)
        new, lagrangian = _new_starts(
            kind,
            flow,
            motion,
            moves,
            []
            if isinstance(kind, Table)
            else [kind.random(flow.problem, actions, k) for k in keys],
            actions=actions,
            sweeps=100,
            table_steps=Table.steps,
            fit_steps=500 if kind.scatter == 1 else 1000,
        )
        profiles += new
    ascent = ascent or BPTT(steps=kind.steps, learning_rate=kind.learning_rate)
    result = ascent.solve(flow, motion, profiles, lagrangian=lagrangian, progress=progress)
    return dataclasses.replace(result, profile=without_controls(result.profile, flow.problem.grid))


class GradientPlanner(AbstractPlanner):
    """Plans by gradient ascent through the flow, the paper's class of policies.

    Each plan climbs from the last plan and from a new start side by side, and after a while goes
    on with the better one. The new start is a table from mirror ascent, because random starts end
    in local optima; of a motion that depends on mu it takes what holds where agents are spread
    evenly. The last plan's networks are fitted to that table. In the four rooms the fit then loses
    1.3 of the table's J; from random weights it loses 4.7, and such starts never won.

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
        box = box_of(actions)
        if isinstance(self.policy, Table):
            return at_rest(flow.problem, box, self.policy.scatter)
        return self.policy.random(flow.problem, box, key)

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
        outcomes: Outcomes | None = None,
    ) -> Plan:
        """Climbs from the last plan and from a new start; keeps the better."""
        box = box_of(actions)
        even = AtUniformMu(motion=motion, action_dim=box.dim)
        moves = regular_moves(flow.centred, even, box, points=self.points)
        exact, motion = motion, tabulated(flow.problem, motion, box)
        starts, lagrangian = _new_starts(
            self.policy,
            flow,
            motion,
            None if moves.bank is None else moves,
            [memory],
            actions=box,
            sweeps=self.sweeps,
            table_steps=self.table_steps,
            fit_steps=self.fit_steps,
            shake=key,
            outcomes=outcomes,
        )
        rate = self.learning_rate or self.policy.learning_rate
        # After a quarter of the steps the worse of two starts is given up.
        trial = max(1, round(0.25 * self.steps))
        both = [memory, *starts]
        joint, _ = BPTT(steps=trial, learning_rate=rate).climb(flow, motion, both, lagrangian)
        rest = BPTT(steps=max(1, self.steps - trial), learning_rate=rate)
        joint, climbed = rest.climb(flow, motion, [joint], lagrangian)
        rollout = flow.rollout(joint, exact)
        mass = rollout.mass
        # Where no gradient was finite, nothing was planned, whatever the start earns.
        value = jnp.where(jnp.isfinite(climbed), rollout.value, jnp.nan)
        control = jnp.zeros((), dtype=mass.dtype)
        if flow.problem.actions.dim > box.dim:
            size = jnp.abs(flow.mean_actions(joint, mass)[..., box.dim :])
            begun = flow.problem.begun[:, None]
            used = jnp.where(begun, jnp.einsum("hk,hkp->hp", mass[:-1], size), 0.0)
            control = jnp.sum(used) / (jnp.sum(begun) * used.shape[1])
        return Plan(
            profile=without_controls(joint, flow.problem.grid),
            memory=joint,
            value=value,
            mass=mass,
            control=control,
        )


def _new_starts(
    kind: PolicyKind,
    flow: Flow,
    motion: Motion,
    moves: MoveFlow | None,
    networks: list[Profile],
    *,
    actions: Box,
    sweeps: int,
    table_steps: int,
    fit_steps: int,
    shake: Key | None = None,
    outcomes: Outcomes | None = None,
) -> tuple[list[Profile], AugmentedLagrangian | None]:
    """New profiles to climb from: one table, or all of the networks, fitted to it.

    Also the multipliers found, if the problem has constraints.
    """
    table, lagrangian = table_start(
        flow, actions, kind.scatter, moves, sweeps=sweeps, outcomes=outcomes
    )
    if shake is not None:
        # Before data the model is symmetric, so that the gradient at rest is zero.
        table = shaken(table, shake, 0.1)
    if isinstance(kind, Table):
        return [table], lagrangian
    table, _ = BPTT(table_steps, Table.learning_rate).climb(flow, motion, [table], lagrangian)
    mass = eqx.filter_jit(flow.rollout)(table, motion).mass
    fitted = [fit(flow, profile, table, mass, steps=fit_steps) for profile in networks]
    return fitted, lagrangian


def _warm(flow: Flow, kind: PolicyKind, actions: Box, profile: Profile) -> Profile:
    """A profile in the form that gradient ascent changes: tables become `SquashedTable`."""
    policy = profile.join(profile.per_step)
    if not isinstance(kind, Table) or isinstance(policy, SquashedTable):
        return profile
    if not isinstance(policy, TablePolicy):
        raise UserError(
            f"a table can start from profiles of TablePolicy, got {type(policy).__name__}"
        )
    problem = flow.problem
    shape = (problem.horizon, problem.grid.n_cells, policy.weights.shape[-1])
    moves = jnp.broadcast_to(policy.actions, (*shape, actions.dim))
    weights = jnp.broadcast_to(policy.weights, shape)
    return around(problem, actions, kind.scatter, moves, weights)
