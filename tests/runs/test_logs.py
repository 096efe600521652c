"""Logs are part of a run: kept, known to the plans after them, and not episodes."""

import json
import shutil

import jax
import numpy as np
import pytest
from fleet import rows_of, write
from night import at_night
from test_crash import Crash, crashing_replace, outcome

from mufield import UserError, cli, random_policy
from mufield.models.base import predict_rows
from mufield.runs.files import RunFiles
from mufield.runs.learn import learn_run
from mufield.runs.session import open_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def log_files(small, tmp_path_factory):
    """Two logs of the small world, of 12 agents each."""
    place, policy = tmp_path_factory.mktemp("logs"), random_policy(small.problem)
    runs = [small.system.run(policy, jax.random.key(seed), agents=12) for seed in (5, 6)]
    return [write(place / f"{i}.csv", rows_of(run)) for i, run in enumerate(runs)]


def tell(directory, small, path, **more):
    with open_run(directory, small) as session:
        return session.tell_log(path, **more)


def learn(directory, small, log_files):
    """Two episodes, with a log before the first, and one while the first is awaited."""
    tell(directory, small, log_files[0])
    with open_run(directory, small) as session:
        session.ask()
    tell(directory, small, log_files[1])
    learn_run(directory, setup=small, progress=False)
    return outcome(directory)


@pytest.fixture(scope="module")
def whole(small, log_files, tmp_path_factory):
    from mufield.runs.store import RunStore

    directory = tmp_path_factory.mktemp("whole") / "run"
    RunStore.create(directory, small.config)
    learn(directory, small, log_files)
    return directory


def test_a_log_is_known_to_the_plans_after_it_and_is_no_episode(small, whole, finished):
    files = RunFiles(whole)
    assert [log["since"] for log in files.logs] == [1, 2]
    assert files.historical == 72
    assert files.episodes == 2
    # Episodes have three moves of one agent.
    assert [row["transitions"] for row in files.rows] == [36, 36 + 3 + 36]
    assert [row["episode"] for row in files.rows] == [1, 2]
    assert files.rows[0]["spread"] != RunFiles(finished).rows[0]["spread"]
    assert files.plan_id(1) != RunFiles(finished).plan_id(1)


def test_a_run_teaches_what_its_learner_was_told(small, whole):
    with open_run(whole, small) as session:
        data, ends, state = session.data, session.ends, session.state
    assert (len(data), ends) == (78, (39, 78))
    again = small.learner.restore(jax.random.key(0), data, ends, state.memory, state.profile)
    mine, other = (predict_rows(each.model, data).error for each in (state, again))
    np.testing.assert_array_equal(mine, other)


def test_a_crash_between_any_two_writes_changes_nothing(
    small, whole, log_files, tmp_path, monkeypatch, begin
):
    wanted, writes = outcome(whole), 0
    while True:
        directory = tmp_path / str(writes)
        begin(directory)
        with monkeypatch.context() as patch:
            crashing_replace(patch, writes)
            try:
                learn(directory, small, log_files)
            except Crash:
                crashed = True
            else:
                crashed = False
        for number in range(len(RunFiles(directory).logs), 2):
            if number == 1:
                with open_run(directory, small) as session:
                    session.ask()
            tell(directory, small, log_files[number])
        learn_run(directory, setup=small, progress=False)
        assert outcome(directory) == wanted
        if not crashed:
            break
        writes += at_night(1, 5)
    assert writes > 15  # or the crashes were not where they were meant


def test_a_lost_or_damaged_log_is_noticed(whole, tmp_path):
    run = shutil.copytree(whole, tmp_path / "run")
    first, second = (run / f"logs/{number:04d}.safetensors" for number in (1, 2))
    data = first.read_bytes()
    for damage in (data[:-9], b"", second.read_bytes(), data[:-1] + bytes([data[-1] ^ 1])):
        first.write_bytes(damage)
        with pytest.raises(UserError, match="logs/0001"):
            RunFiles(run)
    first.unlink()
    with pytest.raises(UserError, match=r"logs/0001.safetensors: it is missing"):
        RunFiles(run)
    shutil.rmtree(run / "logs")
    with pytest.raises(UserError, match="it belongs to another run, episode or plan"):
        RunFiles(run)


def test_the_policy_to_use_knows_a_log_at_once(small, log_files, tmp_path, begin):
    run = tmp_path / "run"
    begin(run)
    tell(run, small, log_files[0])
    with open_run(run, small) as session:
        session.ask()
        before = session.best()
    tell(run, small, log_files[1])
    with open_run(run, small) as session:
        after = session.best()
        assert len(session.data) == 36  # the plan that waits does not know it
    assert (before.transitions, after.transitions) == (36, 72)


def test_the_same_log_is_told_once(small, log_files, tmp_path, begin):
    begin(tmp_path / "run")
    tell(tmp_path / "run", small, log_files[0])
    lines = log_files[0].read_text().splitlines()
    shuffled = tmp_path / "shuffled.csv"
    shuffled.write_text("\n".join([lines[0], *lines[:0:-1]]))
    for path in (log_files[0], shuffled):
        with pytest.raises(UserError, match="was told already, as log 1; tell another"):
            tell(tmp_path / "run", small, path)
    tell(tmp_path / "run", small, shuffled, repeated=True)
    assert RunFiles(tmp_path / "run").historical == 72


def test_the_command_tells_logs_and_show_counts_them(small, log_files, tmp_path, begin, capsys):
    run = tmp_path / "run"
    begin(run)

    def mufield(*words, fails=False):
        assert cli.main(list(map(str, words))) == (2 if fails else 0)
        printed = capsys.readouterr()
        return printed.err if fails else printed.out

    told = json.loads(mufield("tell", run, "--log", log_files[0], "--json"))
    assert told == {
        "log": 1,
        "transitions": 36,
        "historical": 36,
        "known_from_episode": 1,
        "notes": [],
    }
    some = mufield("tell", run, "--log", log_files[1], "--learn-from", "3,4")
    assert "transitions: 6" in some
    shown = mufield("show", run)
    assert "has no episode yet" in shown
    assert "42 historical transitions from 2 logs" in shown
    before = {path: path.read_bytes() for path in (run / "logs").iterdir()}
    bad = tmp_path / "bad.csv"
    bad.write_text(log_files[0].read_text()[:-30])
    assert "bad.csv, line 37" in mufield("tell", run, "--log", bad, fails=True)
    assert "got both" in mufield("tell", run, bad, "--log", bad, fails=True)
    assert "got none" in mufield("tell", run, fails=True)
    assert {path: path.read_bytes() for path in (run / "logs").iterdir()} == before
