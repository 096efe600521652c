"""Where gradient ascent starts: random, warm, or global through mirror ascent."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from .. import _types
from .._types import Key
from ..errors import UserError
from ..flow.flow import Flow
from ..flow.moves import MoveFlow
from ..policies.base import Profile
from ..policies.squash import unsquash
from ..policies.tabular import SquashedTable
from ..problem import Box, Motion, Problem
from .mirror import MirrorAscent, MirrorResult

FLOOR = 0.05
"""Weight in the fit of a cell that is empty, relative to one of average mass."""


def global_table(
    flow: Flow, motion: Motion, *, sweeps: int = 100, points: int = 9, progress: bool = False
) -> Profile:
    """A per-cell table with the mean actions of mirror ascent.

    Mirror ascent is global where the motion does not depend on mu and the reward is concave; a
    deterministic plan near its mean action is a good place to climb from.

    Args:
        flow: The problem's flow.
        motion: The law of motion.
        sweeps: Sweeps of mirror ascent.
        points: Moves on each axis of the action box.
        progress: Whether to show a bar.
    """
    moves, result = global_plan(flow, motion, sweeps=sweeps, points=points, progress=progress)
    return table_start(flow.problem, result.mean_actions(moves))


def global_plan(
    flow: Flow, motion: Motion, *, sweeps: int = 100, points: int = 9, progress: bool = False
) -> tuple[MoveFlow, MirrorResult]:
    """Mirror ascent over a regular set of moves; arguments as in `global_table`."""
    moves = MoveFlow(flow, motion, box_of(flow.problem).points(points))
    return moves, MirrorAscent(sweeps=sweeps).solve(moves, progress=progress)


def table_start(problem: Problem, actions: Float[Array, "steps cells action_dim"]) -> Profile:
    """A per-cell table that gradient ascent can change, from given actions."""
    box = box_of(problem)
    return Profile.stacked(SquashedTable(unsquash(box, actions), box), problem.horizon)


def random_table(problem: Problem, key: Key) -> Profile:
    """A per-cell table of random actions."""
    box = box_of(problem)
    shape = (problem.horizon, problem.grid.n_cells, box.dim)
    raw = jax.random.normal(key, shape, dtype=problem.initial.dtype)
    return Profile.stacked(SquashedTable(raw, box), problem.horizon)


@eqx.filter_jit
def fit_profile(
    flow: Flow,
    profile: Profile,
    actions: Float[Array, "steps cells action_dim"],
    mass: _types.Masses,
    *,
    steps: int = 500,
    learning_rate: float = 1e-2,
) -> Profile:
    """Fits a deterministic profile, such as a network, to given actions.

    Args:
        flow: The problem's flow.
        profile: The profile to change.
        actions: What it should do in every cell at each step.
        mass: Distributions of the episode: what the profile sees, and how much cells matter.
        steps: Steps of the fit.
        learning_rate: First step size; it falls to a hundredth along a cosine.
    """
    weight = mass[:-1] * mass.shape[1] + FLOOR

    def loss(profile: Profile) -> Array:
        done = flow.mean_actions(profile, mass)
        return jnp.mean(weight[..., None] * (done - actions) ** 2)

    return descend(loss, profile, steps, learning_rate)


def descend(
    loss: Callable[[Profile], Array], profile: Profile, steps: int, learning_rate: float
) -> Profile:
    """Changes a profile to make a loss small, by Adam.

    Args:
        loss: What is to become small.
        profile: Where to begin.
        steps: Number of steps.
        learning_rate: First step size; it falls to a hundredth along a cosine.
    """
    arrays, rest = eqx.partition(profile, eqx.is_inexact_array)
    optimiser = optax.adam(optax.cosine_decay_schedule(learning_rate, steps, alpha=0.01))
    gradient = jax.grad(lambda arrays: loss(eqx.combine(arrays, rest)))

    def step(carry: tuple[Any, Any], _: None) -> tuple[tuple[Any, Any], None]:
        arrays, memory = carry
        updates, memory = optimiser.update(gradient(arrays), memory, arrays)
        return (optax.apply_updates(arrays, updates), memory), None

    (arrays, _), _ = jax.lax.scan(step, (arrays, optimiser.init(arrays)), None, length=steps)
    found: Profile = eqx.combine(arrays, rest)
    return found


def box_of(problem: Problem) -> Box:
    """The action box; raises if actions are a finite set of moves."""
    if not isinstance(problem.actions, Box):
        raise UserError(
            "gradient ascent needs a box of continuous actions; for a finite set of moves use "
            "MirrorAscent"
        )
    return problem.actions
