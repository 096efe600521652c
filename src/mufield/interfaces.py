"""What problem and flow know of their parts: the functions of one agent, trips and a map.

Trips and maps are interfaces; `mufield.fleet` implements them, and is imported only where it is
used.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ._arrays import device_array
from ._types import Action, CellIndex, Mass, Masses, Scalar, State, Step, Target
from .checks import finite
from .errors import UserError, in_words
from .space.grid import Grid
from .space.measure import MeanField, at_all_cells
from .space.move import Move
from .space.nodes import Nodes

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

    def chosen(each: Any) -> list[Any]:
        return [getattr(each, name) for name in fields]

    old = chosen(module)
    return eqx.tree_at(
        chosen,
        module,
        list(fields.values()),
        is_leaf=lambda node: node is None or any(node is each for each in old),
    )


class AbstractLifted(eqx.Module):
    """A motion of the library, a function of states and actions on every space."""


class Discounted(eqx.Module):
    """A reward times the discount to the power of the step."""

    reward: Reward
    discount: float = eqx.field(static=True)

    def __call__(self, state: State, action: Action, mu: MeanField) -> Scalar:
        """The discounted reward."""
        paid = jnp.asarray(self.reward(state, action, mu))
        return paid * jnp.asarray(self.discount, mu.mass.dtype) ** mu.step


def long_enough(discount: float) -> int:
    """The horizon H after which a thousandth of the discounted reward is left: g^H < 0.001."""
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

    Raises an error that calls it ``name`` if a result has not the right ``shape`` or is not finite.
    """
    tried = np.asarray(jnp.broadcast_to(actions, (grid.n_cells, *actions.shape[-2:])))
    nodes = isinstance(grid, Nodes)
    try:
        values = np.asarray(_at_all_cells(grid, mass, function, device_array(tried, mass.dtype)))
        values = values.astype(float, casting="same_kind")  # complex numbers are refused
    except Exception as error:
        arguments = "the number of a node, the number of an action"
        if not nodes:
            of = f"of shape {(grid.dim,)}, an action of shape {tried.shape[2:]}"
            arguments = f"a state {of}"
        raise UserError(
            f"{name} could not be evaluated for {arguments} and mu: "
            f"{in_words(error, '(state, action, mu)')}"
        ) from error
    if values.shape[2:] != shape:
        raise UserError(
            f"{name} must return the shape {shape} for one agent, got {values.shape[2:]}; write it "
            "for a single agent, mufield batches it"
        )

    def place(index: tuple[int, ...]) -> str:
        where = grid.place(index[0]) if nodes else f"the state {grid.centres[index[0]]}"
        return f"for {where}, the action {tried[index[:2]]} and the initial distribution"

    finite(values, name, "in logarithms of mu, mufield.log_mass is finite in empty cells", place)
    return values


def within_max_move(state: Array, end: Array, max_move: tuple[float, ...]) -> Array:
    """Where an agent aims, cut to the farthest move on each axis; on nodes, to probabilities."""
    if not max_move:  # on nodes
        positive = jnp.maximum(end, 0.0)
        return positive / jnp.sum(positive)
    farthest = jnp.asarray(max_move, dtype=state.dtype)
    return state + jnp.clip(end - state, -farthest, farthest)


class AbstractTrips(eqx.Module):
    """Known transitions that are no moves; see `mufield.fleet.Trips`."""

    @abstractmethod
    def check(self, grid: Grid, initial: Mass, horizon: int) -> None:
        """Raises if the trips do not fit a problem."""

    @abstractmethod
    def chance_at(self, state: State, action: Array, mu: MeanField) -> Array:
        """Probability that one agent is carried off, as a function of a motion's arguments."""

    @abstractmethod
    def chances(self, grid: Grid, mass: Mass, step: Step) -> Float[Array, "cells ..."]:
        """Probability of being carried off in each cell."""

    @abstractmethod
    def wrong_chance(self, grid: Grid, mass: Mass, step: Any) -> str:
        """Says which chance is no probability; empty if all are."""

    @abstractmethod
    def served(self, mass: Masses) -> float | None:
        """Share of the demand that found an agent along an episode; None without a demand."""

    away: eqx.AbstractVar[Float[Array, "stages cells"]]
    """Agents under way at the start, by step from the next one on when they arrive."""

    @property
    def stages(self) -> int:
        """How many steps later than the next one trips may arrive; 0 if all take one step."""
        return self.away.shape[0]

    @abstractmethod
    def ends(self, taken: Mass, step: Step) -> Float[Array, "stages_and_one cells"]:
        """Where agents arrive that were taken in each cell: one step later, and so on."""

    @abstractmethod
    def worth(self, values: Float[Array, "stages_and_one cells"], step: Step) -> Mass:
        """Expected value of being taken in each cell; ``values`` are those of where trips end."""

    @abstractmethod
    def most(self, step: Step) -> Mass:
        """The greatest mass that can be taken in each cell."""

    @abstractmethod
    def carry(
        self,
        grid: Grid,
        mass: Mass,
        step: Step,
        cell: CellIndex,
        moved: Move,
        uniforms: Float[Array, "draws"],
        *,
        centred: bool,
    ) -> tuple[Move, Bool[Array, ""], Int[Array, ""]]:
        """Where one agent comes to rest, whether a trip carried it there, and after how many steps.

        ``moved`` is its own move.
        """


class AbstractMap(ABC):
    """A grid on the earth; see `mufield.fleet.CityMap`."""

    longitude: float
    latitude: float
    turn: float
    grid: Grid

    @abstractmethod
    def to_plane(self, longitude: Any, latitude: Any) -> Any:
        """States of the grid from longitude and latitude."""

    @abstractmethod
    def onto_streets(self, states: Any) -> tuple[Any, Any]:
        """States moved into free cells, and which of them were there or near."""
