"""Files that are written whole or not at all, and directories with one writer at a time."""

import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from ..errors import UserError
from . import disk

_TEMPORARY = (".mufield-", ".tmp")

MOST_BYTES = 1 << 30
"""Larger files are refused, so that a file from a stranger cannot fill the memory."""


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a file: a crash leaves the old or the new one. A link is replaced, not followed."""
    # In the same directory, because renaming is atomic only within one file system.
    temporary = path.parent / secrets.token_hex(8).join(_TEMPORARY)
    try:
        disk.write_new(temporary, data)
        disk.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            disk.remove(temporary)
        if isinstance(error, OSError) and error.errno is not None:
            # Says which file, not the temporary one or none.
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    disk.sync_directory(path.parent)  # so that the new name survives a power failure as well


def make_directory(path: Path) -> None:
    """Makes a directory and those missing above it, so that a power failure spares them."""
    if disk.kind(path) != "directory":
        if disk.kind(path.parent) != "directory":
            make_directory(path.parent)
        disk.make_directory(path)
    # Even if it was there: a process may have been killed before it did so.
    disk.sync_directory(path.parent)


def open_new(path: Path) -> int:
    """Opens a new file and returns its handle; what had its name is removed, links not followed."""
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
        for path in (Path(place, name) for name in inner):
            if path.is_symlink():
                what = f"{path} is a symbolic link; put the directory itself in its place"
                raise UserError(f"cannot write to {directory}: {what}")


def write_changed(path: Path, data: bytes) -> None:
    """Writes a file unless it already holds these bytes; a pipe of that name is replaced."""
    # Sizes first: what stands there may be of any size.
    there = disk.kind(path) == "file" and disk.size(path) == len(data)
    if not there or disk.read_bytes(path) != data:
        write_bytes(path, data)


def remove_leftovers(directory: Path) -> None:
    """Removes temporary files of writers that were killed; call it only while nobody writes."""
    first, last = _TEMPORARY
    for path in disk.files(directory):
        if path.name.startswith(first) and path.name.endswith(last):
            disk.remove(path)


class DirectoryInUse(UserError):
    """Another process holds the directory's lock."""


@contextmanager
def locked(directory: Path, patience: float = 0.0) -> Iterator[None]:
    """Keeps other processes out of a directory by a lock on the file ``lock`` in it.

    Waits up to ``patience`` seconds for it. Nothing is written to what a link in its place names.
    """
    path = directory / "lock"
    if path.is_symlink() or (path.exists() and not (path.is_file() and path.stat().st_nlink == 1)):
        raise UserError(f"cannot lock with {path}: it is a link, directory or device; remove it")
    with ExitStack() as held:
        try:
            held.enter_context(disk.lock(path, patience))
        except TimeoutError as error:
            what = f"{directory} is in use by {error}; wait until it ends, or stop it"
            raise DirectoryInUse(what) from error
        yield


def check_file(path: Path, most: int = MOST_BYTES) -> None:
    """Raises UserError unless this is a file (a pipe might never end) of at most so many bytes."""
    kind = disk.kind(path)
    if kind != "file":
        missing = "it is a directory or device, not a file" if kind else "it is missing"
        raise unusable(path, missing)
    size = disk.size(path)
    if size > most:
        raise unusable(path, f"expected at most {most:,} bytes, got {size:,}")


def unusable(path: Path, what: str) -> UserError:
    """The error for a file that cannot be used."""
    return UserError(f"cannot use {path}: {what}; restore it from a copy, or make it anew")
