"""Why J is not finite: the cell, the step and the action at which a function is to blame.

Loaded only where something went wrong.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._types import Mass, Masses
from ..problem import Motion, Problem
from ..space.measure import at_all_cells, mean_field_at


def diagnose(problem: Problem, motion: Motion | None = None, mass: Masses | None = None) -> str:
    """Says where the reward, the motion, a chance or a gradient is not as it must be; else empty.

    Tried are all cells and steps, a few actions, the initial distribution, an even one, and one
    in which all are in one cell. If the distributions ``mass`` of an episode are given, chances of
    trips are looked at along them.
    """
    steps = range(problem.first_step, problem.horizon)
    if mass is not None and problem.trips is not None:
        for step in steps:
            if not bool(jnp.all(jnp.isfinite(mass[step]))):
                break
            if why := problem.trips.wrong_chance(problem.grid, mass[step], step):
                return why
    functions: dict[str, Callable[..., Any]] = {}
    if not problem.hides_reward:
        functions["the reward"] = problem.reward
    if motion is not None:
        functions["the motion"] = motion
    even = jnp.full_like(problem.initial, 1 / problem.grid.n_cells)
    crowd = jnp.zeros_like(even).at[0].set(1.0)
    masses = {"the initial": problem.initial, "an even": even, "a crowded": crowd}
    for name, function in functions.items():
        for which, tried in masses.items():
            if where := _not_finite(problem, function, tried):
                return (
                    f"{name} {where} and {which} distribution; for logarithms of mu use "
                    "mufield.log_mass, for roots jnp.maximum(mu.here, 1e-6), and keep jnp.where "
                    "away from branches that are not finite"
                )
    if problem.hides_reward:
        return ""
    actions = problem.actions.points(3)
    everywhere = jnp.broadcast_to(actions, (problem.grid.n_cells, *actions.shape))
    paid = at_all_cells(problem.grid, even, problem.reward, everywhere, 0)
    largest = float(jnp.max(jnp.abs(paid)))
    # Larger rewards overflow when those of an episode are added up and compared.
    if largest <= float(jnp.finfo(even.dtype).max) / (1e3 * problem.paid_steps):
        return ""
    return (
        f"the sum of the rewards overflows, as each is as large as {largest:.3g}; divide the "
        "reward by a constant"
    )


def _not_finite(problem: Problem, function: Callable[..., Any], mass: Mass) -> str:
    """Where a function of one agent or its derivative is not finite; empty if nowhere."""
    grid, dtype = problem.grid, mass.dtype
    centres, actions = jnp.asarray(grid.centres, dtype=dtype), problem.actions.points(3)

    def total(state: Any, action: Any, mass: Any, step: Any) -> Any:
        mu = mean_field_at(grid, mass, state, step)
        return jnp.sum(jnp.asarray(function(state, action, mu), dtype=dtype))

    # Derivatives by mu, one for each pair of cells, would take minutes on large maps.
    wanted = (0, 1, 2) if grid.n_cells <= 2000 else (0, 1)

    @jax.jit
    def look(step: Any) -> Any:
        def one(state: Any, action: Any) -> Any:
            value, slopes = jax.value_and_grad(total, wanted)(state, action, mass, step)
            return [jnp.all(jnp.isfinite(each)) for each in (value, *slopes)]

        return jax.vmap(lambda state: jax.vmap(lambda action: one(state, action))(actions))(centres)

    faults = (
        "is NaN or infinite",
        *(f"has no finite derivative by {by}" for by in ("the state", "the action", "mu")),
    )
    for step in range(problem.first_step, problem.paid_steps):
        for fault, fine in zip(faults, look(step), strict=False):
            if not np.all(fine):
                cell, choice = (int(i) for i in np.argwhere(~np.asarray(fine))[0])
                return (
                    f"{fault} in the {grid.place(cell)}, "
                    f"at step {step}, for the action {np.asarray(actions[choice]).tolist()}"
                )
    return ""
