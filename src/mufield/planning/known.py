"""The best policy when the motion is known: the reference line of every figure."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Float

from .._types import Key
from ..errors import UserError
from ..flow.flow import Flow, Rollout
from ..policies.base import Profile
from ..policies.encoders import AbstractEncoder, Unseen
from ..policies.network import network_profile
from ..policies.tables import TablePolicy
from ..policies.tabular import SquashedTable
from ..problem import Motion
from .bptt import BPTT, BPTTResult
from .starts import fit_profile, global_table, random_table, table_start

TABLE_STEPS, TABLE_RATE = 300, 0.1
NETWORK_STEPS, NETWORK_RATE = 400, 3e-3
"""Where the ascent flattens in the four rooms."""


def plan_table(
    flow: Flow,
    motion: Motion,
    key: Key,
    *,
    start: str = "global",
    warm: Sequence[Profile] = (),
    planner: BPTT | None = None,
    seeds: int = 1,
    progress: bool = False,
) -> BPTTResult:
    """Plans a deterministic action for each cell and step: a profile of `TablePolicy`.

    Args:
        flow: The problem's flow.
        motion: The law of motion.
        key: Randomness of random starts; global and warm starts have none.
        start: ``"global"`` starts from mirror ascent's mean actions, ``"random"`` from random
            tables, ``"warm"`` from ``warm`` alone.
        warm: Profiles of deterministic tables to start from as well, for example an earlier plan.
        planner: The gradient ascent; by default one that suits tables.
        seeds: Number of random starts.
        progress: Whether to show bars.
    """
    planner = planner or BPTT(steps=TABLE_STEPS, learning_rate=TABLE_RATE)
    starts = [table_start(flow.problem, _actions(profile)) for profile in warm]
    if start == "global":
        starts.append(global_table(flow, motion, progress=progress))
    elif start == "random":
        starts += [random_table(flow.problem, k) for k in jax.random.split(key, seeds)]
    elif start != "warm":
        raise UserError(f"start must be 'global', 'random' or 'warm', got {start!r}")
    result = planner.solve(flow, motion, starts, progress=progress)
    squashed = result.profile.join(result.profile.per_step)
    assert isinstance(squashed, SquashedTable)
    plan = Profile.stacked(squashed.table(), flow.problem.horizon)
    return dataclasses.replace(result, profile=plan)


def _actions(profile: Profile) -> Float[Array, "steps cells action_dim"]:
    policy = profile.join(profile.per_step)
    if not isinstance(policy, TablePolicy) or policy.actions.shape[-2] > 1:
        raise UserError(
            "a table can start from profiles of deterministic tables, got a "
            f"{type(policy).__name__}"
        )
    return policy.actions[..., 0, :]


def plan_network(
    flow: Flow,
    motion: Motion,
    key: Key,
    *,
    start: str = "global",
    warm: Sequence[Profile] = (),
    planner: BPTT | None = None,
    seeds: int = 1,
    width: int = 32,
    depth: int = 2,
    mu: AbstractEncoder = Unseen(),
    progress: bool = False,
) -> BPTTResult:
    """Plans one network for each step, the paper's class of policies.

    Args:
        flow: The problem's flow.
        motion: The law of motion.
        key: Randomness of the networks.
        start: ``"global"`` plans a table from mirror ascent first and fits the networks to it;
            ``"random"`` starts from random weights; ``"warm"`` from ``warm`` alone. In the four
            rooms global starts end about one above random ones.
        warm: Profiles of the same sizes to start from as well.
        planner: The gradient ascent; by default one that suits networks.
        seeds: Number of networks that are trained side by side; the best is kept.
        width: Units of a hidden layer.
        depth: Number of hidden layers.
        mu: How networks see the population.
        progress: Whether to show bars.
    """
    planner = planner or BPTT(steps=NETWORK_STEPS, learning_rate=NETWORK_RATE)
    if start not in ("global", "random", "warm"):
        raise UserError(f"start must be 'global', 'random' or 'warm', got {start!r}")
    starts = list(warm)
    if start != "warm":
        fresh = [
            network_profile(flow.problem, k, width=width, depth=depth, mu=mu)
            for k in jax.random.split(key, seeds)
        ]
        if start == "global":
            table = plan_table(flow, motion, key, progress=progress).profile
            rollout = evaluate(flow, motion, table)
            actions = flow.mean_actions(table, rollout.mass)
            fresh = [fit_profile(flow, profile, actions, rollout.mass) for profile in fresh]
        starts += fresh
    return planner.solve(flow, motion, starts, progress=progress)


@eqx.filter_jit
def evaluate(flow: Flow, motion: Motion, policy: Any) -> Rollout:
    """The flow and J of a policy, compiled."""
    return flow.rollout(policy, motion)
