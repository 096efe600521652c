"""Runs whose tracked agents are scouts: two policies for each episode, kept and told like one."""

import json
import shutil
from dataclasses import replace

import equinox as eqx
import jax
import numpy as np
import pytest
from conftest import SMALL
from fleet import rows_of, write

import mufield as mf
from mufield import cli
from mufield.compare.contenders import enter
from mufield.runs.build import build, resolve
from mufield.runs.config import parse_config
from mufield.runs.learn import learn_run
from mufield.runs.session import open_run
from mufield.runs.store import RunStore

KEY = jax.random.key(3)


@pytest.fixture(scope="module")
def scouting():
    return build(resolve(replace(SMALL, scouts="hallucinated", agents=2)))


@pytest.fixture
def run(scouting, tmp_path):
    directory = tmp_path / "run"
    RunStore.create(directory, scouting.config)
    return directory


def said(capsys, *arguments, code=0):
    assert cli.main([str(each) for each in (*arguments, "--json")]) == code
    told = capsys.readouterr()
    return " ".join(told.err.split()) if code else json.loads(told.out)


def test_scouts_change_what_a_run_is_and_the_optimism_of_its_population():
    alone, sent = resolve(SMALL), resolve(replace(SMALL, scouts="hallucinated"))
    assert (alone.optimism, sent.optimism) == ("hallucinated", "greedy")
    assert alone.identity != sent.identity
    assert resolve(replace(SMALL, scouts="bonus", optimism="thompson")).optimism == "thompson"


def test_comparisons_have_scouts():
    who = enter("scouts")
    learner = build(parse_config(resolve(SMALL).document() | who.settings, "scouts")).learner
    assert (learner.optimism, learner.scouts) == (mf.Greedy(), mf.Hallucinated())


def test_a_run_that_was_stopped_sends_the_same_scouts(run, scouting, tmp_path):
    learn_run(run, 1, setup=scouting, progress=False)
    with open_run(run, scouting) as session:
        scouts = session.ask().scouts
        assert scouts is not None
    copied = shutil.copytree(run, tmp_path / "copy")
    (copied / "plans" / "0002.safetensors").unlink()  # stopped before it counted
    for each in (run, copied):
        learn_run(each, 2, setup=scouting, progress=False)
    for part in (
        "policies/0002-scouts.policy",
        "policies/0002.policy",
        "episodes/0002.safetensors",
    ):
        assert (run / part).read_bytes() == (copied / part).read_bytes()
    kept = mf.load_policy(run / "policies" / "0002-scouts.policy")
    assert eqx.tree_equal(kept, scouts)
    # Tracked agents did what scouts do, and the population what its own plan says.
    episode = scouting.system.run(
        mf.load_policy(run / "policies" / "0002.policy"), KEY, scouts=scouts
    )
    with open_run(run, scouting) as session:
        np.testing.assert_array_equal(session.store.records[1].arrays["mass"], episode.mass)


def test_ask_writes_two_policies_and_a_change_keeps_the_scouts(run, scouting, tmp_path, capsys):
    first = said(capsys, "ask", run)
    assert first["scouts"].endswith("0001-scouts.policy")
    profile = mf.load_policy(first["file"])
    rows = rows_of(scouting.system.run(profile, KEY, agents=3))
    said(capsys, "tell", run, write(tmp_path / "day.csv", rows))
    out = tmp_path / "next.policy"
    asked = said(capsys, "ask", run, "--out", out)
    assert asked["scouts"] == str(tmp_path / "next-scouts.policy")
    sent = mf.load_policy(asked["scouts"])
    places = write(tmp_path / "now.csv", [{"agent": 0, "state_0": 2.5, "state_1": 0.5}])
    noon = said(capsys, "ask", run, "--start", places, "--step", 1)
    assert eqx.tree_equal(mf.load_policy(noon["scouts"]), sent)
    episode = scouting.system.run(mf.load_policy(noon["file"]), KEY, agents=3, scouts=sent)
    assert said(capsys, "tell", run, write(tmp_path / "day.csv", rows_of(episode)))["episode"] == 2
    policy = run / "policies" / "0002-0001-scouts.policy"
    policy.write_bytes(out.read_bytes())
    assert "not the policy that was planned" in said(capsys, "ask", run, code=2)


class Unaware(mf.AbstractSystem):
    problem: mf.Problem

    def run(self, policy, key, *, agents=1):
        raise AssertionError


def test_a_run_on_a_system_that_takes_no_scouts_is_refused(tmp_path, capsys):
    mf.register("unaware", "")(lambda: Unaware(mf.make("four-rooms", horizon=3).problem))
    error = said(capsys, "train", "unaware", "--scouts", "bonus", "--out", tmp_path / "run", code=2)
    assert "takes no argument scouts" in error
    assert not (tmp_path / "run").exists()
