"""Files that are written whole or not at all and whose damage is noticed, and directories that one
process at a time may write to.

A *sealed* file holds arrays and a JSON document about them. It is a safetensors file: 8 bytes with
the length of the header (little-endian), the header in JSON, then the arrays' bytes. The header's
metadata have the single entry ``mufield``, itself JSON: the file's ``kind``, the ``document`` as a
text, and ``sha256``, the `digest` of both and of the arrays. Equal contents give equal bytes.
"""

import hashlib
import json
import math
import os
import secrets
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_safetensors

from .errors import UserError

Layout = Mapping[str, tuple[str, tuple[int, ...]]]
"""Number format and shape of each array, as in ``{"mass": ("float32", (21, 104))}``."""

FSYNC = "MUFIELD_FSYNC"
"""Environment variable; at 0, writers do not wait for the disk, which is faster: files then survive
a crash of the program, but perhaps not one of the computer. Tests set it."""

MOST_BYTES, MOST_TEXT = 1 << 30, 1 << 26
"""Larger files are refused, so that a file from a stranger cannot fill the memory: sealed ones and
tables, and JSON, which takes many times its size in memory."""

MOST = 2**63 - 1
"""The largest whole number that is read where a number is expected."""

_ENTRY = "mufield"
_TEMPORARY = ".mufield-*.tmp"
_DTYPES = {"BOOL": "bool", "F32": "float32", "F64": "float64"} | {
    f"{letter}{bits}": f"{name}{bits}"
    for letter, name in (("I", "int"), ("U", "uint"))
    for bits in (8, 16, 32, 64)
}


class Sealed(NamedTuple):
    """What a sealed file holds."""

    document: dict[str, Any]
    arrays: dict[str, np.ndarray]


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a file atomically: after a crash there is the old file or the new one."""
    with replacing(path) as temporary, temporary.open("xb") as file:
        file.write(data)
        file.flush()
        if os.environ.get(FSYNC) != "0":
            os.fsync(file.fileno())


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields where to write a file; if that succeeds, it is put in the place of ``path``.

    A symbolic link of that name is replaced, and what it points to is left alone.
    """
    with _writing_in(path.parent) as handle:
        # In the same directory, because `os.replace` is atomic only within one file system.
        temporary = path.parent / _TEMPORARY.replace("*", secrets.token_hex(8))
        try:
            yield temporary
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        if os.environ.get(FSYNC) != "0" and handle is not None:
            os.fsync(handle)  # so that the new name survives a power failure as well


def open_new(path: Path) -> int:
    """Opens a new file for writing and returns its handle; what had its name is removed.

    So a symbolic link is never followed.
    """
    path.unlink(missing_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)


def check_own(directory: Path, *parts: str) -> None:
    """Raises if there are symbolic links to directories, which would lead writers elsewhere.

    Looks at everything in the directory, or only at these parts of it. The directory itself may
    be a link: it is what the user named.
    """
    for place, inner, _ in os.walk(directory):
        if parts and Path(place) == directory:
            inner[:] = [name for name in inner if name in parts]
        for name in inner:
            path = Path(place, name)
            if path.is_symlink():
                raise UserError(
                    f"cannot write to {directory}: {path} is a symbolic link, which may lead "
                    "anywhere; put the directory itself in its place"
                )


def write_changed(path: Path, data: bytes) -> None:
    """Writes a file unless it already holds these bytes; a pipe of that name is replaced."""
    # Sizes first: what stands there may be of any size.
    same = path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data
    if not same:
        write_bytes(path, data)


def remove_leftovers(directory: Path, pattern: str = "**/" + _TEMPORARY) -> None:
    """Removes temporary files of writers that were killed; call it only while nobody writes."""
    for left in directory.glob(pattern):
        left.unlink(missing_ok=True)


def write_json(path: Path, document: Any) -> None:
    """Writes indented JSON, for people."""
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    write_bytes(path, f"{text}\n".encode())


def read_json(path: Path) -> Any:
    """Reads JSON; raises UserError that names the file if it is damaged."""
    check_file(path, MOST_TEXT)
    try:
        return _parse(path.read_bytes())
    except (ValueError, RecursionError) as error:
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
    """The rows of a file of `write_lines`, none if it is missing; damaged lines are left out.

    So are lines with NaN or infinity, which are no JSON and which `write_lines` never writes.
    """
    rows: list[dict[str, Any]] = []
    if not path.is_file():
        return rows
    check_file(path, MOST_TEXT)
    for line in path.read_bytes().splitlines():
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
        raise UserError(
            f"expected a {kind} of at most {MOST_BYTES:,} bytes, got {size:,}; make it smaller"
        )
    data = to_safetensors(plain, metadata={_ENTRY: json.dumps(entry)})
    # The order of safetensors' header differs from process to process, so it is sorted here.
    size = int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8 : 8 + size]), sort_keys=True, separators=(",", ":"))
    start = header.encode() + b" " * (-len(header.encode()) % 8)
    return len(start).to_bytes(8, "little") + start + data[8 + size :]


