"""Why a plan is not finite: the cell, the step and the action at which the reward is to blame."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..problem import Problem
from ..space.measure import mean_field_at

MOST_CELLS = 2000
"""On larger maps derivatives by mu, one for each pair of cells, are not looked at."""


def trouble(problem: Problem) -> str:
    """Says where the reward or its gradient is not finite; empty if that was not found.

    Tried are all cells and steps, a few actions, the initial distribution and an even one.
    """
    if problem.hides_reward:
        return ""
    grid, dtype = problem.grid, problem.initial.dtype
    centres, actions = jnp.asarray(grid.centres, dtype=dtype), problem.actions.points(3)

    def reward(state: Any, action: Any, mass: Any, step: Any) -> Any:
        mu = mean_field_at(grid, mass, state, step)
        return jnp.asarray(problem.reward(state, action, mu), dtype=dtype)

    wanted = (0, 1, 2) if grid.n_cells <= MOST_CELLS else (0, 1)

    @jax.jit
    def look(mass: Any, step: Any) -> Any:
        def one(state: Any, action: Any) -> Any:
            value, slopes = jax.value_and_grad(reward, wanted)(state, action, mass, step)
            return jnp.isfinite(value), [jnp.all(jnp.isfinite(slope)) for slope in slopes]

        return jax.vmap(lambda state: jax.vmap(lambda action: one(state, action))(actions))(centres)

    for name, mass in {
        "the initial distribution": problem.initial,
        "an even distribution": jnp.full(grid.n_cells, 1 / grid.n_cells, dtype=dtype),
    }.items():
        for step in range(problem.paid_steps):
            finite, slopes = look(mass, step)
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
                        f"the reward {what} in the cell {tuple(grid.free_cells[cell].tolist())}, "
                        f"at step {step}, for the action {np.asarray(actions[choice]).tolist()} "
                        f"and {name}; for logarithms of mu use mufield.log_mass, and keep "
                        "jnp.where away from branches that are not finite"
                    )
    return ""
