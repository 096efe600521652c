"""Plans that scatter agents: a mean and a spread for each of them, by gradient through Phi."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from .. import _types
from .._types import Key, Mass, Scalar, State
from ..flow.moves import MoveFlow
from ..flow.objective import Flow
from ..policies.base import Profile
from ..policies.encoders import AbstractEncoder
from ..policies.network import NetworkPolicy, network_profile
from ..policies.randomised import spread_actions
from ..policies.spread import DEFAULT_POINTS, SpreadTable, unspread
from ..policies.squash import unsquash
from ..problem import Motion
from ..space.measure import MeanField
from .bptt import BPTT, BPTTResult
from .known import NETWORK_RATE, NETWORK_STEPS, TABLE_RATE, TABLE_STEPS, evaluate
from .mirror import MirrorAscent
from .starts import FLOOR, box_of

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
    encoder: str | AbstractEncoder = "none",
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
        encoder: How networks see the population.
        progress: Whether to show bars.
    """
    if policy not in ("table", "network"):
        raise ValueError(f"policy must be 'table' or 'network', got {policy!r}")
    table = spread_start(flow, motion, points, progress=progress)
    if policy == "table":
        planner = planner or BPTT(steps=TABLE_STEPS, learning_rate=TABLE_RATE)
        return planner.solve(flow, motion, [*warm, table], progress=progress)
    wanted = plan_spread(flow, motion, key, points=points, progress=progress).profile
    fresh = network_profile(
        flow.problem, key, width=width, depth=depth, encoder=encoder, points=points
    )
    start = fit_spread(flow, fresh, wanted, evaluate(flow, motion, wanted).mass)
    planner = planner or BPTT(steps=NETWORK_STEPS, learning_rate=NETWORK_RATE)
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
    actions = spread_actions(box.lower, box.upper, 9, border=True)
    weights = MirrorAscent(sweeps=sweeps).solve(MoveFlow(flow, motion, actions), progress=progress)
    mean, square = (
        jnp.einsum("hkm,ma->hka", weights.weights, power.astype(weights.weights.dtype))
        for power in (actions, actions**2)
    )
    centre = unsquash(box, mean)
    spread = unspread(box, centre, jnp.sqrt(jnp.maximum(square - mean**2, 0.0)))
    return Profile.stacked(SpreadTable(centre, spread, box, points), flow.problem.horizon)


@eqx.filter_jit
def fit_spread(flow: Flow, networks: Profile, table: Profile, mass: _types.Flow) -> Profile:
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
    arrays, rest = eqx.partition(networks, eqx.is_inexact_array)
    optimiser = optax.adam(optax.cosine_decay_schedule(FIT_RATE, FIT_STEPS, alpha=0.01))

    def outputs(part: Any, now: Mass) -> Float[Array, "cells outputs"]:
        network = networks.join(part)
        assert isinstance(network, NetworkPolicy)

        def one(state: State, here: Scalar) -> Array:
            return network.raw(state, MeanField(mass=now, here=here, grid=grid))

        return jax.vmap(one)(centres, now)

    def loss(arrays: Any) -> Array:
        whole: Profile = eqx.combine(arrays, rest)
        found = jax.vmap(outputs)(whole.per_step, mass[:-1])
        return jnp.mean(weight[..., None] * (found - target) ** 2)

    def step(carry: tuple[Any, Any], _: None) -> tuple[tuple[Any, Any], None]:
        arrays, memory = carry
        updates, memory = optimiser.update(jax.grad(loss)(arrays), memory, arrays)
        return (optax.apply_updates(arrays, updates), memory), None

    (arrays, _), _ = jax.lax.scan(step, (arrays, optimiser.init(arrays)), None, length=FIT_STEPS)
    fitted: Profile = eqx.combine(arrays, rest)
    return fitted
