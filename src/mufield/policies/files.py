"""Policies in files: one safetensors file, of arrays and a JSON document that describes them.

No part of a file is ever run as code. The document names a kind from a fixed table; the kind says
which arrays of which shapes there must be, and only those are read.
"""

import errno
import json
import math
import os
import reprlib
import secrets
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
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_safetensors

from ..problem import Box
from ..space.grid import Grid
from ..space.measure import MASS_TOLERANCE
from .base import AbstractPolicy, FunctionPolicy, Profile
from .encoders import AbstractEncoder, NoEncoder, PooledEncoder, RawEncoder
from .network import NetworkPolicy
from .randomised import RandomisedPolicy, UniformRandom
from .tabular import TabularPolicy

VERSION = 1
"""Of the format; files of later versions are refused."""

_ENTRY = "mufield"  # where in the safetensors header the document is
_DTYPES = {"F32": "float32", "F64": "float64", "I32": "int32"}
_ENCODERS = {NoEncoder: "none", RawEncoder: "raw", PooledEncoder: "pooled"}
# The kinds that are nothing but tables, with the axes of each array.
_TABLES: dict[str, tuple[type[AbstractPolicy], dict[str, tuple[str, str]]]] = {
    "tabular": (TabularPolicy, {"actions": ("cells", "action_dim")}),
    "randomised": (
        RandomisedPolicy,
        {"actions": ("moves", "action_dim"), "weights": ("cells", "moves")},
    ),
    "uniform": (UniformRandom, {"actions": ("moves", "action_dim")}),
}

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


class _Document(_Heading):
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
            raise ValueError(
                f"expected the description of {len(shapes)} arrays, got too many or too few: "
                f"{reprlib.repr(sorted(odd))}"
            )
        if stacked and self.horizon is None:
            raise ValueError("expected a horizon, as there are arrays with one slice for each step")
        steps = () if self.horizon is None else (self.horizon,)
        return {
            name: (steps + shape if name in stacked else shape, self.dtypes[name])
            for name, shape in shapes.items()
        }

    def fill(self, arrays: Mapping[str, Any]) -> Profile | AbstractPolicy:
        """The policy with these arrays."""
        # Filled into a finished tree, because constructors ask for the shapes of one step.
        policy: AbstractPolicy = tree_map_with_path(
            lambda path, _: arrays[_name(path)], self.skeleton()
        )
        if self.horizon is None:
            return policy
        if not self.stacked:
            return Profile.stationary(policy, self.horizon)
        stacked = set(self.stacked)
        mask = tree_map_with_path(lambda path, _: _name(path) in stacked, policy)
        return Profile(*eqx.partition(policy, mask), horizon=self.horizon)


class _Table(_Document):
    sizes: dict[str, PositiveInt]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        arrays = _TABLES[self.kind][1]
        axes = {axis for pair in arrays.values() for axis in pair}
        if set(self.sizes) != axes:
            raise ValueError(f"expected the sizes of {sorted(axes)}, got {sorted(self.sizes)}")
        return {name: (self.sizes[a], self.sizes[b]) for name, (a, b) in arrays.items()}

    def skeleton(self) -> AbstractPolicy:
        kind, arrays = _TABLES[self.kind]
        return kind(**dict.fromkeys(arrays, jnp.zeros((1, 1))))


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
            raise ValueError(f"expected walls for {count} cells, got {8 * len(bits)} bits")
        walls = np.unpackbits(bits, count=count).astype(bool).reshape(self.shape)
        return Grid(self.lower, self.upper, self.shape, self.periodic, walls)


class _Encoder(_Part):
    kind: Literal["none", "raw", "pooled"]
    blocks: tuple[int, ...] = ()

    def build(self, grid: Grid) -> AbstractEncoder:
        if self.kind != "pooled":
            return NoEncoder() if self.kind == "none" else RawEncoder(size=grid.n_cells)
        used = set(self.blocks)
        if len(self.blocks) != grid.n_cells or used != set(range(len(used))):
            raise ValueError(
                f"expected one of the blocks 0, 1, ... for each of {grid.n_cells} free cells, got "
                f"{len(self.blocks)} entries from {min(used, default=0)} to {max(used, default=0)}"
            )
        return PooledEncoder(blocks=self.blocks, size=len(used))


