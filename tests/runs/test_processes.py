"""Runs in processes of their own: stopped with Ctrl-C, side by side, and in other places."""

import contextlib
import json
import os
import shutil
import signal
import subprocess

import pytest
from processes import flags, start, wait_for

from mufield import cli
from mufield.runs import session
from mufield.runs.files import RunFiles, summarise
from mufield.runs.learn import learn_run
from mufield.runs.session import Session

pytestmark = pytest.mark.slow


@pytest.mark.slow
def test_ctrl_c_leaves_a_run_that_goes_on_and_one_beside_it_alone(small, tmp_path, finished):
    run, other = tmp_path / "my run", tmp_path / "other"
    process = start("train", *flags(small.config), "--out", run, "--episodes", 1000)
    beside = start("train", *flags(small.config), "--out", other, "--episodes", 2, "--json")
    wait_for(run / "episodes/0002.safetensors", process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert errors.decode().splitlines()[-1] == f"stopped; go on with: mufield train --out '{run}'"
    assert b"Traceback" not in errors
    found = summarise(run)
    assert (found["state"], found["reason"]) == ("unfinished", "")
    assert not list(run.rglob("*.tmp"))
    learn_run(run, found["episodes"] + 1, setup=small, progress=False)
    assert RunFiles(run).episodes == found["episodes"] + 1
    printed, errors = beside.communicate(timeout=240)
    assert beside.returncode == 0, errors
    assert [row["episode"] for row in json.loads(printed)] == [1, 2]
    for name in ("metrics.jsonl", "best_episode.policy"):
        assert (other / name).read_bytes() == (finished / name).read_bytes()


@pytest.fixture(autouse=True)
def heard():
    """Ctrl-C is heard, also where whoever started the tests in the background had it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_that_a_library_swallows_is_not_lost(small, tmp_path, begin, monkeypatch):
    def step(self):
        done = real(self)
        with contextlib.suppress(KeyboardInterrupt):  # as some libraries do
            signal.raise_signal(signal.SIGINT)
        return done

    real = Session.step
    begin(tmp_path / "run")
    monkeypatch.setattr(Session, "step", step)
    monkeypatch.setattr(session, "build", lambda config, imports: small)
    assert cli.main(["train", "--out", str(tmp_path / "run")]) == 130
    assert RunFiles(tmp_path / "run").episodes == 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_copy_elsewhere_opens_and_goes_on(small, tmp_path, begin, monkeypatch, capsys):
    begin(tmp_path / "here/run", episodes=3)
    learn_run(tmp_path / "here/run", 1, setup=small, progress=False)
    shutil.copytree(tmp_path / "here/run", tmp_path / "there/copy")
    learn_run(tmp_path / "here/run", 2, setup=small, progress=False)
    wanted = RunFiles(tmp_path / "here/run").rows
    shutil.rmtree(tmp_path / "here")
    monkeypatch.chdir(tmp_path / "there")
    assert cli.main(["show", "copy", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == wanted[:1]
    assert cli.main(["train", "--out", "copy", "--episodes", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == wanted


def test_a_reader_that_leaves_early_is_no_error():
    process = start("list", "--json")
    process.stdout.close()
    errors = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait(timeout=120) == 141, errors
    assert errors == ""


def test_completion_for_the_shell_names_commands_and_flags(tmp_path):
    path = tmp_path / "completion"
    process = start("--tyro-write-completion", "bash", path)
    process.communicate(timeout=120)
    assert process.returncode == 0
    script = path.read_text()
    for word in ("train", "export", "--population", "hallucinated"):
        assert word in script
    if shutil.which("bash"):
        subprocess.run(["bash", "-n", os.fspath(path)], check=True, timeout=60)
