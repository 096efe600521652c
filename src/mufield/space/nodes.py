"""Finite spaces: nodes that agents jump between, with probabilities that the motion returns."""

import reprlib
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._arrays import State
from ..errors import MASS_TOLERANCE, UserError, finite, numbers, whole_number
from .grid import Grid
from .move import AbstractNoise, Move, draw_index


class Nodes(Grid):
    r"""A finite set of places, and where agents can go from each.

    On nodes a state is the number of a node, an action one of finitely many, and the motion returns
    the probabilities $P(s' \mid s, a, \mu)$ of successors: of all nodes, or, if these are given, of
    the node's listed ``successors``, in their order. Then memory is linear in the number of edges.

    To the rest of the library nodes are a line of cells: a state is an array with one entry, the
    number of the node, and vectors over the space have one entry for every node. Functions that
    users write get the number itself. The order and the distance of nodes have no meaning: what
    needs them, such as Gaussian processes, networks or transport distances, is for grids only.

    Attributes:
        names: One for each node, for messages and pictures.
        successors: Numbers of the nodes that can be reached from each, -1 where there are fewer
            than in the longest list; None if every node may be reached.
    """

    names: tuple[str, ...]
    successors: Int[np.ndarray, "nodes slots"] | None
    _given_positions: Float[np.ndarray, "nodes 2"] | None
    _numbers: dict[Hashable, int]

    def __init__(
        self,
        nodes: int | Sequence[Hashable],
        *,
        successors: Sequence[Sequence[Hashable]] | np.ndarray | None = None,
        positions: Any = None,
    ):
        """Makes nodes from their number or names; successors are given by name or number.

        ``positions`` are two coordinates for each node, for pictures; see `positions`.
        """
        whole = isinstance(nodes, int | np.integer)
        given: Any = list(nodes) if np.iterable(nodes) else []
        given = range(whole_number(nodes, "the number of nodes")) if whole else given
        hashable = all(isinstance(name, Hashable) for name in given)
        known = {name: number for number, name in enumerate(given)} if hashable else {}
        count = len(known)
        if not count or count < len(given):
            raise UserError(f"nodes need names, each another one; got {reprlib.repr(nodes)}")
        super().__init__((-0.5,), (count - 0.5,), (count,), (False,), np.zeros(count, dtype=bool))
        if positions is not None:
            positions = numbers(positions, "the nodes' positions").astype(float)
            finite(positions, "the nodes' positions", "leave them out for a spring layout")
            if positions.shape != (count, 2):
                raise UserError(f"expected positions of shape {(count, 2)}, got {positions.shape}")
        own = vars(self)  # the class is frozen
        own.update(names=tuple(map(str, given)), _given_positions=positions, _numbers=known)
        own["successors"] = None if successors is None else self._lists(successors)

    @classmethod
    def from_edges(
        cls,
        edges: Sequence[tuple[Hashable, Hashable]],
        *,
        directed: bool = False,
        positions: Any = None,
    ) -> "Nodes":
        """The nodes of a graph; successors of a node are itself, then its neighbours.

        ``edges`` are pairs of names; ``directed`` ones lead from the first to the second only.
        """
        pairs = [tuple(edge) if np.iterable(edge) else () for edge in edges]
        named = all(isinstance(name, Hashable) for name in chain(*pairs))
        if not named or {len(pair) for pair in pairs} != {2}:
            raise UserError("edges must be pairs of nodes, such as [('a', 'b'), ('b', 'c')]")
        ends = {name: {name: None} for name in chain(*pairs)}  # in order, each once
        for first, second in pairs:
            ends[first][second] = None
            if not directed:
                ends[second][first] = None
        lists = [list(each) for each in ends.values()]
        return cls(list(ends), successors=lists, positions=positions)

    def _lists(self, given: Any) -> Int[np.ndarray, "nodes slots"]:
        """The successors as numbers, padded with -1; an array has numbers, lists may have names."""
        if isinstance(given, np.ndarray):  # of numbers, whatever nodes are called
            wrong = given[(given >= self.n_cells) | (given != np.floor(given))]
            if wrong.size:
                raise UserError(f"successor {wrong[0]} does not exist: {self.n_cells} nodes")
            lists = [row[row >= 0].astype(int).tolist() for row in given]
        else:
            rows = [row if np.iterable(row) else [row] for row in given]
            lists = [[self.index_at(each) for each in row] for row in rows]
        if len(lists) != self.n_cells or not all(lists):
            raise UserError(
                f"successors must list at least one node for each of {self.n_cells} nodes (an end "
                f"leads to itself), got {len(lists)} lists, of which {lists.count([])} are empty"
            )
        table = np.full((len(lists), max(map(len, lists))), -1, dtype=np.int32)
        for node, row in enumerate(lists):
            if len(set(row)) < len(row):
                raise UserError(f"{self.place(node)} lists a successor twice; list it once")
            table[node, : len(row)] = row
        table.setflags(write=False)
        return table

    @cached_property
    def positions(self) -> Float[np.ndarray, "nodes 2"]:
        """Where pictures show the nodes: as given, by a spring layout, or on a circle."""
        if self._given_positions is not None:
            return self._given_positions
        angle = 2 * np.pi * np.arange(self.n_cells) / self.n_cells
        circle = np.stack([np.cos(angle), np.sin(angle)], axis=1)
        if self.successors is None or self.n_cells > 800:  # then springs would take minutes
            return circle
        return _spring_layout(circle, self.successors)

    @cached_property
    def _identity(self) -> tuple[object, ...]:
        listed = None if self.successors is None else (self.target_size, self.successors.tobytes())
        return ("nodes", self.names, listed)

    def __repr__(self) -> str:
        return f"Nodes({self.describe()})"

    def describe(self) -> str:
        """The space in words, for error messages."""
        if self.successors is None:
            return f"{self.n_cells} nodes"
        return f"{self.n_cells} nodes with {np.sum(self.successors >= 0)} successors in all"

    def place(self, node: int) -> str:
        """A node in words, for error messages."""
        return f"node {self.names[node]}"

    @property
    def target_size(self) -> int:
        """How many probabilities a motion returns: one for each node, or for each successor."""
        return self.n_cells if self.successors is None else int(self.successors.shape[1])

    @property
    def nodes(self) -> "Nodes":
        """The space itself."""
        return self

    @property
    def jumps(self) -> AbstractNoise:
        """How agents move, which takes the place of noise."""
        return Successors()

    def lift(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A user's function of numbers of nodes and actions, as one of states and actions."""
        return function if isinstance(function, NodeFunction) else NodeFunction(function)

    def told(self, state: Array) -> Array:
        """The whole number of a node, of a state with one entry; others stay as they are."""
        return whole_entry(state)

    def cut(self, state: Array, end: Array, max_move: tuple[float, ...]) -> Array:
        """A motion's result, cut to probabilities."""
        positive = jnp.maximum(end, 0.0)
        return positive / jnp.sum(positive)

    def band_share(self, removed: Array) -> Array:
        """Twice what one observation removes: about 2 / (2 + observations)."""
        return jnp.minimum(2 * removed, 1.0)

    def in_band(
        self, state: Array, mean: Array, half: Array, eta: Array, max_move: tuple[float, ...]
    ) -> Array:
        """The probabilities with that of successor eta - 1 raised; the mean if eta is 0."""
        chosen = jnp.arange(1, len(mean) + 1) == jnp.round(eta[0]).astype(jnp.int32)
        chosen = chosen & (mean > 0)  # a node without such a successor keeps its mean
        raised = jnp.sum(jnp.where(chosen, jnp.minimum(mean + half, 1.0), 0.0))
        others = jnp.sum(jnp.where(chosen, 0.0, mean))
        shrunk = mean * (1.0 - raised) / jnp.maximum(others, 1e-12)
        return jnp.where(jnp.any(chosen), jnp.where(chosen, raised, shrunk), mean)

    def index_of(self, points: Any) -> Any:
        """The nodes of states; -1 for states that are no node's. Whole numbers are nodes."""
        whole = jnp.issubdtype(points.dtype, jnp.integer)
        return super().index_of(points[..., None].astype(float) if whole else points)

    def index_at(self, node: Any) -> int:  # type: ignore[override]
        """The number of a node, given by its name or number; raises if there is none."""
        found = self._numbers.get(node) if isinstance(node, Hashable) else None
        whole = isinstance(node, int | np.integer) and not isinstance(node, bool)
        if found is None and whole and 0 <= node < self.n_cells:
            found = int(node)
        if found is None:
            raise UserError(
                f"expected a node, one of {reprlib.repr(list(self.names))} or a number from 0 to "
                f"{self.n_cells - 1}, got {node!r}"
            )
        return found

    def targets(self, start: Any, ends: Array) -> Array:
        """What Phi and `Successors` need of a motion's results: the probabilities as they are."""
        return ends

    def controls(self, points: int) -> Float[np.ndarray, "controls 1"]:
        """Hallucinated controls: 0 for the mean, i for more probability of successor i - 1."""
        return np.arange(self.target_size + 1, dtype=float)[:, None]

    def possible(
        self, targets: Float[Array, "nodes moves slots"], max_move: tuple[float, ...]
    ) -> Bool[Array, "nodes moves"]:
        """Which `targets` are probabilities of successors that exist."""
        sums = jnp.abs(jnp.sum(targets, axis=-1) - 1.0) <= MASS_TOLERANCE
        fine = targets >= -MASS_TOLERANCE
        if self.successors is not None:
            exists = jnp.asarray(self.successors)[:, None] >= 0
            fine = fine & (exists | (targets <= MASS_TOLERANCE))
        return sums & jnp.all(fine, axis=-1)


def whole_entry(value: Array) -> Array:
    """The whole number of a state or action with one entry; others are returned as they are."""
    if jnp.issubdtype(value.dtype, jnp.integer) or value.shape != (1,):
        return value
    return jnp.round(value[0]).astype(jnp.int32)


class NodeFunction(eqx.Module):
    """A user's function of a node's and an action's number, as one of states and actions.

    Actions with several axes stay arrays.
    """

    function: Callable[..., Any]

    def __call__(self, state: Array, action: Array, mu: Any) -> Any:
        """Calls the function."""
        return self.function(whole_entry(state), whole_entry(action), mu)


class Successors(AbstractNoise):
    """How an agent of a node moves: it draws one of the successors that the motion returns.

    It takes the place of noise, which on nodes is part of the motion.
    """

    def parts(self, target: Float[Array, "slots"]) -> tuple[Array, ...]:
        """The probabilities as one array."""
        return (target,)

    def move(self, grid: Grid, state: State, target: Array, draws: Float[Array, "draws"]) -> Move:
        """Moves one agent to a successor; ``target`` are the probabilities."""
        target = target.reshape(-1)
        index = draw_index(target, draws[0]).astype(jnp.int32)
        assert isinstance(grid, Nodes)
        if grid.successors is not None:
            index = jnp.asarray(grid.successors)[grid.index_of(state), index]
        # Probabilities that are not finite leave a position that every caller refuses.
        place = jnp.where(jnp.isfinite(jnp.sum(target)), index.astype(state.dtype), jnp.nan)
        return Move(place[None], jnp.zeros(1, dtype=bool), index)


def _spring_layout(
    circle: Float[np.ndarray, "nodes 2"], successors: Int[np.ndarray, "nodes slots"]
) -> Float[np.ndarray, "nodes 2"]:
    """Neighbours attract and all nodes repel each other (Fruchterman and Reingold, 1991).

    They start where lengths are most like numbers of edges between nodes (classical scaling).
    """
    from scipy.sparse.csgraph import shortest_path  # slow to import

    joined = np.zeros((len(circle), len(circle)), dtype=bool)
    here, slot = np.nonzero(successors >= 0)
    joined[here, successors[here, slot]] = True
    edges = shortest_path(joined, directed=False, unweighted=True)
    edges = np.where(np.isfinite(edges), edges, np.max(edges, initial=1, where=edges < np.inf) + 1)
    centred = edges**2 - np.mean(edges**2, axis=0)
    size, axes = np.linalg.eigh(-0.5 * (centred - centred.mean(axis=1, keepdims=True)))
    length = np.sqrt(4.0 / len(circle))
    # The circle parts nodes that have the same neighbours.
    place = length * (axes[:, :-3:-1] * np.sqrt(np.maximum(size[:-3:-1], 0.0)) + 0.1 * circle)
    joined |= joined.T
    for heat in np.linspace(0.3, 0.0, 100, endpoint=False):
        apart = place[:, None] - place
        distance = np.maximum(np.linalg.norm(apart, axis=-1), 1e-3)
        force = length**2 / distance**2 - joined * distance / length
        push = np.sum(apart * force[..., None], axis=1) - 0.2 * place  # parts stay near
        size = np.maximum(np.linalg.norm(push, axis=1, keepdims=True), 1e-9)
        place = place + push / size * np.minimum(size, heat)
    return np.asarray(place - place.mean(axis=0))
