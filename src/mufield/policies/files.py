"""Policies in sealed files: arrays, and a JSON document that describes them.

No part of a file is ever run as code. The document says whether the policy is a table or a
network; from that follow the names and shapes of its arrays, which are checked before reading.
"""

import dataclasses
import json
import math
import os
import reprlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path, tree_map_with_path
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from .._files import Layout, read_sealed, write_sealed
from ..errors import UserError
from ..problem import Box
from ..space.grid import Grid
from ..space.measure import MASS_TOLERANCE
from .base import AbstractPolicy, Profile
from .encoders import ENCODERS, WORDS, AbstractEncoder, position_size
from .network import NetworkPolicy
from .tables import TablePolicy

KIND = "policy"
MOST_POINTS = 100
"""Actions of a network on each axis; more would only take memory and time."""

VERSION = 2
"""Version of the document; files of later versions are refused."""


def save_policy(
    path: str | os.PathLike[str], policy: Any, *, info: dict[str, Any] | None = None
) -> None:
    """Writes a policy or a profile to a file, whole or not at all.

    Args:
        path: The file. One that exists is replaced, but only once the new one is complete.
        policy: A `TablePolicy`, a `NetworkPolicy` or a profile of them. Functions are refused.
        info: Anything to keep with it that JSON can hold; tuples come back as lists.
    """
    with _blaming(f"cannot save the policy to {os.fspath(path)}"):
        document, arrays = plain(policy)
        document |= {"version": VERSION, "mufield": version("mufield"), "info": info or {}}
        # The checks of reading come first, so that nothing is written that cannot be read.
        parsed = _parse(document)
        for name, (dtype, shape) in parsed.layout().items():
            array = arrays[name]
            if (array.dtype.name, array.shape) != (dtype, shape):
                raise UserError(
                    f"{name}: expected {dtype} of the shape {shape}, got {array.dtype.name} of "
                    f"the shape {array.shape}"
                )
        _check_values(arrays)
        back: Any = jax.tree.structure(parsed.fill(arrays))
        if back != jax.tree.structure(policy):
            raise UserError(
                "expected a policy whose parts fit each other, got one that would be read back "
                "differently; build it with mufield's own functions"
            )
    write_sealed(Path(path), document, arrays, kind=KIND)


def load_policy(
    path: str | os.PathLike[str], *, dtype: str | None = None
) -> Profile | AbstractPolicy:
    """Reads what `save_policy` wrote: a profile if a profile was saved, else a policy.

    Args:
        path: The file.
        dtype: ``"float32"`` or ``"float64"`` to convert to. By default nothing is converted.

    Raises:
        UserError: If there is no such file, or it holds anything but a sound policy.
    """
    if dtype not in (None, "float32", "float64"):
        raise UserError(f"dtype must be 'float32', 'float64' or None, got {dtype!r}")
    document, arrays = _read(path)
    with _blaming(f"cannot use {os.fspath(path)}"):
        return document.fill({name: _convert(name, arrays[name], dtype) for name in arrays})


