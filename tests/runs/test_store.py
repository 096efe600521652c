"""Files of runs: what is damaged is named, and two processes do not write to one run."""

import json
import shutil
import subprocess
import sys

import jax
import pytest

from mufield import UserError, load_policy
from mufield.cli.sources import print_changes
from mufield.io.atomic import DirectoryInUse, locked
from mufield.io.policies import read_info
from mufield.runs.config import RunConfig, parse_config, read_settings
from mufield.runs.files import RunFiles
from mufield.runs.history import to_episode
from mufield.runs.layout import read_versions
from mufield.runs.learn import learn_run
from mufield.runs.session import open_run
from mufield.runs.store import RunStore
from mufield.runs.surroundings import changes_since


def test_a_run_holds_what_its_listing_says(run):
    names = {str(p.relative_to(run)) for p in run.rglob("*") if p.is_file()}
    each = {
        f"{part}/000{n}.{end}"
        for n in (1, 2)
        for part, end in (
            ("policies", "policy"),
            ("plans", "safetensors"),
            ("episodes", "safetensors"),
        )
    }
    others = {"config.json", "versions.json", "metrics.jsonl", "timings.jsonl"}
    assert names == each | others | {"last.policy", "best_episode.policy", "lock"}
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["episode"] for row in rows] == [1, 2]
    assert rows == RunFiles(run).rows


def test_policies_can_be_deployed_and_name_their_run(run, small):
    copied = run / f"policies/000{RunFiles(run).best_episode}.policy"
    assert (run / "best_episode.policy").read_bytes() == copied.read_bytes()
    for number in (1, 2):
        path = run / f"policies/000{number}.policy"
        assert load_policy(path).horizon == small.problem.horizon
        info = read_info(path)
        assert (info["run"], info["episode"]) == (small.config.identity, number)


def test_the_learners_data_come_back_as_they_were(run, small):
    with open_run(run, small) as session:
        assert session.ends == (3, 6)
        assert session.state.episode == 2
        first = to_episode(RunFiles(run).records[0])
        assert (session.data.states[:3] == first.states[0]).all()


def test_more_episodes_can_follow_and_become_the_target(run, small):
    learn_run(run, 3, setup=small, progress=False)
    store = RunFiles(run)
    assert (store.episodes, store.config.episodes) == (3, 3)
    assert store.config.identity == small.config.identity


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "episodes/0001.safetensors",
        "plans/0002.safetensors",
        "policies/0002.policy",
    ],
)
@pytest.mark.parametrize("damage", ["cut", "changed", "empty"])
def test_a_damaged_file_is_named(run, small, name, damage):
    path = run / name
    data = bytearray(path.read_bytes())
    if damage == "changed":
        data[-3] ^= 1
    path.write_bytes({"cut": data[:-5], "changed": data, "empty": b""}[damage])
    with pytest.raises(UserError, match=name.rpartition("/")[2]), open_run(run, small) as session:
        _ = session.state


@pytest.mark.parametrize("name", ["episodes/0001.safetensors", "policies/0002.policy"])
def test_a_lost_file_is_named(run, small, name):
    (run / name).unlink()
    with pytest.raises(UserError, match=f"{name}: it is missing"), open_run(run, small):
        pass


def test_the_last_episode_cannot_be_forgotten_in_part(run):
    learned = run / "episodes/0001.safetensors"
    (run / "episodes/0002.safetensors").unlink()
    assert RunFiles(run).episodes == 1
    learned.unlink()
    with pytest.raises(UserError, match=r"episodes/0001.safetensors: it is missing"):
        RunFiles(run)


def test_a_file_of_another_run_is_refused(run, tmp_path, small, begin):
    other = tmp_path / "other"
    begin(other, seed=1)
    learn_run(other, 1, setup=None, progress=False)
    shutil.copy(other / "episodes/0001.safetensors", run / "episodes/0001.safetensors")
    with pytest.raises(UserError, match="belongs to another run"):
        RunFiles(run)


