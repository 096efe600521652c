"""Turns an exported policy into an ONNX graph: a pure function that any runtime can call.

    pip install onnx onnxruntime
    mufield export my-run --out robot
    python examples/onnx_export.py robot/policy.safetensors robot/policy.onnx

Without arguments it does so for a random policy of the four rooms. The graph is compared with the
policy's reader on random inputs, and written only if it decides alike.

Inputs are ``state`` (agents, axes) in float32 and, only if the policy needs them, ``mass``
(cells,), ``step`` (a single int64) and ``chance`` (agents,), uniform numbers from 0 to below 1.
Outputs are ``action`` (agents, axes of the action) and, for a randomised table, ``weights``
(agents, moves). A runtime refuses inputs of other shapes. ONNX has no errors for wrong values,
such as a position in a wall or a step beyond the horizon. The graphs turn these into look-ups
outside a table, which a runtime refuses with the name of the node: that name is the message.
"""

import itertools
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from mufield.deploy.reader import DeployedPolicy, Network, Space, Table


def main(source: Path, target: Path) -> None:
    """Reads an exported policy, and writes its graph."""
    policy = DeployedPolicy.load(source)
    data = build_model(policy).SerializeToString(deterministic=True)
    difference = largest_difference(policy, data)
    if not difference <= 1e-5:
        sys.exit(f"{target} was not written: expected the same actions, got {difference:.3g} apart")
    target.write_bytes(data)
    print(f"wrote {target}; largest difference from the reader {difference:.2g}, expected 1e-05")


def largest_difference(policy: DeployedPolicy, data: bytes, agents: int = 200) -> float:
    """Largest difference between actions of the graph and of the reader, on random inputs."""
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    rng, space, worst = np.random.default_rng(0), policy.space, 0.0
    free = np.argwhere(~space.walls)
    for step in range(policy.horizon):
        # Not at the borders of cells, where number formats may disagree about the cell.
        place = free[rng.integers(len(free), size=agents)] + rng.uniform(1e-4, 1 - 1e-4, space.dim)
        state = (np.asarray(space.lower) + place * space.cell_size).astype(np.float32)
        mass = rng.dirichlet(np.ones(space.n_cells)).astype(np.float32)
        chance = rng.random(agents, dtype=np.float32)
        given = {"state": state, "mass": mass, "step": np.asarray(step), "chance": chance}
        names = [each.name for each in session.get_inputs()]
        found = session.run(["action"], {name: given[name] for name in names})[0]
        law = policy.law(state, mass, step=step)
        sums = np.cumsum(law.weights, axis=1, dtype=float)
        drawn = (sums > chance[:, None] * sums[:, -1:]).argmax(axis=1)
        known = law.actions[np.arange(agents), drawn]
        off = np.abs(found - known).max(axis=1) / max(1.0, float(np.abs(known).max()))
        if policy.randomised:  # near a sum of weights, rounding decides between two moves
            off = np.where(np.abs(sums - chance[:, None]).min(axis=1) < 1e-5, 0.0, off)
        worst = max(worst, float(off.max()))
    return worst


def build_model(policy: DeployedPolicy) -> onnx.ModelProto:
    """The policy as a checked ONNX model."""
    graph = Graph(policy)
    state = graph.input("state", TensorProto.FLOAT, ["agents", policy.space.dim])
    cells = _cells(graph, state)
    if isinstance(policy.rule, Table):
        _table(graph, policy.rule, cells)
    else:
        _network(graph, policy.rule, state, cells)
    model = graph.model()
    onnx.checker.check_model(model, full_check=True)
    return model


