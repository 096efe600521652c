"""`mufield evaluate`: N agents beside the limit."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import walk, walking_problem

from mufield import (
    Box,
    Grid,
    Profile,
    SimulatedSystem,
    TablePolicy,
    make,
    random_policy,
    register,
    save_policy,
)
from mufield.cli import main
from mufield.cli.policies import Evaluate
from mufield.cli.sources import PolicySource
from mufield.constraints import mass_at_most
from mufield.environments import registry
from mufield.finite.populations import margin_figures
from mufield.policies import uniform_policy

pytestmark = pytest.mark.slow

SHORT = ["four-rooms", "--options", "horizon=3"]


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    """A randomised policy for the four rooms of three steps, as a file."""
    cells = make("four-rooms", horizon=3).problem.grid.n_cells
    moves = Box(-1.0, 1.0, 2).points(3)
    weights = jnp.full((3, cells, len(moves)), 1.0 / len(moves))
    path = tmp_path_factory.mktemp("policy") / "even.policy"
    save_policy(path, Profile.stacked(TablePolicy.mixing(moves, weights), 3))
    return path


def evaluated(capsys, *arguments):
    assert main(["evaluate", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_more_agents_come_closer_to_the_limit(policy, capsys):
    rows = evaluated(
        capsys,
        policy,
        "four-rooms",
        "--options",
        "horizon=3",
        "--population",
        "20,2000",
    )
    planned, few, many = rows
    assert [row["population"] for row in rows] == [None, 20, 2000]
    assert [row["by"] for row in rows] == ["flow", "agents", "agents"]
    assert planned["loss"] == 0
    assert few["loss"] > many["loss"] + 0.5  # a histogram of few agents has less entropy
    for row in (few, many):
        assert row["low"] < row["value"] < row["high"]


def test_the_random_policy_needs_no_file(capsys):
    words = ("four-rooms", "--options", "horizon=3", "--population", "20")
    system = make("four-rooms", horizon=3)
    wanted = float(system.evaluate(random_policy(system.problem)).value)
    assert evaluated(capsys, "random", *words)[0]["value"] == pytest.approx(wanted)


def test_agents_who_think_of_themselves_have_a_row(capsys):
    rows = evaluated(capsys, "random", "left-right", "--population", "20", "--selfish")
    # Half on each side pay 0.5 and 1; one agent alone would go left.
    assert rows[0]["exploitability"] == pytest.approx(0.25, abs=1e-6)
    assert rows[-1]["by"] == "equilibrium"
    assert rows[-1]["value"] == pytest.approx(-2 / 3, abs=1e-3)
    assert rows[-1]["exploitability"] < 1e-3
    assert rows[-1]["loss"] == pytest.approx(-0.75 + 2 / 3, abs=1e-3)


@pytest.fixture
def capped(monkeypatch):
    """Agents on a line of four cells, of whom at most half may be in the first."""
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    grid = Grid.box(0.0, 4.0, 4)
    cap = mass_at_most(grid, [(0,)], 0.5)
    problem = walking_problem(grid, horizon=4, constraints=[cap])
    register("capped", "a line")(lambda: SimulatedSystem(problem, walk))


@pytest.mark.parametrize(("action", "kept"), [(0.0, 1.0), (-1.0, 0.0)])
def test_limits_are_kept_or_broken(capped, tmp_path, capsys, action, kept):
    path = tmp_path / "same.policy"
    save_policy(path, uniform_policy(jnp.array([[action]])))
    play = (path, "capped", "--population", "50,500", "--episodes", "3")
    planned, few, many = evaluated(capsys, *play)
    assert [row["satisfied"] for row in (planned, few, many)] == [kept] * 3
    assert many["margin"] == pytest.approx(planned["margin"], abs=0.1)
    assert (planned["margin"] > 0) == bool(kept)
    assert main(["evaluate", *map(str, play)]) == 0
    head, first, *_ = capsys.readouterr().out.splitlines()
    assert head.split()[-2:] == ["satisfied", "margin"]
    assert first.split()[-2:] == [f"{kept:.1%}", f"{planned['margin']:.1%}"]


def test_agents_exactly_at_a_limit_keep_it():
    assert margin_figures(np.array([-3e-8, 0.1, -1e-4, 0.0]))["satisfied"] == 0.75


def test_systems_without_limits_have_no_such_columns(policy, capsys):
    play = (policy, *SHORT, "--population", "20", "--episodes", "2")
    assert all("satisfied" not in row and "margin" not in row for row in evaluated(capsys, *play))
    assert main(["evaluate", *map(str, play)]) == 0
    assert "satisfied" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*SHORT, "--population", "0"], "numbers of agents"),
        ([*SHORT, "--episodes", "1"], "at least two episodes"),
        ([], "name the environment"),
        (["swarm", "--options", "horizon=3"], "is for 104 cells, and the grid has 100"),
    ],
)
def test_mistakes_are_one_line(policy, arguments, message, capsys):
    assert main(["evaluate", str(policy), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1


def test_a_real_system_cannot_be_played_and_the_remedy_is_said(monkeypatch, capsys):
    problem = make("four-rooms", horizon=2).problem
    source = PolicySource(None, "my-fleet", problem, problem, {}, None)
    monkeypatch.setattr(Evaluate, "load", lambda self: source)
    assert main(["evaluate", "my-run"]) == 2
    said = capsys.readouterr().err
    assert "my-fleet is a real system, which cannot be played here" in said
    assert "`mufield evaluate my-run SIMULATOR --import FILE` plays the policy" in said
