"""Runs a policy that ``mufield export`` wrote, with NumPy and the standard library alone.

This file needs nothing else of mufield: copied beside a policy, it works wherever NumPy does.

    policy = DeployedPolicy.load("policy.safetensors")
    actions = policy.act(positions, step=3)

and of a policy for a city's map:

    where = policy.destinations(longitude, latitude, step=3)

A policy is a safetensors file: 8 bytes with the length of a header, the header in JSON, then the
arrays. The header's entry ``mufield`` holds a document (the kind of policy, the grid, the actions,
the run that it comes from) and a checksum of the document and all arrays. Nothing in the
file is ever run, and all sizes that it states are checked against its contents.
"""

import hashlib
import io
import itertools
import json
import math
import os
from typing import Any, NamedTuple

import numpy as np

Step = int | np.integer[Any] | None


class Law(NamedTuple):
    """The distributions of the agents' actions.

    Attributes:
        actions: Possible actions, (agents, moves, axes of the action).
        weights: Their probabilities, (agents, moves).
    """

    actions: np.ndarray
    weights: np.ndarray


class Space:
    """The grid: a box of cells, of which ``walls`` marks those where no agent can be.

    The others are the free cells, numbered from 0 to ``n_cells - 1`` in C order.
    """

    contact = 1e-3
    """How far a position may be inside a wall, as a share of a cell: measured positions of agents
    that touch a wall are not exact."""

    def __init__(self, document: dict[str, Any], dtype: Any):
        """Reads the grid's part of a document."""
        self.lower, self.upper = _numbers(document["lower"]), _numbers(document["upper"])
        self.shape = _sizes(document["shape"])
        self.periodic = tuple(value is True for value in document["periodic"])
        self.dim = len(self.shape)
        self.extent = tuple(high - low for low, high in zip(self.lower, self.upper, strict=True))
        bits, count = bytes.fromhex(document["walls"]), math.prod(self.shape)
        if len(bits) != (count + 7) // 8:
            raise ValueError(f"expected walls for {count} cells, got {8 * len(bits)} bits")
        mask = np.unpackbits(np.frombuffer(bits, np.uint8), count=count)
        self.walls = mask.astype(bool).reshape(self.shape)
        free = ~self.walls
        self.n_cells = int(free.sum())
        self.cell_size = tuple(edge / n for edge, n in zip(self.extent, self.shape, strict=True))
        self._index = np.where(free, np.cumsum(free).reshape(self.shape) - 1, -1)
        self._corner = np.asarray(self.lower, dtype=dtype)
        self._size = np.asarray(self.cell_size, dtype=dtype)
        self._wraps = np.asarray(self.periodic)

    def cells_of(self, points: np.ndarray) -> np.ndarray:
        """Number of the free cell that holds each point; -1 in walls and outside the box."""
        place = (points - self._corner) / self._size
        cell = np.floor(place)
        cell = np.where(~self._wraps & (place == self.shape), cell - 1, cell)
        cell = np.where(self._wraps, np.mod(cell, self.shape), cell)
        inside = ((cell >= 0) & (cell < self.shape)).all(axis=-1)
        known = np.where(inside[..., None], cell, 0).astype(np.intp)
        return np.where(inside, self._index[tuple(np.moveaxis(known, -1, 0))], -1)

    def settled_cells(self, points: np.ndarray) -> np.ndarray:
        """The same, but a point within `contact` of a free cell counts as being in it."""
        cells = self.cells_of(points)
        lost = np.flatnonzero(cells < 0)
        step = self.contact * self._size
        for signs in itertools.product((0, -1, 1), repeat=self.dim):
            if len(lost) == 0:
                break
            moved = points[lost] + np.asarray(signs, dtype=points.dtype) * step
            cells[lost] = self.cells_of(moved)
            lost = lost[cells[lost] < 0]
        return cells

    def onto_streets(self, points: np.ndarray) -> np.ndarray:
        """The same points, those in walls moved to a free cell nearby; NaN if there is none."""
        size = np.asarray(self.cell_size)
        centres = np.asarray(self.lower) + (np.argwhere(~self.walls) + 0.5) * size
        found = np.array(points, dtype=float)
        # Positions in walls count for the nearest free cell if its centre is at most ``far``
        # cells away, and are put into it, ``edge`` of a cell inside.
        edge, far = 1e-4, 2.0
        for row in np.flatnonzero(self.cells_of(found) < 0):
            apart = np.linalg.norm(centres - found[row], axis=1)
            nearest = centres[int(np.argmin(apart))]
            inside = (0.5 - edge) * size
            near = apart.min() <= far * size.max()
            found[row] = np.clip(found[row], nearest - inside, nearest + inside) if near else np.nan
        return found

    def blocks(self, cells: int) -> np.ndarray:
        """The block of each free cell, where blocks have ``cells`` cells on each axis."""
        _, block = np.unique(np.argwhere(~self.walls) // cells, axis=0, return_inverse=True)
        return np.asarray(block.reshape(-1))

    def features(self, points: np.ndarray) -> np.ndarray:
        """Positions scaled to [-1, 1]; periodic axes as cosine and sine."""
        share = (points - self._corner) / np.asarray(self.extent, dtype=points.dtype)
        columns = []
        for axis, periodic in enumerate(self.periodic):
            if periodic:
                angle = np.asarray(2 * math.pi, dtype=points.dtype) * share[:, axis]
                columns += [np.cos(angle), np.sin(angle)]
            else:
                columns.append(2 * share[:, axis] - 1)
        return np.stack(columns, axis=1)


class Map:
    """Where on the earth the grid is.

    Attributes:
        reach: Kilometres that an action of one points to on each axis; None if actions are no
            moves.
    """

    def __init__(self, document: dict[str, Any]):
        """Reads the map's part of a document."""
        numbers = _numbers(document[name] for name in ("longitude", "latitude", "turn"))
        self.origin, angle = np.array(numbers[:2]), math.radians(numbers[2])
        # From east and north to the map's axes; degrees of longitude are shorter.
        cos, sin = math.cos(angle), math.sin(angle)
        self._turn = np.array([[cos, sin], [-sin, cos]])
        # Kilometres of a degree along a great circle.
        degree = math.pi / 180 * 6371.0088
        self._scale = degree * np.array([math.cos(math.radians(numbers[1])), 1.0])
        reach = document.get("reach")
        self.reach = None if reach is None else np.array(_numbers(reach))

    def to_plane(self, longitude: Any, latitude: Any) -> np.ndarray:
        """Positions in kilometres, (agents, 2)."""
        where = [_real(longitude, "longitude"), _real(latitude, "latitude")]
        if where[0].ndim != 1 or where[0].shape != where[1].shape:
            shapes = f"{where[0].shape} and {where[1].shape}"
            raise ValueError(f"expected as many longitudes as latitudes, got the shapes {shapes}")
        for name, values, most in zip(("longitude", "latitude"), where, (180, 89), strict=True):
            wrong = ~(np.abs(values) <= most)
            if wrong.any():
                row = int(np.argmax(wrong))
                what = f"expected degrees from -{most} to {most}, got {values[row]}"
                raise ValueError(f"{name}, row {row}: {what}")
        flat = (np.stack(where, axis=-1).astype(float) - self.origin) * self._scale
        return np.asarray(flat @ self._turn)

    def to_earth(self, points: np.ndarray) -> np.ndarray:
        """Longitude and latitude, (agents, 2)."""
        return np.asarray(self.origin + points @ self._turn.T / self._scale)


class DeployedPolicy:
    """A policy, ready to decide for any number of agents.

    Attributes:
        document: The description in the file.
        arrays: The arrays; those in ``document["stacked"]`` have one slice for each step.
        horizon: Number of steps of an episode.
        stationary: Whether it is the same at every step.
        sees_mass: Whether it looks at the population's distribution.
        randomised: Whether agents draw their actions.
        identity: The run, episode and environment that the policy comes from.
        actions: What agents can do: a box from ``lower`` to ``upper``, or a list of ``moves``.
        map: Where on the earth the grid is; None if the file does not say it.
        kind, version: Kind and version of the files; those of later versions are refused.
        mass_tolerance: How far a distribution may be from summing to one.
    """

    kind = "deployed policy"
    version = 2
    mass_tolerance = 1e-4

    def __init__(self, document: dict[str, Any], arrays: dict[str, np.ndarray]):
        """Checks that the parts fit each other; use `load` to read a file."""
        self.document, self.arrays = document, arrays
        self.dtype = np.result_type(*arrays.values())
        self.space = Space(document["grid"], self.dtype)
        self.map = Map(document["map"]) if "map" in document else None
        (self.horizon,) = _sizes([document["horizon"]])
        self.identity: dict[str, Any] = document["identity"]
        self.actions: dict[str, Any] = document["actions"]
        self.action_dim = len(self.actions.get("lower") or self.actions["moves"][0])
        self.stacked = set(document["stacked"])
        self.stationary = not self.stacked
        kinds: dict[str, Any] = {"table": Table, "network": Network}
        self.rule: Table | Network = kinds[document["kind"]](self, document)
        self.sees_mass, self.randomised = self.rule.sees_mass, self.rule.moves > 1
        self._check_arrays()
        self._rng: Any = None

    @classmethod
    def load(cls, path: "str | os.PathLike[str]") -> "DeployedPolicy":
        """Reads a file; raises a ValueError that names the file unless it holds a sound policy."""
        try:
            if os.path.exists(path) and not os.path.isfile(path):
                raise ValueError("expected a file, got a directory or a device")
            with open(path, "rb") as file:
                return cls(*unsealed(file))
        except FileNotFoundError as error:
            raise FileNotFoundError(f"there is no policy file {os.fspath(path)}") from error
        except (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError) as error:
            what = f"{type(error).__name__} {error}"  # raised by documents of other programs
        except (TypeError, ValueError) as error:
            what = str(error)
        remedy = "copy it again, or write it anew with `mufield export`"
        raise ValueError(f"cannot load a policy from {os.fspath(path)}: {what}; {remedy}")

    def law(self, states: Any, mass: Any = None, *, step: Step = None) -> Law:
        """The distributions of the actions; all weight on one move if nothing is random.

        Args:
            states: Positions of the agents, (agents, axes), in the units of the grid.
            mass: The population's share in each free cell; needed if ``sees_mass``.
            step: Step of the episode, from 0; needed unless ``stationary``.
        """
        points, cells = self._located(states)
        return self.rule.law(self._step(step), points, cells, self._mass(mass))

    def act(
        self, states: Any, mass: Any = None, *, step: Step = None, rng: Any = None
    ) -> np.ndarray:
        """One action for each agent, (agents, axes of the action).

        Arguments as of `law`; and ``rng``, a ``numpy.random.Generator`` to draw with, by default
        one of the policy's own.
        """
        actions, weights = self.law(states, mass, step=step)
        if not self.randomised:
            return np.array(actions[:, 0])
        if rng is None:
            self._rng = rng = self._rng or np.random.default_rng()
        level = rng.random(len(weights))
        # The first move whose cumulative weight is above the agent's number. Summed in double
        # precision and in order: a weight of zero adds exactly nothing, so it is never drawn.
        sums = np.cumsum(weights, axis=1, dtype=float)
        move = (sums > level[:, None] * sums[:, -1:]).argmax(axis=1)
        return np.asarray(actions[np.arange(len(move)), move])

    def histogram(self, states: Any) -> np.ndarray:
        """The share of agents in each free cell: how positions become a ``mass``."""
        points, cells = self._located(states)
        if len(points) == 0:
            raise ValueError("expected at least one agent, got none")
        counts = np.bincount(cells, minlength=self.space.n_cells)
        return (counts / len(points)).astype(self.dtype)

    def positions(self, longitude: Any, latitude: Any) -> np.ndarray:
        """States from coordinates, (agents, 2), for all other methods.

        A vehicle in a wall, on a bridge or by the error of a receiver, counts for the nearest free
        cell; raises if one is farther off.
        """
        points = self.space.onto_streets(self._map().to_plane(longitude, latitude))
        lost = np.isnan(points[:, 0])
        if lost.any():
            row = int(np.argmax(lost))
            raise ValueError(
                f"row {row}: {np.asarray(longitude)[row]}, {np.asarray(latitude)[row]} is not on "
                f"the map or near it ({int(lost.sum())} of {len(lost)}); leave those vehicles out, "
                "or check the order of longitude and latitude"
            )
        return points

    def destinations(
        self, longitude: Any, latitude: Any, mass: Any = None, *, step: Step = None, rng: Any = None
    ) -> np.ndarray:
        """Where to drive: longitude and latitude for each vehicle, (agents, 2).

        That is where its action points to; in a step it gets as far as traffic lets it. NaN for
        vehicles that are not on the map or near it. Arguments as of `act`.
        """
        place = self._map()
        if place.reach is None:
            raise ValueError("the policy's actions are no moves on a map; use `act`")
        found = self.space.onto_streets(place.to_plane(longitude, latitude))
        known = np.flatnonzero(~np.isnan(found[:, 0]))
        states = found[known]
        actions = self.act(states, mass, step=step, rng=rng).astype(float)
        targets = self.space.onto_streets(states + place.reach * actions)
        # Into a river far from any street: stay.
        found[known] = np.where(np.isnan(targets), states, targets)
        return place.to_earth(found)

    def _map(self) -> Map:
        if self.map is None:
            raise ValueError(
                "the policy's file has no map, so it knows no coordinates; build the problem with "
                "space=CityMap(...) and export it again"
            )
        return self.map

    def slice(self, name: str, step: int) -> np.ndarray:
        """An array at one step."""
        array = self.arrays[name]
        return array[step] if name in self.stacked else array

    def __repr__(self) -> str:
        return (
            f"<DeployedPolicy: {self.document['kind']}, {self.horizon} steps, "
            f"{self.space.n_cells} cells, {self.identity.get('environment')}, "
            f"run {self.identity.get('run')}>"
        )

    def _check_arrays(self) -> None:
        wanted = self.rule.shapes()
        if wanted.keys() != self.arrays.keys() or not self.stacked <= wanted.keys():
            raise ValueError(f"expected the arrays {sorted(wanted)}, got {sorted(self.arrays)}")
        for name, array in self.arrays.items():
            full = (self.horizon, *wanted[name]) if name in self.stacked else wanted[name]
            if array.shape != full:
                raise ValueError(f"{name}: expected the shape {full}, got {array.shape}")
            if not np.isfinite(array).all():
                raise ValueError(f"{name}: expected finite numbers, got NaN or infinity")
        weights = self.arrays.get("weights", np.ones(1))
        # Bounded before they are summed, so that the sum cannot overflow.
        bounded = np.all((weights >= 0) & (weights <= 1 + self.mass_tolerance))
        sums = weights.sum(axis=-1, dtype=float) if bounded else np.zeros(1)
        if np.any(np.abs(sums - 1) > self.mass_tolerance):
            raise ValueError("weights: expected probabilities that sum to 1, got others")

    def _located(self, states: Any) -> tuple[np.ndarray, np.ndarray]:
        """Checked positions and their cells; raises if a position is in no free cell."""
        space = self.space
        points = _real(states, "states")
        if points.ndim != 2 or points.shape[1] != space.dim:
            raise ValueError(f"expected states of shape (agents, {space.dim}), got {points.shape}")
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
                f"{space.lower} to {space.upper}, got {points[row].tolist()}, in a wall or outside "
                f"({int((cells < 0).sum())} of {len(cells)}); check the units and the axes"
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
        if values.shape != (space.n_cells,):
            raise ValueError(f"expected masses of {space.n_cells} free cells, got {values.shape}")
        values = values.astype(self.dtype)
        if not np.isfinite(values).all() or values.min() < 0:
            raise ValueError("mass: expected finite numbers of 0 or more, got others")
        total = float(values.sum(dtype=float))
        if abs(total - 1) > self.mass_tolerance:
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


class Table:
    """Agents draw one of their cell's moves by its weights; a single row is for all cells."""

    sees_mass = False

    def __init__(self, policy: DeployedPolicy, document: dict[str, Any]):
        self.policy = policy
        names = ("action_rows", "weight_rows", "moves")
        self.action_rows, self.weight_rows, self.moves = _sizes(document[name] for name in names)
        if not {self.action_rows, self.weight_rows} <= {1, policy.space.n_cells}:
            rows = f"{self.action_rows} and {self.weight_rows}"
            raise ValueError(f"expected tables of {policy.space.n_cells} cells, got {rows}")

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the arrays at one step."""
        actions = (self.action_rows, self.moves, self.policy.action_dim)
        return {"actions": actions, "weights": (self.weight_rows, self.moves)}

    def law(self, step: int, points: np.ndarray, cells: np.ndarray, mass: Any) -> Law:
        """The moves and weights of each agent's cell."""
        actions, weights = self.policy.slice("actions", step), self.policy.slice("weights", step)
        if self.action_rows > 1:
            actions = actions[cells]
        weights = weights[cells if self.weight_rows > 1 else np.zeros_like(cells)]
        return Law(np.broadcast_to(actions, (len(cells), *actions.shape[1:])), weights)


class Network:
    """A small network of the agent's position and the encoded population, squashed to a box.

    Attributes:
        moves: Number of different actions of an agent.
        features: Number of inputs that describe the population.
    """

    def __init__(self, policy: DeployedPolicy, document: dict[str, Any]):
        self.policy, space = policy, policy.space
        self.widths = _sizes(document["widths"])
        mu, box = document["mu"], document["actions"]
        if mu["kind"] not in ("none", "pooled") or not self.widths:
            raise ValueError(f"expected a network that sees mu in a known way, got {mu['kind']!r}")
        self.sees_mass = mu["kind"] != "none"
        self.blocks = space.blocks(*_sizes([mu["cells"]])) if self.sees_mass else np.arange(0)
        self.features = len(set(self.blocks.tolist()))
        self.lower = np.asarray(_numbers(box["lower"]), dtype=policy.dtype)
        self.upper = np.asarray(_numbers(box["upper"]), dtype=policy.dtype)
        self.moves = 1

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the arrays at one step."""
        first, space = self.widths[0], self.policy.space
        shapes: dict[str, tuple[int, ...]] = {"from_mu": (first, self.features), "bias": (first,)}
        shapes["from_state"] = (first, space.dim + sum(space.periodic))
        outputs = (*self.widths[1:], self.policy.action_dim)
        for layer, (into, out) in enumerate(zip(self.widths, outputs, strict=True)):
            shapes |= {f"hidden.{layer}.0": (out, into), f"hidden.{layer}.1": (out,)}
        return shapes

    def law(self, step: int, points: np.ndarray, cells: np.ndarray, mass: Any) -> Law:
        """The action of each agent, by tanh in the box; clipped against rounding."""
        part = self.policy.slice
        offset = part("bias", step)
        if self.sees_mass:
            share = np.bincount(self.blocks, mass, self.features).astype(mass.dtype)
            offset = part("from_mu", step) @ (share * mass.dtype.type(self.features)) + offset
        x = self.policy.space.features(points) @ part("from_state", step).T + offset
        for layer in range(len(self.widths)):
            weight, bias = part(f"hidden.{layer}.0", step), part(f"hidden.{layer}.1", step)
            x = np.tanh(x) @ weight.T + bias
        share = x.dtype.type(0.5) * (np.tanh(x) + 1)
        actions = np.clip(self.lower + (self.upper - self.lower) * share, self.lower, self.upper)
        return Law(actions[:, None], np.ones((len(x), 1), dtype=x.dtype))


def unsealed(file: io.BufferedIOBase) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The document and the arrays of an open file; raises unless they match the checksum."""
    total = file.seek(0, os.SEEK_END)
    file.seek(0)
    most = 1 << 30
    if total > most:
        raise ValueError(f"expected at most {most:,} bytes, got {total:,}")
    size = int.from_bytes(file.read(8), "little")
    if total < 8 + size or file.read(1) != b"{":
        raise ValueError("expected a file of `mufield export`, got another or one cut short")
    header = json.loads(b"{" + file.read(size - 1))
    entry = json.loads(header.pop("__metadata__", {}).get("mufield", "{}"))
    if not isinstance(entry, dict) or entry.get("kind") != DeployedPolicy.kind:
        raise ValueError("expected a file of `mufield export`, got another")
    data = file.read()
    seal = hashlib.sha256(f"{DeployedPolicy.kind}\n{entry['document']}".encode())
    arrays, used = {}, 0
    dtypes = {"F32": "<f4", "F64": "<f8"}
    for name, part in sorted(header.items()):
        shape, dtype = _sizes(part["shape"], least=0), np.dtype(dtypes[part["dtype"]])
        begin, end = _sizes(part["data_offsets"], least=0)
        if end - begin != math.prod(shape) * dtype.itemsize or end > len(data):
            raise ValueError(f"{name}: expected {shape} numbers, got {end - begin} bytes")
        seal.update(f"\n{name} {dtype.name} {list(shape)}\n".encode() + data[begin:end])
        arrays[name] = np.frombuffer(data[begin:end], dtype).reshape(shape)
        arrays[name] = arrays[name].astype(dtype.newbyteorder("="))
        used += end - begin
    if entry["sha256"] != seal.hexdigest() or used != len(data):
        raise ValueError("its contents do not match its checksum: it was damaged or changed")
    document = json.loads(entry["document"])
    (version,) = _sizes([document["version"]])
    if version > DeployedPolicy.version:
        raise ValueError(f"version {version} of the format: use the reader that came with it")
    return document, arrays


def _real(values: Any, name: str) -> np.ndarray:
    array = np.asarray(values)
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{name}: expected real numbers, got an array of {array.dtype}")
    return array


def _sizes(values: Any, least: int = 1) -> tuple[int, ...]:
    sizes = tuple(values)
    if any(not isinstance(n, int) or isinstance(n, bool) or n < least for n in sizes):
        raise ValueError(f"expected whole numbers of at least {least}, got {sizes}")
    return sizes


def _numbers(values: Any) -> tuple[float, ...]:
    numbers = tuple(float(value) for value in values)
    if not all(math.isfinite(number) for number in numbers):
        raise ValueError(f"expected finite numbers, got {numbers}")
    return numbers
