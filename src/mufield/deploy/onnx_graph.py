"""Policies as ONNX graphs: pure functions that any runtime can call.

Inputs are ``state`` (agents, axes) in float32 and, only where the policy needs them, ``mass``
(cells,), ``step`` (a single int64) and ``chance`` (agents,), uniform numbers from 0 to below 1.
Outputs are ``action`` (agents, axes of the action) and, of a randomised table, ``weights``
(agents, moves). Shapes are fixed, so that a runtime refuses others. Values that a policy must not
get, a position in a wall or a step beyond the horizon, lead to a look-up outside a table: a
runtime refuses that too, and names the node.
"""

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

from .._files import write_bytes
from .describe import Deployable
from .onnx_builder import Graph
from .reader import CONTACT, MASS_TOLERANCE, DeployedPolicy, cumulated


def write_onnx(path: Path, deployable: Deployable) -> None:
    """Writes a policy as an ONNX file, whole or not at all."""
    write_bytes(path, build_model(deployable).SerializeToString(deterministic=True))


def build_model(deployable: Deployable) -> onnx.ModelProto:
    """The policy as a checked ONNX model."""
    policy = deployable.policy()
    graph = Graph(policy)
    state = graph.input("state", TensorProto.FLOAT, ["agents", policy.space.dim])
    step = _step(graph) if not policy.stationary else None
    stacked = set(deployable.document["stacked"])
    stacked |= {"sums"} if "weights" in stacked else set()
    parts = {
        name: _slice(graph, name, array, step if name in stacked else None)
        for name, array in _arrays(deployable, policy).items()
    }
    cells = _cells(graph, state)
    GRAPHS[deployable.document["kind"]](graph, deployable, parts, state, cells)
    model = graph.model(deployable.document)
    onnx.checker.check_model(model, full_check=True)
    return model


def _arrays(deployable: Deployable, policy: DeployedPolicy) -> dict[str, np.ndarray]:
    """The arrays of the graph; sums of weights are made here, once and for all."""
    arrays = dict(deployable.arrays)
    if not policy.sees_mass:
        arrays.pop("from_mu", None)  # an empty array, which runtimes do not like
    if "weights" in arrays:
        weights = arrays["weights"]
        moves = weights.shape[-1]
        sums = cumulated(weights.reshape(-1, moves).astype(np.float32))[:, :moves]
        arrays["sums"] = sums.reshape(weights.shape)
    return arrays


def _slice(graph: Graph, name: str, array: np.ndarray, step: str | None) -> str:
    """An array at the step that is asked for."""
    table = graph.constant(array, np.float32)
    if step is None:
        return table
    wanted = f"{name} of a step from 0 to {graph.policy.horizon - 1}"
    return graph.add("Gather", table, step, name=f"expected {wanted}", axis=0)


def _step(graph: Graph) -> str:
    """The step; a negative one would count from the end, so it is sent beyond it."""
    step = graph.input("step", TensorProto.INT64, [])
    negative = graph.add("Less", step, graph.constant(0, np.int64))
    return graph.add("Where", negative, graph.constant(graph.policy.horizon, np.int64), step)


def _cells(graph: Graph, state: str) -> str:
    """The free cell of each agent, and the number of cells where there is none.

    As the reader does, it also tries points a little aside, for agents that rest at walls.
    """
    space = graph.policy.space
    free = ~space.walls.reshape(-1)
    # The last entry is that of all places outside the box.
    table = graph.constant([*np.where(free, np.cumsum(free) - 1, -1), -1], np.int64)
    outside, zero = graph.constant(free.size, np.int64), graph.constant(0, np.int64)
    # Axis by axis, as runtimes are slow where the last axis is short.
    points = graph.cast(state, graph.dtype)
    ways = [_axis_places(graph, points, axis) for axis in range(space.dim)]
    index = graph.constant(-1, np.int64)
    for places in itertools.product(*ways):
        flat = places[0]
        for place in places[1:]:
            flat = graph.add("Add", flat, place)
        flat = graph.add("Where", graph.add("Less", flat, zero), outside, flat)
        found = graph.add("Gather", table, flat, axis=0)
        index = graph.add("Where", graph.add("Less", index, zero), found, index)
    lost = graph.add("Less", index, zero)
    return graph.add("Where", lost, graph.constant(space.n_cells, np.int64), index)


