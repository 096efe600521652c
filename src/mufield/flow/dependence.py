"""Whether a user's function looks at the population."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from .._types import Mass, Scalar
from ..problem import Problem
from ..space.measure import MeanField


def depends_on_mu(problem: Problem, function: Callable[..., Any]) -> bool:
    """Whether ``function(state, action, mu)`` uses mu, read off the program that it traces to.

    Errs on the side of yes: mu passed through an operation counts, whatever its values do.
    """
    grid, dtype = problem.grid, problem.initial.dtype
    state = jnp.asarray(grid.centres[0], dtype=dtype)
    action = jnp.asarray(problem.actions.rest, dtype=dtype)

    def of_mu(mass: Mass, here: Scalar) -> Any:
        return jnp.asarray(function(state, action, MeanField(mass=mass, here=here, grid=grid)))

    program = jax.make_jaxpr(of_mu)(problem.initial, problem.initial[0]).jaxpr
    reached = set(program.invars)
    for equation in program.eqns:
        inputs = [v for v in equation.invars if not isinstance(v, Literal)]
        if any(v in reached for v in inputs):
            reached.update(equation.outvars)
    return any(v in reached for v in program.outvars if not isinstance(v, Literal))
