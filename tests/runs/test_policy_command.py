"""The policy to use, as `mufield export` writes it; and runs that are judged while they learn."""

import json
import shutil
from dataclasses import replace

import equinox as eqx
import pytest

from mufield import cli, load_policy
from mufield.io.policies import read_info
from mufield.learning.m3ucrl import M3UCRL
from mufield.learning.run import learn
from mufield.runs import session
from mufield.runs.files import RunFiles
from mufield.runs.learn import learn_run
from mufield.runs.session import open_run
from mufield.runs.store import RunStore

pytestmark = pytest.mark.slow


@pytest.fixture
def policy(monkeypatch, small, capsys, tmp_path):
    """Exports the policy of a run, with the learner that is built already; says what it is."""
    monkeypatch.setattr(
        session, "build", lambda config, imports=None: replace(small, config=config)
    )

    def policy(run, which="best", code=0):
        capsys.readouterr()
        words = [str(run), "--out", str(tmp_path / "use.policy"), "--episode", which]
        assert cli.main(["export", *words, "--json"]) == code
        printed = capsys.readouterr()
        return json.loads(printed.out)["identity"] if code == 0 else printed.err

    return policy


def test_the_file_holds_what_the_learner_recommends(policy, run, small, tmp_path):
    found = policy(run)
    files = RunFiles(run)
    with open_run(run, small) as opened:
        state = opened.state
        ran = (load_policy(files.path("policies", files.best_episode)), max_value(files))
        best = small.learner.best(state, best_run=ran)
    assert eqx.tree_equal(load_policy(tmp_path / "use.policy"), best.profile)
    assert (tmp_path / "use.policy").read_bytes() == (run / "best.policy").read_bytes()
    for name in ("expected", "lower", "upper", "transitions", "how"):
        assert found[name] == getattr(best, name)
    assert found["transitions"] == 6
    assert found["level"] == pytest.approx(0.95)
    info = read_info(run / "best.policy")
    assert (info["run"], info["id"]) == (found["run"], found["policy"])


def max_value(files):
    return max(row["value"] for row in files.rows)


def test_it_is_planned_once_for_the_same_data(policy, run, small, monkeypatch):
    first = policy(run)
    cautious = policy(run, "cautious")
    assert cautious["lower"] >= first["lower"]
    assert cautious["file"] == "cautious.policy"
    before = (run / "best.policy").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(M3UCRL, "best", lambda *_, **__: pytest.fail("planned again"))
        assert policy(run) == first
        assert policy(run, "cautious") == cautious
    # A lost or damaged file is made again, the same.
    (run / "best.policy").write_bytes(before[:-5])
    assert policy(run) == first
    assert (run / "best.policy").read_bytes() == before
    learn_run(run, 3, setup=small, progress=False)
    later = policy(run)
    assert (later["policy"], later["transitions"]) != (first["policy"], first["transitions"])
    assert later["episodes"] == 3


def test_what_people_read(policy, run, tmp_path, capsys):
    policy(run)
    assert cli.main(["export", str(run), "--out", str(tmp_path / "use.policy")]) == 0
    text = capsys.readouterr().out
    for words in (
        "use.policy",
        "the policy: ",
        "expected J: ",
        "95% interval",
        "6 transitions, 2 episodes",
    ):
        assert words in text


def test_without_data_no_policy_is_the_best(policy, begin, tmp_path):
    begin(tmp_path / "run")
    assert "has no data yet" in policy(tmp_path / "run", code=2)


def test_a_judged_run_notes_what_plans_without_optimism_earn(small, tmp_path, finished, capsys):
    judged = replace(small, config=replace(small.config, judge=True))
    assert judged.config.identity == small.config.identity
    run = tmp_path / "run"
    RunStore.create(run, judged.config)
    learn_run(run, 1, setup=judged, progress=False)
    shutil.copytree(run, tmp_path / "copy")
    rows = learn_run(run, 2, setup=judged, progress=False)
    again = learn_run(tmp_path / "copy", 2, setup=judged, progress=False)
    assert rows == again
    wanted = learn(small.system, small.learner, episodes=2, judge=True, progress=False).metrics[1]
    assert rows[1]["greedy"] == pytest.approx(wanted.greedy)
    assert rows[1]["greedy_expected"] == pytest.approx(wanted.greedy_expected)
    # All else is as without.
    plain = RunFiles(finished).rows
    assert rows[0] == plain[0]
    assert {name: rows[1][name] for name in plain[1]} == plain[1]
    assert cli.main(["show", str(run)]) == 0
    assert "greedy" in capsys.readouterr().out
    assert cli.main(["show", str(finished)]) == 0
    assert "greedy" not in capsys.readouterr().out
