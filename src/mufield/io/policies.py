"""Policies in sealed files: arrays, and a JSON document that describes them.

No part of a file is ever run as code. The document says whether the policy is a table, a network or
of a class that the reading program has registered; from that follow the names and shapes of its
arrays, which are checked before reading.
"""

import dataclasses
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

from ..checks import distribution, finite
from ..errors import UserError
from ..policies.base import OWN_POLICIES, AbstractPolicy, Profile
from ..policies.encoders import ENCODERS
from ..policies.network import NetworkPolicy
from ..policies.tables import TablePolicy
from ..space.grid import Grid
from ..space.nodes import Nodes
from .policy_document import PolicyDocument, leaf_name
from .sealed import Layout, read_sealed, write_sealed


def save_policy(
    path: str | os.PathLike[str], policy: Any, *, info: dict[str, Any] | None = None
) -> None:
    """Writes a policy or a profile to a file, whole or not at all.

    Args:
        path: The file. One that exists is replaced, but only once the new one is complete.
        policy: A `TablePolicy`, a `NetworkPolicy`, a policy of a class of your own that
            `mf.policies.saved_as` registered, or a profile of them. Functions are refused.
        info: Anything to keep with it that JSON can hold; tuples come back as lists.
    """
    with _blaming(f"cannot save the policy to {os.fspath(path)}"):
        document, arrays = plain(policy)
        document |= {
            "version": PolicyDocument.latest,
            "mufield": version("mufield"),
            "info": info or {},
        }
        # The checks of reading come first, so that nothing is written that cannot be read.
        parsed = _parse(document)
        for name, (dtype, shape) in parsed.layout().items():
            array = arrays[name]
            if (array.dtype.name, array.shape) != (dtype, shape):
                raise UserError(
                    f"{name}: expected {dtype} of the shape {shape}, got {array.dtype.name} of "
                    f"the shape {array.shape}"
                )
        _check_values(parsed, arrays)
        back: Any = jax.tree.structure(parsed.fill(arrays))
        if back != jax.tree.structure(policy):
            raise UserError(
                "expected a policy whose parts fit each other, got one that would be read back "
                "differently; build it with mufield's own functions"
            )
    write_sealed(Path(path), document, arrays, kind=PolicyDocument.file_kind)


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
    words = {kind: word for word, kind in ENCODERS.items()}
    if isinstance(whole, NetworkPolicy) and type(whole.mu) in words:
        kind = {
            "kind": "network",
            "grid": grid_entries(whole.grid),
            "actions": {"lower": list(whole.box.lower), "upper": list(whole.box.upper)},
            "mu": {"kind": words[type(whole.mu)], **dataclasses.asdict(whole.mu)},
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
    elif type(whole) in OWN_POLICIES.values():
        kind = _own(whole, _leaves(by_step))
    else:
        raise UserError(
            "expected a TablePolicy, a NetworkPolicy with one of mufield's own encoders, or one "
            f"registered with @mf.policies.saved_as, got {type(whole).__name__}; code is never "
            "stored: register the class, or write what it does into a TablePolicy"
        )
    arrays = {name: np.asarray(leaf, order="C") for name, leaf in _leaves(whole).items()}
    document = {
        "policy": kind,
        "horizon": horizon,
        "stacked": list(_leaves(by_step)),
        "dtypes": {name: array.dtype.name for name, array in arrays.items()},
    }
    return document, arrays


def _own(policy: Any, stacked: Mapping[str, Any]) -> dict[str, Any]:
    """What describes a policy of a class of the user's own."""
    name = next(name for name, kind in OWN_POLICIES.items() if kind is type(policy))
    values = {field.name: getattr(policy, field.name) for field in dataclasses.fields(policy)}
    arrays = _leaves(policy)
    settings = {field: value for field, value in values.items() if field not in arrays}
    odd = [each for each in arrays if each not in values or not hasattr(arrays[each], "shape")]
    if odd:
        raise UserError(f"expected fields that are arrays or static, got {', '.join(odd)}")
    shapes = {each: list(leaf.shape[each in stacked :]) for each, leaf in arrays.items()}
    return {"kind": "own", "name": name, "settings": settings, "arrays": shapes}


def grid_entries(grid: Grid) -> dict[str, Any]:
    """A grid as JSON can hold it; the wall mask is packed into bits, in hexadecimal.

    Of nodes also their names and successors.
    """
    more: dict[str, Any] = {}
    if isinstance(grid, Nodes):
        listed = None if grid.successors is None else grid.successors.tolist()
        more = {"names": list(grid.names), "successors": listed}
    return {
        "lower": list(grid.lower),
        "upper": list(grid.upper),
        "shape": list(grid.shape),
        "periodic": list(grid.periodic),
        "walls": np.packbits(grid.walls).tobytes().hex(),
        **more,
    }


def _parse(document: Mapping[str, Any]) -> PolicyDocument:
    found = document.get("version")
    if isinstance(found, int) and found > PolicyDocument.latest:
        raise UserError(
            f"it was written by a newer mufield, in version {found} of the format, and this one "
            f"reads up to {PolicyDocument.latest}; upgrade mufield"
        )
    try:
        text = json.dumps(document, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(
            "info and static fields must hold only what JSON can: text, finite numbers, true, "
            f"false, null, lists and dictionaries ({error})"
        ) from error
    # From text, because only then does strict validation accept lists for tuples.
    return PolicyDocument.model_validate_json(text)


def _read(path: str | os.PathLike[str]) -> tuple[PolicyDocument, dict[str, np.ndarray]]:
    parsed: list[PolicyDocument] = []

    def layout(document: dict[str, Any]) -> Layout:
        with _blaming(f"cannot use {os.fspath(path)}"):
            parsed.append(_parse(document))
            return parsed[0].layout()

    arrays = read_sealed(Path(path), PolicyDocument.file_kind, layout=layout).arrays
    with _blaming(f"cannot use {os.fspath(path)}"):
        _check_values(parsed[0], arrays)
    return parsed[0], arrays


def _check_values(document: PolicyDocument, arrays: Mapping[str, np.ndarray]) -> None:
    for name, array in arrays.items():
        finite(array, name, "train the policy anew")
    if document.policy.kind == "table":
        distribution(arrays["weights"], "weights", "normalise the weights of each cell")


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
