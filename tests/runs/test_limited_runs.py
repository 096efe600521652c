"""Runs in a system with limits: their margins in files, tables and pictures."""

import json
import shutil
from dataclasses import replace

import pytest
from test_crash import Crash, crashing_replace, outcome

from mufield import cli
from mufield.runs.build import build, resolve
from mufield.runs.config import RunConfig
from mufield.runs.files import RunFiles
from mufield.runs.learn import learn_run
from mufield.runs.store import RunStore

pytestmark = pytest.mark.slow

LIMIT = "entropy of the swarm"
LIMITED = RunConfig(
    environment="swarm-spread",
    options={"horizon": 4, "cells": 6},
    episodes=2,
    model="ensemble",
    model_options={"members": 2, "width": 4, "steps": 3},
    planner_options={"points": 3, "sweeps": 2},
    pessimism="none",
    judge=False,
    precision="float64",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    setup = build(resolve(LIMITED))
    directory = tmp_path_factory.mktemp("limited") / "run"
    RunStore.create(directory, setup.config)
    learn_run(directory, setup=setup, progress=False)
    return directory


def test_files_hold_the_margins(run):
    rows = RunFiles(run).rows
    for row in rows:
        assert row["margin"] == min(row["margins"][LIMIT])
        assert len(row["margins"][LIMIT]) == 4


def test_show_has_margins_in_percent_and_runs_lists_the_run(run, capsys):
    rows = RunFiles(run).rows
    assert cli.main(["show", str(run)]) == 0
    head, *lines = [line.split() for line in capsys.readouterr().out.splitlines()[:3]]
    margins = [line[head.index("margin") - 1] for line in lines]  # "W1 end" is one column
    assert margins == [f"{row['margin']:.1%}" for row in rows]
    assert cli.main(["show", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == rows
    assert cli.main(["runs", str(run.parent), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["state"] == "complete"


def test_a_run_without_limits_has_no_such_column(finished, capsys):
    assert cli.main(["show", str(finished)]) == 0
    assert "margin" not in capsys.readouterr().out


def test_pictures_and_the_page_are_drawn(run, tmp_path, capsys):
    assert cli.main(["show", str(run), "--out", str(tmp_path / "p.png")]) == 0
    assert (tmp_path / "p-population.png").exists()
    assert cli.main(["show", str(run), "--out", str(tmp_path / "page.html")]) == 0
    assert LIMIT in (tmp_path / "page.html").read_text()


def test_a_run_goes_on_with_its_margins(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    learn_run(copy, 3, progress=False)
    assert [len(row["margins"][LIMIT]) for row in RunFiles(copy).rows] == [4, 4, 4]


@pytest.mark.nightly
def test_a_run_that_stopped_half_way_goes_on_to_the_same_end(tmp_path, monkeypatch):
    setup = build(resolve(replace(LIMITED, pessimism="samples")))
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    for directory in (whole, torn):
        RunStore.create(directory, setup.config)
    learn_run(whole, setup=setup, progress=False)
    with monkeypatch.context() as patch:
        crashing_replace(patch, 6)
        with pytest.raises(Crash):
            learn_run(torn, setup=setup, progress=False)
    assert 0 < len(RunFiles(torn).rows) < 2  # else it was not half-way
    learn_run(torn, setup=setup, progress=False)
    assert outcome(torn) == outcome(whole)
