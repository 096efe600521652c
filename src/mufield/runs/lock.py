"""One writer for each run."""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import UserError


class RunInUse(ValueError):
    """Another process writes to the run."""


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keeps other processes out of a run's directory.

    The system itself holds the lock and drops it when the process ends, however it ends; so a
    process that was killed leaves no lock behind.
    """
    path = directory / "lock"
    if path.exists() and not path.is_file():
        raise UserError(f"cannot lock with {path}: it is a directory or device; remove it")
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not _acquire(handle):
            holder = path.read_text(encoding="utf-8", errors="replace").strip() or "another process"
            raise RunInUse(
                f"the run {directory} is in use by {holder}; wait until it ends, or stop it"
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
            # A byte far behind the text, as locked bytes cannot be read.
            os.lseek(handle, 1 << 20, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
            os.lseek(handle, 0, os.SEEK_SET)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _acquire(handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
