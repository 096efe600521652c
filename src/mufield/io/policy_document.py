"""The JSON document that describes a policy: from it follow the names and shapes of its arrays."""

import dataclasses
import math
import reprlib
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_map_with_path
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt

from ..actions import Box
from ..errors import UserError
from ..policies.base import OWN_POLICIES, AbstractPolicy, Profile
from ..policies.encoders import ENCODERS, AbstractEncoder, position_size
from ..policies.network import NetworkPolicy
from ..policies.tables import TablePolicy
from ..space.grid import Grid
from ..space.nodes import Nodes
from .sealed import Layout


def leaf_name(path: Any) -> str:
    """Name of an array in a pytree: the path to it, joined by dots."""
    return keystr(path, simple=True, separator=".")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class _Box(_Part):
    lower: tuple[float, ...]
    upper: tuple[float, ...]


class _Grid(_Box):
    shape: tuple[PositiveInt, ...]
    periodic: tuple[bool, ...]
    walls: Annotated[str, Field(pattern="^([0-9a-f]{2})+$")]
    names: tuple[str, ...] | None = None  # of nodes
    successors: tuple[tuple[int, ...], ...] | None = None

    def build(self) -> Grid:
        if self.names is not None:
            listed = None if self.successors is None else np.array(self.successors, dtype=int)
            return Nodes(self.names, successors=listed)
        count, bits = math.prod(self.shape), np.frombuffer(bytes.fromhex(self.walls), np.uint8)
        # Before unpacking: a wrong shape must not reserve memory.
        if len(bits) != (count + 7) // 8:
            raise UserError(f"expected walls for {count} cells, got {8 * len(bits)} bits")
        walls = np.unpackbits(bits, count=count).astype(bool).reshape(self.shape)
        return Grid.box(self.lower, self.upper, self.shape, periodic=self.periodic, walls=walls)


class _Table(_Part):
    kind: Literal["table"]
    action_rows: PositiveInt
    weight_rows: PositiveInt
    moves: PositiveInt
    action_dim: PositiveInt
    grid: _Grid | None = None  # version 1 had none

    def shapes(self) -> dict[str, tuple[int, ...]]:
        if self.action_rows != self.weight_rows and 1 not in (self.action_rows, self.weight_rows):
            raise UserError(
                f"expected actions and weights of as many cells, got {self.action_rows} and "
                f"{self.weight_rows}"
            )
        return {
            "actions": (self.action_rows, self.moves, self.action_dim),
            "weights": (self.weight_rows, self.moves),
        }

    def skeleton(self) -> AbstractPolicy:
        """A policy of the same tree structure, with placeholders for its arrays."""
        grid = None if self.grid is None else self.grid.build()
        return TablePolicy(jnp.zeros((1, 1, 1)), jnp.zeros((1, 1)), grid)


class _Encoder(_Part):
    kind: str
    cells: PositiveInt | None = None

    def build(self) -> AbstractEncoder:
        settings = {} if self.cells is None else {"cells": self.cells}
        kind = ENCODERS.get(self.kind)
        if kind is None or settings.keys() != {each.name for each in dataclasses.fields(kind)}:
            raise UserError(
                f"expected one of the encoders {sorted(ENCODERS)} with its settings, got "
                f"{self.kind!r} with {settings}"
            )
        return kind(**settings)


class _Network(_Part):
    kind: Literal["network"]
    grid: _Grid
    actions: _Box
    mu: _Encoder
    widths: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
    points: Annotated[PositiveInt, Field(le=100)]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        policy, first = self.skeleton(), self.widths[0]
        shapes: dict[str, tuple[int, ...]] = {
            "from_state": (first, position_size(policy.grid)),
            "from_mu": (first, policy.mu.size(policy.grid)),
            "bias": (first,),
        }
        outputs = (*self.widths[1:], policy.box.dim * (1 if self.points == 1 else 2))
        for layer, (into, out) in enumerate(zip(self.widths, outputs, strict=True)):
            shapes |= {f"hidden.{layer}.0": (out, into), f"hidden.{layer}.1": (out,)}
        return shapes

    def skeleton(self) -> NetworkPolicy:
        vector, matrix, grid = jnp.zeros((1,)), jnp.zeros((1, 1)), self.grid.build()
        hidden = ((matrix, vector),) * len(self.widths)
        box = Box(self.actions.lower, self.actions.upper)
        return NetworkPolicy(
            matrix, matrix, vector, hidden, self.mu.build(), grid, box, self.points
        )


class _Own(_Part):
    """A class of the user's own, which the program that reads the file has registered."""

    kind: Literal["own"]
    name: str
    settings: dict[str, Any]
    arrays: dict[str, tuple[NonNegativeInt, ...]]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        self.skeleton()  # raises if there is no such class, or it has other fields
        return self.arrays

    def skeleton(self) -> AbstractPolicy:
        """Fields are set without a constructor: nothing of the class runs."""
        kind = OWN_POLICIES.get(self.name)
        if kind is None:
            raise UserError(
                f"expected a policy class registered as {self.name!r}, got none; import the module "
                "that has it with @mf.policies.saved_as"
            )
        values = {name: _hashable(value) for name, value in self.settings.items()}
        values |= {name: jnp.zeros(()) for name in self.arrays}
        if values.keys() != {field.name for field in dataclasses.fields(kind)}:
            raise UserError(
                f"expected the fields of {kind.__name__}, got {reprlib.repr(sorted(values))}"
            )
        policy = object.__new__(kind)
        for name, value in values.items():
            object.__setattr__(policy, name, value)
        return policy


def _hashable(value: Any) -> Any:
    """A static field as JSON gave it, with tuples for lists."""
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


class PolicyDocument(_Part):
    """The JSON document of a file.

    ``horizon`` is None for a single policy; ``stacked`` names the arrays with one slice for each
    step of a profile.
    """

    file_kind: ClassVar[str] = "policy"
    latest: ClassVar[int] = 2
    """Version of the documents; files of later versions are refused."""

    version: PositiveInt
    mufield: str
    policy: Annotated[_Table | _Network | _Own, Field(discriminator="kind")]
    horizon: PositiveInt | None
    stacked: tuple[str, ...]
    dtypes: dict[str, Literal["float32", "float64"]]
    info: dict[str, Any]

    def layout(self) -> Layout:
        """Number format and shape of each array."""
        shapes, stacked = self.policy.shapes(), set(self.stacked)
        odd = (self.dtypes.keys() ^ shapes.keys()) | (stacked - shapes.keys())
        if odd:
            raise UserError(
                f"expected the description of {len(shapes)} arrays, got too many or too few: "
                f"{reprlib.repr(sorted(odd))}"
            )
        if stacked and self.horizon is None:
            raise UserError("expected a horizon, as there are arrays with one slice for each step")
        steps = () if self.horizon is None else (self.horizon,)
        return {
            name: (self.dtypes[name], steps + shape if name in stacked else shape)
            for name, shape in shapes.items()
        }

    def fill(self, arrays: Mapping[str, Any]) -> Profile | AbstractPolicy:
        """The policy with these arrays."""
        # Filled into a finished tree, because constructors check for the shapes of one step.
        policy: AbstractPolicy = tree_map_with_path(
            lambda path, _: arrays[leaf_name(path)], self.policy.skeleton()
        )
        if self.horizon is None:
            return policy
        if not self.stacked:
            return Profile.stationary(policy, self.horizon)
        stacked = set(self.stacked)
        mask = tree_map_with_path(lambda path, _: leaf_name(path) in stacked, policy)
        return Profile(*eqx.partition(policy, mask), horizon=self.horizon)
