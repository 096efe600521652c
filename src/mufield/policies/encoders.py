"""How policies and models see an agent's position and the population mu.

An encoder holds settings but no arrays; it takes the grid from ``mu.grid`` when it is called.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._arrays import Mass, State
from ..errors import UserError, explained, whole_number
from ..space.grid import Grid
from ..space.measure import MeanField, log_mass


@dataclass(frozen=True)
class AbstractEncoder:
    """Turns mu, as one agent sees it, into a vector of numbers of the order of one.

    Attributes:
        words: What it shows, for sentences.
        length_scale: Distance between vectors at which a prior expects a motion to differ.
    """

    words: ClassVar[str] = "mu"
    length_scale: ClassVar[float] = 2.0

    @property
    def inputs(self) -> "tuple[AbstractEncoder, ...]":
        """The encoders whose vectors it consists of: itself, if it is not several."""
        return (self,)

    @abstractmethod
    def __call__(self, state: State, mu: MeanField) -> Float[Array, "features"]:
        """The vector for one agent."""

    def size(self, grid: Grid) -> int:
        """Length of the vector on a grid, found by tracing."""
        return _size(self, grid)


@dataclass(frozen=True)
class Unseen(AbstractEncoder):
    """Nothing of mu."""

    @property
    def inputs(self) -> tuple[AbstractEncoder, ...]:
        """None."""
        return ()

    def __call__(self, state: State, mu: MeanField) -> Float[Array, "features"]:
        """An empty vector."""
        return jnp.zeros((0,), dtype=mu.mass.dtype)


@dataclass(frozen=True)
class Here(AbstractEncoder):
    """The mass of the agent's own cell, as log(1 + mass) in multiples of the uniform mass."""

    words: ClassVar[str] = "the mass of the own cell"

    def __call__(self, state: State, mu: MeanField) -> Float[Array, "features"]:
        """One number."""
        return jnp.log1p(mu.here * mu.grid.n_cells)[None]


@dataclass(frozen=True)
class Around(AbstractEncoder):
    """The mass of the next cell in each direction, on the scale of `Here`; of a wall none."""

    words: ClassVar[str] = "the mass of the cells around"

    def __call__(self, state: State, mu: MeanField) -> Float[Array, "features"]:
        """Two numbers for each axis: of the cell below and of the cell above."""
        apart = np.diag(mu.grid.cell_size)
        points = state + jnp.asarray(np.concatenate([-apart, apart]), dtype=state.dtype)
        return jnp.log1p(jax.vmap(mu.at)(points) * mu.grid.n_cells)


@dataclass(frozen=True)
class Centre(AbstractEncoder):
    """The mean over the population of `position_features`: where its centre is."""

    words: ClassVar[str] = "the mean of the population"
    length_scale: ClassVar[float] = 1.0

    def __call__(self, state: State, mu: MeanField) -> Float[Array, "features"]:
        """As many numbers as `position_features` has."""
        centres = jnp.asarray(mu.grid.centres, dtype=mu.mass.dtype)
        return mu.mass @ jax.vmap(lambda each: position_features(mu.grid, each))(centres)


@dataclass(frozen=True)
class Clock(AbstractEncoder):
    """The number of the step: -1 at the first of ``horizon`` steps, 1 after the last."""

    horizon: int

    words: ClassVar[str] = "the step"
    length_scale: ClassVar[float] = 0.4

    def __call__(self, state: State, mu: MeanField) -> Float[Array, "features"]:
        """One number."""
        return (2.0 * jnp.asarray(mu.step, dtype=mu.mass.dtype) / self.horizon - 1.0)[None]


@dataclass(frozen=True)
class Joined(AbstractEncoder):
    """The vectors of several encoders, one after the other."""

    encoders: tuple[AbstractEncoder, ...]

    @property
    def inputs(self) -> tuple[AbstractEncoder, ...]:
        """The encoders."""
        return self.encoders

    def __call__(self, state: State, mu: MeanField) -> Float[Array, "features"]:
        """All numbers of all encoders."""
        return jnp.concatenate([Unseen()(state, mu), *(each(state, mu) for each in self.encoders)])


def joined(encoders: Sequence[AbstractEncoder]) -> AbstractEncoder:
    """One encoder that shows what several do."""
    if len(encoders) == 1:
        return encoders[0]
    return Joined(tuple(encoders)) if encoders else Unseen()


