"""Runs of problems with shocks: kept on disk, told from files, planned anew within a day."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fleet import rows_of, write

import mufield as mf
from mufield import cli
from mufield.planning import plan_over_paths
from mufield.policies.shocks import ByShock, profile_on_path
from mufield.runs.build import build, resolve
from mufield.runs.config import RunConfig
from mufield.runs.learn import learn_run
from mufield.runs.session import open_run
from mufield.runs.store import RunStore

COIN = mf.Shocks([0, 1], [0.5, 0.5])


def windy(node, action, mu):
    """Under the shock 1 agents go where they do not want to."""
    return jnp.full(2, 0.1).at[jnp.where(mu.shock == 1, 1 - action, action)].add(0.8)


def make_windy():
    known = {"space": mf.Nodes(["left", "right"]), "actions": ["left", "right"], "horizon": 3}
    known |= {"initial": [0.5, 0.5], "reward": lambda node, action, mu: 1.0 * (node == 1)}
    problem = mf.Problem(**known, shocks=mf.Shocks(COIN.values))
    return mf.SimulatedSystem(problem, windy, shocks=COIN)


@pytest.fixture(scope="module", autouse=True)
def registered():
    """Not when the file is imported: other tests sweep what is registered by then."""
    mf.register("windy", "two places in changing wind")(make_windy)


@pytest.fixture(scope="module")
def setup(registered):
    config = RunConfig(
        "windy",
        episodes=3,
        agents=8,
        planner_options={"sweeps": 10},
        judge=False,
        seed=1,
        precision="float64",
    )
    return build(resolve(config))


@pytest.fixture(scope="module")
def finished(setup, tmp_path_factory):
    directory = tmp_path_factory.mktemp("windy") / "run"
    RunStore.create(directory, setup.config)
    learn_run(directory, setup=setup, progress=False)
    return directory


def said(capsys, *arguments, code=0):
    assert cli.main([str(each) for each in (*arguments, "--json")]) == code
    told = capsys.readouterr()
    return " ".join(told.err.split()) if code else json.loads(told.out)


def test_a_run_keeps_its_shocks_and_goes_on_to_the_same_bits(finished, setup, tmp_path):
    copied = tmp_path / "copy"
    RunStore.create(copied, setup.config)
    for episodes in (1, 2, 3):  # each in an open run of its own, from disk
        learn_run(copied, episodes, setup=setup, progress=False)
    for part in ("policies/0003.policy", "episodes/0003.safetensors", "metrics.jsonl"):
        assert (finished / part).read_bytes() == (copied / part).read_bytes()
    with open_run(finished, setup) as session:
        whole = mf.learn(setup.system, setup.learner, episodes=3, agents=8, seed=1, progress=False)
        np.testing.assert_array_equal(session.data.shocks, whole.state.data.shocks)
        assert len(session.data.shocks) == 9


def test_the_best_policy_sees_the_shock_and_knows_what_to_expect(finished, setup, capsys, tmp_path):
    out = tmp_path / "best.policy"
    said(capsys, "export", finished, "--out", out)
    profile = mf.load_policy(out)
    assert isinstance(profile.join(profile.per_step), ByShock)
    earned = float(setup.system.evaluate(profile).value)
    assert earned > 0.9 * (0.5 + 2 * 0.9)
    with open_run(finished, setup) as session:
        best = session.best()
        assert best.lower <= best.expected <= best.upper
        assert best.expected == pytest.approx(earned, abs=0.4)


def test_pages_show_the_run(finished, tmp_path, capsys):
    said(capsys, "show", finished, "--out", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "windy" in page
    assert '"standard_error"' in page
    pictures = said(capsys, "show", finished, "--out", tmp_path / "it.png")["files"]
    assert [name.rsplit("-")[-1] for name in pictures] == [
        "learning.png",
        "population.png",
        "paths.png",
    ]
    assert cli.main(["show", str(finished)]) == 0
    assert "5% to 95%" in capsys.readouterr().out


def test_rows_say_what_was_expected_over_the_paths_and_what_came(finished, setup):
    with open_run(finished, setup) as session:
        rows, record = session.store.rows, session.store.records[2]
        bands = session.store.read_plan(3, None).bands
    paths = rows[2]["paths"]
    assert paths["value"][0] <= paths["value"][1] == pytest.approx(rows[2]["optimistic"])
    np.testing.assert_allclose(bands.rewards, paths["rewards"])
    np.testing.assert_allclose(paths["realised"]["rewards"], record.arrays["rewards"])
    assert len(paths["entropy"][0]) == len(paths["realised"]["entropy"]) == 4


def told(tmp_path, setup, profile, shocks):
    """The rows of an episode on a path."""
    episode = setup.system.on_path([*shocks, shocks[-1]]).run(
        profile_on_path(profile, COIN, jnp.asarray(shocks)), jax.random.key(5), agents=20
    )
    rows = rows_of(episode)
    for row in rows:
        row["shock"] = shocks[row["step"]]
    return rows


def test_real_systems_tell_the_shocks_of_their_steps(finished, setup, tmp_path, capsys):
    run = shutil.copytree(finished, tmp_path / "run")
    asked = said(capsys, "ask", run)
    day = tmp_path / "day.csv"
    places = write(tmp_path / "now.csv", [{"agent": i, "state_0": i % 2} for i in range(4)])
    assert "add --shock N" in said(capsys, "ask", run, "--start", places, "--step", 1, code=2)
    noon = said(capsys, "ask", run, "--start", places, "--step", 1, "--shock", 1)
    assert noon["policy"] != asked["policy"]
    other = said(capsys, "ask", run, "--start", places, "--step", 1, "--shock", 0)
    assert other["policy"] != noon["policy"]
    assert said(capsys, "show", run)[-1]["episode"] == 3  # its files fit each other
    rows = told(tmp_path, setup, mf.load_policy(other["file"]), [1, 0, 1])
    one = [{**row, "shock": 2} for row in rows]
    assert "expected 0 to 1" in said(capsys, "tell", run, write(day, one), code=2)
    one = [{**row, "shock": int(row["agent"] == 0)} for row in rows]
    assert "one number in all rows of a step" in said(capsys, "tell", run, write(day, one), code=2)
    one = [{n: v for n, v in row.items() if n != "shock"} for row in rows]
    assert "shock" in said(capsys, "tell", run, write(day, one), code=2)
    assert "shocks of the problem" in said(capsys, "tell", run, "--log", write(day, rows), code=2)
    assert said(capsys, "tell", run, write(day, rows))["episode"] == 4
    with open_run(run, setup) as session:
        np.testing.assert_array_equal(session.data.shocks[-3:], [1, 0, 1])


def test_policies_by_shock_in_files_are_checked(tmp_path):
    problem = make_windy().problem.replace(shocks=COIN)
    profile = plan_over_paths(mf.Flow(problem), windy, sweeps=2, memory=2, perfect=False).profile
    path = tmp_path / "two.policy"
    mf.save_policy(path, profile)
    back = mf.load_policy(path)
    for one, two in zip(*map(jax.tree.leaves, (back, profile)), strict=True):
        np.testing.assert_array_equal(one, two)
    three = make_windy().problem.replace(shocks=mf.Shocks([0, 1, 2], [0.2, 0.3, 0.5]))
    with pytest.raises(mf.UserError, match="a part for each of 9 cases"):
        mf.SimulatedSystem(three, windy).run(back, jax.random.key(0))
