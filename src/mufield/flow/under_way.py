"""Agents whose trips take several steps, beside the distribution of those that are free."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import Mass, Step
from ..problem import Problem
from .phi import AbstractPhi


def under_way(problem: Problem) -> Float[Array, "stages cells"] | None:
    """Agents whose trips have begun, by when they arrive; None if all trips take one step."""
    if problem.trips is None or problem.trips.stages == 0:
        return None
    return problem.trips.away.astype(problem.initial.dtype)


def shifted(away: Float[Array, "stages cells"]) -> Float[Array, "stages cells"]:
    """Agents under way one step later, when those of the first row have arrived."""
    return jnp.concatenate([away[1:], jnp.zeros_like(away[:1])])


def arriving(phi: AbstractPhi, problem: Problem, mass: Float[Array, "steps cells"]) -> Any:
    """Agents whose trips of several steps end after the last move, given mu before each."""
    away = under_way(problem)
    if away is None:
        return 0.0

    def one(away: Array, row: tuple[Mass, Step]) -> tuple[Array, Mass]:
        def advance(away: Array) -> tuple[Array, Mass]:
            return shifted(away) + phi.later(row[0], row[0], row[1]), away[0]

        return if_begun(problem, row[1], advance, away)

    return jax.lax.scan(one, away, (mass, problem.steps))[1][-1]


def if_begun(
    problem: Problem, step: Step, run: Callable[[Any], tuple[Any, Any]], carry: Any
) -> tuple[Any, Any]:
    """A step of a scan, ``run(carry)``; before the problem's first step nothing happens.

    Then the carry stays as it is, and what ``run`` would give besides is zero.
    """
    if problem.first is None:
        return run(carry)
    shapes = jax.eval_shape(run, carry)[1]

    def wait(carry: Any) -> tuple[Any, Any]:
        return carry, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

    done: tuple[Any, Any] = jax.lax.cond(step >= problem.first, run, wait, carry)
    return done
