"""Sweeps: which runs a file describes, what matters among them, and what users see of it."""

import json
import re
import tomllib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mufield import cli
from mufield.cli.sweep import Sweep as SweepCommand
from mufield.errors import UserError
from mufield.runs.sweep import explained, group_labels, is_sweep, read_sweep
from mufield.runs.trials import read_trials

SHARED = """
episodes = 1
precision = "float64"
[environment]
name = "four-rooms"
horizon = 2
drawing = "..\\n.."
[model]
name = "ensemble"
members = 2
width = 4
steps = 3
[planner]
points = 3
sweeps = 2
"""


@pytest.fixture
def trials(tmp_path):
    def read(text, **options):
        path = tmp_path / "sweep.toml"
        path.write_text(SHARED + text)
        return read_trials(path, **options)

    return read


def test_every_combination_is_a_run_with_all_that_it_shares(trials):
    found = trials("[grid]\nseed = [0, 1]\nmodel.width = [4, 8, 16]\nenvironment.noise_std = [0.2]")
    assert [(t.values["seed"], t.values["model.width"]) for t in found] == [
        (seed, width) for seed in (0, 1) for width in (4, 8, 16)
    ]
    last = found[-1]
    assert (last.config.seed, last.config.model, last.config.judge) == (1, "ensemble", False)
    assert last.config.model_options == {"members": 2, "width": 16, "steps": 3}
    assert last.config.options["noise_std"] == 0.2
    assert last.label == "seed=1, width=16, noise_std=0.2"


def test_draws_are_the_same_each_time_and_meet_every_combination(trials):
    text = (
        "[grid]\nseed = [0, 1]\n[random]\ndraws = 9\n"
        "environment.noise_std = {low = 0.1, high = 0.4}\n"
        "scale = {low = 0.001, high = 1.0, log = true}\nagents = {low = 1, high = 3}\n"
        "optimism = ['greedy', 'bonus']\n"
    )
    found = trials(text)
    assert [t.values for t in found] == [t.values for t in trials(text)]
    assert trials(text.replace("draws = 9", "draws = 9\ndraw_seed = 1"))[0] != found[0]
    assert len(found) == 18
    drawn = [{k: v for k, v in t.values.items() if k != "seed"} for t in found]
    assert drawn[::2] == drawn[1::2]
    assert all(0.1 <= t.config.options["noise_std"] <= 0.4 for t in found)
    assert {t.config.agents for t in found} <= {1, 2, 3}
    assert {t.config.optimism for t in found} == {"greedy", "bonus"}
    assert min(t.config.scale for t in found) < 0.1  # orders of magnitude alike


def test_equal_runs_are_one(trials):
    found = trials("[random]\ndraws = 20\nseed = [0, 1]")
    assert sorted(t.config.seed for t in found) == [0, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected lists of values in"),
        ("[grid]\nseed = []", "grid.seed: expected different values, at least one"),
        ("[grid]\nseed = [1, 1]", "grid.seed: expected different values"),
        ("[grid]\nseed = 1", "grid.seed: expected a list of values"),
        ("[grid]\nscale = {low = 0.1, high = 0.2}", "grid.scale must be a list"),
        ("[grid]\nmodel.name = ['gp', 'oracle']", "with model.name = oracle: model is wrong"),
        ("[grid]\nsede = [1]", "with sede = 1: there is no setting sede"),
        ("[grid]\nseed.x = [1]", "with seed.x = 1: seed is wrong"),
        ("[grid]\nenvironment.horizon.x = [1]", "cannot be set, as horizon is 2"),
        ("[grid]\nseed = [1]\n[random]\ndraws = 2\nseed = [1]", "no setting in both"),
        ("[random]\nseed = [1]", "with the number of draws"),
        ("[random]\ndraws = -1\nseed = [1]", "draws must be a whole number"),
        ("[random]\ndraws = 2\nscale = {low = 2, high = 1}", "expected low below high"),
        ("[random]\ndraws = 2\nscale = {low = 0, high = 1, log = true}", "must be above zero"),
        ("[grid]\nseed = [1]\nimports = ['mine.py']", "name it with --import"),
        ("[random]\ndraws = 5000\nscale = [0.1]\n[grid]\nseed = [1, 2, 3]", "15,000 runs"),
    ],
)
def test_mistakes_are_named(trials, text, message):
    with pytest.raises(UserError, match=re.escape(message)):
        trials(text)


