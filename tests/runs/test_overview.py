"""`mufield runs`: every run is listed, whatever state it is in."""

import json
import os
from dataclasses import replace

import pytest

from mufield import cli
from mufield.runs.files import find_runs, summarise


def write(directory, config, *, episodes=0, plans=None, values=()):
    """A run's directory as far as a glance goes."""
    for part, end, count in (
        ("episodes", "safetensors", episodes),
        ("plans", "safetensors", episodes if plans is None else plans),
        ("policies", "policy", episodes if plans is None else plans),
    ):
        (directory / part).mkdir(parents=True)
        for number in range(1, count + 1):
            (directory / part / f"{number:04d}.{end}").write_bytes(b"contents")
    (directory / "versions.json").write_text("{}")
    (directory / "config.json").write_text(json.dumps(config.document()))
    rows = [{"episode": n, "value": value} for n, value in enumerate(values, start=1)]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return directory


@pytest.fixture
def runs(tmp_path, small):
    """Runs in all states, some of them deeper down."""
    config = replace(small.config, episodes=2)
    top = tmp_path / "all"
    write(top / "done", config, episodes=2, values=(3.0, 1.0))
    write(top / "deep/half", replace(config, seed=7), episodes=1, plans=2, values=(5.0,))
    fleet = replace(config, label="ab12", model="gp", model_options={"beta": 2.0})
    write(top / "deep/fleet", fleet, episodes=1, plans=2, values=(-1.0,))
    write(top / "new", replace(config, optimism="greedy"))
    (top / "no-run").mkdir()
    (top / "no-run/config.json").write_text("{}")  # of some other program
    return top


@pytest.fixture
def listed(runs, capsys):
    def listed(*words):
        assert cli.main(["runs", str(runs), *words, "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)
        return {os.path.basename(row["directory"]): row for row in rows}

    return listed


def test_all_runs_are_found_with_their_figures_and_states(listed):
    rows = listed()
    assert {name: row["state"] for name, row in rows.items()} == {
        "done": "complete",
        "half": "unfinished",
        "fleet": "waiting for tell",
        "new": "unfinished",
    }
    done = rows["done"]
    assert (done["episodes"], done["target"], done["best"], done["last"]) == (2, 2, 3.0, 1.0)
    assert (done["environment"], done["planner"], done["seed"]) == ("four-rooms", "mirror", 0)
    assert done["config"]["options"]["horizon"] == 3
    assert rows["new"]["best"] is None


def test_runs_stand_in_the_order_of_their_directories(listed):
    assert list(listed()) == ["fleet", "half", "done", "new"]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda run: (run / "config.json").write_text("{"), "config.json is not JSON"),
        (lambda run: (run / "config.json").write_text('{"sed": 1}'), "no setting sed"),
        (lambda run: (run / "config.json").write_bytes(b"\xff\xfe"), "config.json"),
        (lambda run: (run / "config.json").unlink(), "config.json is missing"),
        (
            lambda run: (run / "episodes/0001.safetensors").unlink(),
            "episodes/0001.safetensors: it is",
        ),
        (
            lambda run: (run / "plans/0002.safetensors").unlink(),
            "plans/0002.safetensors: it is missing",
        ),
        (lambda run: (run / "policies/0001.policy").write_bytes(b""), "0001.policy: it is empty"),
        (lambda run: (run / "plans").rename(run / "plan"), "plans: the directory is missing"),
    ],
)
def test_a_damaged_run_is_listed_with_the_reason(runs, listed, damage, reason):
    damage(runs / "done")
    row = listed()["done"]
    assert row["state"] == "damaged"
    assert reason in row["reason"]


def test_torn_metrics_are_no_damage_because_they_are_written_again(runs):
    path = runs / "done/metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    found = summarise(runs / "done")
    assert [found[name] for name in ("state", "episodes", "last")] == ["complete", 2, 3.0]


def test_a_run_is_found_once_and_links_in_circles_do_no_harm(runs):
    (runs / "deep/again").symlink_to(runs, target_is_directory=True)
    assert len(list(find_runs([runs, runs / "deep", runs], depth=5))) == 4


def test_the_table_names_all(runs, capsys, monkeypatch):
    monkeypatch.chdir(runs)
    assert cli.main(["runs"]) == 0
    table = capsys.readouterr().out
    for words in ("directory", "best J", "waiting for tell", "deep/half", "1/2", "hallucinated"):
        assert words in table


def test_names_of_directories_cannot_command_the_terminal(tmp_path, small, capsys):
    name = b"evil\x1b[2J\x9b\xff\xe2\x80\xae\n"
    write(tmp_path / os.fsdecode(name), small.config)
    for words in ((), ("--json",)):
        assert cli.main(["runs", str(tmp_path), *words]) == 0
        printed = capsys.readouterr().out
        assert printed.encode()  # it is UTF-8
        assert not {"\x1b", "\x9b", "\u202e"} & set(printed)
    assert os.fsencode(json.loads(printed)[0]["directory"]) == os.fsencode(tmp_path) + b"/" + name
    assert cli.main(["show", os.fsdecode(name)]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_no_runs_is_no_mistake(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["runs"]) == 0
    assert capsys.readouterr().out == "no run in . or runs\n"
