"""Files that are written whole or not at all, and that say so when they were damaged."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_safetensors

from .._atomic import write_bytes
from ..errors import UserError
from ..policies.files import digest

_ENTRY = "mufield"  # a single entry: the order of several would differ from process to process
_TEMPORARY = ".mufield-*.tmp"


def write_json(path: Path, document: Any) -> None:
    """Writes a document that people may read."""
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    write_bytes(path, f"{text}\n".encode())


def read_json(path: Path) -> Any:
    """Reads a document; raises ValueError with the file's name if it is damaged."""
    check_file(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"it is no JSON: {error}") from error


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes one line of JSON for each row, unless the file says the same already."""
    write_changed(path, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode())


def write_changed(path: Path, data: bytes) -> None:
    """Writes a file unless it holds the same already; a pipe in its place is replaced."""
    if not path.is_file() or path.read_bytes() != data:
        write_bytes(path, data)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The rows that can be read; lines that were torn by a crash are left out."""
    rows = []
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        rows += [row] if isinstance(row, dict) else []
    return rows


def write_arrays(path: Path, arrays: Mapping[str, Any], document: Mapping[str, Any]) -> None:
    """Writes arrays and a JSON document about them, with a checksum of both."""
    # safetensors takes the memory as it lies, so it must be contiguous.
    plain = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    text = json.dumps(document, allow_nan=False)
    entry = json.dumps({"document": text, "sha256": digest(text, plain)})
    write_bytes(path, to_safetensors(plain, metadata={_ENTRY: entry}))


def read_arrays(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Reads what `write_arrays` wrote; raises ValueError with the file's name if it is damaged."""
    check_file(path)
    try:
        with safe_open(path, framework="np") as file:
            entry = json.loads((file.metadata() or {})[_ENTRY])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if entry["sha256"] != digest(entry["document"], arrays):
            raise damaged(path, "its contents do not match its checksum")
        document: dict[str, Any] = json.loads(entry["document"])
    except (SafetensorError, KeyError, TypeError, RecursionError, json.JSONDecodeError) as error:
        raise damaged(path, f"it is cut short or no file of a run: {error}") from error
    if not isinstance(document, dict):
        raise damaged(path, "it is no file of a run: its description is no table")
    return arrays, document


def check_file(path: Path) -> None:
    """Raises unless there is a file: reading a pipe in its place would never end."""
    if not path.exists():
        raise damaged(path, "it is missing")
    if not path.is_file():
        raise damaged(path, "it is a directory or device, not a file")


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def remove_leftovers(directory: Path) -> None:
    """Removes what writers that were killed left behind; only while nobody else writes."""
    for left in directory.rglob(_TEMPORARY):
        left.unlink(missing_ok=True)


def damaged(path: Path, what: str) -> UserError:
    """The error for a file that cannot be used."""
    return UserError(f"cannot use {path}: {what}; restore the file from a copy, or begin a new run")
