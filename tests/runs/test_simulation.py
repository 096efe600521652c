"""Runs and jobs on a disk that forgets and fails: histories that one seed decides."""

import contextlib
import random
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import histories
import pytest
from histories import History, Violation, surroundings
from night import NIGHT
from simulated_disk import Crash, Fault, SimulatedDisk, contents

from mufield.io import atomic


@pytest.fixture(autouse=True)
def fakes():
    with surroundings():
        yield


@pytest.fixture
def disk():
    """A simulated disk in the place of the real one."""
    with SimulatedDisk(random.Random(0)).installed() as simulated:
        yield simulated


def test_no_history_loses_what_was_acknowledged():
    """The same ones with every change, and an hour of new ones at night.

    In a process of their own, because checks of types would make them six times as slow.
    """
    first, seconds = (int(time.time()) * 1000, 3600) if NIGHT else (0, 3)
    command = [sys.executable, histories.__file__, str(first), str(seconds)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr  # names the seed
    assert int(ran.stdout.split()[0]) > 20


@pytest.mark.parametrize("bug", ["directory", "data", "lock"])
def test_a_store_with_a_bug_is_found_out(bug, monkeypatch):
    write = SimulatedDisk.write_new
    if bug == "directory":
        monkeypatch.setattr(
            atomic, "disk", mock.Mock(wraps=atomic.disk, sync_directory=mock.Mock())
        )
    elif bug == "data":
        monkeypatch.setattr(
            SimulatedDisk, "write_new", lambda self, path, data: write(self, path, data, False)
        )
    else:
        monkeypatch.setattr(atomic, "locked", lambda directory: contextlib.nullcontext())
    tried = histories.draw_histories(0, 60)
    found = next(found for _, found in tried if isinstance(found, Violation))
    assert "replays this history" in str(found)


def test_a_seed_replays_its_history():
    one, two = History(7), History(7)
    assert one.run() == two.run()
    assert one.trace == two.trace
    assert contents(one.disk, Path("/")) == contents(two.disk, Path("/"))


def test_the_disk_forgets_exactly_what_was_not_synced(disk):
    place = Path("/place")
    disk.make_directory(place)
    disk.sync_directory(Path("/"))
    atomic.write_bytes(place / "kept", b"kept")
    seen = set()
    for _ in range(60):
        other = disk.fork()
        other.write_new(place / "torn", b"torn", synced=False)
        other.write_new(place / "named", b"whole")
        other.restart(power=True)
        found = contents(other, place)
        assert found.pop("kept") == b"kept"
        assert found.pop("named", b"whole") == b"whole"
        seen.add(found.get("torn"))
    assert {None, b"", b"torn", bytes(4)} < seen


@pytest.mark.parametrize("kind", ["kill", "power", "ENOSPC", "EIO", "EMFILE"])
def test_a_file_is_the_old_one_or_the_new_one_wherever_its_writer_fails(disk, kind):
    path = Path("/file")
    atomic.write_bytes(path, b"old")
    for after in range(8):
        disk.fault = Fault(kind, after)
        with contextlib.suppress(Crash, OSError):
            atomic.write_bytes(path, b"new")
        disk.restart(power=kind == "power")
        assert disk.read_bytes(path) in (b"old", b"new")
    assert disk.read_bytes(path) == b"new"
    assert disk.happened[kind] >= 2
