"""Files that are written whole or not at all, and directories with one writer at a time.

If the environment variable ``MUFIELD_FSYNC`` is 0, writers do not wait for the disk, which is
faster: files then survive a crash of the program, but perhaps not one of the computer.
"""

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from ..errors import UserError

_TEMPORARY = ".mufield-*.tmp"


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a file atomically: after a crash there is the old file or the new one."""
    with replacing(path) as temporary, temporary.open("xb") as file:
        file.write(data)
        file.flush()
        if os.environ.get("MUFIELD_FSYNC") != "0":
            os.fsync(file.fileno())


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields where to write a file; if that succeeds, it is put in the place of ``path``.

    A symbolic link of that name is replaced, and what it points to is left alone.
    """
    # In the same directory, because `os.replace` is atomic only within one file system.
    temporary = path.parent / _TEMPORARY.replace("*", secrets.token_hex(8))
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None:
            # Says which file, not the temporary one or none.
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    # So that the new name survives a power failure as well; Windows cannot open directories.
    if os.environ.get("MUFIELD_FSYNC") != "0" and os.name == "posix":
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


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


def remove_leftovers(directory: Path) -> None:
    """Removes temporary files of writers that were killed; call it only while nobody writes."""
    for left in directory.rglob(_TEMPORARY):
        left.unlink(missing_ok=True)


class DirectoryInUse(UserError):
    """Another process holds the directory's lock."""


@contextmanager
def locked(directory: Path, patience: float = 0.0) -> Iterator[None]:
    """Keeps other processes out of a directory by a lock on the file ``lock`` in it.

    The operating system drops the lock when the process ends, even if it is killed. Nothing else
    is written to, even if somebody put a link in the lock's place.

    Args:
        directory: The directory, which must exist.
        patience: Seconds to wait for another process that has the lock.
    """
    path = directory / "lock"
    if path.is_symlink() or (path.exists() and not (path.is_file() and path.stat().st_nlink == 1)):
        raise UserError(f"cannot lock with {path}: it is a link, directory or device; remove it")
    lock = FileLock(path, timeout=patience, thread_local=False)
    try:
        lock.acquire()
    except Timeout as error:
        holder = path.read_bytes()[:200].decode(errors="replace").strip() or "another process"
        raise DirectoryInUse(
            f"{directory} is in use by {holder}; wait until it ends, or stop it"
        ) from error
    try:
        with suppress(OSError):  # Windows lets nobody write to a locked file
            path.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
        yield
    finally:
        lock.release()
