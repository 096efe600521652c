"""Policies in sealed files: arrays, and a JSON document that describes them.

No part of a file is ever run as code. The document says whether the policy is a table, a network or
of a class that the reading program has registered. What was read is described again, and refused
unless that gives the same document.
"""

import dataclasses
import itertools
import json
import os
import reprlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path, tree_map_with_path

from ..actions import Box
from ..errors import UserError, distribution, finite, whole_number
from ..policies.base import OWN_POLICIES, AbstractPolicy, Profile
from ..policies.encoders import ENCODERS, position_size
from ..policies.network import NetworkPolicy
from ..policies.shocks import ByShock
from ..policies.tables import TablePolicy
from .grids import grid_entries, read_grid
from .sealed import Sealed, read_sealed, require, write_sealed

POLICY_FORMAT = 2
"""Version of the files; those of later versions are refused."""


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
        document, arrays = policy_document(policy)
        about = {"version": POLICY_FORMAT, "mufield": version("mufield"), "info": info or {}}
        # As it will be read: nothing is written that cannot be.
        back = _build(_as_json(document), arrays, {n: jnp.asarray(a) for n, a in arrays.items()})
        wanted: Any = jax.tree.structure(policy)
        if jax.tree.structure(back) != wanted:
            raise UserError("its parts do not fit each other; build it with functions of mufield")
        _as_json(about)
        if not Path(path).parent.is_dir():
            raise UserError(f"there is no directory {Path(path).parent}; make it first")
    write_sealed(Path(path), document | about, arrays, kind="policy")


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
        converted = {name: _convert(name, array, dtype) for name, array in arrays.items()}
        return _build(document, arrays, converted)


