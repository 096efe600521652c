"""Why J is not finite: the cell, the step and the action at which a function is to blame."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._types import Masses
from ..errors import UserError
from ..fleet.trips import chance_violation, refuse_chance
from ..problem import Motion, Problem
from ..space.measure import at_all_cells, mean_field_at


def check_planned(problem: Problem, motion: Motion, mass: Masses, *values: Any) -> None:
    """Raises unless the figures of a plan with known motion are finite, and says why not.

    ``mass`` are the distributions of the plan's episode.
    """
    if all(bool(jnp.isfinite(value)) for value in values):
        return
    why = diagnose(problem, motion, mass) or "check the reward and the motion"
    raise UserError(f"no plan with a finite J and derivatives was found: {why}")


def diagnose(problem: Problem, motion: Motion | None = None, mass: Masses | None = None) -> str:
    """Says where the reward, the motion, a chance or a gradient is not as it must be; else empty.

    Tried are all cells and steps, a few actions, the initial distribution, an even one, and one
    in which all are in one cell. If the distributions ``mass`` of an episode are given, chances of
    trips are looked at along them.
    """
    if mass is not None and (why := _impossible_chance(problem, mass)):
        return why
    functions: dict[str, Callable[..., Any]] = {}
    if not problem.hides_reward:
        functions["the reward"] = problem.reward
    if motion is not None:
        functions["the motion"] = motion
    grid, dtype = problem.grid, problem.initial.dtype
    even = jnp.full(grid.n_cells, 1 / grid.n_cells, dtype=dtype)
    crowd = jnp.zeros_like(even).at[0].set(1.0)
    masses = {"the initial": problem.initial, "an even": even, "a crowded": crowd}
    for name, function in functions.items():
        for which, mass in masses.items():
            where = _not_finite(problem, function, mass)
            if where:
                return (
                    f"{name} {where} and {which} distribution; for logarithms of mu use "
                    "mufield.log_mass, for roots jnp.maximum(mu.here, 1e-6), and keep jnp.where "
                    "away from branches that are not finite"
                )
    if not problem.hides_reward and (largest := _largest(problem, even)) > _most(problem):
        return (
            f"the sum of the rewards overflows, as each is as large as {largest:.3g}; divide the "
            "reward by a constant"
        )
    return ""


def _impossible_chance(problem: Problem, mass: Masses) -> str:
    """Says where the first chance of a trip is no probability along an episode."""
    if problem.trips is None:
        return ""
    for step in range(_first(problem), problem.horizon):
        now = mass[step]
        if not bool(jnp.all(jnp.isfinite(now))):
            return ""
        chances = problem.trips.chances(problem.grid, now, step)
        if float(chance_violation(chances)) > 0:
            try:
                refuse_chance(problem.grid, chances, step)
            except UserError as error:
                return str(error)
    return ""


def _first(problem: Problem) -> int:
    """Number of the first step."""
    return 0 if problem.first is None else int(problem.first)


def _most(problem: Problem) -> float:
    """Larger rewards overflow when those of an episode are added up and compared."""
    return float(jnp.finfo(problem.initial.dtype).max) / (1e3 * problem.paid_steps)


def _largest(problem: Problem, mass: Any) -> float:
    """The largest reward of any cell and a few actions, at the first step."""
    actions = problem.actions.points(3)
    everywhere = jnp.broadcast_to(actions, (problem.grid.n_cells, *actions.shape))
    found = at_all_cells(problem.grid, mass, problem.reward, everywhere, 0)
    return float(jnp.max(jnp.abs(found)))


def _not_finite(problem: Problem, function: Callable[..., Any], mass: Any) -> str:
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
            return jnp.isfinite(value), [jnp.all(jnp.isfinite(slope)) for slope in slopes]

        return jax.vmap(lambda state: jax.vmap(lambda action: one(state, action))(actions))(centres)

    for step in range(_first(problem), problem.paid_steps):
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
