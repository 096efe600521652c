"""The commands about runs, with a simulator standing in for the fleet between ask and tell."""

import json
import sys
from dataclasses import replace

import jax
import numpy as np
import pytest
from fleet import mass_rows, rows_of, write
from processes import flags

from mufield import cli, load_policy
from mufield.environments import registry
from mufield.io import atomic
from mufield.learning.state import Use, key_after
from mufield.runs import learn, session
from mufield.runs.build import build
from mufield.runs.files import RunFiles

pytestmark = pytest.mark.slow

FLEET = """
from mufield import Box, Grid, Problem, log_mass, register, uniform

# Not inside the function: equal problems then share their compiled programs.
def spread(state, action, mu):
    return -log_mass(mu.here)

@register("lorries", "lorries on a road")
def lorries(*, horizon: int = 3):
    grid = Grid.box(0.0, 4.0, 4)
    return Problem(
        space=grid, actions=Box(-1.0, 1.0), horizon=horizon, initial=uniform(grid), noise=0.2,
        reward=spread, max_move=1.0,
    )
"""


@pytest.fixture
def mufield(capsys, small, monkeypatch):
    """Runs a command; returns what it printed as JSON, or the one line of its error."""

    def build_once(config, imports=None):
        same = replace(small.config, label=config.label, episodes=config.episodes)
        return replace(small, config=config) if config == same else build(config, imports)

    for module in (learn, session):
        monkeypatch.setattr(module, "build", build_once)

    def run(*words, fails=False):
        code = cli.main([*map(str, words), *([] if fails else ["--json"])])
        printed = capsys.readouterr()
        assert code == (2 if fails else 0), printed.err
        return printed.err.strip() if fails else json.loads(printed.out)

    return run


def files_of(directory):
    return {p: p.read_bytes() for p in directory.rglob("*") if p.is_file() and p.name != "lock"}


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_ask_and_tell_through_files_learn_what_the_closed_loop_learns(
    mufield, tmp_path, small, finished, suffix
):
    wanted = RunFiles(finished)

    run = tmp_path / "run"
    began = mufield("new", *flags(small.config), "--out", run, "--label", "same")
    assert began["run"] == replace(small.config, label="same").identity
    state = small.learner.init(jax.random.key(0))
    for number in (1, 2):
        asked = mufield("ask", run, "--out", tmp_path / "next.policy")
        assert asked["episode"] == number
        policy = load_policy(tmp_path / "next.policy")
        key = key_after(state.key, number - 1, Use.RUN)
        episode = small.system.run(policy, key)
        rows = rows_of(episode)
        for row in rows:
            row |= {name: asked[name] for name in ("run", "episode", "policy")}
        path = write(tmp_path / f"{number}{suffix}", rows)
        mass = write(tmp_path / f"m{number}{suffix}", mass_rows(small.problem.grid, episode.mass))
        told = mufield("tell", run, path, "--mass", mass)
        for name in ("value", "optimistic", "spread", "w1_end", "coverage", "best"):
            assert told[name] == pytest.approx(wanted.rows[number - 1][name], rel=1e-6)
    found = RunFiles(run)
    for mine, other in zip(found.records, wanted.records, strict=True):
        assert mine.arrays.keys() == other.arrays.keys()
        for name, array in other.arrays.items():
            np.testing.assert_allclose(mine.arrays[name], array, atol=1e-9)
    assert mufield("show", run) == found.rows


def test_what_is_wrong_is_said_in_one_line_and_changes_nothing(mufield, tmp_path, small):
    run = tmp_path / "run"
    mufield("new", *flags(small.config), "--out", run)
    first = tmp_path / "1.csv"
    write(first, rows_of(small.system.run(lambda s, mu, h: 0 * s, jax.random.key(0))))
    assert "expects no episode: run `mufield ask" in mufield("tell", run, first, fails=True)
    asked = mufield("ask", run)
    assert mufield("ask", run) == asked  # the same until it is told

    def refused(*words):
        before = files_of(run)
        message = mufield("tell", run, *words, fails=True)
        assert message.startswith("error: ")
        assert "\n" not in message
        after = files_of(run)
        changed = {path.name for path in after if after[path] != before.get(path)}
        assert changed <= {"timings.jsonl"}
        return message

    rows = rows_of(small.system.run(lambda s, mu, h: 0 * s, jax.random.key(0)))
    other = write(tmp_path / "other.csv", [row | {"run": "other"} for row in rows])
    assert "belongs to another run" in refused(other)
    assert "no agent 9" in refused(first, "--learn-from", "9")
    assert "there is no file" in refused(tmp_path / "none.csv")
    rows[0]["state_0"], rows[0]["state_1"] = 1.5, 1.5
    assert "inside a wall" in refused(write(tmp_path / "wall.csv", rows))

    mufield("tell", run, first)
    assert "episode 1 was told already; run `mufield ask" in refused(first)
    mufield("ask", run)
    assert "told already, as episode 1" in refused(first)
    assert mufield("tell", run, first, "--repeated")["episode"] == 2


