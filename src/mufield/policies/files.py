"""Policies in files: one safetensors file, of arrays and a JSON document that describes them.

No part of a file is ever run as code. The document names a kind from a fixed table; the kind says
which arrays of which shapes there must be, and only those are read.
"""

import errno
import hashlib
import json
import os
import reprlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_flatten_with_path
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_safetensors

from .._files import write_bytes
from ..errors import UserError
from ..space.measure import MASS_TOLERANCE
from .base import AbstractPolicy, FunctionPolicy, Profile
from .document import VERSION, Document, Layout, describe_kind, leaf_name, parse_document

_ENTRY = "mufield"  # where in the safetensors header the document is
_DIGEST = "sha256"  # and its checksum
_DTYPES = {"F32": "float32", "F64": "float64", "I32": "int32"}


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
        document = parse_document(text)
        _check_layout(document.layout(), {n: (a.shape, a.dtype.name) for n, a in arrays.items()})
        _check_values(arrays)
        back: Any = jax.tree.structure(document.fill(arrays))
        if back != jax.tree.structure(policy):
            raise UserError(
                "expected a policy whose parts fit each other, got one that would be read back "
                "differently; build it with mufield's own functions"
            )
        data = to_safetensors(arrays, metadata={_ENTRY: text, _DIGEST: digest(text, arrays)})
    write_bytes(Path(path), _with_sorted_header(data))


def _with_sorted_header(data: bytes) -> bytes:
    """The same file with its header in order: safetensors orders it at random.

    Equal policies then have equal bytes, whichever process wrote them.
    """
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


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
        raise UserError(f"dtype must be 'float32', 'float64' or None, got {dtype!r}")
    with _opened(path) as (document, file):
        found: Layout = {}
        for name in file.keys():  # noqa: SIM118 (it is no dictionary)
            part = file.get_slice(name)
            code = part.get_dtype()
            found[name] = (tuple(part.get_shape()), _DTYPES.get(code, code))
        _check_layout(document.layout(), found)
        arrays = {name: file.get_tensor(name) for name in found}
        _check_digest(file.metadata(), arrays)
        _check_values(arrays)
        return document.fill({name: _convert(name, arrays[name], dtype) for name in arrays})


def read_info(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The ``info`` that was saved with a policy."""
    with _opened(path) as (document, file):
        _check_digest(file.metadata(), {n: file.get_tensor(n) for n in file.keys()})  # noqa: SIM118
        return document.info


def read_precision(path: str | os.PathLike[str]) -> str:
    """The widest number format of a policy file: ``"float32"`` or ``"float64"``."""
    with _opened(path) as (document, _):
        return "float64" if "float64" in document.dtypes.values() else "float32"


def digest(text: str, arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of a description and its arrays: a changed bit anywhere gives another."""
    total = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        total.update(name.encode() + b"\0")
        total.update(np.ascontiguousarray(arrays[name]).tobytes())
    return total.hexdigest()


def _check_digest(metadata: Mapping[str, str], arrays: Mapping[str, np.ndarray]) -> None:
    if metadata.get(_DIGEST) != digest(metadata[_ENTRY], arrays):
        raise UserError(
            "expected contents that match the file's checksum, got others: it was damaged or "
            "changed by hand; copy it again or save the policy anew"
        )


def _describe(policy: Any, info: dict[str, Any]) -> tuple[dict[str, np.ndarray], str]:
    """The arrays of a policy, and the document that describes them."""
    whole, horizon, stacked = policy, None, {}
    if isinstance(policy, Profile):
        whole, horizon = policy.join(policy.per_step), policy.horizon
        stacked = _leaves(policy.per_step)
    if isinstance(whole, FunctionPolicy) or not isinstance(whole, AbstractPolicy):
        raise UserError(
            f"expected a policy or a profile, got {type(whole).__name__}; code is never stored: "
            "write a function's actions into a TablePolicy, or use a network"
        )
    # safetensors takes the memory as it lies, so it must be contiguous.
    arrays = {name: np.asarray(leaf, order="C") for name, leaf in _leaves(whole).items()}
    document = describe_kind(whole) | {
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
        raise UserError(
            "info must hold only what JSON can: text, finite numbers, true, false, null, lists "
            f"and dictionaries ({error})"
        ) from error


def _check_layout(expected: Layout, found: Layout) -> None:
    for name in sorted(expected.keys() | found.keys()):
        (want, got) = (
            "no such array" if name not in where else "{1} of the shape {0}".format(*where[name])
            for where in (expected, found)
        )
        if want != got:
            raise UserError(f"{name}: expected {want}, got {got}; save the policy anew")


def _check_values(arrays: Mapping[str, np.ndarray]) -> None:
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise UserError(
                f"{name}: expected finite numbers, got NaN or infinity; train the policy anew"
            )
    weights = arrays.get("weights")
    if weights is None:
        return
    # Bounded before they are summed, so that the sum cannot overflow.
    bounded = np.all((weights >= 0) & (weights <= 1 + MASS_TOLERANCE))
    if not bounded or np.any(np.abs(weights.sum(axis=-1, dtype=float) - 1) > MASS_TOLERANCE):
        raise UserError(
            "weights: expected probabilities that sum to 1 in each cell, got others; normalise them"
        )


def _convert(name: str, array: np.ndarray, dtype: str | None) -> jax.Array:
    if dtype is not None and array.dtype.kind == "f":
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
    # A copy, because JAX may otherwise go on looking at memory that is the file's.
    return jnp.array(array)


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[tuple[Document, Any]]:
    if not os.path.exists(path):
        raise FileNotFoundError(errno.ENOENT, "there is no policy file", os.fspath(path))
    with _blaming(f"cannot load a policy from {os.fspath(path)}"):
        if not os.path.isfile(path):
            raise UserError("expected a file, got a directory or device")
        with safe_open(path, framework="np") as file:
            text = (file.metadata() or {}).get(_ENTRY)
            if text is None:
                raise UserError("it is a safetensors file, but not one of mufield.save_policy")
            yield parse_document(text), file


@contextmanager
def _blaming(what: str) -> Iterator[None]:
    """Turns all that can be wrong with a policy or a file into one kind of error."""
    try:
        yield
    except SafetensorError as error:
        raise UserError(
            f"{what}: expected a file of mufield.save_policy, got another or a damaged one "
            f"({error}); copy or save it again"
        ) from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(key) for key in first["loc"]) or "its description"
        raise UserError(
            f"{what}: {where} is wrong ({first['msg']}), got {reprlib.repr(first['input'])}; "
            "save the policy anew"
        ) from error
    except ValueError as error:
        raise UserError(f"{what}: {error}") from error


def _leaves(tree: Any) -> dict[str, Any]:
    return {leaf_name(path): leaf for path, leaf in tree_flatten_with_path(tree)[0]}
