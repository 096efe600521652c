"""A run that is killed at any moment goes on to the same end, bit for bit."""

import errno
import os
import random
import signal
import time
from dataclasses import replace

import pytest
from night import at_night
from processes import flags, start, wait_for

from mufield import UserError
from mufield.io import disk
from mufield.io import sealed as files
from mufield.runs.build import build, resolve
from mufield.runs.files import RunFiles
from mufield.runs.layout import LAYOUT
from mufield.runs.learn import learn_run
from mufield.runs.session import open_run
from mufield.runs.store import RunStore

pytestmark = pytest.mark.slow


class Crash(BaseException):
    """Not an Exception, so that nothing handles it."""


def outcome(directory):
    """All that must not depend on interruptions."""
    kept = [
        directory / "metrics.jsonl",
        *sorted(directory.rglob("*.policy")),
    ]
    kept += sorted((directory / "plans").iterdir()) + sorted((directory / "episodes").iterdir())
    return {str(path.relative_to(directory)): path.read_bytes() for path in kept}


@pytest.fixture(scope="module")
def whole(finished):
    """What comes out without interruption."""
    return outcome(finished)


def crashing_replace(monkeypatch, after):
    """Makes the process die in place of the next but ``after`` rename, its draft half written."""
    real, calls = os.replace, []

    def replace(source, target):
        calls.append(target)
        if len(calls) > after:
            torn = os.path.join(os.path.dirname(target), ".mufield-dead.tmp")
            with open(source, "rb") as whole, open(torn, "wb") as half:
                half.write(whole.read()[:-7])
            raise Crash
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    return calls


def test_a_crash_between_any_two_writes_changes_nothing(small, whole, tmp_path, monkeypatch, begin):
    writes = 0
    while True:
        directory = tmp_path / str(writes)
        begin(directory)
        with monkeypatch.context() as patch:
            crashing_replace(patch, writes)
            try:
                learn_run(directory, setup=small, progress=False)
            except Crash:
                crashed = True
            else:
                crashed = False
        learn_run(directory, setup=small, progress=False)
        assert outcome(directory) == whole
        assert not list(directory.rglob("*.tmp"))
        if not crashed:
            break
        writes += at_night(1, 5)
    assert writes > 15  # or the crashes were not where they were meant


def test_a_run_that_crashes_at_every_second_write_still_ends(
    small, whole, tmp_path, monkeypatch, begin
):
    begin(tmp_path)
    for allowed in range(1, 60):
        with monkeypatch.context() as patch:
            crashing_replace(patch, 1 + allowed // 2)
            try:
                learn_run(tmp_path, setup=small, progress=False)
            except Crash:
                continue
        break
    assert outcome(tmp_path) == whole


def test_a_crash_while_a_run_begins_leaves_room_for_it(small, tmp_path, monkeypatch):
    for after in (0, 1):
        directory = tmp_path / str(after)
        with monkeypatch.context() as patch:
            crashing_replace(patch, after)
            with pytest.raises(Crash):
                RunStore.create(directory, small.config)
        with pytest.raises(UserError, match="no run in"):
            RunFiles(directory)
        assert RunStore.create(directory, small.config).episodes == 0


@pytest.mark.parametrize("room", [3, 9])
def test_a_run_that_met_a_full_disk_goes_on_to_the_same_end(
    small, whole, tmp_path, monkeypatch, begin, room
):
    begin(tmp_path)
    write, written = disk.write_new, []

    def full(path, data):
        written.append(path)
        if len(written) > room:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "write_new", full)
        with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}/[a-z]"):
            learn_run(tmp_path, setup=small, progress=False)
    learn_run(tmp_path, setup=small, progress=False)
    assert outcome(tmp_path) == whole


def test_torn_and_lost_metrics_are_written_again(small, whole, run):
    path = run / "metrics.jsonl"
    for damage in (path.read_bytes()[:-9], b"", b"nonsense\n"):
        path.write_bytes(damage)
        (run / "best_episode.policy").write_bytes(damage)
        learn_run(run, setup=small, progress=False)
        assert outcome(run) == whole


def test_torn_timings_are_left_out(tmp_path):
    path = tmp_path / "timings.jsonl"
    files.write_lines(path, [{"episode": 1, "fit": 0.5}])
    path.write_bytes(path.read_bytes() + b'{"episode": 1, "pl')
    assert files.read_lines(path) == [{"episode": 1, "fit": 0.5}]


@pytest.mark.nightly
@pytest.mark.slow
def test_what_a_planner_remembers_survives(small, tmp_path, begin):
    """The gradient planner starts from its last plan; mirror ascent remembers nothing."""
    settings = {"steps": 1, "table_steps": 1, "sweeps": 1, "points": 2}
    changes = {"planner": "table", "planner_options": settings}
    setup = build(resolve(replace(small.config, **changes)))
    for name in ("whole", "pieces"):
        begin(tmp_path / name, **changes | {"planner_options": setup.config.planner_options})
    learn_run(tmp_path / "whole", setup=setup, progress=False)
    for episodes in (1, 2):
        with open_run(tmp_path / "pieces", setup) as session:
            session.ask()
        learn_run(tmp_path / "pieces", episodes, setup=setup, progress=False)
    assert outcome(tmp_path / "pieces") == outcome(tmp_path / "whole")
    arrays = files.read_sealed(tmp_path / "whole/plans/0002.safetensors", LAYOUT.plan).arrays
    assert [name for name in arrays if name.startswith("memory.")]


@pytest.mark.slow
def test_kill_9_at_random_moments_changes_nothing(small, tmp_path, begin):
    config, episodes = small.config, 12
    begin(tmp_path / "whole", episodes=episodes)
    learn_run(tmp_path / "whole", setup=small, progress=False)
    run = tmp_path / "run"
    first = ["train", *flags(config), "--out", run, "--episodes", episodes]
    draw = random.Random(0)
    # Past its compilations an episode takes about a tenth of a second; so each process is killed
    # somewhere in its first few episodes.
    for command in at_night((first, ["train", "--out", run]), (first,)):
        done = len(list(run.glob("episodes/*.safetensors")))
        process = start(*command)
        wait_for(run / f"episodes/{done + 1:04d}.safetensors", process)
        time.sleep(draw.uniform(0.0, 0.2))
        process.kill()
        _, errors = process.communicate()
        assert process.returncode == -signal.SIGKILL, errors
        assert done < len(list(run.glob("episodes/*.safetensors"))) < episodes
    learn_run(run, setup=small, progress=False)
    assert outcome(run) == outcome(tmp_path / "whole")