def test_a_disk_that_is_full_after_the_episode_was_kept_is_no_failure(
    mufield, tmp_path, small, monkeypatch, capsys
):
    run = tmp_path / "run"
    mufield("new", *flags(small.config), "--out", run)
    mufield("ask", run)
    first = write(
        tmp_path / "1.csv",
        rows_of(small.system.run(lambda s, mu, h: 0 * s, jax.random.key(0))),
    )
    write_bytes = atomic.os.replace

    def full(source, target):
        if str(target).endswith("metrics.jsonl") and (run / "episodes/0001.safetensors").exists():
            raise OSError(28, "No space left on device")
        write_bytes(source, target)

    monkeypatch.setattr(atomic.os, "replace", full)
    assert cli.main(["tell", str(run), str(first), "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["episode"] == 1
    assert "note: episode 1 is part of the run" in printed.err
    assert f"No space left on device: '{run}/metrics.jsonl'" in printed.err
    monkeypatch.undo()
    assert not (run / "best_episode.policy").exists()
    assert cli.main(["show", str(run)]) == 0
    assert "best_episode.policy" not in capsys.readouterr().out  # it may not be there yet
    assert len(mufield("show", run)) == 1


def test_train_goes_on_where_it_stopped(mufield, tmp_path, small, capsys):
    run = tmp_path / "run"
    rows = mufield("train", *flags(small.config), "--out", run, "--episodes", 1)
    assert [row["episode"] for row in rows] == [1]
    assert mufield("train", "--out", run) == rows
    rows = mufield("train", "--out", run, "--episodes", 2)
    assert [row["episode"] for row in rows] == [1, 2]
    assert mufield("train", *flags(small.config), "--out", run, "--episodes", 2) == rows
    assert cli.main(["train", "--out", str(run)]) == 0
    assert "complete already, with 2 episodes" in capsys.readouterr().err
    assert cli.main(["show", str(run)]) == 0
    table = capsys.readouterr().out
    for word in (
        "episode",
        "optimistic",
        "coverage",
        "--episode best-episode",
        f"{rows[1]['value']:.5g}",
    ):
        assert word in table
    message = mufield("train", "--out", run, "--seed", 7, fails=True)
    assert "other settings: seed is 0 there, got 7; leave it out" in message
    message = mufield("train", "--out", run, "--planner-options", "sweeps=9", fails=True)
    assert "other settings: planner_options is" in message
    message = mufield("new", *flags(small.config), "--out", run, fails=True)
    assert "holds a run already; go on with `mufield train --out" in message


def test_a_real_fleet_is_asked_and_told_but_never_run(mufield, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    (tmp_path / "my_fleet.py").write_text(FLEET)
    (tmp_path / "settings.toml").write_text(
        'environment = "lorries"\nmodel = "ensemble"\n'
        "model_options = {members = 2, width = 4, steps = 2}\n"
        f'imports = "{tmp_path}/my_fleet.py"\nplanner_options = {{points = 3, sweeps = 2}}\n'
    )
    run = tmp_path / "run"
    mufield("new", "--out", run, "--config", tmp_path / "settings.toml", "--first", "random")
    assert json.loads((run / "config.json").read_text())["label"]
    assert mufield("ask", run)["note"] == "the uniform random policy"
    assert "is of a real system" in mufield("train", "--out", run, fails=True)
    rows = [
        {"agent": name, "step": step, "state_0": at, "action_0": 0.5, "next_0": at + 0.5}
        for name, start in (("red", 0.2), ("blue", 2.2))
        for step, at in enumerate((start, start + 0.5, start + 1.0))
    ]
    told = mufield("tell", run, write(tmp_path / "e.csv", rows), "--learn-from", "red")
    assert told["value"] == pytest.approx(3 * np.log(2))
    assert (told["transitions"], told["optimistic"]) == (0, None)
    assert mufield("ask", run)["episode"] == 2
    (tmp_path / "my_fleet.py").write_text(FLEET + "# changed\n")
    assert cli.main(["ask", str(run)]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train", "--out", "x"), "expected an environment's name"),
        (("train", "swarm"), "expected a directory for the run, got none; add --out"),
        (("train", "swarm", "--out", "x", "--options", "size=3"), "has no option size"),
        (("train", "swarm", "--out", "x", "--agents", "0"), "agents must be 1 or more"),
        (("train", "swarm", "--out", "x", "--config", "no.toml"), "no.toml: it is missing"),
        (("ask", "nowhere"), "there is no run in nowhere"),
        (("tell", "nowhere", "e.csv"), "there is no run in nowhere"),
        (("show", "nowhere"), "there is no run in nowhere"),
        (("show", "nowhere", "--out", "a.png"), "there is no run in nowhere"),
        (("show", "--out", "a.png"), "expected the directory of a run"),
        (("show",), "expected one run for the metrics, got 0"),
        (("show", "nowhere", "--out", "a.gif"), "there is no run in nowhere"),
        (("ask", "nowhere", "--step", "1"), "name it with --start"),
        (("ask", "nowhere", "--options", "load=1"), "name the step by --step"),
        (("runs", "nowhere"), "there is no directory nowhere"),
        (("list", "--import", "none.py"), "there is no such file"),
    ],
)
def test_mistakes_are_reported_in_one_line(mufield, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    assert message in mufield(*words, fails=True)
    assert not list(tmp_path.iterdir())


def test_print_config_prints_settings_that_mean_the_same(mufield, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(
        'seed = 3\n[environment]\nname = "four-rooms"\nhorizon = 4\n'
        '[model]\nname = "gp"\nbeta = 2.5\n[planner]\nsweeps = 7\n'
    )
    words = ("train", "--config", "mine.toml", "--seed", "5", "--model-options", "mu=local")
    printed = mufield(*words, "--print-config")
    assert (printed["seed"], printed["environment"], printed["model"]) == (5, "four-rooms", "gp")
    assert printed["model_options"]["beta"] == 2.5
    assert printed["model_options"]["mu"] == "local"
    assert printed["options"]["noise_std"] == 0.25  # a default
    assert printed["planner_options"]["sweeps"] == 7
    assert cli.main([*words, "--print-config"]) == 0
    (tmp_path / "all.json").write_text(capsys.readouterr().out)
    assert mufield("train", "--config", "all.json", "--print-config") == printed


def test_a_users_file_may_import_its_neighbours_and_mistakes_in_it_are_one_line(
    mufield, tmp_path, monkeypatch
):
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    (tmp_path / "lorry_words.py").write_text('SUMMARY = "lorries from next door"\n')
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from lorry_words import SUMMARY\n"
        + FLEET.replace('"lorries", "lorries on a road"', '"next-door", SUMMARY')
    )
    before = list(sys.path)
    listed = mufield("list", "--import", mine)
    assert {"name": "next-door", "summary": "lorries from next door"} in listed
    assert sys.path == before
    wrong = tmp_path / "wrong.py"
    for code, message in (
        ("x = 1\ny = 1 / 0\n", "ZeroDivisionError: division by zero (line 2); correct"),
        ("import nothing_of_the_kind\n", "No module named 'nothing_of_the_kind' (line 1)"),
        ("def f(:\n", "SyntaxError"),
    ):
        wrong.write_text(code)
        assert message in mufield("list", "--import", wrong, fails=True)


def test_a_run_moves_with_its_users_file(mufield, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    (here / "my_lorries.py").write_text(FLEET.replace('"lorries"', '"moving"'))
    small = ("--model", "ensemble", "--model-options", "members=2,width=4,steps=2")
    small += ("--first", "random")
    imports = ("--import", here / "my_lorries.py", *small)
    mufield(
        "new", "moving", "--out", here / "run", *imports, "--planner-options", "points=3,sweeps=2"
    )
    here.rename(there)
    message = mufield("ask", there / "run", fails=True).splitlines()[-1]
    assert "there is no such file; say with --import where it is" in message
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    registry._ENTRIES.pop("moving")
    asked = mufield("ask", there / "run", "--import", there / "my_lorries.py")
    assert asked["episode"] == 1
