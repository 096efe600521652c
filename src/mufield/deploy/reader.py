"""Runs a policy that ``mufield export`` wrote, with NumPy and the standard library alone.

This file needs nothing else of mufield: copied beside a policy, it works wherever NumPy does.

    policy = DeployedPolicy.load("policy.npz")
    actions = policy.act(positions, step=3)

A policy is a plain .npz archive. Its member ``document`` is JSON in bytes: the kind of policy, the
grid, the actions, units, the run that it comes from, and which arrays of which shapes there must
be. The archive's comment is a checksum of all bytes before it. Nothing in the file is ever run,
and none of its sizes is believed before it is compared with what is there.
"""

import hashlib
import io
import itertools
import json
import math
import os
import zipfile
from typing import Any, NamedTuple

import numpy as np

FORMAT = "mufield-deployed-policy"
VERSION = 1
"""Of the format; files of later versions are refused."""

MARK = b"mufield-sha256:"
"""Stands before the checksum at the end of a file."""

CONTACT = 1e-3
"""Share of a cell by which a measured position may be in a wall: agents rest at walls, and
positions are measured and rounded."""

MASS_TOLERANCE = 1e-4
"""How far a distribution may be from summing to one."""

DTYPES = {"float32": "<f4", "float64": "<f8"}
Step = int | np.integer[Any] | None
_DOCUMENT = "document"
_TRAILER = len(MARK) + 64


class Law(NamedTuple):
    """The distributions of the agents' actions.

    Attributes:
        actions: The possible actions, (agents, moves, axes of the action).
        weights: Their probabilities, (agents, moves).
    """

    actions: np.ndarray
    weights: np.ndarray

    def mean(self) -> np.ndarray:
        """The average actions, (agents, axes of the action)."""
        average: np.ndarray = np.einsum("nm,nma->na", self.weights, self.actions)
        return average


class Space:
    """The grid: cells of a box, some of them walls.

    Vectors over the space have one entry for each free cell, the first axis outermost.

    Attributes:
        lower: Lower corner of the box.
        upper: Upper corner of the box.
        shape: Number of cells on each axis.
        periodic: Which axes wrap around.
        walls: Mask of the shape ``shape``, true where no agent can be.
        n_cells: Number of free cells.
        cell_size: Edge lengths of a cell.
    """

    def __init__(self, document: dict[str, Any], dtype: Any):
        """Reads the grid's part of a document."""
        self.lower = _numbers(document["lower"])
        self.upper = _numbers(document["upper"])
        self.shape = _sizes(document["shape"])
        self.periodic = tuple(value is True for value in document["periodic"])
        dim = len(self.shape)
        if not 1 <= dim <= 3 or {len(self.lower), len(self.upper), len(self.periodic)} != {dim}:
            raise ValueError(f"expected a grid of one to three axes, got the shape {self.shape}")
        if not all(low < high for low, high in zip(self.lower, self.upper, strict=True)):
            raise ValueError(f"expected a box, got one from {self.lower} to {self.upper}")
        bits, count = bytes.fromhex(document["walls"]), math.prod(self.shape)
        if len(bits) != (count + 7) // 8:
            raise ValueError(f"expected walls for {count} cells, got {8 * len(bits)} bits")
        mask = np.unpackbits(np.frombuffer(bits, np.uint8), count=count)
        self.walls = mask.astype(bool).reshape(self.shape)
        free = ~self.walls
        self.n_cells = int(free.sum())
        if self.n_cells == 0:
            raise ValueError("expected at least one free cell, got walls only")
        self.cell_size = tuple(
            (high - low) / n
            for low, high, n in zip(self.lower, self.upper, self.shape, strict=True)
        )
        self._index = np.where(free, np.cumsum(free).reshape(self.shape) - 1, -1)
        self._corner = np.asarray(self.lower, dtype=dtype)
        self._size = np.asarray(self.cell_size, dtype=dtype)
        self._wraps = np.asarray(self.periodic)

    @property
    def dim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def extent(self) -> tuple[float, ...]:
        """Edge lengths of the box."""
        return tuple(high - low for low, high in zip(self.lower, self.upper, strict=True))

    def cells_of(self, points: np.ndarray) -> np.ndarray:
        """The free cell of each point, -1 in walls and outside the box."""
        place = (points - self._corner) / self._size
        cell = np.floor(place)
        cell = np.where(~self._wraps & (place == self.shape), cell - 1, cell)
        cell = np.where(self._wraps, np.mod(cell, self.shape), cell)
        inside = ((cell >= 0) & (cell < self.shape)).all(axis=-1)
        known = np.where(inside[..., None], cell, 0).astype(np.intp)
        return np.where(inside, self._index[tuple(np.moveaxis(known, -1, 0))], -1)

    def settled_cells(self, points: np.ndarray) -> np.ndarray:
        """The same, with points at walls counted to the free cell that they touch."""
        cells = self.cells_of(points)
        lost = np.flatnonzero(cells < 0)
        step = CONTACT * self._size
        for signs in itertools.product((0, -1, 1), repeat=self.dim):
            if len(lost) == 0:
                break
            moved = points[lost] + np.asarray(signs, dtype=points.dtype) * step
            cells[lost] = self.cells_of(moved)
            lost = lost[cells[lost] < 0]
        return cells


