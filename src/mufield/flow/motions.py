"""Motions of one agent: what they depend on, and what planners ask of them at all cells."""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.extend.core import Literal as Constant
from jaxtyping import Array, Float

from .._arrays import Action, Mass, Scalar, State, Step, Target
from ..interfaces import AbstractLifted
from ..problem import Motion, Problem
from ..space.measure import MeanField


class Dependence(NamedTuple):
    """What the result of a function of one agent may depend on.

    Attributes:
        mass: Whether on more of mu than the mass of the agent's own cell.
        here: Whether on that mass, ``mu.here``.
        step: Whether on the number of the step.
    """

    mass: bool
    here: bool
    step: bool

    @property
    def mu(self) -> bool:
        """Whether on mu."""
        return self.mass or self.here


def dependence(problem: Problem, function: Callable[..., Any]) -> Dependence:
    """What the result of ``function(state, action, mu)`` may depend on, by its jaxpr.

    The answer may say too much, for example for ``0 * mu.mass``, but never too little. It consists
    of plain booleans, also inside a compiled function.
    """
    program = program_of(problem, problem.lifted(function))
    return Dependence(*(affects(program, variable) for variable in program.invars[2:]))


def program_of(problem: Problem, function: Callable[..., Any]) -> Any:
    """The jaxpr of a function: of action, state, mass, the mass of the agent's cell, and step."""
    grid, mass = problem.grid, problem.initial
    state = jnp.asarray(grid.centres[0], dtype=mass.dtype)
    action = jnp.asarray(problem.actions.rest, dtype=mass.dtype)

    def of_all(action: Action, state: State, mass: Mass, here: Scalar, step: Step) -> Any:
        return jnp.asarray(function(state, action, MeanField(mass, here, grid, step)))

    return jax.make_jaxpr(of_all)(action, state, mass, mass[0], problem.steps[0]).jaxpr


def trips_see_mu(problem: Problem) -> bool:
    """Whether the chance of a trip depends on mu; then the flow is not linear in it."""
    return problem.trips is not None and dependence(problem, problem.trips.chance_at).mu


def affects(program: Any, variable: Any) -> bool:
    """Whether an input of a program may have an effect on its results."""
    return max(_degrees(program, [float(v is variable) for v in program.invars])) > 0


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
    return max(_degrees(program_of(problem, function), [1.0, 0.0, 0.0, 0.0, 0.0]))


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


class AbstractJointMotion(AbstractLifted):
    """A motion f(s, (a, eta), mu) of joint actions whose costly part does not depend on eta.

    Planners compute that part once for all controls eta of an action.

    Attributes:
        action_dim: Number of axes of a; what follows them in a joint action is eta.
    """

    action_dim: eqx.AbstractVar[int]

    @abstractmethod
    def predict(self, state: State, action: Action, mu: MeanField) -> Any:
        """The part that does not depend on eta, such as the mean and the deviation of a model."""

    @abstractmethod
    def hallucinate(self, state: State, prediction: Any, eta: Array) -> Target:
        """The target of an agent, given what `predict` returned and the control eta."""

    def __call__(self, state: State, joint: Action, mu: MeanField) -> Target:
        """The target of an agent."""
        prediction = self.predict(state, joint[: self.action_dim], mu)
        return self.hallucinate(state, prediction, joint[self.action_dim :])


def costly_part(motion: Motion) -> Callable[[State, Action, MeanField], Any]:
    """The part of a motion that controls do not change; of one without controls all of it."""
    return motion.predict if isinstance(motion, AbstractJointMotion) else motion


def hallucinated(motion: Motion, state: State, prediction: Any, eta: Array) -> Target:
    """The target of an agent, given its `costly_part`."""
    if isinstance(motion, AbstractJointMotion):
        return motion.hallucinate(state, prediction, eta)
    return jnp.asarray(prediction)


def crowd_coordinate(mass: Float[Array, "*cells"], cells: int) -> Float[Array, "*cells"]:
    """The mass of a cell on a scale from 0, an empty cell, to 1, one that holds everybody.

    Even below a fifth of the uniform mass and logarithmic above it: crowds matter by their relative
    size, and cells that are nearly empty do not.
    """
    crowd = jnp.log1p(jnp.maximum(mass, 0.0) * (cells / 0.2))
    return jnp.minimum(crowd / math.log1p(cells / 0.2), 1.0)


def crowd_mass(place: Float[Array, "*knots"], cells: int) -> Float[Array, "*knots"]:
    """The inverse of `crowd_coordinate`."""
    return 0.2 * jnp.expm1(place * math.log1p(cells / 0.2)) / cells
