"""The description of a stored policy: what JSON says of it, and what arrays follow from that."""

import dataclasses
import math
import reprlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_map_with_path
from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from ..errors import UserError
from ..problem import Box
from ..space.grid import Grid
from .base import AbstractPolicy, Profile
from .encoders import ENCODERS, WORDS, AbstractEncoder
from .network import NetworkPolicy
from .spread import SpreadTable
from .tables import TablePolicy

VERSION = 1
"""Of the format; files of later versions are refused."""

# The axes of a table's arrays.
TABLE = {"actions": ("action_rows", "moves", "action_dim"), "weights": ("weight_rows", "moves")}

Layout = dict[str, tuple[tuple[int, ...], str]]
"""Shape and number format of each array."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class _Heading(_Part):
    """Read first: what else there may be depends on it."""

    model_config = ConfigDict(extra="ignore")
    format: Literal["mufield-policy"]
    version: PositiveInt
    kind: str = ""


class Document(_Heading):
    """What all kinds have in common.

    ``horizon`` is None for a single policy; ``stacked`` names the arrays with one slice for each
    step of a profile.
    """

    model_config = ConfigDict(extra="forbid")
    mufield: str
    horizon: PositiveInt | None
    stacked: tuple[str, ...]
    dtypes: dict[str, Literal["float32", "float64", "int32"]]
    info: dict[str, Any]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The arrays of one step."""
        raise NotImplementedError

    def skeleton(self) -> AbstractPolicy:
        """A policy of the same structure, with small placeholders for its arrays."""
        raise NotImplementedError

    def layout(self) -> Layout:
        """The arrays of the file."""
        shapes, stacked = self.shapes(), set(self.stacked)
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
            name: (steps + shape if name in stacked else shape, self.dtypes[name])
            for name, shape in shapes.items()
        }

    def fill(self, arrays: Mapping[str, Any]) -> Profile | AbstractPolicy:
        """The policy with these arrays."""
        # Filled into a finished tree, because constructors ask for the shapes of one step.
        policy: AbstractPolicy = tree_map_with_path(
            lambda path, _: arrays[leaf_name(path)], self.skeleton()
        )
        if self.horizon is None:
            return policy
        if not self.stacked:
            return Profile.stationary(policy, self.horizon)
        stacked = set(self.stacked)
        mask = tree_map_with_path(lambda path, _: leaf_name(path) in stacked, policy)
        return Profile(*eqx.partition(policy, mask), horizon=self.horizon)


class _Table(Document):
    sizes: dict[str, PositiveInt]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        axes = {axis for each in TABLE.values() for axis in each}
        if set(self.sizes) != axes:
            raise UserError(f"expected the sizes of {sorted(axes)}, got {sorted(self.sizes)}")
        return {name: tuple(self.sizes[a] for a in each) for name, each in TABLE.items()}

    def skeleton(self) -> AbstractPolicy:
        return TablePolicy(jnp.zeros((1, 1, 1)), jnp.zeros((1, 1)))


class _Box(_Part):
    lower: tuple[float, ...]
    upper: tuple[float, ...]


class _Grid(_Box):
    shape: tuple[PositiveInt, ...]
    periodic: tuple[bool, ...]
    walls: Annotated[str, Field(pattern="^([0-9a-f]{2})+$")]

    def build(self) -> Grid:
        count, bits = math.prod(self.shape), np.frombuffer(bytes.fromhex(self.walls), np.uint8)
        # Before unpacking: a wrong shape must not reserve memory.
        if len(bits) != (count + 7) // 8:
            raise UserError(f"expected walls for {count} cells, got {8 * len(bits)} bits")
        walls = np.unpackbits(bits, count=count).astype(bool).reshape(self.shape)
        return Grid(self.lower, self.upper, self.shape, self.periodic, walls)


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


class _Network(Document):
    grid: _Grid
    actions: _Box
    encoder: _Encoder
    widths: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
    points: PositiveInt = 1

    def shapes(self) -> dict[str, tuple[int, ...]]:
        policy, first = self.skeleton(), self.widths[0]
        shapes: dict[str, tuple[int, ...]] = {
            "from_state": (first, policy.grid.dim + sum(policy.grid.periodic)),
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
            matrix, matrix, vector, hidden, self.encoder.build(), grid, box, self.points
        )


class _Spread(Document):
    cells: PositiveInt
    actions: _Box
    points: Annotated[int, Field(ge=2)]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return dict.fromkeys(("centre", "spread"), (self.cells, len(self.actions.lower)))

    def skeleton(self) -> SpreadTable:
        box = Box(self.actions.lower, self.actions.upper)
        return SpreadTable(jnp.zeros((1, 1)), jnp.zeros((1, 1)), box, self.points)


KINDS: dict[str, type[Document]] = {
    "network": _Network,
    "spread": _Spread,
    "table": _Table,
}


def parse_document(text: str) -> Document:
    """Reads a description; raises ValueError if it is not a sound one."""
    heading = _Heading.model_validate_json(text)
    if heading.version > VERSION:
        raise UserError(
            f"it was written by a newer mufield, in version {heading.version} of the format, and "
            f"this one reads up to {VERSION}; upgrade mufield"
        )
    if heading.kind not in KINDS:
        raise UserError(
            f"expected one of the kinds {sorted(KINDS)}, got {heading.kind!r}; save it anew"
        )
    return KINDS[heading.kind].model_validate_json(text)


def describe_kind(policy: AbstractPolicy) -> dict[str, Any]:
    """The part of a description that depends on the kind of policy."""
    if isinstance(policy, NetworkPolicy) and type(policy.mu) in WORDS:
        grid, box = policy.grid, policy.box
        fields = {"lower": grid.lower, "upper": grid.upper, "shape": grid.shape}
        walls = np.packbits(grid.walls).tobytes().hex()
        return {
            "kind": "network",
            "grid": fields | {"periodic": grid.periodic, "walls": walls},
            "actions": {"lower": box.lower, "upper": box.upper},
            "encoder": {"kind": WORDS[type(policy.mu)], **dataclasses.asdict(policy.mu)},
            "widths": [policy.bias.shape[-1], *(b.shape[-1] for _, b in policy.hidden[:-1])],
            "points": policy.points,
        }
    if isinstance(policy, SpreadTable):
        return {
            "kind": "spread",
            "cells": policy.centre.shape[-2],
            "actions": {"lower": policy.box.lower, "upper": policy.box.upper},
            "points": policy.points,
        }
    if type(policy) is TablePolicy:
        sizes: dict[str, int] = {}
        for name, axes in TABLE.items():
            # Arrays with too few axes are found out when shapes are compared.
            shape = (1, 1, 1, *np.shape(getattr(policy, name)))
            sizes |= dict(zip(axes, shape[-len(axes) :], strict=True))
        return {"kind": "table", "sizes": sizes}
    raise UserError(
        f"expected one of the kinds {sorted(KINDS)} with mufield's own encoders, got "
        f"{type(policy).__name__}; write its actions into a TablePolicy"
    )


def leaf_name(path: Any) -> str:
    """Name of an array of a policy: the path to it, with dots."""
    return keystr(path, simple=True, separator=".")