class _Network(_Document):
    grid: _Grid
    actions: _Box
    encoder: _Encoder
    widths: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        policy, first = self.skeleton(), self.widths[0]
        shapes: dict[str, tuple[int, ...]] = {
            "from_state": (first, policy.grid.dim + sum(policy.grid.periodic)),
            "from_mu": (first, policy.encoder.size),
            "bias": (first,),
        }
        outputs = (*self.widths[1:], policy.box.dim)
        for layer, (into, out) in enumerate(zip(self.widths, outputs, strict=True)):
            shapes |= {f"hidden.{layer}.0": (out, into), f"hidden.{layer}.1": (out,)}
        return shapes

    def skeleton(self) -> NetworkPolicy:
        vector, matrix, grid = jnp.zeros((1,)), jnp.zeros((1, 1)), self.grid.build()
        hidden = ((matrix, vector),) * len(self.widths)
        box = Box(self.actions.lower, self.actions.upper)
        return NetworkPolicy(matrix, matrix, vector, hidden, self.encoder.build(grid), grid, box)


_KINDS: dict[str, type[_Document]] = {"network": _Network, **dict.fromkeys(_TABLES, _Table)}


def save_policy(
    path: str | os.PathLike[str], policy: Any, *, info: dict[str, Any] | None = None
) -> None:
    """Writes a policy or a profile to a file, whole or not at all.

    Args:
        path: The file. One that exists is replaced, but only once the new one is complete.
        policy: A profile or a policy of mufield's own kinds. Functions are refused.
        info: What to keep with it, of values that JSON has; tuples come back as lists.
    """
    with _blaming(f"cannot save the policy to {os.fspath(path)}"):
        arrays, text = _describe(policy, info or {})
        # What is written must be readable: it passes the checks of reading first.
        document = _parse(text)
        _check_layout(document.layout(), {n: (a.shape, a.dtype.name) for n, a in arrays.items()})
        _check_values(arrays)
        back: Any = jax.tree.structure(document.fill(arrays))
        if back != jax.tree.structure(policy):
            raise ValueError(
                "expected a policy whose parts fit each other, got one that would be read back "
                "differently; build it with mufield's own functions"
            )
        data = to_safetensors(arrays, metadata={_ENTRY: text})
    _write(Path(path), data)


def load_policy(
    path: str | os.PathLike[str], *, dtype: str | None = None
) -> Profile | AbstractPolicy:
    """Reads what `save_policy` wrote: a profile if a profile was saved, else a policy.

    Args:
        path: The file.
        dtype: ``"float32"`` or ``"float64"`` to convert to. By default nothing is converted.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file holds anything but a sound policy.
    """
    if dtype not in (None, "float32", "float64"):
        raise ValueError(f"dtype must be 'float32', 'float64' or None, got {dtype!r}")
    with _opened(path) as (document, file):
        found: Layout = {}
        for name in file.keys():  # noqa: SIM118 (it is no dictionary)
            part = file.get_slice(name)
            code = part.get_dtype()
            found[name] = (tuple(part.get_shape()), _DTYPES.get(code, code))
        _check_layout(document.layout(), found)
        arrays = {name: file.get_tensor(name) for name in found}
        _check_values(arrays)
        return document.fill({name: _convert(name, arrays[name], dtype) for name in arrays})


