"""The degree of a user's function as a polynomial of the action, from its program."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal as Constant

from .._types import Action
from ..problem import Problem
from ..space.measure import MeanField

_LINEAR = {
    *("add", "sub", "neg", "add_any", "reduce_sum", "cumsum", "reshape", "broadcast_in_dim"),
    *("squeeze", "expand_dims", "transpose", "slice", "dynamic_slice", "concatenate", "gather"),
    *("convert_element_type", "copy", "rev", "pad", "select_n"),
}
_PRODUCTS = {"mul", "dot_general"}


def degree_in_action(problem: Problem, function: Callable[..., Any]) -> float:
    """The degree of ``function(state, action, mu)`` as a polynomial of the action.

    Zero if it ignores the action, infinite if it is not seen to be a polynomial. The answer may be
    too high, but never too low: for all states and distributions, at every step.
    """
    grid, dtype = problem.grid, problem.initial.dtype
    state = jnp.asarray(grid.centres[0], dtype=dtype)
    action = jnp.asarray(problem.actions.rest, dtype=dtype)

    def of_action(action: Action, state: Any, mass: Any, step: Any) -> Any:
        mu = MeanField(mass=mass, here=mass[0], grid=grid, step=step)
        return jnp.asarray(function(state, action, mu))

    inputs = (action, state, problem.initial, problem.steps[0])
    program = jax.make_jaxpr(of_action)(*inputs).jaxpr
    return max(_degrees(program, [1.0, 0.0, 0.0, 0.0]))


def _degrees(program: Any, inputs: list[float]) -> list[float]:
    """The degrees of a program's results, from those of its inputs."""
    known: dict[Any, float] = dict(zip(program.invars, inputs, strict=True))

    def degree(variable: Any) -> float:
        return 0.0 if isinstance(variable, Constant) else known.get(variable, 0.0)

    for equation in program.eqns:
        found = _of_equation(equation, [degree(variable) for variable in equation.invars])
        known.update(zip(equation.outvars, found, strict=True))
    return [degree(variable) for variable in program.outvars]


def _of_equation(equation: Any, inputs: list[float]) -> list[float]:
    name, most = equation.primitive.name, max(inputs, default=0.0)
    results = len(equation.outvars)
    if most == 0:
        return [0.0] * results
    inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
    if inner is not None and name in ("jit", "pjit", "closed_call", "custom_jvp_call", "remat2"):
        return _degrees(getattr(inner, "jaxpr", inner), inputs)
    exact = all(jnp.issubdtype(v.aval.dtype, jnp.inexact) for v in equation.outvars)
    choice = {"select_n": inputs[:1], "gather": inputs[1:], "dynamic_slice": inputs[1:]}
    if name in _LINEAR and exact and not any(choice.get(name, ())):
        return [most] * results
    if name in _PRODUCTS:
        return [sum(inputs)]
    if name == "div" and inputs[1] == 0:
        return [inputs[0]]
    power = {"square": 2, "integer_pow": equation.params.get("y", -1)}.get(name, -1)
    return [power * most if power >= 0 else math.inf] * results
