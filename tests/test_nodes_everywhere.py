"""What a run on nodes can be used for, and what is refused before anything is written."""

import json
import re

import jax
import numpy as np
import pytest

import mufield as mf
from mufield.cli import main
from mufield.deploy.reader import DeployedPolicy
from mufield.finite.populations import play_populations
from mufield.io.rows import checked_positions
from mufield.report.data import RunReader, collect
from mufield.runs.build import resolve
from mufield.runs.config import RunConfig
from mufield.viz import field_figure


@pytest.fixture(scope="module")
def system():
    return mf.make("left-right")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two episodes by the command line, without a word about the model."""
    place = tmp_path_factory.mktemp("nodes") / "run"
    options = ["--agents", "10", "--episodes", "2", "--planner-options", "sweeps=20", "--no-judge"]
    precision = str(np.dtype(jax.numpy.result_type(float)))
    assert (
        main(["train", "left-right", *options, "--precision", precision, "--out", str(place)]) == 0
    )
    return place


def test_a_run_learns_by_counts_and_goes_on_until_it_is_exported(run, tmp_path, capsys):
    assert json.loads((run / "config.json").read_text())["model"] == "counts"
    assert main(["train", "--out", str(run)]) == 0  # complete, with the same settings
    assert main(["show", str(run), "--out", str(tmp_path / "p.png")]) == 0
    assert main(["show", str(run), "--out", str(tmp_path / "p.gif")]) == 0
    last = str(tmp_path / "use")
    assert main(["export", str(run), "--episode", "last", "--out", last]) == 0
    law = DeployedPolicy.load(tmp_path / "use" / "policy.safetensors").law([[0.0]], step=0)
    np.testing.assert_allclose(law.weights[0], [2 / 3, 1 / 3], atol=0.1)  # the social optimum
    capsys.readouterr()


def test_the_page_has_a_bar_for_each_named_node_and_no_directions(run):
    found = collect([RunReader(run)])["runs"][0]
    assert found["space"]["names"] == ["start", "left", "right"]
    assert not found["space"]["arrows"]
    assert all("actions" not in flow for flow in found["flows"].values())


def test_pictures_show_the_network_with_a_scale(system):
    masses = np.asarray(system.evaluate(mf.random_policy(system.problem)).mass)
    figure = field_figure(system.problem.grid, masses, [1])
    panel, bar = figure.axes
    assert [text.get_text() for text in panel.texts] == ["start", "left", "right"]
    assert bar.get_ylabel() == "mass of a node"
    np.testing.assert_allclose(panel.collections[0].get_array(), masses[1])
    with pytest.raises(mf.UserError, match="arrows are drawn on grids"):
        field_figure(system.problem.grid, masses, [0], arrows=np.zeros((1, 3, 2)))


def test_evaluation_plays_nodes(system):
    policy = mf.as_profile(mf.random_policy(system.problem), 1)
    rows = play_populations(system, policy, [20], episodes=2)
    assert [row["population"] for row in rows] == [None, 20]
    assert rows[0]["value"] == pytest.approx(-0.75)


def test_adapters_play_nodes(system):
    pytest.importorskip("pettingzoo")
    from benchmarks._lifted import LiftedEnv
    from mufield.adapters.parallel import PopulationEnv

    lifted = LiftedEnv(system)
    lifted.reset(seed=0)
    assert lifted.step(np.zeros(6, np.float32))[1] == pytest.approx(-0.75)
    with pytest.raises(mf.UserError, match="no order to interpolate along"):
        LiftedEnv(system, policy="coarse")
    crowd = PopulationEnv(system, agents=4)
    crowd.reset(seed=0)
    assert set(crowd.step(dict.fromkeys(crowd.agents, 0))[1].values()) == {-1.0}  # all are left


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"model": "gp"}, "nodes have no coordinates.*--model counts"),
        ({"model": "ensemble"}, "nodes have no coordinates.*--model counts"),
        ({"planner": "network"}, "use MirrorAscent"),
        ({"planner": "table"}, "use MirrorAscent"),
    ],
)
@pytest.mark.parametrize("command", ["train", "new"])
def test_what_needs_coordinates_is_refused_before_a_run_begins(
    command, setting, words, tmp_path, capsys
):
    ((name, value),) = setting.items()
    place = tmp_path / "run"
    assert main([command, "left-right", f"--{name}", value, "--out", str(place)]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "Traceback" not in error
    assert re.search(words, error)
    assert not place.exists()


def test_counts_are_the_default_on_nodes_alone_and_hidden_rewards_are_for_grids(system):
    assert resolve(RunConfig("swarm")).model == "gp"
    known = system.problem
    hidden = mf.Problem(space=known.grid, actions=2, reward=None, horizon=1, initial=known.initial)
    with pytest.raises(mf.UserError, match="hidden reward cannot be learned on nodes"):
        mf.M3UCRL(hidden)
    with pytest.raises(mf.UserError, match="nodes have no coordinates"):
        mf.M3UCRL(hidden, reward_family=mf.GaussianProcess())


@pytest.mark.parametrize("node", [1.4, 7.0, -1.0])
def test_files_that_name_no_node_are_refused(system, node):
    where = lambda row, column: f"line {row + 2}, column {column}"  # noqa: E731
    with pytest.raises(mf.UserError, match=r"line 3, column next_0.*from 0 to 2.*'left'"):
        checked_positions(where, system.problem.grid, np.array([[1.0], [node]]), ["next_0"])
