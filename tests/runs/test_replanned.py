"""Runs whose policy is changed within a day."""

import json
import shutil

import equinox as eqx
import jax
import numpy as np
import pytest
from fleet import rows_of, write

import mufield as mf
from mufield import cli
from mufield.runs.layout import part_path
from mufield.runs.session import open_run

KEY = jax.random.key(7)


def said(capsys, *arguments, code=0):
    """What a command answers, as JSON, or its error."""
    assert cli.main([str(each) for each in (*arguments, "--json")]) == code
    told = capsys.readouterr()
    return " ".join(told.err.split()) if code else json.loads(told.out)


@pytest.fixture
def day(begin, tmp_path, capsys):
    """A run in the middle of its first episode, and where the agents are now."""
    run, places = tmp_path / "run", tmp_path / "now.csv"
    begin(run)
    first = said(capsys, "ask", run)
    write(places, [{"agent": i, "state_0": 2.5, "state_1": 2.5 - i % 2} for i in range(4)])
    return run, places, first


def test_a_day_with_another_plan_from_noon(day, small, tmp_path, capsys):
    run, places, first = day
    out = tmp_path / "noon.policy"
    changed = said(capsys, "ask", run, "--start", places, "--step", 1, "--out", out)
    assert (changed["episode"], changed["from_step"]) == (1, 1)
    assert changed["policy"] != first["policy"]
    assert out.read_bytes() == part_path(run, "policies", 1, 1).read_bytes()
    # Asked for again it is the same, by both commands.
    content = part_path(run, "plans", 1, 1).read_bytes()
    assert said(capsys, "ask", run, "--start", places, "--step", 1) == changed | {
        "file": str(part_path(run, "policies", 1, 1))
    }
    assert said(capsys, "ask", run)["policy"] == changed["policy"]
    assert part_path(run, "plans", 1, 1).read_bytes() == content
    profile = mf.load_policy(out)
    morning = mf.load_policy(run / "policies" / "0001.policy")
    assert eqx.tree_equal(profile.at(0), morning.at(0))
    # The episode says by step which policy it ran.
    episode = small.system.run(profile, KEY, agents=3)
    rows = rows_of(episode)
    for row in rows:
        row["policy"] = changed["policy"]
    told = tmp_path / "day.csv"
    error = said(capsys, "tell", run, write(told, rows), code=2)
    assert f"expected {first['policy']}, got {changed['policy']!r}" in error
    for row in rows:
        row["policy"] = changed["policy"] if row["step"] >= 1 else first["policy"]
    row = said(capsys, "tell", run, write(told, rows))
    assert any("planned anew from step 1" in note for note in row["notes"])
    # No plan expected anything of the whole day as it was run.
    assert row["optimistic"] is None
    assert (run / "last.policy").read_bytes() == out.read_bytes()
    # The next plan is the same, bit for bit, on a copy that was read anew.
    copied = shutil.copytree(run, tmp_path / "copy")
    plans = [said(capsys, "ask", each)["policy"] for each in (run, copied)]
    assert plans[0] == plans[1]
    files = [(each / "policies" / "0002.policy").read_bytes() for each in (run, copied)]
    assert files[0] == files[1]
    with open_run(run, small) as session:
        assert eqx.tree_equal(session.state.profile, profile)


def test_changes_are_refused_that_do_not_fit(day, small, tmp_path, capsys):
    run, places, _ = day
    assert "begins at a step from 0 to 2" in said(
        capsys, "ask", run, "--start", places, "--step", 3, code=2
    )
    today = said(
        capsys, "ask", run, "--start", places, "--step", 1, "--options", "horizon=4", code=2
    )
    assert "must have the horizon of the learner's, 3, got 4" in today
    assert not part_path(run, "plans", 1, 1).exists()
    said(capsys, "ask", run, "--start", places, "--step", 1)
    write(places, [{"agent": 0, "state_0": 0.5, "state_1": 0.5}])
    second = said(capsys, "ask", run, "--start", places, "--step", 2)
    assert second["from_step"] == 2
    with open_run(run, small) as session:
        mass = session.ask().mass
        np.testing.assert_allclose(mass[2] @ small.problem.grid.centres, [0.5, 0.5])
        session.tell(small.system.run(session.ask().profile, KEY, agents=2))
    part_path(run, "plans", 1, 1).unlink()
    assert "belongs to another run, episode or plan" in said(capsys, "show", run, code=2)
    part_path(run, "plans", 1, 2).unlink()
    assert "lacks a change of its policy within the day" in said(capsys, "show", run, code=2)


def test_a_step_can_be_planned_anew_more_than_once(day, small, tmp_path, capsys):
    run, places, first = day
    noon = said(capsys, "ask", run, "--start", places, "--step", 1)
    write(places, [{"agent": 0, "state_0": 0.5, "state_1": 0.5}])
    mended = said(capsys, "ask", run, "--start", places, "--step", 1)
    assert mended["policy"] not in (noon["policy"], first["policy"])
    assert said(capsys, "ask", run, "--start", places, "--step", 1) == mended
    earlier = said(capsys, "ask", run, "--start", places, "--step", 0)  # the step was mistyped
    with open_run(run, small) as session:
        asked = session.asked()
        assert [asked.policy_at(step) for step in range(3)] == [earlier["policy"]] * 3
        np.testing.assert_allclose(session.ask().mass[0] @ small.problem.grid.centres, [0.5, 0.5])
        session.tell(small.system.run(session.ask().profile, KEY, agents=2))
    row = said(capsys, "show", run)[-1]
    assert any("planned anew from step 1, 1, 0" in note for note in row["notes"])


def test_nothing_to_change_before_a_plan(begin, tmp_path, capsys):
    run, places = tmp_path / "run", tmp_path / "now.csv"
    begin(run)
    write(places, [{"agent": 0, "state_0": 0.5, "state_1": 0.5}])
    error = said(capsys, "ask", run, "--start", places, "--step", 1, code=2)
    assert "expects no episode" in error


def test_killed_between_the_two_files_of_a_change(day, capsys):
    run, places, first = day
    changed = said(capsys, "ask", run, "--start", places, "--step", 1)
    path, policy = part_path(run, "plans", 1, 1), part_path(run, "policies", 1, 1)
    before = [each.read_bytes() for each in (path, policy)]
    path.unlink()
    assert said(capsys, "ask", run)["policy"] == first["policy"]
    assert said(capsys, "ask", run, "--start", places, "--step", 1) == changed
    assert [each.read_bytes() for each in (path, policy)] == before