@dataclass(frozen=True)
class LogHere(AbstractEncoder):
    """The logarithm of the own cell's mass: 0 if mu is uniform, 1 if everybody is here.

    Rewards against crowding are often linear in it.
    """

    def __call__(self, state: State, mu: MeanField) -> Float[Array, "features"]:
        """One number."""
        here = log_mass(mu.here * mu.grid.n_cells, floor=1e-6)  # finite in empty cells
        return (here / max(1.0, math.log(mu.grid.n_cells)))[None]


@dataclass(frozen=True)
class Pooled(AbstractEncoder):
    """The mass of blocks of cells, scaled to one if all blocks have the same mass.

    Attributes:
        cells: Number of cells in a block, on each axis; with 1 every cell's mass is seen.
    """

    cells: int = 4

    def __post_init__(self) -> None:
        whole_number(self.cells, "the cells of a block on each axis")

    def __call__(self, state: State, mu: MeanField) -> Float[Array, "features"]:
        """One number for each block."""
        blocks = _blocks(mu.grid, self.cells)
        size = int(blocks.max()) + 1
        if size == mu.grid.n_cells:
            return mu.mass * size
        member = blocks[:, None] == np.arange(size)
        return mu.mass @ jnp.asarray(member, dtype=mu.mass.dtype) * size


@dataclass(frozen=True)
class Seen(AbstractEncoder):
    """A user's function of one agent's state and mu that returns a vector or a number."""

    function: Callable[[State, MeanField], Any]

    def __call__(self, state: State, mu: MeanField) -> Float[Array, "features"]:
        """The function's result, as a vector."""
        given = f"a state of shape {state.shape} and mu"
        with explained(f"the features of mu could not be evaluated for {given}", "(state, mu)"):
            found = jnp.atleast_1d(jnp.asarray(self.function(state, mu)))
        if found.ndim != 1:
            raise UserError(f"features of mu must be a vector for one agent, got {found.shape}")
        return found


ENCODERS: dict[str, type[AbstractEncoder]] = {
    "none": Unseen,
    "local": Here,
    "log here": LogHere,
    "pooled": Pooled,
}
"""Names of the encoders in configurations and files; `Seen` has none."""


def check_encoder(mu: object) -> AbstractEncoder:
    """Returns ``mu``, or raises if it is not an encoder."""
    if isinstance(mu, AbstractEncoder):
        return mu
    names = ", ".join(f"{kind.__name__}()" for kind in ENCODERS.values())
    raise UserError(f"mu must be one of {names} or Seen(function), got {mu!r}")


def position_features(grid: Grid, state: State) -> Float[Array, "position"]:
    """Position scaled to [-1, 1]; periodic axes as cosine and sine, which are continuous."""
    lower = jnp.asarray(grid.lower, dtype=state.dtype)
    share = (state - lower) / jnp.asarray(grid.extent, dtype=state.dtype)
    features = []
    for axis, periodic in enumerate(grid.periodic):
        if periodic:
            angle = 2 * jnp.pi * share[axis]
            features += [jnp.cos(angle), jnp.sin(angle)]
        else:
            features.append(2 * share[axis] - 1)
    return jnp.stack(features)


def position_size(grid: Grid) -> int:
    """Length of `position_features`; raises for nodes, which have no coordinates."""
    if grid.nodes is not None:
        raise UserError(
            "nodes have no coordinates, which Gaussian processes, ensembles and networks need; "
            "learn with mufield.models.DirichletCounts() or --model counts; plan by mirror ascent"
        )
    return grid.dim + sum(grid.periodic)


@lru_cache(maxsize=64)
def _size(encoder: AbstractEncoder, grid: Grid) -> int:
    def one(state: State, mass: Mass) -> Array:
        return encoder(state, MeanField(mass=mass, here=mass[0], grid=grid))

    dtype = jnp.result_type(float)
    shapes = (jax.ShapeDtypeStruct(shape, dtype) for shape in ((grid.dim,), (grid.n_cells,)))
    return int(jax.eval_shape(one, *shapes).shape[0])


@lru_cache(maxsize=64)
def _blocks(grid: Grid, cells: int) -> np.ndarray:
    """The number of each free cell's block."""
    _, block = np.unique(grid.free_cells // cells, axis=0, return_inverse=True)
    return np.asarray(block.reshape(-1))