class DeployedPolicy:
    """A policy, ready to decide for any number of agents.

    Attributes:
        document: All that the file says.
        space: The grid.
        horizon: Number of steps of an episode.
        stationary: Whether it is the same at every step.
        sees_mass: Whether it looks at the population's distribution.
        randomised: Whether agents draw their actions.
    """

    def __init__(self, document: dict[str, Any], arrays: dict[str, np.ndarray]):
        """Checks that the parts fit each other; use `load` to read a file."""
        self.document = document
        self.dtype = np.dtype(DTYPES[document["dtype"]])
        self.space = Space(document["grid"], self.dtype)
        (self.horizon,) = _sizes([document["horizon"]])
        self.action_dim = len(document["axes"]["action"])
        if document["kind"] not in KINDS:
            raise ValueError(
                f"expected one of the kinds {sorted(KINDS)}, got {document['kind']!r}; read it "
                "with the reader of the mufield that wrote it"
            )
        self._stacked = set(document["stacked"])
        self._arrays = arrays
        self._kind: Any = KINDS[document["kind"]](self, document, arrays)
        self.stationary = not self._stacked
        self.sees_mass: bool = self._kind.sees_mass
        self.randomised: bool = self._kind.randomised
        self._check_shapes()
        for name, array in arrays.items():
            if not np.isfinite(array).all():
                raise ValueError(f"{name}: expected finite numbers, got NaN or infinity")
        self._rng: Any = None

    @classmethod
    def load(cls, path: "str | os.PathLike[str]") -> "DeployedPolicy":
        """Reads a file; raises ValueError that names it unless it is a sound policy."""
        try:
            document, arrays = read_arrays(_read_checked(path))
            return cls(document, arrays)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"there is no policy file {os.fspath(path)}") from error
        except _ODD as error:
            what = f"{type(error).__name__} {error}" if isinstance(error, KeyError) else error
            raise ValueError(
                f"cannot load a policy from {os.fspath(path)}: {what}; copy it again, or write it "
                "anew with `mufield export`"
            ) from error

    @property
    def identity(self) -> dict[str, Any]:
        """The run, episode and environment that the policy comes from."""
        found: dict[str, Any] = self.document["identity"]
        return found

    @property
    def actions(self) -> dict[str, Any]:
        """What agents can do: a box from ``lower`` to ``upper``, or a list of ``moves``."""
        found: dict[str, Any] = self.document["actions"]
        return found

    @property
    def units(self) -> dict[str, str]:
        """The units of all inputs and outputs."""
        found: dict[str, str] = self.document["units"]
        return found

    def law(self, states: Any, mass: Any = None, *, step: Step = None) -> Law:
        """The distributions of the actions; all weight on one move if nothing is random.

        Args:
            states: Positions of the agents, (agents, axes), in the units of the grid.
            mass: The population's share in each free cell; needed if ``sees_mass``.
            step: Step of the episode, from 0; needed unless ``stationary``.
        """
        points, cells = self._located(states)
        law: Law = self._kind.law(self._step(step), points, cells, self._mass(mass))
        return law

    def mean(self, states: Any, mass: Any = None, *, step: Step = None) -> np.ndarray:
        """The average actions, (agents, axes of the action); arguments as in `law`."""
        return self.law(states, mass, step=step).mean()

    def act(
        self,
        states: Any,
        mass: Any = None,
        *,
        step: Step = None,
        rng: Any = None,
        chance: Any = None,
    ) -> np.ndarray:
        """One action for each agent, (agents, axes of the action); arguments as in `law`.

        Args:
            states: Positions of the agents.
            mass: The population's share in each free cell.
            step: Step of the episode.
            rng: A ``numpy.random.Generator`` that draws; by default one of the policy's own.
            chance: Numbers from 0 to below 1, one for each agent, instead of random ones: the same
                numbers give the same actions.
        """
        points, cells = self._located(states)
        part, seen = self._step(step), self._mass(mass)
        if not self.randomised:
            actions: np.ndarray = self._kind.law(part, points, cells, seen).actions[:, 0]
            return actions
        drawn = self._draw(len(points), rng) if chance is None else self._chance(chance, points)
        chosen: np.ndarray = self._kind.act(part, points, cells, seen, drawn)
        return chosen

    def histogram(self, states: Any) -> np.ndarray:
        """The share of agents in each free cell: how positions become a ``mass``."""
        points, cells = self._located(states)
        if len(points) == 0:
            raise ValueError("expected at least one agent, got none")
        counts = np.bincount(cells, minlength=self.space.n_cells)
        return (counts / len(points)).astype(self.dtype)

    def slice(self, name: str, step: int) -> np.ndarray:
        """An array as it is at one step."""
        array = self._arrays[name]
        return array[step] if name in self._stacked else array

    def __repr__(self) -> str:
        run = self.identity.get("run")
        return (
            f"<DeployedPolicy: {self.document['kind']}, {self.horizon} steps, "
            f"{self.space.n_cells} cells, {self.identity.get('environment')}, run {run}>"
        )

    def _check_shapes(self) -> None:
        wanted: dict[str, tuple[int, ...]] = self._kind.shapes()
        if wanted.keys() != self._arrays.keys() or not self._stacked <= wanted.keys():
            raise ValueError(f"expected the arrays {sorted(wanted)}, got {sorted(self._arrays)}")
        for name, shape in wanted.items():
            full = (self.horizon, *shape) if name in self._stacked else shape
            if self._arrays[name].shape != full:
                raise ValueError(
                    f"{name}: expected the shape {full}, got {self._arrays[name].shape}"
                )

    def _located(self, states: Any) -> tuple[np.ndarray, np.ndarray]:
        """Positions and cells; raises if one of them is none."""
        space = self.space
        points = _real(states, "states")
        if points.ndim != 2 or points.shape[1] != space.dim:
            raise ValueError(
                f"expected states of the shape (agents, {space.dim}), got {points.shape}"
            )
        with np.errstate(over="ignore"):
            points = points.astype(self.dtype, copy=False)
        bad = ~np.isfinite(points).all(axis=1)
        if bad.any():
            row = int(np.argmax(bad))
            raise ValueError(f"states, row {row}: expected finite numbers, got {points[row]}")
        cells = space.settled_cells(points)
        if (cells < 0).any():
            row = int(np.argmin(cells))
            raise ValueError(
                f"states, row {row}: expected a position in a free cell of the box from "
                f"{space.lower} to {space.upper}, got {points[row].tolist()}, in a wall or "
                f"outside ({int((cells < 0).sum())} of {len(cells)}); check the units and the "
                "order of the axes"
            )
        return points, cells

    def _mass(self, mass: Any) -> np.ndarray | None:
        space = self.space
        if mass is None:
            if self.sees_mass:
                raise ValueError(
                    f"expected the population's share in each of {space.n_cells} free cells, got "
                    "none: this policy looks at it; policy.histogram(positions) makes one"
                )
            return None
        values = _real(mass, "mass")
        if values.shape == space.shape and values.shape != (space.n_cells,):
            if np.any(values[space.walls] != 0):
                raise ValueError("expected a mass of 0 in walls, got more")
            values = values[~space.walls]
        if values.shape != (space.n_cells,):
            raise ValueError(
                f"expected a mass for each of the {space.n_cells} free cells (or the grid's "
                f"shape {space.shape}), got the shape {values.shape}"
            )
        values = values.astype(self.dtype)
        if not np.isfinite(values).all() or values.min() < 0:
            raise ValueError("mass: expected finite numbers of 0 or more, got others")
        total = float(values.sum(dtype=float))
        if abs(total - 1) > MASS_TOLERANCE:
            raise ValueError(f"expected a mass that sums to 1, got {total:.6g}; divide it by that")
        return (values / total).astype(self.dtype)

    def _step(self, step: Any) -> int:
        if step is None and self.stationary:
            return 0
        whole = isinstance(step, int | np.integer) and not isinstance(step, bool)
        if not whole or not 0 <= step < self.horizon:
            raise ValueError(
                f"expected a step from 0 to {self.horizon - 1}, got {step!r}: the policy "
                + ("has that horizon" if self.stationary else "differs from step to step")
            )
        return int(step)

    def _draw(self, count: int, rng: Any) -> np.ndarray:
        if rng is None:
            if self._rng is None:
                self._rng = np.random.default_rng()
            rng = self._rng
        drawn: np.ndarray = rng.random(count, dtype=self.dtype.newbyteorder("=").type)
        return drawn

    def _chance(self, chance: Any, points: np.ndarray) -> np.ndarray:
        values = _real(chance, "chance")
        if values.shape != (len(points),):
            raise ValueError(f"expected the chances' shape {(len(points),)}, got {values.shape}")
        if not np.all((values >= 0) & (values < 1)):  # NaN is refused too
            raise ValueError("chance: expected numbers from 0 to below 1, got others")
        # Rounded to fewer digits, a number just below 1 would become 1.
        below = np.nextafter(self.dtype.type(1), self.dtype.type(0))
        return np.asarray(np.minimum(values.astype(self.dtype), below))


