"""Q-learning in files: safetensors with a JSON document, checked before anything is used."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_safetensors

from .._files import write_bytes
from ..errors import UserError
from ..policies.files import digest
from .u2mfqlfh import QState

FORMAT = "mufield-u2mfqlfh-1"
_ENTRY = "mufield"  # a single entry: the order of several would differ from process to process
_CURVE = "curve."
_NUMBERS = {"scale": float, "episodes": int, "earned": float}


def write_checkpoint(
    path: Path, state: QState, settings: Mapping[str, Any], curve: Mapping[str, np.ndarray]
) -> None:
    """Writes a state, what it belongs to and its curve, whole or not at all."""
    arrays = {**_arrays(state), **{_CURVE + name: values for name, values in curve.items()}}
    plain = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    document = {
        "format": FORMAT,
        "settings": dict(settings),
        **{name: getattr(state, name) for name in _NUMBERS},
    }
    text = json.dumps(document, allow_nan=False)
    entry = json.dumps({"document": text, "sha256": digest(text, plain)})
    write_bytes(path, to_safetensors(plain, metadata={_ENTRY: entry}))


def read_checkpoint(
    path: Path, like: QState, settings: Mapping[str, Any], curve: Mapping[str, np.ndarray]
) -> tuple[QState, dict[str, np.ndarray]]:
    """Reads what `write_checkpoint` wrote, for the same settings.

    Args:
        path: The file.
        like: A state of the arrays' shapes.
        settings: What the state must belong to.
        curve: A curve of the same columns.

    Raises:
        ValueError: If the file is damaged, no checkpoint, or one of something else.
    """
    arrays, document = _read(path)
    if document.get("format") != FORMAT:
        raise _refused(path, f"the format {FORMAT}", document.get("format"))
    for name, kind in {"settings": dict, **_NUMBERS}.items():
        if type(document.get(name)) is not kind:
            raise _refused(path, f"{name}: {kind.__name__}", repr(document.get(name)))
    _check_settings(path, settings, document["settings"])
    for name, array in _arrays(like).items():
        _check_layout(path, name, arrays, array.dtype, array.shape)
    entries = document["episodes"] // settings["evaluate_every"]
    for name, values in curve.items():
        _check_layout(path, _CURVE + name, arrays, values.dtype, (entries,))
    parts: dict[str, Any] = {name: document[name] for name in _NUMBERS}
    parts |= {name: arrays[name] for name in _arrays(like)}
    state = replace(like, **parts)
    return state, {name: arrays[_CURVE + name] for name in curve}


def _arrays(state: QState) -> dict[str, np.ndarray]:
    return {name: getattr(state, name) for name in ("q", "visits", "weights", "generator")}


def _read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    if not path.is_file():
        raise _refused(path, "a file", "a directory or device")
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise _refused(
            path, "a whole safetensors file", f"another or a cut one ({error})"
        ) from error
    try:
        entry = json.loads(metadata[_ENTRY])
        text, checksum = entry["document"], entry["sha256"]
        document = json.loads(text)
        if not isinstance(document, dict):
            raise TypeError("its description is no dictionary")
    except (KeyError, TypeError, ValueError) as error:
        raise _refused(path, "a checkpoint of U2-MF-QL-FH", f"another file ({error!r})") from error
    if checksum != digest(text, arrays):
        raise _refused(path, "contents that match the checksum", "others: the file was damaged")
    return arrays, document


def _check_settings(path: Path, expected: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    for name in sorted(expected.keys() | found.keys()):
        want, got = expected.get(name, "no such setting"), found.get(name, "no such setting")
        if want != got:
            raise _refused(path, f"{name} = {want}", f"a checkpoint of {name} = {got}")


def _check_layout(
    path: Path,
    name: str,
    arrays: Mapping[str, np.ndarray],
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
) -> None:
    got = "no such array"
    if name in arrays:
        got = f"{arrays[name].dtype} of the shape {arrays[name].shape}"
    want = f"{dtype} of the shape {shape}"
    if want != got:
        raise _refused(path, f"{name}: {want}", got)


def _refused(path: Path, expected: str, got: Any) -> UserError:
    return UserError(
        f"cannot go on from {path}: expected {expected}, got {got}; name another file to begin "
        "anew, or ask for what the file holds"
    )
