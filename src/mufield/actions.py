"""What agents can do: a box of continuous actions, or a finite set of moves."""

import reprlib
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ._arrays import Key, device_array
from .errors import (
    PerAxis,
    UserError,
    bounds,
    distribution,
    finite,
    numbers,
    per_axis,
    whole_number,
)


class Box(eqx.Module):
    """A box of continuous actions."""

    lower: tuple[float, ...] = eqx.field(static=True)
    upper: tuple[float, ...] = eqx.field(static=True)

    def __init__(self, lower: PerAxis, upper: PerAxis, dim: int | None = None):
        """Builds a box; a single number is the bound on each of ``dim`` axes (default 1)."""
        sizes = [int(np.size(bound)) for bound in (lower, upper) if np.ndim(bound) > 0]
        dim = dim if dim is not None else (sizes[0] if sizes else 1)
        self.lower = per_axis(lower, dim, float)
        self.upper = per_axis(upper, dim, float)
        bounds(self.lower, self.upper, "the action box")

    @property
    def dim(self) -> int:
        """Number of action axes (the paper's q)."""
        return len(self.lower)

    def corners(self, dtype: Any) -> tuple[Float[Array, "action_dim"], Float[Array, "action_dim"]]:
        """The lower and the upper corner as arrays."""
        return jnp.asarray(self.lower, dtype=dtype), jnp.asarray(self.upper, dtype=dtype)

    @property
    def rest(self) -> tuple[float, ...]:
        """The action nearest to zero."""
        return tuple(min(max(0.0, lo), hi) for lo, hi in zip(self.lower, self.upper, strict=True))

    def points(self, n: int, *, border: bool = True) -> Float[Array, "points action_dim"]:
        """A regular grid of actions with ``n`` values on each axis.

        Args:
            n: Values on each axis; a single one is the middle.
            border: Whether the outermost values are the bounds. Otherwise values are the
                midpoints of equal intervals, which approximate the uniform distribution.
        """
        whole_number(n, "the number of points on each axis")
        ticks = np.linspace(0.0, 1.0, n) if border and n > 1 else (np.arange(n) + 0.5) / n
        axes = [lo + (hi - lo) * ticks for lo, hi in zip(self.lower, self.upper, strict=True)]
        table = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, self.dim)
        return device_array(table)

    def sample(self, key: Key, shape: tuple[int, ...] = ()) -> Float[Array, "*shape action_dim"]:
        """Actions drawn uniformly."""
        lower, upper = jnp.asarray(self.lower), jnp.asarray(self.upper)
        return lower + (upper - lower) * jax.random.uniform(key, (*shape, self.dim))

    def by_cell(self, cells: int) -> Float[Array, "cells points action_dim"]:
        """Some actions, the same for each cell; for checks."""
        few = self.points(3)
        return jnp.broadcast_to(few, (cells, *few.shape))

    def product(self, other: "Box", n: int = 3) -> "Box":
        """The box of all pairs of an action and a point of another box; ``n`` is not used."""
        return Box((*self.lower, *other.lower), (*self.upper, *other.upper))

    def contains(
        self, actions: Float[Array | np.ndarray, "... action_dim"], cells: Any = None
    ) -> Bool[Array | np.ndarray, "..."]:
        """Which actions lie in the box, up to rounding; it is the same in all ``cells``."""
        lower, upper = (np.asarray(end, dtype=actions.dtype) for end in (self.lower, self.upper))
        slack = np.asarray(1e-5, dtype=actions.dtype) * (upper - lower)
        inside: Array = (actions >= lower - slack) & (actions <= upper + slack)
        return inside.all(axis=-1)

    def describe(self) -> str:
        """The box in words, for error messages."""
        return f"the box from {self.lower} to {self.upper}"


