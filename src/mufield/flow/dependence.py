"""What a function of one agent may depend on, by its jaxpr."""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.extend.core import Literal as Constant

from .._types import Mass, Scalar, Step
from ..problem import Problem
from ..space.measure import MeanField

Dependence = Literal["nothing", "here", "more"]


def dependence(problem: Problem, function: Callable[..., Any]) -> Dependence:
    """What the result of ``function(state, action, mu)`` may depend on, by its jaxpr.

    ``"here"`` means no more than ``mu.here``. The answer may say too much, for example for
    ``0 * mu.mass``, but never too little. It is a plain word, also inside a compiled function.
    """
    program = _program(problem, function)
    if _reaches(program, program.invars[0]):
        return "more"
    return "here" if _reaches(program, program.invars[1]) else "nothing"


def sees_step(problem: Problem, function: Callable[..., Any]) -> bool:
    """Whether the result of ``function(state, action, mu)`` may depend on ``mu.step``."""
    program = _program(problem, function)
    return _reaches(program, program.invars[2])


def _program(problem: Problem, function: Callable[..., Any]) -> Any:
    """The jaxpr of a function of one agent, with the inputs ``mu.mass``, ``here`` and ``step``."""
    grid, dtype = problem.grid, problem.initial.dtype
    state = jnp.asarray(grid.centres[0], dtype=dtype)
    action = jnp.asarray(problem.actions.rest, dtype=dtype)

    def of_mu(mass: Mass, here: Scalar, step: Step) -> Any:
        mu = MeanField(mass=mass, here=here, grid=grid, step=step)
        return jnp.asarray(function(state, action, mu))

    return jax.make_jaxpr(of_mu)(problem.initial, problem.initial[0], problem.steps[0]).jaxpr


def trips_see_mu(problem: Problem) -> bool:
    """Whether the chance of a trip depends on mu; then the flow is not linear in it."""
    return problem.trips is not None and depends_on_mu(problem, problem.trips.at)


def depends_on_mu(problem: Problem, function: Callable[..., Any]) -> bool:
    """Whether the result of ``function(state, action, mu)`` may depend on mu; see `dependence`."""
    return dependence(problem, function) != "nothing"


def _reaches(program: Any, variable: Any) -> bool:
    """Whether an input of a program may have an effect on its results."""
    reached = {variable}
    for equation in program.eqns:
        if any(v in reached for v in equation.invars if not isinstance(v, Constant)):
            reached.update(equation.outvars)
    return any(v in reached for v in program.outvars if not isinstance(v, Constant))
