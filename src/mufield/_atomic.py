"""Files that are written whole or not at all."""

import os
import secrets
import sys
from pathlib import Path


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a file at one stroke: after a crash there is the old file or the new one."""
    # In the same directory, as only there can it take the old file's place at one stroke.
    temporary = path.parent / f".mufield-{secrets.token_hex(8)}.tmp"
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    """Makes a rename last through a power failure, where the system can."""
    if sys.platform == "win32":
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