class MoveSet(eqx.Module):
    """A finite set of moves, and the mixtures of them that a policy may choose from.

    Attributes:
        moves: One move in each row.
        options: One distribution over the moves in each row; by default the identity.
        available: Which moves agents of each cell can make; None if all can be made everywhere.
        rest: The move nearest to zero.
        lower: Least value of the moves on each axis.
        upper: Greatest value of the moves on each axis.
    """

    moves: Float[Array, "moves action_dim"]
    options: Float[Array, "options moves"]
    available: Bool[Array, "cells moves"] | None
    rest: tuple[float, ...] = eqx.field(static=True)
    lower: tuple[float, ...] = eqx.field(static=True)
    upper: tuple[float, ...] = eqx.field(static=True)

    def __init__(self, moves: Any, options: Any = None, *, available: Any = None):
        """Builds a set of moves: one row for each; or, on nodes, their number or their names."""
        remedy = "give one row for each move, such as [[0, 0], [1, 0], [0, 1]]"
        if isinstance(moves, int | np.integer):
            moves = np.arange(whole_number(moves, "the number of moves"))[:, None]
        if not isinstance(moves, np.ndarray | Array) and all(isinstance(m, str) for m in moves):
            moves = np.arange(len(moves))[:, None]
        points = numbers(moves, "moves", remedy).astype(float)
        finite(points, "moves", remedy)
        if points.ndim != 2 or len(points) == 0:
            raise UserError(f"moves must be rows, got {reprlib.repr(moves)}; {remedy}")
        self.moves = jnp.asarray(points)
        self.rest = tuple(points[np.argmin(np.linalg.norm(points, axis=1))].tolist())
        self.lower = tuple(points.min(axis=0).tolist())
        self.upper = tuple(points.max(axis=0).tolist())
        count = len(points)
        table = np.eye(count) if options is None else np.asarray(options, dtype=float)
        if table.ndim != 2 or table.shape[1] != count:
            raise UserError(f"options must be rows of {count} weights, got the shape {table.shape}")
        distribution(table, "each option", "divide it by its sum")
        self.options = jnp.asarray(table)
        self.available = None if available is None else _mask(available, count)

    @classmethod
    def on_nodes(cls, given: Any, nodes: int) -> "MoveSet":
        """The moves of some nodes, from a set of moves, their number or their names."""
        if isinstance(given, Box):
            raise UserError(
                "on nodes an action is one of finitely many; give their number, such as actions=3, "
                "their names or a MoveSet, not a Box"
            )
        moves = given if isinstance(given, MoveSet) else cls(given)
        if moves.available is not None and len(moves.available) != nodes:
            rows = len(moves.available)
            raise UserError(f"available must have one row for each of {nodes} nodes, got {rows}")
        if moves.options.shape[0] != moves.options.shape[1]:
            raise UserError("on nodes policies mix moves themselves; leave out the options")
        return moves

    def by_cell(self, cells: int) -> Float[Array, "cells moves action_dim"]:
        """The moves of each cell; in place of one that is not available, the first that is."""
        if self.available is None:
            return jnp.broadcast_to(self.moves, (cells, *self.moves.shape))
        first = jnp.argmax(self.available, axis=1)[:, None]
        return self.moves[jnp.where(self.available, jnp.arange(len(self.moves)), first)]

    @property
    def dim(self) -> int:
        """Number of action axes (the paper's q)."""
        return int(self.moves.shape[1])

    def points(
        self, n: int | None = None, *, border: bool = True
    ) -> Float[Array, "points action_dim"]:
        """The moves; the arguments, which are those of `Box.points`, are not used."""
        return self.moves

    def sample(self, key: Key, shape: tuple[int, ...] = ()) -> Float[Array, "*shape action_dim"]:
        """Moves drawn uniformly."""
        return self.moves[jax.random.randint(key, shape, 0, self.moves.shape[0])]

    def product(self, other: Box, n: int = 3) -> "MoveSet":
        """All pairs of a move and one of the points of a box, ``n`` on each axis."""
        many, few = np.asarray(self.moves), np.asarray(other.points(n))
        left, right = np.repeat(many, len(few), axis=0), np.tile(few, (len(many), 1))
        mask = None
        if self.available is not None:
            mask = np.repeat(np.asarray(self.available), len(few), axis=1)
        return MoveSet(np.concatenate([left, right], axis=1), available=mask)

    def contains(
        self, actions: Float[Array | np.ndarray, "... action_dim"], cells: Any = None
    ) -> Bool[Array | np.ndarray, "..."]:
        """Which actions are moves of the set, up to rounding; of ``cells``, available there."""
        nearest, apart = nearest_move(self.moves, actions)
        known: Array = apart < 1e-10
        if self.available is None or cells is None:
            return known
        return known & self.available[cells, nearest]

    def describe(self) -> str:
        """The moves in words, for error messages."""
        return f"the {self.moves.shape[0]} moves {np.asarray(self.moves).tolist()}"


def nearest_move(moves: Any, actions: Any) -> tuple[Any, Any]:
    """The number of the move that is nearest to each action, and its squared distance.

    Distances are in units of the moves' range on each axis, so that the unit of length does not
    matter. Both are arrays of JAX, or of NumPy; axes before the last two of ``moves`` are those
    before the last one of ``actions``.
    """
    every = moves.reshape(-1, moves.shape[-1])
    span = every.max(axis=0) - every.min(axis=0)
    apart = (((actions[..., None, :] - moves) / (span + (span == 0))) ** 2).sum(axis=-1)
    return apart.argmin(axis=-1), apart.min(axis=-1)


def _mask(available: Any, moves: int) -> Bool[Array, "cells moves"]:
    mask = np.asarray(available)
    if mask.dtype != bool or mask.ndim != 2 or mask.shape[1] != moves:
        raise UserError(
            f"available must be rows of {moves} truth values, one row for each node, got the type "
            f"{mask.dtype} and the shape {mask.shape}"
        )
    if not mask.any(axis=1).all():
        node = int(np.argmin(mask.any(axis=1)))
        raise UserError(f"node {node} has no available move; give it one, such as to stay")
    return jnp.asarray(mask)
