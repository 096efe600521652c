"""`mufield export`: from a run or a policy file to files for elsewhere."""

import json
import os

import numpy as np
import pytest
from cases import rooms, stacked, table

from mufield import load_policy, make, save_policy
from mufield.cli import main
from mufield.deploy import export
from mufield.deploy.reader import DeployedPolicy
from mufield.io.policies import read_info
from mufield.policies import network_profile

pytestmark = pytest.mark.slow

SMALL = ["--precision", "float64", "--no-judge", "--options", 'horizon=3,drawing="...\\n.#.\\n..."']
SMALL += ["--model", "ensemble", "--model-options", "members=2,width=4,steps=3"]
SMALL += ["--planner-options", "points=3,sweeps=2"]

FLEET = """
import mufield as mf

@mf.register("tiny-fleet", "three cells")
def tiny_fleet(horizon: int = 2):
    grid = mf.Grid.box(0.0, 3.0, 3)
    return mf.Problem(
        space=grid, actions=mf.Box(-1.0, 1.0), reward=lambda s, a, mu: -mf.log_mass(mu.here),
        horizon=horizon, initial=mf.point_mass(grid, 0), noise=0.2, max_move=1.0,
    )
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A simulated run of two episodes."""
    directory = tmp_path_factory.mktemp("export") / "run"
    flags = ["--out", str(directory), "--episodes", "2", "--json"]
    assert main(["train", "four-rooms", *SMALL, *flags]) == 0
    return directory


def exported(capsys, *arguments):
    capsys.readouterr()
    assert main(["export", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_run_becomes_files_that_know_where_they_come_from(run, tmp_path, capsys):
    answer = exported(capsys, run, "--out", tmp_path / "robot")
    names = ["policy.safetensors", "mufield_reader.py"]
    assert answer["files"] == [str(tmp_path / "robot" / name) for name in names]
    assert sorted(os.listdir(tmp_path / "robot")) == sorted(names)
    assert answer["difference"] <= 1e-5
    policy = DeployedPolicy.load(tmp_path / "robot" / "policy.safetensors")
    assert policy.identity == answer["identity"]
    # By default it is the policy that all data make best.
    assert policy.identity["episodes"] == 2
    info = read_info(run / "best.policy")
    assert policy.identity["policy"] == info["id"]
    assert policy.identity["expected"] == info["expected"]
    weights = load_policy(run / "best.policy").per_step.weights
    np.testing.assert_array_equal(policy.slice("weights", 1), weights[1])
    assert policy.identity["environment"] == "four-rooms"
    assert policy.identity["options"]["horizon"] == 3
    assert policy.identity["seed"] == 0
    assert policy.actions == {"lower": [-1.0, -1.0], "upper": [1.0, 1.0]}


def test_any_episodes_policy_can_be_chosen(run, tmp_path, capsys):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    best = 1 + int(np.argmax([row["value"] for row in rows]))
    for which, number in (("1", 1), ("2", 2), ("last", 2), ("best-episode", best)):
        answer = exported(capsys, run, "--out", tmp_path, "--episode", which)
        assert answer["identity"]["episode"] == number
        found = DeployedPolicy.load(tmp_path / "policy.safetensors")
        weights = load_policy(run / f"policies/000{number}.policy").per_step.weights
        np.testing.assert_array_equal(found.slice("weights", 1), weights[1])


def test_a_real_fleets_run_is_exported_before_it_was_told_about(tmp_path, capsys):
    (tmp_path / "tiny_fleet.py").write_text(FLEET)
    fleet, flags = tmp_path / "fleet", ["--import", str(tmp_path / "tiny_fleet.py"), *SMALL[:3]]
    assert main(["new", "tiny-fleet", "--out", str(fleet), *flags, *SMALL[5:]]) == 0
    assert main(["export", str(fleet), "--out", str(tmp_path / "robot")]) == 2
    assert "`mufield ask` plans one" in capsys.readouterr().err
    assert main(["ask", str(fleet)]) == 0
    assert main(["export", str(fleet), "--out", str(tmp_path / "robot")]) == 2
    assert "has no data yet" in capsys.readouterr().err
    answer = exported(capsys, fleet, "--episode", "asked", "--out", tmp_path / "robot")
    assert answer["identity"]["episode"] == 1
    policy = DeployedPolicy.load(tmp_path / "robot" / "policy.safetensors")
    assert policy.space.shape == (3,)
    assert policy.act([[0.5], [2.5]], step=1).shape == (2, 1)


def test_a_policy_file_needs_the_name_of_its_environment(tmp_path, capsys):
    problem = make("four-rooms", horizon=3).problem
    import jax

    path = tmp_path / "net.policy"
    save_policy(path, network_profile(problem, jax.random.key(0)), info={"by": "hand"})
    out = tmp_path / "robot"
    answer = exported(capsys, path, "four-rooms", "--options", "horizon=3", "--out", out)
    assert answer["identity"]["by"] == "hand"
    assert answer["identity"]["options"] == {"horizon": 3}
    for arguments, message in (
        ([], "name the environment"),
        (["four-rooms"], "the problem has 20 steps but the profile has 3"),
        (["swarm", "--options", "horizon=3"], "made for another map"),
        (["four-rooms", "--options", "m"], "Error parsing --options: expected NAME=VALUE"),
    ):
        assert main(["export", str(path), *arguments, "--out", str(tmp_path / "no")]) == 2
        assert message in capsys.readouterr().err


def test_a_policy_file_is_for_mufield_itself(run, tmp_path, capsys):
    out = tmp_path / "use.policy"
    answer = exported(capsys, run, "--episode", "2", "--out", out)
    assert (answer["files"], answer["difference"]) == ([str(out)], None)
    assert out.read_bytes() == (run / "policies" / "0002.policy").read_bytes()
    assert main(["export", "random", "four-rooms", "--out", str(out)]) == 2
    assert "export it to a directory" in capsys.readouterr().err


def test_a_file_that_decides_otherwise_is_not_left(tmp_path, monkeypatch):
    problem, wrong = rooms(), 3e-5
    profile = stacked(table(problem))
    right = export.DeployedPolicy.law

    def astray(policy, *given, **more):
        law = right(policy, *given, **more)
        return law._replace(actions=law.actions + wrong)

    monkeypatch.setattr(export.DeployedPolicy, "law", astray)
    with pytest.raises(
        RuntimeError, match=r"policy.safetensors was not written: .* differ by 1\.\d+e-05"
    ):
        export.export_policy(profile, problem, tmp_path)
    assert not list(tmp_path.iterdir())
