"""An ONNX graph while it is built: nodes, constants, inputs and outputs."""

import json
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .reader import DeployedPolicy

OPSET = 17
IR_VERSION = 8
"""Both as old as the graphs allow, because runtimes on robots are."""

ENTRY = "mufield"
"""Name of the metadata that holds the document."""


class Graph:
    """Nodes and constants as they are added; names of values are the nodes' own.

    Attributes:
        policy: What the graph is to compute.
    """

    def __init__(self, policy: DeployedPolicy):
        """An empty graph."""
        self.policy = policy
        self.dtype = policy.dtype.newbyteorder("=").type
        self._nodes: list[Any] = []
        self._constants: dict[str, Any] = {}
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []

    def input(self, name: str, kind: int, shape: list[Any]) -> str:
        """An input of the graph."""
        self._inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def output(self, name: str, value: str, shape: list[Any]) -> None:
        """Makes a value an output of the graph."""
        self._nodes.append(helper.make_node("Identity", [value], [name], name=name))
        self._outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def constant(self, values: Any, dtype: Any) -> str:
        """An array that is part of the graph."""
        array = np.asarray(values, dtype=dtype)
        name = f"constant_{len(self._constants)}"
        self._constants[name] = numpy_helper.from_array(array, name)
        return name

    def add(self, operator: str, *inputs: str, name: str | None = None, **attributes: Any) -> str:
        """A node with one output."""
        number = len(self._nodes)
        value = f"{operator.lower()}_{number}"
        label = value if name is None else f"{name} ({number})"  # runtimes want each name once
        self._nodes.append(helper.make_node(operator, inputs, [value], name=label, **attributes))
        return value

    def cast(self, value: str, dtype: Any) -> str:
        """The value in another number format."""
        return self.add("Cast", value, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def indices(self, *values: int) -> str:
        """A constant list of whole numbers, such as axes."""
        return self.constant(list(values), np.int64)

    def zero_or_refuse(self, allowed: str, expected: str) -> str:
        """A zero if a single truth value is true; else the runtime refuses at the named node."""
        place = self.add("Where", allowed, self.constant(0, np.int64), self.constant(1, np.int64))
        zero = self.constant(np.zeros(1), np.float32)
        return self.add("Gather", zero, place, name=f"expected {expected}", axis=0)

    def model(self, document: dict[str, Any]) -> onnx.ModelProto:
        """The whole, with the document in its metadata."""
        graph = helper.make_graph(
            self._nodes, "policy", self._inputs, self._outputs, list(self._constants.values())
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="mufield",
            producer_version=document["mufield"],
        )
        text = json.dumps(document, allow_nan=False, sort_keys=True)
        helper.set_model_props(model, {ENTRY: text})
        return model