def read_info(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The ``info`` that was saved with a policy."""
    return _read(path)[0].info


def read_precision(path: str | os.PathLike[str]) -> str:
    """The widest number format of a policy file: ``"float32"`` or ``"float64"``."""
    return max(_read(path)[0].dtypes.values())


def plain(policy: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The document that describes a policy or a profile, and its arrays by name."""
    whole, horizon, by_step = policy, None, None
    if isinstance(policy, Profile):
        whole, horizon, by_step = policy.join(policy.per_step), policy.horizon, policy.per_step
    if isinstance(whole, NetworkPolicy) and type(whole.mu) in WORDS:
        kind = {
            "kind": "network",
            "grid": grid_entries(whole.grid),
            "actions": {"lower": list(whole.box.lower), "upper": list(whole.box.upper)},
            "mu": {"kind": WORDS[type(whole.mu)], **dataclasses.asdict(whole.mu)},
            "widths": [whole.bias.shape[-1], *(b.shape[-1] for _, b in whole.hidden[:-1])],
            "points": whole.points,
        }
    elif type(whole) is TablePolicy:
        # Padded, because arrays with too few axes are refused only when shapes are compared.
        rows, moves, dim = (1, 1, 1, *whole.actions.shape)[-3:]
        sizes = {"action_rows": rows, "moves": moves, "action_dim": dim}
        kind = {"kind": "table", **sizes, "weight_rows": (1, 1, *whole.weights.shape)[-2]}
        if whole.grid is not None:
            kind["grid"] = grid_entries(whole.grid)
    else:
        raise UserError(
            "expected a TablePolicy, or a NetworkPolicy with one of mufield's own encoders, got "
            f"{type(whole).__name__}; code is never stored: write what it does into a TablePolicy"
        )
    arrays = {name: np.asarray(leaf, order="C") for name, leaf in _leaves(whole).items()}
    document = {
        "policy": kind,
        "horizon": horizon,
        "stacked": list(_leaves(by_step)),
        "dtypes": {name: array.dtype.name for name, array in arrays.items()},
    }
    return document, arrays


def grid_entries(grid: Grid) -> dict[str, Any]:
    """A grid as JSON can hold it; the wall mask is packed into bits, in hexadecimal."""
    return {
        "lower": list(grid.lower),
        "upper": list(grid.upper),
        "shape": list(grid.shape),
        "periodic": list(grid.periodic),
        "walls": np.packbits(grid.walls).tobytes().hex(),
    }


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

    def build(self) -> Grid:
        count, bits = math.prod(self.shape), np.frombuffer(bytes.fromhex(self.walls), np.uint8)
        # Before unpacking: a wrong shape must not reserve memory.
        if len(bits) != (count + 7) // 8:
            raise UserError(f"expected walls for {count} cells, got {8 * len(bits)} bits")
        walls = np.unpackbits(bits, count=count).astype(bool).reshape(self.shape)
        return Grid(self.lower, self.upper, self.shape, self.periodic, walls)


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
    points: Annotated[PositiveInt, Field(le=MOST_POINTS)]

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


class _Document(_Part):
    """The JSON document of a file.

    ``horizon`` is None for a single policy; ``stacked`` names the arrays with one slice for each
    step of a profile.
    """

    version: PositiveInt
    mufield: str
    policy: Annotated[_Table | _Network, Field(discriminator="kind")]
    horizon: PositiveInt | None
    stacked: tuple[str, ...]
    dtypes: dict[str, Literal["float32", "float64"]]
    info: dict[str, Any]

    def layout(self) -> Layout:
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


def _parse(document: Mapping[str, Any]) -> _Document:
    found = document.get("version")
    if isinstance(found, int) and found > VERSION:
        raise UserError(
            f"it was written by a newer mufield, in version {found} of the format, and this one "
            f"reads up to {VERSION}; upgrade mufield"
        )
    try:
        text = json.dumps(document, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(
            "info must hold only what JSON can: text, finite numbers, true, false, null, lists "
            f"and dictionaries ({error})"
        ) from error
    # From text, because only then does strict validation accept lists for tuples.
    return _Document.model_validate_json(text)


def _read(path: str | os.PathLike[str]) -> tuple[_Document, dict[str, np.ndarray]]:
    parsed: list[_Document] = []

    def layout(document: dict[str, Any]) -> Layout:
        with _blaming(f"cannot use {os.fspath(path)}"):
            parsed.append(_parse(document))
            return parsed[0].layout()

    arrays = read_sealed(Path(path), KIND, layout=layout).arrays
    with _blaming(f"cannot use {os.fspath(path)}"):
        _check_values(arrays)
    return parsed[0], arrays


def _check_values(arrays: Mapping[str, np.ndarray]) -> None:
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise UserError(
                f"{name}: expected finite numbers, got NaN or infinity; train the policy anew"
            )
    weights = arrays.get("weights", np.ones(1))
    # Bounded before they are summed, so that the sum cannot overflow.
    bounded = np.all((weights >= 0) & (weights <= 1 + MASS_TOLERANCE))
    if not bounded or np.any(np.abs(weights.sum(axis=-1, dtype=float) - 1) > MASS_TOLERANCE):
        raise UserError(
            "weights: expected probabilities that sum to 1 in each cell, got others; normalise them"
        )


def _convert(name: str, array: np.ndarray, dtype: str | None) -> jax.Array:
    if dtype is not None:
        with np.errstate(over="ignore"):
            array = array.astype(dtype)
        if not np.isfinite(array).all():
            raise UserError(
                f"{name}: expected numbers in the range of {dtype}, got larger; leave out dtype"
            )
    if array.dtype == np.float64 and jnp.result_type(float) != np.float64:
        raise UserError(
            f"{name}: float64 numbers would lose precision, because JAX is set to 32 bits; call "
            "jax.config.update('jax_enable_x64', True) at the start, or pass dtype='float32'"
        )
    # A copy, because JAX might otherwise share the memory of the file's buffer.
    return jnp.array(array)


@contextmanager
def _blaming(what: str) -> Iterator[None]:
    """Turns errors of validation into a UserError that begins with ``what``."""
    try:
        yield
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(key) for key in first["loc"]) or "its description"
        raise UserError(
            f"{what}: {where} is wrong ({first['msg']}), got {reprlib.repr(first['input'])}; "
            "save the policy anew"
        ) from error
    except (ValueError, OverflowError) as error:
        raise UserError(f"{what}: {error}") from error


def _leaves(tree: Any) -> dict[str, Any]:
    return {leaf_name(path): leaf for path, leaf in tree_flatten_with_path(tree)[0]}