def _axis_places(graph: Graph, points: str, axis: int) -> list[str]:
    """An axis's share of each point's place in the table of cells: there, and a little aside.

    It is so far below zero outside the box that no sum comes above.
    """
    space, dtype = graph.policy.space, graph.dtype
    size, count = space.cell_size[axis], space.shape[axis]
    column = graph.add("Gather", points, graph.constant(axis, np.int64), axis=1)
    many, zero = graph.constant(count, dtype), graph.constant(0, dtype)
    stride = graph.constant(math.prod(space.shape[axis + 1 :]), np.int64)
    never = graph.constant(-space.walls.size, np.int64)
    places = []
    for sign in (0, -1, 1):
        aside = dtype(sign) * (dtype(CONTACT) * dtype(size))
        point = graph.add("Add", column, graph.constant(aside, dtype)) if sign else column
        place = graph.add("Sub", point, graph.constant(space.lower[axis], dtype))
        place = graph.add("Div", place, graph.constant(size, dtype))
        cell = graph.add("Floor", place)
        if space.periodic[axis]:
            turns = graph.add("Floor", graph.add("Div", cell, many))
            cell = graph.add("Sub", cell, graph.add("Mul", turns, many))
        else:
            last = graph.constant(count - 1, dtype)
            cell = graph.add("Where", graph.add("Equal", place, many), last, cell)
        # NaN is neither, so it counts as outside.
        inside = graph.add(
            "And", graph.add("GreaterOrEqual", cell, zero), graph.add("Less", cell, many)
        )
        whole = graph.cast(graph.add("Where", inside, cell, zero), np.int64)
        share = graph.add("Mul", whole, stride)
        places.append(graph.add("Where", inside, share, never))
    return places


def _at_cells(graph: Graph, table: str, cells: str) -> str:
    return graph.add("Gather", table, cells, name="expected positions in free cells", axis=0)


def _table(
    graph: Graph, deployable: Deployable, parts: dict[str, str], state: str, cells: str
) -> None:
    """The action of each agent's cell."""
    action = _at_cells(graph, parts["actions"], cells)
    graph.output("action", action, ["agents", graph.policy.action_dim])


def _randomised(
    graph: Graph, deployable: Deployable, parts: dict[str, str], state: str, cells: str
) -> None:
    """The first move whose cumulative weight is above the agent's chance."""
    chance = _chance(graph)
    if deployable.document["rows"] == 1:
        zeros = graph.constant(np.zeros(graph.policy.space.n_cells), np.int64)
        cells = _at_cells(graph, zeros, cells)
    level = graph.add("Unsqueeze", chance, graph.indices(1))
    sums = _at_cells(graph, parts["sums"], cells)
    above = graph.cast(graph.add("Greater", sums, level), np.int32)
    chosen = graph.add("ArgMax", above, axis=1, keepdims=0)
    action = graph.add("Gather", parts["actions"], chosen, axis=0)
    graph.output("action", action, ["agents", graph.policy.action_dim])
    weights = _at_cells(graph, parts["weights"], cells)
    graph.output("weights", weights, ["agents", deployable.document["moves"]])


def _spread(
    graph: Graph, deployable: Deployable, parts: dict[str, str], state: str, cells: str
) -> None:
    """One of the actions around the centre of each agent's cell."""
    centre = _at_cells(graph, parts["centre"], cells)
    deviation = _at_cells(graph, parts["deviation"], cells)
    _scattered(graph, deployable, parts, centre, deviation)


def _scattered(
    graph: Graph, deployable: Deployable, parts: dict[str, str], centre: str, deviation: str
) -> None:
    """One of the equally likely actions around a centre."""
    moves = deployable.document["moves"]
    share = graph.add("Mul", _chance(graph), graph.constant(moves, np.float32))
    move = graph.cast(graph.add("Floor", share), np.int64)
    move = graph.add("Min", move, graph.constant(moves - 1, np.int64))  # against rounding
    score = graph.add("Gather", parts["scores"], move, axis=0)
    raw = graph.add("Add", centre, graph.add("Mul", deviation, score))
    _squashed(graph, deployable, raw)


def _squashed(graph: Graph, deployable: Deployable, raw: str) -> None:
    """Makes the action of any numbers: squashed to the box, and clipped to it against rounding."""
    box = deployable.document["actions"]
    lower, upper = (np.asarray(box[side], np.float32) for side in ("lower", "upper"))
    low, high = graph.constant(lower, np.float32), graph.constant(upper, np.float32)
    half = graph.constant((upper - lower) * np.float32(0.5), np.float32)
    share = graph.add("Add", graph.add("Tanh", raw), graph.constant(1.0, np.float32))
    action = graph.add("Add", graph.add("Mul", share, half), low)
    action = graph.add("Min", graph.add("Max", action, low), high)
    graph.output("action", action, ["agents", graph.policy.action_dim])


