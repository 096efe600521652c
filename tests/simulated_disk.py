"""A disk in memory that forgets and fails as POSIX allows, all of it decided by one seed.

What it promises is what POSIX promises, and no more. Contents survive a power failure once the file
was synced; before that, any beginning of them may be there, perhaps filled with zeros. Each name in
a directory has, after a power failure, any of the values that it had since the directory was synced
last, whatever became of the other names; so renames may be lost or come in another order.
"""

import errno
import os
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from unittest import mock

from mufield.io import disk

ERRORS = {
    "ENOSPC": ("write_new", "replace", "make_directory"),
    "EIO": ("kind", "names", "read_bytes", "write_new", "replace", "remove", "sync_directory"),
    "EMFILE": ("names", "read_bytes", "write_new", "sync_directory", "lock"),
}
"""Operations that fail with an error."""

CRASHES = ("kill", "power")


class Crash(BaseException):
    """The process ends here; no Exception, so that nothing handles it."""


@dataclass
class File:
    """A file: its bytes, and whether they would survive."""

    data: bytes = b""
    synced: bool = False


@dataclass
class Directory:
    """A directory: what is in it, and for each changed name all values since it was synced."""

    inner: dict = field(default_factory=dict)
    changed: dict = field(default_factory=dict)

    def put(self, name, value):
        """Gives a name another value; None removes it."""
        self.changed.setdefault(name, [self.inner.get(name)]).append(value)
        if value is None:
            self.inner.pop(name, None)
        else:
            self.inner[name] = value


@dataclass
class Fault:
    """What happens at the n-th operation from now on that it can happen to.

    Attributes:
        kind: An error, or a crash.
        after: Operations that still succeed.
        lasting: Whether all later operations fail, too.
        only: The operation that is counted and that fails; by default all that can.
    """

    kind: str
    after: int
    lasting: bool = False
    only: str = ""


class SimulatedDisk:
    """The functions of `mufield.io.disk`, on a disk in memory; `draw` decides all that is open."""

    def __init__(self, draw):
        self.root, self.draw = Directory(), draw
        self.fault, self.dead = None, False
        self.locks, self.time = set(), 0.0
        self.happened = Counter()

    @contextmanager
    def installed(self):
        """Puts this disk in the place of the real one."""
        with ExitStack() as stack:
            for name in (*vars(disk),):
                if not name.startswith("_") and hasattr(type(self), name):
                    stack.enter_context(mock.patch.object(disk, name, getattr(self, name)))
            yield self

    def fork(self):
        """A copy of this disk, without faults."""
        other = SimulatedDisk(self.draw)
        other.root = _copy(self.root)
        return other

    def restart(self, power):
        """Goes on after the process or the computer died."""
        if power:
            self.root = self._survivors(self.root)
        self.fault, self.dead, self.locks = None, False, set()

    def copy(self, source, target):
        """What a user's `cp -r` followed by `sync` does."""
        self._put_synced(target, _copy(self._at(source)))

    def take_back(self, earlier, path):
        """Makes a directory what it is on another disk, an earlier fork of this one."""
        there = path.name in earlier._at(path.parent).inner
        self._put_synced(path, _copy(earlier._at(path)) if there else None)

    def _put_synced(self, path, value):
        place = self._at(path.parent)
        place.put(path.name, value)
        del place.changed[path.name]

    def _survivors(self, directory):
        found = Directory()
        for name in {**directory.inner, **directory.changed}:
            value = self.draw.choice(directory.changed.get(name) or [directory.inner[name]])
            if isinstance(value, Directory):
                found.inner[name] = self._survivors(value)
            elif value is not None:
                data = value.data
                if not value.synced:
                    kept = self.draw.choice((0, self.draw.randrange(len(data) + 1), len(data)))
                    data = data[:kept] + bytes(self.draw.choice((0, len(data) - kept)))
                found.inner[name] = File(data, True)
        return found

    def _tick(self, operation):
        """Counts an operation, and lets it fail if its turn has come."""
        if self.dead:
            raise Crash
        fault = self.fault
        if fault is None or not (fault.kind in CRASHES or operation in ERRORS[fault.kind]):
            return
        if fault.only not in ("", operation):
            return
        fault.after -= 1
        if fault.after >= 0:
            return
        self.happened[fault.kind] += 1
        if fault.kind in CRASHES:
            self.dead = True
            raise Crash
        if not fault.lasting:
            self.fault = None
        number = getattr(errno, fault.kind)
        raise OSError(number, os.strerror(number))

    def _at(self, path):
        found = self.root
        for part in path.parts[1:]:
            if not isinstance(found, Directory):
                raise NotADirectoryError(errno.ENOTDIR, "not a directory", str(path))
            if part not in found.inner:
                raise FileNotFoundError(errno.ENOENT, "missing", str(path))
            found = found.inner[part]
        return found

    # The functions of `mufield.io.disk`.

    def kind(self, path):
        self._tick("kind")
        try:
            return "file" if isinstance(self._at(path), File) else "directory"
        except (FileNotFoundError, NotADirectoryError):
            return ""

    def size(self, path):
        return len(self._at(path).data)

    def names(self, directory):
        self._tick("names")
        try:
            return sorted(self._at(directory).inner)
        except FileNotFoundError:
            return []

    def files(self, directory):
        self._tick("names")
        return [path for path, each in _walk(directory, self._at(directory))]

    def read_bytes(self, path):
        self._tick("read_bytes")
        return self._at(path).data

    def write_new(self, path, data, synced=True):
        self._tick("write_new")
        place, file = self._at(path.parent), File()
        assert path.name not in place.inner, f"{path} is there already"
        place.put(path.name, file)
        # Half of it is there when the disk is full, or when the process is killed.
        file.data = data[: self.draw.randrange(len(data) + 1)]
        self._tick("write_new")
        file.data = data
        self._tick("write_new")
        file.synced = synced

    def replace(self, source, target):
        self._tick("replace")
        before, after = self._at(source.parent), self._at(target.parent)
        after.put(target.name, before.inner[source.name])
        before.put(source.name, None)
        self._tick("renamed")  # the process may die here, before it knows

    def remove(self, path):
        self._tick("remove")
        place = self._at(path.parent)
        if path.name in place.inner:
            place.put(path.name, None)

    def make_directory(self, path):
        self._tick("make_directory")
        place = self._at(path.parent)
        if path.name not in place.inner:
            place.put(path.name, Directory())
        self._tick("made")

    def sync_directory(self, path):
        self._tick("sync_directory")
        self._at(path).changed.clear()

    @contextmanager
    def lock(self, path, patience):
        self._tick("lock")
        if path in self.locks:
            raise TimeoutError("another process")
        self.locks.add(path)
        self._at(path.parent).inner.setdefault(path.name, File(b"", True))
        try:
            yield
        finally:
            self.locks.discard(path)

    def clock(self):
        self.time += self.draw.choice((0.0, 0.5, 3600.0, -3600.0))  # as a broken clock would
        return self.time


def _walk(path, directory):
    for name, each in directory.inner.items():
        if isinstance(each, Directory):
            yield from _walk(path / name, each)
        else:
            yield path / name, each


def contents(disk_, path):
    """The bytes of all files below a directory by their names; nothing fails here."""
    try:
        place = disk_._at(path)
    except FileNotFoundError:
        return {}
    return {str(name.relative_to(path)): file.data for name, file in _walk(path, place)}


def _copy(directory):
    found = Directory()
    for name, each in directory.inner.items():
        found.inner[name] = _copy(each) if isinstance(each, Directory) else File(each.data, True)
    return found
