"""All that runs and jobs ask of the disk and the clock.

Callers write ``disk.replace(...)`` and import no function by name, so that tests can put a
simulated disk in place of this one: it loses what was not synced, and fails when it is told to.

If the environment variable ``MUFIELD_FSYNC`` is 0, writers do not wait for the disk, which is
faster: files then survive a crash of the program, but perhaps not one of the computer.
"""

import errno
import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal


def kind(path: Path) -> Literal["file", "directory", "other", ""]:
    """What has a name; links are followed, and nothing is an empty text."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        return ""
    if stat.S_ISREG(mode):
        return "file"
    return "directory" if stat.S_ISDIR(mode) else "other"


def size(path: Path) -> int:
    """Bytes of a file."""
    return path.stat().st_size


def names(directory: Path) -> list[str]:
    """The names in a directory, sorted; none if it is missing.

    `Path.glob` also finds none where a directory cannot be read, for example because too many
    files are open, and a run would seem to have lost its episodes.
    """
    try:
        return sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []


def files(directory: Path) -> list[Path]:
    """All files in a directory and below; links to directories are not followed."""
    return sorted(Path(place, name) for place, _, inner in os.walk(directory) for name in inner)


def read_bytes(path: Path) -> bytes:
    """The contents of a file."""
    return path.read_bytes()


def write_new(path: Path, data: bytes) -> None:
    """Writes a file that must not exist yet; its contents then survive a power failure."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        if _waits():
            os.fsync(file.fileno())


def replace(source: Path, target: Path) -> None:
    """Gives a file another name, and removes what had it, at one stroke."""
    os.replace(source, target)


def remove(path: Path) -> None:
    """Removes a file if it is there."""
    path.unlink(missing_ok=True)


def make_directory(path: Path) -> None:
    """Makes a directory unless it is there."""
    path.mkdir(exist_ok=True)


def sync_directory(path: Path) -> None:
    """Waits until the names in a directory would survive a power failure."""
    if not _waits() or os.name != "posix":  # Windows cannot open directories
        return
    with suppress(PermissionError):  # it may be written to, but not be read
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def lock(path: Path, patience: float) -> Iterator[None]:
    """Locks a file; raises TimeoutError in the holder's name if another process keeps the lock.

    The operating system drops the lock when the process ends, even if it is killed.
    """
    from filelock import FileLock, Timeout

    held = FileLock(path, timeout=patience, thread_local=False)
    try:
        held.acquire()
    except Timeout as error:
        holder = path.read_bytes()[:200].decode(errors="replace").strip()
        raise TimeoutError(holder or "another process") from error
    try:
        with suppress(OSError):  # Windows lets nobody write to a locked file
            path.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
        yield
    finally:
        held.release()


def clock() -> float:
    """Seconds since some moment."""
    return time.perf_counter()


def _waits() -> bool:
    return os.environ.get("MUFIELD_FSYNC") != "0"