def test_a_file_cannot_name_code(trials, tmp_path):
    (tmp_path / "mine.py").write_text("raise SystemExit('executed')")
    path = tmp_path / "coded.toml"
    path.write_text("imports = 'mine.py'\n[grid]\nseed = [1]")
    with pytest.raises(UserError, match="name it with --import"):
        read_trials(path)
    assert trials("[grid]\nseed = [1]", imports="mine.py")[0].config.imports == "mine.py"


def test_the_example_below_the_help_is_a_sweep(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text(SweepCommand.example.partition("# sweep.toml")[2])
    assert len(read_trials(path)) == 3 * 2 * 5
    assert tomllib.loads(path.read_text())["random"]["draws"] == 5


GROUPS = st.lists(st.lists(st.floats(-5, 5), min_size=2, max_size=5), min_size=2, max_size=4)


@given(GROUPS, st.floats(0.5, 2.0), st.floats(-3, 3))
def test_what_a_setting_explains_is_a_share_and_has_no_unit(groups, factor, shift):
    share = explained(groups)
    assert 0.0 <= share <= 1.0
    spread = np.ptp([value for group in groups for value in group])
    if spread > 1e-3:
        moved = [[factor * value + shift for value in group] for group in groups]
        assert explained(moved) == pytest.approx(share, abs=1e-6)


def test_a_setting_that_decides_alone_explains_everything_and_chance_nothing():
    assert explained([[1.0, 1.0], [2.0, 2.0], [5.0, 5.0]]) == 1.0
    assert explained([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]) == 0.0
    assert explained([[1.0], [2.0]]) is None
    assert explained([]) is None
    rng, shares = np.random.default_rng(0), []
    for _ in range(200):  # raw shares would be a third on average
        shares.append(explained(rng.normal(size=(4, 2)).tolist()))
    assert np.mean(np.array(shares) == 0.0) > 0.4


def test_many_numbers_form_four_groups():
    labels = group_labels([float(value) for value in range(20)])
    assert len(set(labels)) == 4
    assert (labels[0], labels[-1]) == ("0 to 4", "15 to 19")
    assert group_labels([1, 2, 1]) == ["1", "2", "1"]
    assert group_labels([True, "a"]) == ["true", "a"]


@pytest.mark.slow
def test_a_sweep_from_its_file_to_its_pictures(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep.toml").write_text(SHARED + "[grid]\nenvironment.noise_std = [0.2, 0.3]\n")
    words = ["sweep", "sweep.toml", "--out", "there", "--workers", "0"]
    assert cli.main([*words, "--json"]) == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert "[2/2] noise_std=0.3: done, J = " in printed.err
    values = [run["final"] for run in document["runs"]]
    assert values == sorted(values, reverse=True)
    assert [effect["name"] for effect in document["effects"]] == ["environment.noise_std"]
    assert is_sweep(tmp_path / "there")
    files = {path.name for path in (tmp_path / "there").iterdir()}
    assert files == {"jobs", "lock", "sweep.json", "sweep.png", "sweep.pdf"}

    # One more value: only that is computed.
    (tmp_path / "sweep.toml").write_text(
        SHARED + "[grid]\nenvironment.noise_std = [0.3, 0.4, 0.2]\n"
    )
    assert cli.main(words) == 0
    assert "[1/1] noise_std=0.4: done" in capsys.readouterr().err

    assert cli.main(["runs", "there"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].split() == ["J", "best", "episodes", "noise_std", "state", "run"]
    assert "which setting matters, by its share of the differences in J:" in table
    assert cli.main(["plot", "there", "--out", "pictures"]) == 0
    assert (tmp_path / "pictures" / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert cli.main(["report", "there"]) == 0
    page = (tmp_path / "report.html").read_text()
    assert '"sweeps":[{"name":"there"' in page
    assert '"name":"noise_std=0.4"' in page


def test_a_record_that_leads_elsewhere_is_refused(tmp_path):
    entry = {"folder": "../../elsewhere", "values": {}}
    (tmp_path / "sweep.json").write_text(json.dumps({"format": 1, "runs": [entry]}))
    with pytest.raises(UserError, match="expected the folder and the values of a run"):
        read_sweep(tmp_path)
    (tmp_path / "sweep.json").write_text("[]")
    with pytest.raises(UserError, match="cannot use"):
        read_sweep(tmp_path)


def test_a_sweep_that_has_not_begun_says_so(tmp_path, capsys):
    entry = {"folder": "run-0123456789", "values": {"seed": 1}}
    (tmp_path / "sweep.json").write_text(json.dumps({"format": 1, "runs": [entry]}))
    assert cli.main(["runs", str(tmp_path)]) == 0
    assert "missing" in capsys.readouterr().out
    assert cli.main(["plot", str(tmp_path)]) == 2
    assert "has no complete run yet" in capsys.readouterr().err