class Table:
    """Agents do what the table says for their cell."""

    randomised = False
    sees_mass = False

    def __init__(
        self, policy: DeployedPolicy, document: dict[str, Any], arrays: dict[str, np.ndarray]
    ):
        """Keeps what is needed."""
        self.policy = policy

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The arrays of one step."""
        return {"actions": (self.policy.space.n_cells, self.policy.action_dim)}

    def law(self, step: int, points: np.ndarray, cells: np.ndarray, mass: Any) -> Law:
        """The action of each agent's cell, with certainty."""
        return _certain(self.policy.slice("actions", step)[cells])


class Randomised:
    """Agents draw one of finitely many moves, with the weights of their cell.

    A single row of weights holds in every cell.
    """

    randomised = True
    sees_mass = False

    def __init__(
        self, policy: DeployedPolicy, document: dict[str, Any], arrays: dict[str, np.ndarray]
    ):
        """Reads the numbers of moves and of rows."""
        self.policy = policy
        self.rows, self.moves = _sizes([document["rows"], document["moves"]])
        if self.rows not in (1, policy.space.n_cells):
            raise ValueError(f"expected weights of {policy.space.n_cells} cells, got {self.rows}")
        weights = arrays["weights"]
        bounded = weights.size and np.all((weights >= 0) & (weights <= 1 + MASS_TOLERANCE))
        sums = weights.sum(axis=-1, dtype=float) if bounded else np.zeros(1)
        if np.any(np.abs(sums - 1) > MASS_TOLERANCE):
            raise ValueError("weights: expected probabilities that sum to 1, got others")
        self._tables: dict[int, np.ndarray] = {}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The arrays of one step."""
        return {
            "actions": (self.moves, self.policy.action_dim),
            "weights": (self.rows, self.moves),
        }

    def law(self, step: int, points: np.ndarray, cells: np.ndarray, mass: Any) -> Law:
        """The weights of each agent's cell."""
        actions = self.policy.slice("actions", step)
        weights = self.policy.slice("weights", step)
        return Law(
            np.broadcast_to(actions, (len(cells), *actions.shape)), weights[self._row(cells)]
        )

    def act(
        self, step: int, points: np.ndarray, cells: np.ndarray, mass: Any, chance: np.ndarray
    ) -> np.ndarray:
        """The first move whose cumulative weight is above the agent's chance, by halving."""
        table = self._table(step)
        width = table.shape[1]
        flat, begin = table.reshape(-1), self._row(cells) * width
        place, half = begin.copy(), width // 2
        while half:
            place += np.where(flat[place + (half - 1)] <= chance, half, 0)
            half //= 2
        chosen: np.ndarray = self.policy.slice("actions", step)[place - begin]
        return chosen

    def _row(self, cells: np.ndarray) -> np.ndarray:
        return cells if self.rows > 1 else np.zeros_like(cells)

    def _table(self, step: int) -> np.ndarray:
        """Cumulative weights of a step, made when they are first needed."""
        key = 0 if "weights" not in self.policy._stacked else step
        if key not in self._tables:
            self._tables[key] = cumulated(self.policy.slice("weights", step))
        return self._tables[key]