def read_info(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The ``info`` that was saved with a policy, without reading the arrays."""
    with _opened(path) as (document, _):
        return document.info


def _describe(policy: Any, info: dict[str, Any]) -> tuple[dict[str, np.ndarray], str]:
    """The arrays of a policy, and the document that describes them."""
    whole, horizon, stacked = policy, None, {}
    if isinstance(policy, Profile):
        whole, horizon = policy.join(policy.per_step), policy.horizon
        stacked = _leaves(policy.per_step)
    if isinstance(whole, FunctionPolicy) or not isinstance(whole, AbstractPolicy):
        raise ValueError(
            f"expected a policy or a profile, got {type(whole).__name__}; code is never stored: "
            "write a function's actions into a TabularPolicy, or use a network"
        )
    # safetensors takes the memory as it lies, so it must be contiguous.
    arrays = {name: np.asarray(leaf, order="C") for name, leaf in _leaves(whole).items()}
    document = _describe_kind(whole) | {
        "format": "mufield-policy",
        "version": VERSION,
        "mufield": version("mufield"),
        "horizon": horizon,
        "stacked": list(stacked),
        "dtypes": {name: array.dtype.name for name, array in arrays.items()},
        "info": info,
    }
    try:
        return arrays, json.dumps(document, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            "info must hold only what JSON can: text, finite numbers, true, false, null, lists "
            f"and dictionaries ({error})"
        ) from error


def _describe_kind(policy: AbstractPolicy) -> dict[str, Any]:
    if isinstance(policy, NetworkPolicy) and type(policy.encoder) in _ENCODERS:
        grid, encoder, box = policy.grid, policy.encoder, policy.box
        fields = {"lower": grid.lower, "upper": grid.upper, "shape": grid.shape}
        walls = np.packbits(grid.walls).tobytes().hex()
        blocks = encoder.blocks if isinstance(encoder, PooledEncoder) else ()
        return {
            "kind": "network",
            "grid": fields | {"periodic": grid.periodic, "walls": walls},
            "actions": {"lower": box.lower, "upper": box.upper},
            "encoder": {"kind": _ENCODERS[type(encoder)], "blocks": blocks},
            "widths": [policy.bias.shape[-1], *(b.shape[-1] for _, b in policy.hidden[:-1])],
        }
    for kind, (table, arrays) in _TABLES.items():
        if type(policy) is table:
            sizes: dict[str, int] = {}
            for name, axes in arrays.items():
                # Arrays with too few axes are found out when shapes are compared.
                shape = (1, 1, *np.shape(getattr(policy, name)))
                sizes |= dict(zip(axes, shape[-2:], strict=True))
            return {"kind": kind, "sizes": sizes}
    raise ValueError(
        f"expected one of the kinds {sorted(_KINDS)} with mufield's own encoders, got "
        f"{type(policy).__name__}; write its actions into a TabularPolicy"
    )


def _parse(text: str) -> _Document:
    heading = _Heading.model_validate_json(text)
    if heading.version > VERSION:
        raise ValueError(
            f"it was written by a newer mufield, in version {heading.version} of the format, and "
            f"this one reads up to {VERSION}; upgrade mufield"
        )
    if heading.kind not in _KINDS:
        raise ValueError(
            f"expected one of the kinds {sorted(_KINDS)}, got {heading.kind!r}; save it anew"
        )
    return _KINDS[heading.kind].model_validate_json(text)


def _check_layout(expected: Layout, found: Layout) -> None:
    for name in sorted(expected.keys() | found.keys()):
        (want, got) = (
            "no such array" if name not in where else "{1} of the shape {0}".format(*where[name])
            for where in (expected, found)
        )
        if want != got:
            raise ValueError(f"{name}: expected {want}, got {got}; save the policy anew")


def _check_values(arrays: Mapping[str, np.ndarray]) -> None:
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise ValueError(
                f"{name}: expected finite numbers, got NaN or infinity; train the policy anew"
            )
    weights = arrays.get("weights")
    if weights is None:
        return
    # Bounded before they are summed, so that the sum cannot overflow.
    bounded = np.all((weights >= 0) & (weights <= 1 + MASS_TOLERANCE))
    if not bounded or np.any(np.abs(weights.sum(axis=-1, dtype=float) - 1) > MASS_TOLERANCE):
        raise ValueError(
            "weights: expected probabilities that sum to 1 in each cell, got others; normalise them"
        )


def _convert(name: str, array: np.ndarray, dtype: str | None) -> jax.Array:
    if dtype is not None and array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            array = array.astype(dtype)
        if not np.isfinite(array).all():
            raise ValueError(
                f"{name}: expected numbers in the range of {dtype}, got larger; leave out dtype"
            )
    if array.dtype == np.float64 and jnp.result_type(float) != np.float64:
        raise ValueError(
            f"{name}: float64 numbers would lose precision, because JAX is set to 32 bits; call "
            "jax.config.update('jax_enable_x64', True) at the start, or pass dtype='float32'"
        )
    # A copy, because JAX may otherwise go on looking at memory that is the file's.
    return jnp.array(array)


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[tuple[_Document, Any]]:
    if not os.path.exists(path):
        raise FileNotFoundError(errno.ENOENT, "there is no policy file", os.fspath(path))
    with _blaming(f"cannot load a policy from {os.fspath(path)}"):
        if not os.path.isfile(path):
            raise ValueError("expected a file, got a directory or device")
        with safe_open(path, framework="np") as file:
            text = (file.metadata() or {}).get(_ENTRY)
            if text is None:
                raise ValueError("it is a safetensors file, but not one of mufield.save_policy")
            yield _parse(text), file


@contextmanager
def _blaming(what: str) -> Iterator[None]:
    """Turns all that can be wrong with a policy or a file into one kind of error."""
    try:
        yield
    except SafetensorError as error:
        raise ValueError(
            f"{what}: expected a file of mufield.save_policy, got another or a damaged one "
            f"({error}); copy or save it again"
        ) from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(key) for key in first["loc"]) or "its description"
        raise ValueError(
            f"{what}: {where} is wrong ({first['msg']}), got {reprlib.repr(first['input'])}; "
            "save the policy anew"
        ) from error
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from error


def _write(path: Path, data: bytes) -> None:
    # In the same directory, as only there can it take the old file's place at one stroke.
    temporary = path.parent / f".mufield-{secrets.token_hex(8)}.tmp"
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _leaves(tree: Any) -> dict[str, Any]:
    return {_name(path): leaf for path, leaf in tree_flatten_with_path(tree)[0]}


def _name(path: Any) -> str:
    return keystr(path, simple=True, separator=".")
