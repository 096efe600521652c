"""The functions of one agent: motions and rewards, what they are for a library, and their check."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal, jaxprs_in_params
from jaxtyping import Array, Float

from ._arrays import Action, Mass, Scalar, State, Target, device_array
from .errors import UserError, explained, finite
from .space.grid import Grid
from .space.measure import MeanField, at_all_cells

T = TypeVar("T", bound=eqx.Module)

Motion = Callable[[State, Action, MeanField], Target]
"""The law of motion f(s, a, mu) of one agent (eq. transitionDynamics), without noise.

It may depend on the time of day: ``mu.step`` is the number of the step. On `Nodes` it returns the
probabilities of successors instead.
"""

Motions = Callable[[State, Action, MeanField], Float[Array, "motions outputs"]]
"""Several motions, or rewards, of one agent."""

Reward = Callable[[State, Action, MeanField], Scalar]
"""The reward r(s, a, mu) of one agent; it may depend on ``mu.step``, too."""


class HiddenReward(eqx.Module):
    """Stands in for a reward that only the true system knows; calling it raises an error."""

    def __call__(self, state: State, action: Action, mu: MeanField) -> NoReturn:
        """Raises."""
        raise UserError(
            "the reward is hidden: it is known to the true system alone; learn it with M3UCRL, "
            "or, where the system is simulated, take the flow of system.reveal(), which has it"
        )


def with_fields(module: T, **fields: Any) -> T:
    """A module with other values of some fields, which are not checked; may be compiled."""
    names = [field.name for field in dataclasses.fields(module)]
    new = object.__new__(type(module))  # no constructor runs
    for name in names:
        value = fields.pop(name) if name in fields else getattr(module, name)
        object.__setattr__(new, name, value)
    assert not fields, f"{type(module).__name__} has no {list(fields)}"
    return new


class AbstractLifted(eqx.Module):
    """Base of the library's own motions and rewards.

    Unlike users' functions they take the number of a node as an array with one entry, and need no
    wrapping.
    """

    @property
    def sees_centre(self) -> bool:
        """Whether of ``mu.mass`` it looks only at the `mufield.policies.Centre`: a few numbers."""
        return False


class Discounted(eqx.Module):
    """A reward times the discount to the power of the step."""

    reward: Reward
    discount: float = eqx.field(static=True)

    def __call__(self, state: State, action: Action, mu: MeanField) -> Scalar:
        """The discounted reward."""
        paid = jnp.asarray(self.reward(state, action, mu))
        return paid * jnp.asarray(self.discount, mu.mass.dtype) ** mu.step


def discounted_horizon(discount: float) -> int:
    """The horizon H after which a thousandth of the discounted reward is left: g^H <= 0.001."""
    if discount == 1:
        raise UserError("without a horizon the discount must be below 1; give discount=0.95")
    return max(1, math.ceil(math.log(1e-3) / math.log(discount))) if discount > 0 else 1


# Compiled once for the module, so that equal problems share the program.
_at_all_cells = eqx.filter_jit(at_all_cells)


def check_function(
    grid: Grid,
    mass: Mass,
    actions: Float[Array, "*cells actions action_dim"],
    function: Callable[..., Any],
    name: str,
    shape: tuple[int, ...],
) -> Float[np.ndarray, "cells actions *shape"]:
    """Evaluates a user's function ``(state, action, mu)`` of one agent in every cell.

    Raises an error that calls it ``name`` if a result has not the right ``shape``, is not finite or
    is random.
    """
    tried = np.broadcast_to(np.asarray(actions), (grid.n_cells, *actions.shape[-2:]))
    nodes = grid.nodes is not None
    given = f"a state of shape {(grid.dim,)}, an action of shape {tried.shape[2:]} and mu"
    if nodes:
        given = "the number of a node, the number of an action and mu"
    with explained(f"{name} could not be evaluated for {given}", "(state, action, mu)"):
        values = np.asarray(_at_all_cells(grid, mass, function, device_array(tried, mass.dtype)))
        values = values.astype(float, casting="same_kind")  # complex numbers are refused
    if values.shape[2:] != shape:
        raise UserError(
            f"{name} must return the shape {shape} for one agent, got {values.shape[2:]}; write it "
            "for a single agent, mufield batches it"
        )

    def place(index: tuple[int, ...]) -> str:
        where = grid.place(index[0]) if nodes else f"the state {grid.centres[index[0]]}"
        return f"for {where}, the action {tried[index[:2]]} and the initial distribution"

    remedy = "take roots and logarithms of jnp.maximum(x, 1e-6), or mufield.log_mass of mu"
    finite(values, name, remedy, place)
    inputs = *(device_array(x, mass.dtype) for x in (grid.centres[0], tried[0, 0])), mass
    if _constants(grid, function, inputs) != _constants(grid, function, inputs):
        raise UserError(
            f"{name} computes with other numbers at each call, but JAX calls it once and keeps "
            "them, so that random ones would be constant; leave them out: noise belongs in noise= "
            "of the Problem, on nodes in the probabilities"
        )
    return values


def _constants(grid: Grid, function: Callable[..., Any], inputs: Any) -> list[bytes]:
    """The constants of the program that JAX makes of a function of one agent."""

    def of_one(state: State, action: Action, mass: Mass) -> Array:
        return jnp.asarray(function(state, action, MeanField(mass, mass[0], grid)))

    def inside(program: Any) -> Iterator[Any]:
        for equation in program.eqns:
            yield from (each.val for each in equation.invars if isinstance(each, Literal))
            for inner in jaxprs_in_params(equation.params):
                yield from inside(inner)

    program = jax.make_jaxpr(of_one)(*inputs)
    found = (*program.consts, *inside(program.jaxpr))
    keys = jax.dtypes.prng_key  # they are no numbers
    return [np.asarray(x).tobytes() for x in found if not jnp.issubdtype(jnp.result_type(x), keys)]
