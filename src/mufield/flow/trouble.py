"""Why J is not finite: the cell, the step and the action at which a function is to blame."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import UserError
from ..problem import Motion, Problem
from ..space.measure import mean_field_at

MOST_CELLS = 2000
"""On larger maps derivatives by mu, one for each pair of cells, are not looked at."""


def check_planned(problem: Problem, motion: Motion, value: Any) -> None:
    """Raises unless the J of a plan with known motion is finite, and says why it is not."""
    if bool(jnp.isfinite(value)):
        return
    why = trouble(problem, motion) or "check the reward and the motion, and the learning rate"
    raise UserError(f"no plan with a finite J was found: {why}")


def trouble(problem: Problem, motion: Motion | None = None) -> str:
    """Says where the reward, the motion or a gradient is not finite; empty if none was found.

    Tried are all cells and steps, a few actions, the initial distribution and an even one.
    """
    functions: dict[str, Callable[..., Any]] = {}
    if not problem.hides_reward:
        functions["the reward"] = problem.reward
    if motion is not None:
        functions["the motion"] = motion
    grid, dtype = problem.grid, problem.initial.dtype
    even = jnp.full(grid.n_cells, 1 / grid.n_cells, dtype=dtype)
    for name, function in functions.items():
        for which, mass in {"the initial": problem.initial, "an even": even}.items():
            where = _not_finite(problem, function, mass)
            if where:
                return (
                    f"{name} {where} and {which} distribution; for logarithms of mu use "
                    "mufield.log_mass, and keep jnp.where away from branches that are not finite"
                )
    return ""


def _not_finite(problem: Problem, function: Callable[..., Any], mass: Any) -> str:
    grid, dtype = problem.grid, mass.dtype
    centres, actions = jnp.asarray(grid.centres, dtype=dtype), problem.actions.points(3)

    def total(state: Any, action: Any, mass: Any, step: Any) -> Any:
        mu = mean_field_at(grid, mass, state, step)
        return jnp.sum(jnp.asarray(function(state, action, mu), dtype=dtype))

    wanted = (0, 1, 2) if grid.n_cells <= MOST_CELLS else (0, 1)

    @jax.jit
    def look(step: Any) -> Any:
        def one(state: Any, action: Any) -> Any:
            value, slopes = jax.value_and_grad(total, wanted)(state, action, mass, step)
            return jnp.isfinite(value), [jnp.all(jnp.isfinite(slope)) for slope in slopes]

        return jax.vmap(lambda state: jax.vmap(lambda action: one(state, action))(actions))(centres)

    for step in range(problem.first, problem.first + problem.paid_steps):
        finite, slopes = look(step)
        parts = [("is NaN or infinite", finite)]
        words = ("the state", "the action", "mu")
        parts += [
            (f"has no finite derivative by {word}", fine)
            for word, fine in zip(words, slopes, strict=False)
        ]
        for what, fine in parts:
            if not np.all(fine):
                cell, choice = (int(i) for i in np.argwhere(~np.asarray(fine))[0])
                return (
                    f"{what} in the cell {tuple(grid.free_cells[cell].tolist())}, "
                    f"at step {step}, for the action {np.asarray(actions[choice]).tolist()}"
                )
    return ""