def read_info(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The ``info`` that was saved with a policy."""
    return dict(_read(path).document["info"])


def read_precision(path: str | os.PathLike[str]) -> str:
    """The widest number format of a policy file: ``"float32"`` or ``"float64"``."""
    return max(array.dtype.name for array in _read(path).arrays.values())


def policy_document(policy: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The document that describes a policy or a profile, and its arrays by name."""
    whole, horizon, by_step = policy, None, None
    if isinstance(policy, Profile):
        whole, horizon, by_step = policy.join(policy.per_step), policy.horizon, policy.per_step
    words = {kind: word for word, kind in ENCODERS.items()}
    leaves, memory = _leaves(whole), None
    if isinstance(whole, ByShock):
        memory, whole = whole.memory, whole.policy
    if isinstance(whole, NetworkPolicy) and type(whole.encoder) in words:
        kind: dict[str, Any] = {
            "kind": "network",
            "grid": grid_entries(whole.grid),
            "actions": {"lower": list(whole.box.lower), "upper": list(whole.box.upper)},
            "mu": {"kind": words[type(whole.encoder)], **dataclasses.asdict(whole.encoder)},
            "widths": [whole.bias.shape[-1], *(b.shape[-1] for _, b in whole.hidden[:-1])],
        }
    elif type(whole) is TablePolicy:
        rows, moves, dim = whole.actions.shape[-3:]
        sizes = {"action_rows": rows, "moves": moves, "action_dim": dim}
        kind = {"kind": "table", **sizes, "weight_rows": whole.weights.shape[-2]}
        if whole.grid is not None:
            kind["grid"] = grid_entries(whole.grid)
    elif type(whole) in OWN_POLICIES.values():
        name = next(name for name, kind in OWN_POLICIES.items() if kind is type(whole))
        values = {field.name: getattr(whole, field.name) for field in dataclasses.fields(whole)}
        odd = [n for n, a in _leaves(whole).items() if n not in values or not hasattr(a, "shape")]
        if odd:
            raise UserError(f"expected fields that are arrays or static, got {', '.join(odd)}")
        settings = {field: values[field] for field in values.keys() - _leaves(whole).keys()}
        kind = {"kind": "own", "name": name, "settings": settings}
    else:
        raise UserError(
            "expected a TablePolicy, a NetworkPolicy with one of mufield's own encoders, or one "
            f"registered with @mf.policies.saved_as, got {type(whole).__name__}; code is never "
            "stored: register the class, or write what it does into a TablePolicy"
        )
    kind |= {} if memory is None else {"shocks_seen": memory}
    arrays = {name: np.asarray(leaf, order="C") for name, leaf in leaves.items()}
    return {"policy": kind, "horizon": horizon, "stacked": list(_leaves(by_step))}, arrays


def leaf_name(path: Any) -> str:
    """Name of an array in a pytree: the path to it, joined by dots."""
    return keystr(path, simple=True, separator=".")


def _leaves(tree: Any) -> dict[str, Any]:
    return {leaf_name(path): leaf for path, leaf in tree_flatten_with_path(tree)[0]}


def _read(path: str | os.PathLike[str]) -> Sealed:
    sealed = read_sealed(Path(path), "policy")
    found = sealed.document.get("version")
    if isinstance(found, int) and not 1 <= found <= POLICY_FORMAT:
        raise UserError(
            f"{os.fspath(path)} is in version {found} of the format, perhaps of a newer mufield; "
            f"this one reads 1 to {POLICY_FORMAT}: upgrade mufield"
        )
    require(Path(path), sealed, {"version": int, "policy": dict, "stacked": list, "info": dict})
    return sealed


def _build(
    document: Mapping[str, Any], arrays: Mapping[str, np.ndarray], converted: Mapping[str, Any]
) -> Profile | AbstractPolicy:
    """The policy that a document describes, of the converted arrays; raises if it is not sound."""
    about, horizon, stacked = document["policy"], document["horizon"], set(document["stacked"])
    if stacked and horizon is None:
        raise UserError("expected a horizon, as there are arrays with one slice for each step")
    if any(arrays[name].shape[:1] != (horizon,) for name in stacked):
        raise UserError(f"expected {horizon} slices of arrays that differ from step to step")
    makers = {"table": _table, "network": _network, "own": _own}
    first = {name: each[0] if name in stacked else each for name, each in converted.items()}
    seen = about.get("shocks_seen")
    if seen is not None:
        parts = {each.shape[0] for each in first.values()}
        if not 0 <= whole_number(seen, "shocks_seen", 0) <= 64 or len(parts) != 1:
            raise UserError(f"expected a policy for each of the last shocks, got {parts} of {seen}")
        first = {name.removeprefix("policy."): each[0] for name, each in first.items()}
    one = makers[about["kind"]](about, first)  # constructors check the shapes of one step
    _check_shapes(one, {name: each.shape for name, each in first.items()})
    one = one if seen is None else ByShock(one, seen)
    policy = tree_map_with_path(lambda path, _: converted[leaf_name(path)], one)
    profile: Profile | AbstractPolicy = policy
    if horizon is not None:
        mask = tree_map_with_path(lambda path, _: leaf_name(path) in stacked, policy)
        profile = Profile.stationary(policy, horizon)  # raises if that is no number of steps
        profile = Profile(*eqx.partition(policy, mask), horizon) if stacked else profile
    for name, array in arrays.items():
        if array.dtype.name not in ("float32", "float64"):
            raise UserError(f"{name}: expected float32 or float64, got {array.dtype.name}")
        finite(array, name, "train the policy anew")
    if about["kind"] == "table":
        found = arrays["weights" if seen is None else "policy.weights"]
        distribution(found, "weights", "normalise the weights of each cell")
    for name, found in policy_document(profile)[0].items():  # as text, in which true is not 1
        want, got = (json.dumps(each, sort_keys=True) for each in (found, document[name]))
        if want != got:
            what = f"expected {reprlib.repr(want)}, got {reprlib.repr(got)}"
            raise UserError(f"its {name} is not what it describes: {what}")
    return profile


def _check_shapes(policy: AbstractPolicy, found: Mapping[str, tuple[int, ...]]) -> None:
    """Raises unless the arrays of one step fit each other; ``found`` are their shapes."""
    expected = dict(found)
    if isinstance(policy, TablePolicy):
        rows, moves, dim = (0, 0, 0, *found["actions"])[-3:]
        weight_rows = rows if min(rows, *found["weights"][:1]) != 1 else found["weights"][0]
        expected = {"actions": (rows, moves, dim), "weights": (weight_rows, moves)}
    elif isinstance(policy, NetworkPolicy):
        widths = [policy.bias.shape[-1], *(bias.shape[-1] for _, bias in policy.hidden)]
        widths[-1] = policy.box.dim
        inputs = {"state": position_size(policy.grid), "mu": policy.encoder.size(policy.grid)}
        expected = {f"from_{name}": (widths[0], size) for name, size in inputs.items()}
        expected["bias"] = (widths[0],)
        for layer, (into, out) in enumerate(itertools.pairwise(widths)):
            expected |= {f"hidden.{layer}.0": (out, into), f"hidden.{layer}.1": (out,)}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            want, got = (shapes.get(name, "no array") for shapes in (expected, found))
            raise UserError(f"{name}: expected the shape {want}, got {got}")


def _table(about: Mapping[str, Any], arrays: Mapping[str, Any]) -> TablePolicy:
    grid = read_grid(about["grid"]) if "grid" in about else None
    return TablePolicy(arrays["actions"], arrays["weights"], grid)


def _network(about: Mapping[str, Any], arrays: Mapping[str, Any]) -> NetworkPolicy:
    layers = range(sum(name.startswith("hidden.") for name in arrays) // 2)
    hidden = tuple((arrays[f"hidden.{n}.0"], arrays[f"hidden.{n}.1"]) for n in layers)
    first = {name: arrays[name] for name in ("from_state", "from_mu", "bias")}
    word, settings = about["mu"]["kind"], {n: v for n, v in about["mu"].items() if n != "kind"}
    if word not in ENCODERS:
        raise UserError(f"expected one of the encoders {sorted(ENCODERS)}, got {word!r}")
    encoder, grid = ENCODERS[word](**settings), read_grid(about["grid"])
    box = Box(**about["actions"])
    return NetworkPolicy(hidden=hidden, box=box, grid=grid, encoder=encoder, **first)


def _own(about: Mapping[str, Any], arrays: Mapping[str, Any]) -> AbstractPolicy:
    """A policy of a registered class; fields are set without a constructor: nothing of it runs."""
    kind = OWN_POLICIES.get(about["name"])
    if kind is None:
        raise UserError(
            f"expected a policy class registered as {about['name']!r}, got none; import the module "
            "that has it with @mf.policies.saved_as"
        )

    def hashable(value: Any) -> Any:
        return tuple(map(hashable, value)) if isinstance(value, list) else value

    values = {name: hashable(value) for name, value in about["settings"].items()} | dict(arrays)
    if values.keys() != {field.name for field in dataclasses.fields(kind)}:
        got = reprlib.repr(sorted(values))
        raise UserError(f"expected the fields of {kind.__name__}, got {got}")
    policy = object.__new__(kind)
    for name, value in values.items():
        object.__setattr__(policy, name, value)
    return policy


def _convert(name: str, array: np.ndarray, dtype: str | None) -> jax.Array:
    if dtype is not None:
        with np.errstate(over="ignore"):
            array = array.astype(dtype)
        if not np.isfinite(array).all():
            raise UserError(f"{name}: expected the range of {dtype}, got larger; leave out dtype")
    if array.dtype == np.float64 and jnp.result_type(float) != np.float64:
        raise UserError(
            f"{name}: float64 numbers would lose precision, because JAX is set to 32 bits; call "
            "jax.config.update('jax_enable_x64', True) at the start, or pass dtype='float32'"
        )
    # A copy, because JAX might otherwise share the memory of the file's buffer.
    return jnp.array(array)


def _as_json(document: Any) -> Any:
    """What a document will be once it is written and read again."""
    try:
        return json.loads(json.dumps(document, allow_nan=False, ensure_ascii=False).encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(
            "info and static fields must hold only what JSON can: text, finite numbers, true, "
            f"false, null, lists and dictionaries ({error})"
        ) from error


@contextmanager
def _blaming(what: str) -> Iterator[None]:
    """Says of errors to what they belong; a forged document can cause any of these."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{what}: {error}") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(f"{what}: it is no sound policy ({error!r:.200}); save it anew") from error