class Spread:
    """Agents scatter their actions around the centre of their cell; all are equally likely."""

    randomised = True
    sees_mass = False

    def __init__(
        self, policy: DeployedPolicy, document: dict[str, Any], arrays: dict[str, np.ndarray]
    ):
        """Reads the number of moves and the box."""
        self.policy = policy
        self.scatter = Scatter(policy, document)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The arrays of one step."""
        table = (self.policy.space.n_cells, self.policy.action_dim)
        return {"centre": table, "deviation": table, **self.scatter.shapes()}

    def law(self, step: int, points: np.ndarray, cells: np.ndarray, mass: Any) -> Law:
        """The actions of each agent's cell."""
        return self.scatter.law(step, *self._at(step, cells))

    def act(
        self, step: int, points: np.ndarray, cells: np.ndarray, mass: Any, chance: np.ndarray
    ) -> np.ndarray:
        """One of them."""
        return self.scatter.act(step, *self._at(step, cells), chance)

    def _at(self, step: int, cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        part = self.policy.slice
        return part("centre", step)[cells], part("deviation", step)[cells]


class Network:
    """A small network of the agent's position and the encoded population, squashed to a box.

    With several moves the network also gives a spread, and agents scatter their actions.
    """

    def __init__(
        self, policy: DeployedPolicy, document: dict[str, Any], arrays: dict[str, np.ndarray]
    ):
        """Reads the layers' widths, the encoder and the box."""
        self.policy, self.space = policy, policy.space
        self.widths = _sizes(document["widths"])
        encoder = document["encoder"]["kind"]
        if encoder not in ("none", "raw", "pooled") or not self.widths:
            raise ValueError(f"expected a network with a known encoder, got {encoder!r}")
        self.blocks: np.ndarray | None = None
        self.features = {"none": 0, "raw": self.space.n_cells, "pooled": 0}[encoder]
        if encoder == "pooled":
            blocks = [_whole(block) for block in document["encoder"]["blocks"]]
            if len(blocks) != self.space.n_cells or set(blocks) != set(range(len(set(blocks)))):
                raise ValueError("expected one of the blocks 0, 1, ... for each cell, got others")
            self.blocks, self.features = np.asarray(blocks), len(set(blocks))
        self.sees_mass = encoder != "none"
        self.scatter = Scatter(policy, document)
        self.randomised = self.scatter.moves > 1
        self._corner = np.asarray(self.space.lower, dtype=policy.dtype)
        self._extent = np.asarray(self.space.extent, dtype=policy.dtype)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The arrays of one step."""
        first = self.widths[0]
        shapes: dict[str, tuple[int, ...]] = {
            "from_state": (first, self.space.dim + sum(self.space.periodic)),
            "from_mu": (first, self.features),
            "bias": (first,),
        }
        outputs = (*self.widths[1:], self.policy.action_dim * (2 if self.randomised else 1))
        for layer, (into, out) in enumerate(zip(self.widths, outputs, strict=True)):
            shapes |= {f"hidden.{layer}.0": (out, into), f"hidden.{layer}.1": (out,)}
        return shapes | (self.scatter.shapes() if self.randomised else {})

    def law(self, step: int, points: np.ndarray, cells: np.ndarray, mass: Any) -> Law:
        """The network's actions, with certainty or all equally likely."""
        raw = self._raw(step, points, mass)
        if self.randomised:
            return self.scatter.law(step, *_centre_and_deviation(raw))
        return _certain(self.scatter.squash(raw))

    def act(
        self, step: int, points: np.ndarray, cells: np.ndarray, mass: Any, chance: np.ndarray
    ) -> np.ndarray:
        """One of the actions that are equally likely."""
        raw = self._raw(step, points, mass)
        return self.scatter.act(step, *_centre_and_deviation(raw), chance)

    def _raw(self, step: int, points: np.ndarray, mass: Any) -> np.ndarray:
        """The network's output before it is squashed."""
        part = self.policy.slice
        offset = part("bias", step)
        if mass is not None and self.sees_mass:
            offset = part("from_mu", step) @ self._encoded(mass) + offset
        x = np.tanh(self._position(points) @ part("from_state", step).T + offset)
        last = len(self.widths) - 1
        for layer in range(last):
            x = np.tanh(x @ part(f"hidden.{layer}.0", step).T + part(f"hidden.{layer}.1", step))
        raw: np.ndarray = x @ part(f"hidden.{last}.0", step).T + part(f"hidden.{last}.1", step)
        return raw

    def _encoded(self, mass: np.ndarray) -> np.ndarray:
        if self.blocks is not None:
            mass = np.bincount(self.blocks, mass, self.features).astype(mass.dtype)
        return np.asarray(mass * mass.dtype.type(self.features))

    def _position(self, points: np.ndarray) -> np.ndarray:
        """Positions scaled to [-1, 1]; periodic axes as cosine and sine."""
        share = (points - self._corner) / self._extent
        columns = []
        for axis, periodic in enumerate(self.space.periodic):
            if periodic:
                angle = np.asarray(2 * math.pi, dtype=points.dtype) * share[:, axis]
                columns += [np.cos(angle), np.sin(angle)]
            else:
                columns.append(2 * share[:, axis] - 1)
        return np.stack(columns, axis=1)


class Scatter:
    """Actions around a centre, squashed to the box by tanh.

    Attributes:
        moves: Number of different actions; their places around the centre are ``scores``.
    """

    def __init__(self, policy: DeployedPolicy, document: dict[str, Any]):
        """Reads the box and the number of moves."""
        self.policy = policy
        (self.moves,) = _sizes([document["moves"]])
        box, axes = document["actions"], policy.action_dim
        self.lower, self.upper = (
            np.asarray(_numbers(box[side]), dtype=policy.dtype) for side in ("lower", "upper")
        )
        if self.lower.shape != (axes,) or self.upper.shape != (axes,):
            raise ValueError(f"expected a box of {axes} axes, got {self.lower}, {self.upper}")

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The arrays of one step."""
        return {"scores": (self.moves, self.policy.action_dim)}

    def law(self, step: int, centre: np.ndarray, deviation: np.ndarray) -> Law:
        """All actions of each agent."""
        scores = self.policy.slice("scores", step)
        actions = self.squash(centre[:, None] + deviation[:, None] * scores)
        weights = np.full(actions.shape[:2], 1 / self.moves, dtype=actions.dtype)
        return Law(actions, weights)

    def act(
        self, step: int, centre: np.ndarray, deviation: np.ndarray, chance: np.ndarray
    ) -> np.ndarray:
        """One action of each agent."""
        move = np.minimum((chance * self.moves).astype(np.intp), self.moves - 1)
        return self.squash(centre + deviation * self.policy.slice("scores", step)[move])

    def squash(self, raw: np.ndarray) -> np.ndarray:
        """Any numbers into the box, clipped to it against rounding."""
        half = raw.dtype.type(0.5)
        actions = self.lower + (self.upper - self.lower) * half * (np.tanh(raw) + 1)
        return np.asarray(np.clip(actions, self.lower, self.upper))


KINDS: dict[str, Any] = {
    "table": Table,
    "randomised": Randomised,
    "spread": Spread,
    "network": Network,
}


def cumulated(weights: np.ndarray) -> np.ndarray:
    """Cumulative weights that end at one, rows filled up to a power of two.

    Summed in double precision one after the other: a weight of zero adds nothing, so that no
    chance finds it.
    """
    sums = np.cumsum(weights, axis=1, dtype=float)
    sums = sums / sums[:, -1:]
    width = 1 << max(1, (weights.shape[1] - 1).bit_length())
    filled = np.pad(sums, ((0, 0), (0, width - weights.shape[1])), constant_values=2.0)
    return filled.astype(weights.dtype)


def npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The bytes before the numbers of an .npy file, version 1.0."""
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode("ascii")


def read_arrays(data: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The document and the arrays of an archive."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {}
        for entry in archive.infolist():
            # Stored as it is, no member is larger than the file.
            if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > len(data):
                raise ValueError(f"expected members as they are, got a compressed {entry.filename}")
            if entry.filename in members:
                raise ValueError(f"expected each member once, got {entry.filename} twice")
            members[entry.filename] = archive.read(entry)
    document = _parse(members.pop(f"{_DOCUMENT}.npy", b""))
    arrays = {}
    for name, found in document["arrays"].items():
        shape, dtype = _sizes(found["shape"], least=0), DTYPES[found["dtype"]]
        header, member = npy_header(dtype, shape), members.pop(f"{name}.npy", b"")
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if member[: len(header)] != header or len(member) != len(header) + size:
            raise ValueError(f"{name}: expected {dtype} of the shape {shape}, got another array")
        arrays[name] = np.frombuffer(member, dtype, offset=len(header)).reshape(shape)
    if members:
        raise ValueError(f"expected the arrays of its document only, got {sorted(members)[0]} too")
    return document, arrays


def _parse(member: bytes) -> dict[str, Any]:
    """The document; raises unless this reader understands it."""
    size = 10 + int.from_bytes(member[8:10], "little")
    if member[:size] != npy_header("|u1", (len(member) - size,)):
        raise ValueError(f"expected a file of `mufield export`, got no member {_DOCUMENT}")
    document = json.loads(member[size:].decode("utf-8"))
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f"expected a document of the format {FORMAT}, got another")
    version = _whole(document["version"])
    if version > VERSION:
        raise ValueError(
            f"it has version {version} of the format, and this reader knows up to {VERSION}: use "
            "the reader of the mufield that wrote it"
        )
    return document


def _read_checked(path: "str | os.PathLike[str]") -> bytes:
    """A file's bytes; raises unless they match the checksum at their end."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError("expected a file, got a directory or a device")
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TRAILER))
        # The end first: most of what is no policy is refused before it fills the memory.
        if not file.read().startswith(MARK):
            raise ValueError(
                "expected a file of `mufield export`, which ends with a checksum, got another or "
                "one that is cut short"
            )
        file.seek(0)
        data = file.read()
    if data[-64:].decode("ascii", "replace") != hashlib.sha256(data[:-64]).hexdigest():
        raise ValueError(
            "expected contents that match the file's checksum, got others: it was damaged or "
            "changed by hand"
        )
    return data


_ODD = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    IndexError,
    OverflowError,
    RecursionError,
    NotImplementedError,
    RuntimeError,
    EOFError,
    MemoryError,
    zipfile.BadZipFile,
)
"""What a file that is not ours can make Python's own readers raise."""


def _centre_and_deviation(raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The two halves of a network's output; deviations are positive by softplus."""
    centre, spread = np.split(raw, 2, axis=1)
    return centre, np.logaddexp(spread, raw.dtype.type(0))


def _certain(actions: np.ndarray) -> Law:
    return Law(actions[:, None], np.ones((len(actions), 1), dtype=actions.dtype))


def _real(values: Any, name: str) -> np.ndarray:
    array = np.asarray(values)
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{name}: expected real numbers, got an array of {array.dtype}")
    return array


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"expected a whole number, got {value!r}")
    return value


def _sizes(values: Any, least: int = 1) -> tuple[int, ...]:
    sizes = tuple(_whole(value) for value in values)
    if any(size < least for size in sizes):
        raise ValueError(f"expected sizes of at least {least}, got {sizes}")
    return sizes


def _numbers(values: Any) -> tuple[float, ...]:
    numbers = tuple(float(value) for value in values)
    if not all(math.isfinite(number) for number in numbers):
        raise ValueError(f"expected finite numbers, got {numbers}")
    return numbers
