"""Files whose damage is noticed.

A *sealed* file holds arrays and a JSON document about them. It is a safetensors file: 8 bytes with
the length of the header (little-endian), the header in JSON, then the arrays' bytes. The header's
metadata have the single entry ``mufield``, itself JSON: the file's ``kind``, the ``document`` as a
text, and ``sha256``, the `digest` of both and of the arrays. Equal contents give equal bytes.
"""

import gzip
import hashlib
import io
import json
import math
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as from_safetensors
from safetensors.numpy import save as to_safetensors

from ..errors import UserError
from . import disk
from .atomic import MOST_BYTES, check_file, unusable, write_bytes, write_changed

MOST_TEXT = 1 << 26
"""Larger files of JSON are refused: it takes many times its size in memory."""


class Sealed(NamedTuple):
    """What a sealed file holds."""

    document: dict[str, Any]
    arrays: dict[str, np.ndarray]


def write_json(path: Path, document: Any) -> None:
    """Writes indented JSON, for people."""
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    write_bytes(path, f"{text}\n".encode())


def read_json(path: Path) -> Any:
    """Reads JSON, gzipped or not; raises UserError that names the file if it is damaged."""
    check_file(path, MOST_TEXT)
    try:
        data = disk.read_bytes(path)
        if path.suffix == ".gz":
            data = gzip.GzipFile(fileobj=io.BytesIO(data)).read(MOST_TEXT + 1)
            if len(data) > MOST_TEXT:
                raise ValueError(f"unpacked, it has more than {MOST_TEXT:,} bytes")
        return _parse(data)
    except (ValueError, RecursionError, OSError, EOFError, zlib.error) as error:
        raise unusable(path, f"it is no JSON: {error}") from error


def _parse(text: bytes | str) -> Any:
    """What JSON says; numbers that are not finite are refused, also those that are too large."""

    def refuse(word: str) -> float:
        raise ValueError(f"{word} is no number of JSON")

    def number(text: str) -> float:
        found = float(text)
        return found if math.isfinite(found) else refuse(text)

    return json.loads(text, parse_constant=refuse, parse_float=number)


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes one line of JSON for each row, unless the file already holds them."""
    write_changed(path, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The rows of `write_lines`, none if there is no file; lines that are no JSON are left out."""
    rows: list[dict[str, Any]] = []
    if disk.kind(path) != "file":
        return rows
    check_file(path, MOST_TEXT)
    for line in disk.read_bytes(path).splitlines():
        try:
            row = _parse(line)
        except (ValueError, RecursionError):
            continue
        rows += [row] if isinstance(row, dict) else []
    return rows


def write_sealed(
    path: Path, document: Mapping[str, Any], arrays: Mapping[str, Any], *, kind: str
) -> None:
    """Writes a document for JSON and arrays of NumPy or JAX to a sealed file, atomically.

    ``kind`` says in a few words what the file is; `read_sealed` must be given the same.
    """
    write_bytes(path, sealed_bytes(document, arrays, kind=kind))


def sealed_bytes(document: Mapping[str, Any], arrays: Mapping[str, Any], *, kind: str) -> bytes:
    """The bytes of a sealed file."""
    # safetensors copies the memory as it is, so it must be contiguous.
    plain = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    text = json.dumps(document, allow_nan=False)
    entry = {"kind": kind, "document": text, "sha256": digest(kind + "\n" + text, plain)}
    size = sum(array.nbytes for array in plain.values())
    if size > MOST_BYTES:
        most = f"{MOST_BYTES:,} bytes"
        raise UserError(f"expected a {kind} of at most {most}, got {size:,}; make it smaller")
    data = to_safetensors(plain, metadata={"mufield": json.dumps(entry)})
    # The order of safetensors' header differs from process to process, so it is sorted here.
    size = int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8 : 8 + size]), sort_keys=True, separators=(",", ":"))
    start = header.encode() + b" " * (-len(header.encode()) % 8)
    return len(start).to_bytes(8, "little") + start + data[8 + size :]


def read_sealed(path: Path, kind: str) -> Sealed:
    """Reads a sealed file, even a stranger's: no code in it is run. UserError if it is damaged."""
    check_file(path, MOST_BYTES)
    data = disk.read_bytes(path)
    try:
        arrays = from_safetensors(data)  # also checks that the header is sound
        header = _parse(data[8 : 8 + int.from_bytes(data[:8], "little")])
        entry = _parse(header["__metadata__"]["mufield"])
        text = str(entry["document"])
        document = _parse(text)
        found, wanted = entry["kind"], entry["sha256"]
        if not isinstance(document, dict):
            raise TypeError("its description is no table")
    except (SafetensorError, KeyError, TypeError, RecursionError, ValueError) as error:
        raise unusable(path, f"it is no {kind}, or cut short ({error!r:.200})") from error
    if found != kind:
        raise unusable(path, f"expected a {kind}, got a {found}")
    if wanted != digest(kind + "\n" + text, arrays):
        raise unusable(path, "its contents do not match its checksum")
    return Sealed(document, arrays)


def require(
    path: Path, sealed: Sealed, fields: Mapping[str, type], arrays: Iterable[str] = ()
) -> None:
    """Raises unless the document has these fields, each of its kind, and these arrays are there.

    A right checksum says that a file is as it was written, not that we wrote it.
    """
    missing = [name for name in arrays if name not in sealed.arrays]
    missing += [name for name, kind in fields.items() if not is_a(sealed.document.get(name), kind)]
    if missing:
        raise unusable(path, f"it lacks {', '.join(missing)}, or has something else there")


def is_a(value: Any, kind: type) -> bool:
    """Whether what JSON gave is of a kind; whole numbers are floats, too, huge ones neither."""
    if kind not in (int, float):
        return isinstance(value, kind)
    if isinstance(value, float):
        return kind is float
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def digest(text: str, arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of a text and of arrays with their names, shapes and number formats."""
    total = hashlib.sha256(text.encode())
    for name, array in sorted(arrays.items()):
        total.update(f"\n{name} {array.dtype.name} {list(array.shape)}\n".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    return hashlib.sha256(disk.read_bytes(path)).hexdigest()