class Graph:
    """Collects nodes and constants of the graph that computes ``policy``.

    Methods return the name of the value that they add.
    """

    def __init__(self, policy: DeployedPolicy):
        """Begins with a single input, the step, or with none if the policy is stationary."""
        self.policy = policy
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._step = ""
        if not policy.stationary:
            step = self.input("step", TensorProto.INT64, [])
            # A negative index would count from the end, so it is replaced by one beyond the end.
            negative = self.add("Less", step, self.constant(0, np.int64))
            beyond = self.constant(policy.horizon, np.int64)
            self._step = self.add("Where", negative, beyond, step)

    def input(self, name: str, kind: int, shape: list[Any]) -> str:
        """Adds an input of the graph."""
        self._inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def output(self, name: str, value: str, shape: list[Any]) -> None:
        """Makes a value an output of the graph."""
        self._nodes.append(helper.make_node("Identity", [value], [name], name=name))
        self._outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def constant(self, values: Any, dtype: Any = np.float32) -> str:
        """Adds a constant array."""
        name = f"constant_{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.asarray(values, dtype=dtype), name))
        return name

    def part(self, name: str, array: np.ndarray | None = None) -> str:
        """Slice of the policy's array ``name``, or of ``array`` in its place, at the input step."""
        table = self.constant(self.policy.arrays[name] if array is None else array)
        if name not in self.policy.stacked:
            return table
        wanted = f"expected {name} of a step from 0 to {self.policy.horizon - 1}"
        return self.add("Gather", table, self._step, name=wanted, axis=0)

    def add(self, operator: str, *inputs: str, name: str | None = None, **attributes: Any) -> str:
        """Adds a node with one output."""
        number = len(self._nodes)
        value = f"{operator.lower()}_{number}"
        label = value if name is None else f"{name} ({number})"  # names must be unique
        self._nodes.append(helper.make_node(operator, inputs, [value], name=label, **attributes))
        return value

    def cast(self, value: str, dtype: Any) -> str:
        """Converts a value to another number format."""
        return self.add("Cast", value, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def at_cells(self, table: str, cells: str) -> str:
        """Rows of a table for the agents' cells; a runtime refuses agents that have no cell."""
        return self.add("Gather", table, cells, name="expected positions in free cells", axis=0)

    def zero_or_refuse(self, allowed: str, expected: str) -> str:
        """Zero if the scalar ``allowed`` is true; otherwise a look-up that the runtime refuses."""
        place = self.add("Where", allowed, self.constant(0, np.int64), self.constant(1, np.int64))
        return self.add("Gather", self.constant([0]), place, name=f"expected {expected}", axis=0)

    def model(self) -> onnx.ModelProto:
        """The finished model, with the document in its metadata."""
        document = self.policy.document
        # Both versions are as old as the graphs allow, because runtimes on robots may be old.
        model = helper.make_model(
            helper.make_graph(self._nodes, "policy", self._inputs, self._outputs, self._constants),
            opset_imports=[helper.make_opsetid("", 17)],
            ir_version=8,
            producer_name="mufield",
            producer_version=document["mufield"],
        )
        text = json.dumps(document, allow_nan=False, sort_keys=True)
        helper.set_model_props(model, {"mufield": text})
        return model


def _cells(graph: Graph, state: str) -> str:
    """Index of each agent's free cell; for agents that have none, the number of cells.

    Like `Space.settled_cells`, it also tries points a little aside, for agents that touch walls.
    """
    space = graph.policy.space
    free = ~space.walls.reshape(-1)
    # The last entry stands for all places outside the box.
    table = graph.constant([*np.where(free, np.cumsum(free) - 1, -1), -1], np.int64)
    outside, zero = graph.constant(free.size, np.int64), graph.constant(0, np.int64)
    # Axis by axis, as runtimes are slow where the last axis is short.
    points = graph.cast(state, graph.policy.dtype)
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
    """One axis's contribution to the index of each point's cell: at the point, and to both sides.

    Outside the box it is so negative that the sum over the axes is negative, too.
    """
    space, dtype = graph.policy.space, graph.policy.dtype.type
    size, count = space.cell_size[axis], space.shape[axis]
    column = graph.add("Gather", points, graph.constant(axis, np.int64), axis=1)
    many, zero = graph.constant(count, dtype), graph.constant(0, dtype)
    stride = graph.constant(math.prod(space.shape[axis + 1 :]), np.int64)
    never = graph.constant(-space.walls.size, np.int64)
    places = []
    for sign in (0, -1, 1):
        aside = dtype(sign) * (dtype(Space.contact) * dtype(size))
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
        # Both comparisons are false for NaN, so it counts as outside.
        inside = graph.add(
            "And", graph.add("GreaterOrEqual", cell, zero), graph.add("Less", cell, many)
        )
        whole = graph.cast(graph.add("Where", inside, cell, zero), np.int64)
        share = graph.add("Mul", whole, stride)
        places.append(graph.add("Where", inside, share, never))
    return places


def _table(graph: Graph, rule: Table, cells: str) -> None:
    """The first move whose cumulative weight is above the agent's chance."""
    dim, moves = graph.policy.action_dim, rule.moves
    zeros = graph.constant(np.zeros(graph.policy.space.n_cells), np.int64)
    shared = graph.at_cells(zeros, cells)  # row 0 for every agent; refuses those without a cell
    # All moves in one long table: move m of cell k is row k * moves + m.
    actions = graph.part("actions")
    flat = graph.add("Reshape", actions, graph.constant([-1, dim], np.int64))
    place = cells if rule.action_rows > 1 else shared
    if moves == 1:
        graph.output("action", graph.at_cells(flat, place), ["agents", dim])
        return
    sums = np.cumsum(graph.policy.arrays["weights"], axis=-1, dtype=float)
    sums /= sums[..., -1:]
    row = cells if rule.weight_rows > 1 else shared
    level = graph.add("Unsqueeze", _chance(graph), graph.constant([1], np.int64))
    found = graph.at_cells(graph.part("weights", sums), row)
    above = graph.cast(graph.add("Greater", found, level), np.int32)
    chosen = graph.add("ArgMax", above, axis=1, keepdims=0)
    begin = graph.add("Mul", place, graph.constant(moves, np.int64))
    action = graph.add("Gather", flat, graph.add("Add", begin, chosen), axis=0)
    graph.output("action", action, ["agents", dim])
    graph.output("weights", graph.at_cells(graph.part("weights"), row), ["agents", moves])


def _chance(graph: Graph) -> str:
    """The input of the agents' chances; those not from 0 to below 1 are refused."""
    chance = graph.input("chance", TensorProto.FLOAT, ["agents"])
    one, zero = graph.constant(1.0), graph.constant(0.0)
    allowed = graph.add(
        "And", graph.add("GreaterOrEqual", chance, zero), graph.add("Less", chance, one)
    )
    smallest = graph.add("ReduceMin", graph.cast(allowed, np.int32), axes=[0], keepdims=0)
    refused = graph.zero_or_refuse(graph.cast(smallest, bool), "chances from 0 to below 1")
    return graph.add("Add", chance, refused)


def _network(graph: Graph, rule: Network, state: str, cells: str) -> None:
    """The network's action."""
    offset = graph.part("bias")
    if rule.sees_mass:
        seen = graph.add("MatMul", graph.part("from_mu"), _encoded(graph, rule))
        offset = graph.add("Add", seen, offset)
    into = graph.add("Transpose", graph.part("from_state"), perm=[1, 0])
    x = graph.add("MatMul", _position(graph, state), into)
    # The cells are not needed here, but agents that have none must be refused.
    zeros = graph.constant(np.zeros((graph.policy.space.n_cells, 1)))
    x = graph.add("Add", graph.add("Add", x, graph.at_cells(zeros, cells)), offset)
    for layer in range(len(rule.widths)):
        weight = graph.add("Transpose", graph.part(f"hidden.{layer}.0"), perm=[1, 0])
        x = graph.add("MatMul", graph.add("Tanh", x), weight)
        x = graph.add("Add", x, graph.part(f"hidden.{layer}.1"))
    # Squashed to the box, and clipped to it against rounding.
    lower, upper = rule.lower.astype(np.float32), rule.upper.astype(np.float32)
    low, high = graph.constant(lower), graph.constant(upper)
    share = graph.add("Add", graph.add("Tanh", x), graph.constant(1.0))
    half = graph.constant((upper - lower) * np.float32(0.5))
    action = graph.add("Add", graph.add("Mul", share, half), low)
    action = graph.add("Min", graph.add("Max", action, low), high)
    graph.output("action", action, ["agents", graph.policy.action_dim])


def _encoded(graph: Graph, rule: Network) -> str:
    """Features of the population; the runtime refuses what is not a distribution."""
    mass = graph.input("mass", TensorProto.FLOAT, [graph.policy.space.n_cells])
    total = graph.add("ReduceSum", mass, keepdims=0)
    off = graph.add("Abs", graph.add("Sub", total, graph.constant(1.0)))
    near = graph.add("LessOrEqual", off, graph.constant(DeployedPolicy.mass_tolerance))
    least = graph.add("ReduceMin", mass, keepdims=0)
    positive = graph.add("GreaterOrEqual", least, graph.constant(0.0))
    allowed = graph.add("And", near, positive)
    refused = graph.zero_or_refuse(allowed, "a mass of 0 or more that sums to 1")
    mass = graph.add("Div", graph.add("Add", mass, refused), total)
    if rule.features == graph.policy.space.n_cells:
        return graph.add("Mul", mass, graph.constant(rule.features))
    member = (rule.blocks[:, None] == np.arange(rule.features)) * rule.features
    return graph.add("MatMul", mass, graph.constant(member))


def _position(graph: Graph, state: str) -> str:
    """Positions scaled to [-1, 1]; periodic axes as cosine and sine."""
    space = graph.policy.space
    share = graph.add("Sub", state, graph.constant(space.lower))
    share = graph.add("Div", share, graph.constant(space.extent))
    columns = []
    for axis, periodic in enumerate(space.periodic):
        column = graph.add("Gather", share, graph.constant([axis], np.int64), axis=1)
        if periodic:
            angle = graph.add("Mul", column, graph.constant(2 * np.pi))
            columns += [graph.add("Cos", angle), graph.add("Sin", angle)]
        else:
            twice = graph.add("Mul", column, graph.constant(2.0))
            columns.append(graph.add("Sub", twice, graph.constant(1.0)))
    return graph.add("Concat", *columns, axis=1)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
    else:
        import mufield as mf
        from mufield.deploy.export import export_policy

        problem = mf.make("four-rooms", horizon=6).problem
        written = export_policy(mf.random_policy(problem), problem, Path("robot"))
        main(written.policy, Path("robot/policy.onnx"))
