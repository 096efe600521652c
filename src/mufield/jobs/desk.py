"""The side of a Ray worker: it computes in the job's directory, or in one of its own."""

import contextlib
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from ..errors import UserError
from ..io.atomic import write_bytes
from .job import Job, versions_that_matter
from .pool import (
    attempt_with_log,
)
from .processes import settle

Files = dict[str, bytes]
"""Contents of files by name, in the order in which they were written; first directories, whose
names end with a slash."""


class Desk:
    """What runs in a worker's process: it computes a job, and hands its files back if asked."""

    token_file = ".mufield-token.tmp"
    """By it a worker knows that a directory is the job's, and not another of the same name."""

    def __init__(self, cores: int):
        """Prepares the process."""
        settle(cores)
        self._directory: Path | None = None
        self._sent: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()

    def work(
        self, document: dict[str, Any], place: dict[str, str], files: Files
    ) -> tuple[str, Files]:
        """Computes a job; returns what went wrong, if anything did, and files not yet seen."""
        job, directory = Job(**document), Path(place["directory"])
        if Path(place["here"]).is_dir():  # files that the user names are relative to it
            os.chdir(place["here"])
        if not _is_shared(directory, place["token"]):
            directory = Path(tempfile.mkdtemp(prefix="mufield-job-"))
            write_files(directory, files)
            self._sent, self._directory = stamps(directory), directory
        try:
            problem = _other_versions(job) or attempt_with_log(job, directory)
            return problem, self.look()
        finally:
            self.leave()

    def look(self) -> Files:
        """Files that were written since the last time; none if the directory is shared."""
        with self._lock:
            for _ in range(20):
                if self._directory is None:
                    break
                now = stamps(self._directory)
                new = sorted((n for n in now if now[n] != self._sent.get(n)), key=now.__getitem__)
                files = read_files(self._directory, new)
                if stamps(self._directory) == now:  # so no file is without those before it
                    self._sent = now
                    return files
            return {}

    def leave(self) -> None:
        """Removes the directory that was only for this worker."""
        with self._lock:
            if self._directory is not None:
                shutil.rmtree(self._directory, ignore_errors=True)
                self._directory = None


def _is_shared(directory: Path, token: str) -> bool:
    try:
        same = (directory / Desk.token_file).read_text(encoding="utf-8") == token
    except (OSError, UnicodeDecodeError):
        return False
    return same and os.access(directory, os.W_OK)


def stamps(directory: Path) -> dict[str, tuple[int, int]]:
    """Time and size of everything in a job's directory, by name, earliest first."""
    found = {}
    for path in directory.rglob("*"):
        if path.is_symlink() or path.name == "lock" or path.suffix == ".tmp":
            continue
        name = path.relative_to(directory).as_posix()
        with contextlib.suppress(OSError):  # it was replaced just now
            about = path.stat()
            if path.is_dir():
                found[f"{name}/"] = (0, 0)
            else:
                found[name] = (about.st_mtime_ns, about.st_size)
    return dict(sorted(found.items(), key=lambda item: item[1]))


def read_files(directory: Path, names: Iterable[str]) -> Files:
    """The contents of files; names that end with a slash are directories."""
    return {name: b"" if name[-1] == "/" else (directory / name).read_bytes() for name in names}


def write_files(directory: Path, files: Files) -> None:
    """Writes what `read_files` read."""
    for name, data in files.items():
        parts = PurePosixPath(name).parts
        if not parts or parts[0] == "/" or ".." in parts:
            raise UserError(f"expected the name of a file inside of a job, got {name!r}")
        path = directory.joinpath(*parts)
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        else:
            write_bytes(path, data)


def _other_versions(job: Job) -> str:
    """What is other on this machine than the job was made with; its result would be another's."""
    from ..runs.surroundings import import_users

    try:
        found = versions_that_matter(import_users(job.settings.get("imports")))
    except UserError as error:
        return f"{error} (on {socket.gethostname()})"
    for name, wanted in job.versions.items():
        if found.get(name) != wanted:
            return (
                f"{name} is {found.get(name)} on {socket.gethostname()}, and {wanted} where the "
                "command was given; install the same on all machines"
            )
    return ""
