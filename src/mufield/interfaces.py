"""What a fleet adds to a problem, as interfaces: trips and a map.

Problem and flow know them by these methods alone. `mufield.fleet` implements them, and is imported
only where it is used.
"""

from abc import ABC, abstractmethod
from typing import Any

import equinox as eqx
from jaxtyping import Array, Bool, Float, Int

from ._types import CellIndex, Mass, Masses, State, Step
from .space.grid import Grid
from .space.measure import MeanField
from .space.move import Move


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
    def land(self, taken: Mass, step: Step) -> Mass:
        """Where agents land whose trips take one step, of those taken in each cell."""

    @abstractmethod
    def later(self, taken: Mass, step: Step) -> Float[Array, "stages cells"]:
        """Where the others land, two steps later and so on."""

    @abstractmethod
    def worth(self, values: Float[Array, "stages cells"], step: Step) -> Float[Array, "cells"]:
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