def read_sealed(
    path: Path, kind: str, *, layout: Callable[[dict[str, Any]], Layout] | None = None
) -> Sealed:
    """Reads a sealed file, which may come from strangers: no code in it is run.

    Args:
        path: The file.
        kind: What the file must be.
        layout: From the document to the arrays that the file must hold. They are compared before
            any array is loaded, and so before the checksum: the document may be damaged then.

    Raises:
        UserError: If the file is missing, damaged or of another kind; the message names it.
    """
    check_file(path, MOST_BYTES)
    try:
        with safe_open(path, framework="np") as file:
            entry = _parse((file.metadata() or {})[_ENTRY])
            text = str(entry["document"])
            document = _parse(text)
            if not isinstance(document, dict):
                raise TypeError("its description is no table")
            if entry["kind"] != kind:
                raise unusable(path, f"expected a {kind}, got a {entry['kind']}")
            found: dict[str, tuple[str, tuple[int, ...]]] = {}
            for name in file.keys():  # noqa: SIM118 (it is no dictionary)
                part = file.get_slice(name)
                found[name] = (_DTYPES[part.get_dtype()], tuple(part.get_shape()))
            if layout is not None:
                _check_layout(path, layout(document), found)
            arrays = {name: file.get_tensor(name) for name in found}
    except UserError:
        raise
    except (SafetensorError, KeyError, TypeError, RecursionError, ValueError) as error:
        raise unusable(path, f"it is no {kind}, or cut short ({error!r:.200})") from error
    if entry.get("sha256") != digest(kind + "\n" + text, arrays):
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
    return isinstance(value, int) and not isinstance(value, bool) and -MOST <= value <= MOST


def _check_layout(path: Path, expected: Layout, found: Layout) -> None:
    for name in sorted(expected.keys() | found.keys()):
        want, got = (
            "{} of the shape {}".format(*where[name]) if name in where else "no such array"
            for where in (expected, found)
        )
        if want != got:
            raise unusable(path, f"{name}: expected {want}, got {got}")


def digest(text: str, arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of a text and of arrays with their names, shapes and number formats."""
    total = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = arrays[name]
        total.update(f"\n{name} {array.dtype.name} {list(array.shape)}\n".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_file(path: Path, most: int = MOST_BYTES) -> None:
    """Raises UserError unless this is an ordinary file of at most so many bytes.

    Reading a pipe would never end.
    """
    if not path.exists():
        raise unusable(path, "it is missing")
    if not path.is_file():
        raise unusable(path, "it is a directory or device, not a file")
    size = path.stat().st_size
    if size > most:
        raise unusable(path, f"expected at most {most:,} bytes, got {size:,}")


def unusable(path: Path, what: str) -> UserError:
    """The error for a file that cannot be used."""
    return UserError(f"cannot use {path}: {what}; restore it from a copy, or make it anew")


class DirectoryInUse(UserError):
    """Another process holds the directory's lock."""


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keeps other processes out of a directory by a lock on the file ``lock`` in it.

    The operating system drops the lock when the process ends, even if it is killed. Nothing else
    is written to, even if somebody put a link in the lock's place.
    """
    path = directory / "lock"
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise UserError(f"cannot lock with {path}: it is a link, directory or device; remove it")
    handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
    try:
        if os.fstat(handle).st_nlink > 1:
            raise UserError(f"cannot lock with {path}: it has another name, too; remove it")
        if not _acquire(handle):
            holder = os.read(handle, 200).decode(errors="replace").strip() or "another process"
            raise DirectoryInUse(
                f"{directory} is in use by {holder}; wait until it ends, or stop it"
            )
        os.ftruncate(handle, 0)
        os.write(handle, f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield
    finally:
        os.close(handle)


if sys.platform == "win32":
    import msvcrt

    def _acquire(handle: int) -> bool:
        try:
            # A byte far behind the text, because locked bytes cannot be read.
            os.lseek(handle, 1 << 20, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
            os.lseek(handle, 0, os.SEEK_SET)
        except OSError:
            return False
        return True

    @contextmanager
    def _writing_in(directory: Path) -> Iterator[int | None]:
        yield None  # directories cannot be opened

else:
    import fcntl

    def _acquire(handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    @contextmanager
    def _writing_in(directory: Path) -> Iterator[int | None]:
        """Yields a handle of the directory, rid of what writers left who were killed in it.

        All writers share a lock on the directory itself, so nobody writes while it can be had
        alone. Where the file system has no such locks, leftovers stay.
        """
        handle = os.open(directory, os.O_RDONLY)
        try:
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_leftovers(directory, _TEMPORARY)
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_SH)
            yield handle
        finally:
            os.close(handle)