def test_a_run_is_not_begun_over_another_or_among_other_files(run, tmp_path, small):
    with pytest.raises(UserError, match="holds a run already"):
        RunStore.create(run, small.config)
    (tmp_path / "letter.txt").touch()
    with pytest.raises(UserError, match=r"holds letter.txt"):
        RunStore.create(tmp_path, small.config)


def test_only_one_process_writes(run, small):
    holder = (
        "import sys, time; from pathlib import Path; from mufield.io.atomic import locked\n"
        f"with locked(Path({str(run)!r})): print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", holder], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdout.readline() == b"held\n"
        with (
            pytest.raises(DirectoryInUse, match=f"in use by process {process.pid}"),
            open_run(run, small),
        ):
            pass
    finally:
        process.kill()
        process.communicate()
    with locked(run):  # a process that was killed leaves no lock behind
        pass


def test_a_run_of_another_precision_is_refused(run):
    with jax.enable_x64(False), pytest.raises(UserError, match="computes in float64, but"):
        learn_run(run, progress=False)


def test_other_versions_are_noticed(run):
    assert changes_since(read_versions(run)) == []
    path = run / "versions.json"
    path.write_text(path.read_text().replace('"jax": "', '"jax": "0.0.'))
    assert [change.split()[0] for change in changes_since(read_versions(run))] == ["jax"]
    own = run / "own.py"
    own.write_text("# as it is today")
    then = read_versions(run) | {"imported": {"file": str(own), "sha256": "0" * 64}}
    changes = [each for each in changes_since(then) if str(own) in each]
    assert changes == [f"{own} has changed since the run began, or is gone; figures may differ"]


def test_a_strangers_versions_do_nothing_but_a_note(run, tmp_path, capsys):
    huge = tmp_path / "huge.py"
    with huge.open("wb") as file:
        file.truncate(1 << 40)  # takes no room
    told = {"jax": "\x1b[31mred", "numpy": {"a": 1}, "imported": {"file": str(huge), "sha256": "x"}}
    (run / "versions.json").write_text(json.dumps(read_versions(run) | told))
    print_changes(run)
    notes = capsys.readouterr().err.splitlines()
    assert [note.split()[1] for note in notes] == ["jax", "numpy", str(huge)]
    assert "\\u001b[31mred" in notes[0]


def test_configurations_come_back_from_files(tmp_path, small):
    path = tmp_path / "run.toml"
    path.write_text('environment = "swarm"\nseed = 3\n[options]\nhorizon = 10\n')
    expected = RunConfig(environment="swarm", seed=3, options={"horizon": 10})
    assert parse_config(read_settings(path), str(path)) == expected
    assert parse_config(small.config.document(), "memory") == small.config


def test_the_environment_the_model_and_the_planner_may_be_tables(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        'seed = 3\n[environment]\nname = "swarm"\nhorizon = 10\n'
        '[model]\nname = "gp"\nbeta = 2.0\n[planner]\nsweeps = 7\n'
    )
    assert read_settings(path) == {
        "seed": 3,
        "environment": "swarm",
        "options": {"horizon": 10},
        "model": "gp",
        "model_options": {"beta": 2.0},
        "planner_options": {"sweeps": 7},
    }
    path.write_text('[model]\nname = "gp"\n[model_options]\nbeta = 2.0\n')
    with pytest.raises(UserError, match=r"in \[model\] and in model_options; write them in one"):
        read_settings(path)
    path.write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"run\.toml is not TOML"):
        read_settings(path)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "environment is wrong"),
        ({"environment": "swarm", "sed": 1}, "no setting sed; there are environment"),
        ({"environment": "swarm", "seed": "x"}, "seed is wrong"),
        ({"environment": "swarm", "scale": float("nan")}, "scale is wrong"),
        ({"environment": "swarm", "model": "tree"}, "model is wrong"),
        ({"environment": "swarm", "agents": 0}, "agents must be 1 or more"),
        ({"environment": "swarm", "format": 9}, "newer mufield"),
    ],
)
def test_a_wrong_configuration_is_explained(document, message):
    with pytest.raises(UserError, match=message):
        parse_config(document, "here")