def _chance(graph: Graph) -> str:
    """The agents' chances; refused are NaN and 1, which would be above all sums."""
    chance = graph.input("chance", TensorProto.FLOAT, ["agents"])
    one, zero = graph.constant(1.0, np.float32), graph.constant(0.0, np.float32)
    allowed = graph.add(
        "And", graph.add("GreaterOrEqual", chance, zero), graph.add("Less", chance, one)
    )
    smallest = graph.add("ReduceMin", graph.cast(allowed, np.int32), axes=[0], keepdims=0)
    refused = graph.zero_or_refuse(graph.cast(smallest, bool), "chances from 0 to below 1")
    return graph.add("Add", chance, refused)


def _network(
    graph: Graph, deployable: Deployable, parts: dict[str, str], state: str, cells: str
) -> None:
    """The network's action, or one of those around it."""
    policy = graph.policy
    offset = parts["bias"]
    if policy.sees_mass:
        seen = graph.add("MatMul", parts["from_mu"], _encoded(graph, deployable))
        offset = graph.add("Add", seen, offset)
    into = graph.add("Transpose", parts["from_state"], perm=[1, 0])
    x = graph.add("MatMul", _position(graph, state), into)
    # Positions do not need their cell here, but those that have none must be refused.
    zeros = graph.constant(np.zeros((policy.space.n_cells, 1)), np.float32)
    x = graph.add("Add", x, _at_cells(graph, zeros, cells))
    x = graph.add("Tanh", graph.add("Add", x, offset))
    for layer in range(len(deployable.document["widths"])):
        x = x if layer == 0 else graph.add("Tanh", x)
        weight = graph.add("Transpose", parts[f"hidden.{layer}.0"], perm=[1, 0])
        x = graph.add("Add", graph.add("MatMul", x, weight), parts[f"hidden.{layer}.1"])
    if not policy.randomised:
        _squashed(graph, deployable, x)
        return
    axes = policy.action_dim
    halves = [list(range(axes)), list(range(axes, 2 * axes))]
    centre, spread = (graph.add("Gather", x, graph.indices(*h), axis=1) for h in halves)
    _scattered(graph, deployable, parts, centre, graph.add("Softplus", spread))


def _encoded(graph: Graph, deployable: Deployable) -> str:
    """Features of the population; raises in the runtime if it is no distribution."""
    cells = graph.policy.space.n_cells
    mass = graph.input("mass", TensorProto.FLOAT, [cells])
    total = graph.add("ReduceSum", mass, keepdims=0)
    off = graph.add("Abs", graph.add("Sub", total, graph.constant(1.0, np.float32)))
    near = graph.add("LessOrEqual", off, graph.constant(MASS_TOLERANCE, np.float32))
    least = graph.add("ReduceMin", mass, keepdims=0)
    positive = graph.add("GreaterOrEqual", least, graph.constant(0.0, np.float32))
    allowed = graph.add("And", near, positive)
    refused = graph.zero_or_refuse(allowed, "a mass of 0 or more that sums to 1")
    mass = graph.add("Div", graph.add("Add", mass, refused), total)
    encoder = deployable.document["encoder"]
    if encoder["kind"] == "raw":
        return graph.add("Mul", mass, graph.constant(cells, np.float32))
    blocks = np.asarray(encoder["blocks"])
    size = int(blocks.max()) + 1
    member = (blocks[:, None] == np.arange(size)) * size
    return graph.add("MatMul", mass, graph.constant(member, np.float32))


def _position(graph: Graph, state: str) -> str:
    """Positions scaled to [-1, 1]; periodic axes as cosine and sine."""
    space = graph.policy.space
    share = graph.add("Sub", state, graph.constant(space.lower, np.float32))
    share = graph.add("Div", share, graph.constant(space.extent, np.float32))
    columns = []
    for axis, periodic in enumerate(space.periodic):
        column = graph.add("Gather", share, graph.indices(axis), axis=1)
        if periodic:
            angle = graph.add("Mul", column, graph.constant(2 * np.pi, np.float32))
            columns += [graph.add("Cos", angle), graph.add("Sin", angle)]
        else:
            twice = graph.add("Mul", column, graph.constant(2.0, np.float32))
            columns.append(graph.add("Sub", twice, graph.constant(1.0, np.float32)))
    return graph.add("Concat", *columns, axis=1)


GRAPHS: dict[str, Callable[[Graph, Deployable, dict[str, str], str, str], None]] = {
    "table": _table,
    "randomised": _randomised,
    "spread": _spread,
    "network": _network,
}
"""What each kind adds to a graph."""
