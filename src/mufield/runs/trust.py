"""Which Python files the user has agreed to execute.

A run of a user's own system names the Python file that defines it. Such a run may come from
somebody else, so its file is executed only if the user asked for that: by naming it on the command
line, or in a call from Python. That is remembered outside of the run, for the file's place and
contents, in the user's directory of settings. The environment variable ``MUFIELD_TRUSTED``
names another directory, or is ``off`` to remember nothing.
"""

import hashlib
import os
import sys
from pathlib import Path

from ..io.atomic import write_bytes


def remember(path: Path, data: bytes) -> None:
    """Notes that the user asked to execute a file with these contents."""
    note = _note(path, data)
    if note is None or note.is_file():
        return
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(note, f"{path}\n".encode())
    except OSError:
        pass  # then the user has to ask again the next time


def is_trusted(path: Path, data: bytes) -> bool:
    """Whether the user asked before to execute this very file."""
    note = _note(path, data)
    return note is not None and note.is_file()


def _note(path: Path, data: bytes) -> Path | None:
    chosen = os.environ.get("MUFIELD_TRUSTED", "")
    if chosen.strip().lower() == "off":
        return None
    try:
        place = Path(chosen).expanduser() if chosen else _user_settings() / "mufield" / "trusted"
    except RuntimeError:  # no home directory
        return None
    inner = hashlib.sha256(data).hexdigest()
    return place / hashlib.sha256(f"{path}\n{inner}".encode()).hexdigest()


def _user_settings() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("APPDATA") or Path.home() / "AppData" / "Roaming")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support"
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
