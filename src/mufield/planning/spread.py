"""Plans that scatter agents: a mean and a spread for each of them, by gradient through Phi."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import _types
from .._types import Key, Mass, Scalar, State
from ..errors import UserError
from ..flow.flow import Flow
from ..policies.base import Profile
from ..policies.encoders import AbstractEncoder, Unseen
from ..policies.network import NetworkPolicy, network_profile
from ..policies.spread import DEFAULT_POINTS, SpreadTable, unspread
from ..policies.squash import unsquash
from ..problem import Motion
from ..space.measure import MeanField
from .bptt import BPTT, BPTTResult
from .known import NETWORK_RATE, NETWORK_STEPS, TABLE_RATE, TABLE_STEPS, evaluate
from .starts import FLOOR, box_of, descend, global_plan

FIT_STEPS, FIT_RATE = 1000, 1e-2


def plan_spread(
    flow: Flow,
    motion: Motion,
    key: Key,
    *,
    policy: str = "table",
    points: int = DEFAULT_POINTS,
    warm: Sequence[Profile] = (),
    planner: BPTT | None = None,
    width: int = 32,
    depth: int = 2,
    mu: AbstractEncoder = Unseen(),
    progress: bool = False,
) -> BPTTResult:
    """Plans a mean and a spread of actions, which are randomised but vary smoothly.

    Starts from the means and standard deviations of mirror ascent's actions. Where agents start
    together, plans like these earn more than any deterministic one.

    Args:
        flow: The problem's flow.
        motion: The law of motion.
        key: Randomness of networks; tables have none.
        policy: ``"table"``, a mean and a spread for each cell and step, or ``"network"``, one for
            each step, first fitted to such a table.
        points: Number of different actions on each axis that stand for the distribution.
        warm: Profiles of the same kind and sizes to start from as well.
        planner: The gradient ascent; by default one that suits the kind of policy.
        width: Units of a network's hidden layers.
        depth: Number of hidden layers.
        mu: How networks see the population.
        progress: Whether to show bars.
    """
    if policy not in ("table", "network"):
        raise UserError(f"policy must be 'table' or 'network', got {policy!r}")
    start = spread_start(flow, motion, points, progress=progress)
    steps, rate = TABLE_STEPS, TABLE_RATE
    if policy == "network":
        ascent = BPTT(steps=TABLE_STEPS, learning_rate=TABLE_RATE)
        table = ascent.solve(flow, motion, [start], progress=progress).profile
        fresh = network_profile(flow.problem, key, width=width, depth=depth, mu=mu, points=points)
        start = fit_spread(flow, fresh, table, evaluate(flow, motion, table).mass)
        steps, rate = NETWORK_STEPS, NETWORK_RATE
    planner = planner or BPTT(steps=steps, learning_rate=rate)
    return planner.solve(flow, motion, [*warm, start], progress=progress)


def spread_start(
    flow: Flow,
    motion: Motion,
    points: int = DEFAULT_POINTS,
    *,
    sweeps: int = 100,
    progress: bool = False,
) -> Profile:
    """A table of the means and standard deviations of mirror ascent's actions.

    Args:
        flow: The problem's flow.
        motion: The law of motion.
        points: Number of different actions on each axis of the table.
        sweeps: Sweeps of mirror ascent.
        progress: Whether to show a bar.
    """
    box = box_of(flow.problem)
    moves, result = global_plan(flow, motion, sweeps=sweeps, progress=progress)
    mean = result.mean_actions(moves)
    square = jnp.einsum("hkm,kma->hka", result.weights, moves.actions**2)
    centre = unsquash(box, mean)
    spread = unspread(box, centre, jnp.sqrt(jnp.maximum(square - mean**2, 0.0)))
    return Profile.stacked(SpreadTable(centre, spread, box, points), flow.problem.horizon)


@eqx.filter_jit
def fit_spread(flow: Flow, networks: Profile, table: Profile, mass: _types.Masses) -> Profile:
    """Fits networks to the means and spreads of a table, mostly where the population is.

    Args:
        flow: The problem's flow.
        networks: The networks to change; with as many points as the table.
        table: A profile of `SpreadTable`.
        mass: Distributions of the episode.
    """
    grid = flow.problem.grid
    wanted = table.join(table.per_step)
    assert isinstance(wanted, SpreadTable)
    target = jnp.concatenate([wanted.centre, wanted.spread], axis=-1)
    centres = jnp.asarray(grid.centres, dtype=mass.dtype)
    weight = mass[:-1] * grid.n_cells + FLOOR

    def outputs(part: Any, now: Mass) -> Float[Array, "cells outputs"]:
        network = networks.join(part)
        assert isinstance(network, NetworkPolicy)

        def one(state: State, here: Scalar) -> Array:
            return network.raw(state, MeanField(mass=now, here=here, grid=grid))

        return jax.vmap(one)(centres, now)

    def loss(profile: Profile) -> Array:
        found = jax.vmap(outputs)(profile.per_step, mass[:-1])
        return jnp.mean(weight[..., None] * (found - target) ** 2)

    return descend(loss, networks, FIT_STEPS, FIT_RATE)
