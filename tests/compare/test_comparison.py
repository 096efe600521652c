"""Rivals side by side: the same game for all, and nothing is computed twice."""

import csv
import json
from dataclasses import replace
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from contest import (
    ALL,
    CONTINUOUS,
    EPISODES,
    HORIZON,
    LEARNERS,
    LIMITED,
    ROOMS,
    SEEDS,
    SMALL,
    TINY,
    pretend,
    pretended,
)

from mufield import (
    Grid,
    MoveSet,
    Problem,
    Profile,
    SimulatedSystem,
    TablePolicy,
    log_mass,
    make,
    point_mass,
    random_policy,
    register,
)
from mufield.compare import contenders as contenders_module
from mufield.compare.comparison import Comparison, ComparisonConfig, Result
from mufield.compare.contenders import Known, compare, contender, enter
from mufield.environments import registry
from mufield.episode import AbstractSystem
from mufield.errors import UserError
from mufield.jobs import compute
from mufield.jobs.processes import make_pool
from mufield.learning.metrics import interval_of
from mufield.viz import comparison_figure

pytestmark = pytest.mark.slow

QUICK = replace(SMALL, contenders=("random", "greedy"))


@pytest.fixture
def found(small):
    return small[0]


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A directory with the results of the quick ones, of which one only pretends to learn."""
    pretend(monkeypatch)
    compare(QUICK, tmp_path, progress=False)
    return tmp_path


@pytest.fixture
def players(monkeypatch):
    """Kinds of the jobs that are really computed."""
    kinds = []
    for kind, function in compute.KINDS.items():

        def recorded(settings, directory, kind=kind, function=function):
            kinds.append(kind)
            return function(settings, directory)

        monkeypatch.setitem(compute.KINDS, kind, recorded)
    return kinds


# What comes out.


def test_the_table_has_a_row_for_each_contender_in_their_order(found):
    rows = {row["contender"]: row for row in found.rows()}
    assert tuple(rows) == ALL
    for name, row in rows.items():
        if name in LEARNERS:
            assert row["low"] <= row["mean"] <= row["high"]
            assert row["seeds"] == len(SEEDS)
        else:
            assert (row["low"], row["high"], row["seeds"]) == (None, None, 1)
        assert row["seconds"] >= 0
    for name in LEARNERS:
        assert (rows[name]["episodes"], rows[name]["transitions"]) == (EPISODES, EPISODES * HORIZON)
    for name in ("random", "known"):
        assert (rows[name]["episodes"], rows[name]["transitions"]) == (0, 0)


@pytest.mark.parametrize("count", [2, 3, 10])
def test_the_interval_of_a_mean_covers_the_truth_as_often_as_it_says(count):
    rng = np.random.default_rng(0)
    intervals = [interval_of(row) for row in rng.normal(3.0, 2.0, size=(4000, count)).tolist()]
    covered = np.mean([low <= 3.0 <= high for _, low, high in intervals])
    assert covered == pytest.approx(0.95, abs=0.015)
    assert interval_of([1.5]) == (1.5, None, None)


def last(count):
    return np.arange(EPISODES) >= EPISODES - count


def test_curves_have_a_value_for_each_seed_and_entry(found):
    results = {result.name: result for result in found.results}
    for name in LEARNERS:
        assert results[name].transitions == tuple(HORIZON * (i + 1) for i in range(EPISODES))
        wanted = [[pretended(seed, i) for i in range(EPISODES)] for seed in SEEDS]
        np.testing.assert_array_equal(results[name].curves, wanted)
        # A third of seven episodes.
        np.testing.assert_allclose(results[name].finals, np.mean(wanted, axis=1, where=last(2)))
        assert results[name].counted == "J of a learner is its mean over episodes 6 to 7"


def test_known_motion_is_certified_and_beats_chance(found):
    results = {result.name: result for result in found.results}
    known, drawn = results["known"], results["random"]
    assert drawn.finals[0] < known.finals[0] <= known.upper + 1e-9
    said = float(known.remark.rpartition(" ")[2])
    assert known.upper <= said <= known.upper + 0.01  # rounded up
    system = make(SMALL.environment, **SMALL.options)
    exact = float(system.evaluate(random_policy(system.problem)).value)
    assert drawn.finals == (pytest.approx(exact),)
    assert [name for name in results if results[name].upper is not None] == ["known"]


def test_files_hold_the_curves_the_table_and_what_they_depend_on(small):
    found, directory = small
    document = json.loads((directory / "comparison.json").read_text())
    assert document["config"] == SMALL.document()
    assert document["table"] == found.rows()
    for result in found.results:
        kept = document["contenders"][result.name]
        assert kept["curves"] == [list(curve) for curve in result.curves]
        for job in kept["jobs"]:
            assert job["versions"].keys() >= {"mufield", "jax", "numpy"}
    known = document["contenders"]["known"]["jobs"][0]["settings"]
    assert known["options"]["actions"] == "standard"  # a default, written out
    run = document["contenders"]["thompson"]["jobs"][1]["settings"]
    assert (run["optimism"], run["seed"], run["model_options"]["inducing"]) == ("thompson", 1, 8)
    with (directory / "comparison.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["contender"] for row in rows] == list(ALL)
    assert [float(row["mean"]) for row in rows] == [row["mean"] for row in found.rows()]
    with (directory / "curves.csv").open(newline="") as file:
        tidy = list(csv.DictReader(file))
    assert list(tidy[0]) == ["contender", "seed", "transitions", "J"]
    assert len(tidy) == len(SEEDS) * 4 * EPISODES + 2
    greedy = [row for row in tidy if row["contender"] == "greedy" and row["seed"] == "1"]
    assert [float(row["J"]) for row in greedy] == [pretended(1, i) for i in range(EPISODES)]


# Results are used again.


def test_the_same_comparison_computes_nothing_again(small, players):
    found, directory = small
    lines = []
    assert compare(SMALL, directory, progress=False, say=lines.append) == found
    assert players == lines == []


def test_changed_settings_compute_anew_what_they_change(kept, players):
    compare(replace(QUICK, episodes=EPISODES + 1), kept, progress=False)
    assert players == ["learn", "learn"]
    players.clear()
    compare(replace(QUICK, seeds=(0, 2)), kept, progress=False)
    assert players == ["learn"]
    players.clear()
    shorter = {**QUICK.options, "horizon": 2}
    compare(replace(QUICK, options=shorter), kept, progress=False)
    assert players == ["random", "learn", "learn"]
    players.clear()
    compare(QUICK, kept, progress=False)
    assert players == []


def test_a_damaged_result_is_computed_anew(kept, players):
    (result,) = kept.glob("jobs/random-*/result.safetensors")
    data = bytearray(result.read_bytes())
    data[-1] ^= 1
    result.write_bytes(data)
    compare(QUICK, kept, progress=False)
    result.write_bytes(b"")
    compare(QUICK, kept, progress=False)
    assert players == ["random", "random"]


def test_what_fails_is_named_and_the_others_are_compared(tmp_path, monkeypatch):
    def fails(settings, directory):
        raise UserError("the first plan is not finite")

    monkeypatch.setitem(compute.KINDS, "learn", fails)
    config = replace(SMALL, contenders=("greedy", "random"), seeds=(0,))
    comparison = compare(config, tmp_path, progress=False)
    assert [result.name for result in comparison.results] == ["random"]
    (problem,) = comparison.problems
    assert problem.startswith("greedy-0 failed: the first plan is not finite; see ")
    table = json.loads((tmp_path / "comparison.json").read_text())["table"]
    assert [row["contender"] for row in table] == ["random"]


# Limits.


@pytest.fixture
def limited(tmp_path, monkeypatch):
    """Learners that pretend in a system with limits, with what they were asked."""
    asked = pretend(monkeypatch)
    return compare(LIMITED, tmp_path, progress=False), asked, tmp_path


def test_learners_with_and_without_pessimism_differ_in_that_alone(limited):
    comparison, asked, _ = limited
    assert [(each["pessimism"], each["seed"]) for each in asked] == [
        (kind, seed) for kind in ("samples", "none") for seed in SEEDS
    ]
    safe, unsafe = asked[0], asked[len(SEEDS)]
    assert unsafe | {"pessimism": "samples"} == safe
    assert safe["optimism"] == "hallucinated"
    (axes,) = comparison_figure(comparison).axes
    looks = {(line.get_color(), line.get_marker(), line.get_linestyle()) for line in axes.lines}
    assert len(looks) == 3


def test_learners_have_the_share_of_episodes_that_broke_a_limit(limited):
    comparison, _, directory = limited
    safe, unsafe, drawn = comparison.rows()
    assert (safe["violated"], drawn["violated"]) == (0.0, None)
    assert unsafe["violated"] == pytest.approx(2 / EPISODES)  # by 20% and 10%
    document = json.loads((directory / "comparison.json").read_text())
    assert document["table"] == comparison.rows()
    with (directory / "comparison.csv").open(newline="") as file:
        assert [row["violated"] for row in csv.DictReader(file)][::2] == ["0.0", ""]


def test_without_limits_nothing_is_said_of_them(found):
    assert all("violated" not in row for row in found.rows())


def test_a_plan_with_known_motion_is_bounded_among_those_that_keep_the_limits():
    (known,) = compare(replace(LIMITED, contenders=("known",)), progress=False).results
    assert known.remark.startswith(
        "no policy on the learners' moves that satisfies the constraints earns"
    )
    assert known.finals[0] <= known.upper + 1e-6


@pytest.mark.nightly
def test_an_unsafe_learner_notes_its_margins():
    config = replace(LIMITED, contenders=("unsafe",), seeds=(0,), episodes=2)
    (unsafe,) = compare(config, progress=False).results
    assert unsafe.violated in (0.0, 0.5, 1.0)


def test_who_ignores_pessimism_needs_limits(tmp_path):
    message = "unsafe needs a system with constraints, but discrete-rooms has none; leave"
    with pytest.raises(UserError, match=message):
        compare(replace(QUICK, contenders=("unsafe",)), tmp_path / "out", progress=False)
    assert not list(tmp_path.iterdir())


# Other games.


DISCRETE = ComparisonConfig(
    "discrete-rooms",
    (*LEARNERS, "known"),
    options={"horizon": 2, "drawing": ROOMS, "noise_intensity": 0.2},
    **{**TINY, "episodes": 2},
)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        DISCRETE,
        replace(CONTINUOUS, contenders=(*LEARNERS, "known"), episodes=2),
    ],
    ids=["finite", "continuous"],
)
def test_nobody_who_plays_the_same_game_earns_more_than_the_certified_bound(config):
    results = compare(config, progress=False).results
    highest = results[-1].upper + 1e-9
    for result in results:
        assert max(result.finals) <= highest
        if result.name in LEARNERS:
            assert np.shape(result.curves) == (len(SEEDS), 2)
            assert result.transitions == (config.options["horizon"], 2 * config.options["horizon"])


@pytest.fixture
def own_games(monkeypatch):
    """A finite game whose motion depends on mu, and one whose reward is not concave in it."""
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    grid = Grid.box(0.0, 3.0, 3)

    def game(name, motion, reward):
        problem = Problem(
            space=grid,
            actions=MoveSet([[-1.0], [0.0], [1.0]]),
            reward=reward,
            horizon=2,
            initial=point_mass(grid, 1),
            noise=0.1,
            max_move=1.0,
        )
        register(name, "a game")(lambda: SimulatedSystem(problem, motion))

    game(
        "slow-crowd",
        lambda state, action, mu: state + action * (1 - mu.here),
        lambda state, action, mu: -log_mass(mu.here),
    )
    game(
        "herd",
        lambda state, action, mu: state + action,
        lambda state, action, mu: mu.here,
    )


@pytest.mark.parametrize("environment", ["slow-crowd", "herd"])
def test_outside_the_class_of_certificates_known_motion_has_no_bound(own_games, environment):
    config = ComparisonConfig(environment, ("random", "known"), **TINY)
    drawn, known = compare(config, progress=False).results
    assert (known.upper, known.remark) == (None, Known.unbounded)
    assert known.finals[0] >= drawn.finals[0]


@pytest.mark.nightly
@pytest.mark.slow
def test_where_the_motion_depends_on_mu_the_better_of_two_plans_counts(monkeypatch):
    options = {"horizon": 2, "cells": 6}
    config = ComparisonConfig("swarm-congested", ("random", "known"), options=options, **TINY)
    drawn, known = compare(config, progress=False).results
    assert (known.upper, known.remark) == (None, Known.unbounded)
    assert known.finals[0] > drawn.finals[0]
    monkeypatch.setattr(compute, "plan", bad_plan)
    assert compare(config, progress=False).results[1].finals[0] > drawn.finals[0]


def bad_plan(flow, motion, *more, **options):
    """Everybody goes left, whatever was planned."""
    problem = flow.problem
    actions = np.full((problem.horizon, problem.grid.n_cells, 1), problem.actions.lower[0])
    profile = Profile.stacked(TablePolicy.deterministic(jnp.asarray(actions)), problem.horizon)
    return SimpleNamespace(profile=profile)


def test_families_of_models_play_side_by_side(monkeypatch):
    asked = pretend(monkeypatch)
    config = replace(SMALL, contenders=("m3ucrl", "m3ucrl:ensemble", "greedy:gp"), seeds=(0,))
    comparison = compare(config, progress=False)
    assert [result.name for result in comparison.results] == list(config.contenders)
    assert [each["model"] for each in asked] == ["gp", "ensemble", "gp"]
    assert "inducing" in asked[0]["model_options"]
    assert "members" in asked[1]["model_options"]
    comparison_figure(comparison)
    for wrong in ("m3ucrl:forest", "random:gp"):
        with pytest.raises(UserError, match=f"no contender is named '{wrong}'"):
            enter(wrong)


# Learners of the user's own.


MINE = """
import jax
from mufield import random_policy
from mufield.compare import contender

@contender("mine")
def mine(system, *, episodes, agents, seed):
    keys = jax.random.split(jax.random.key(seed), episodes)
    policy = random_policy(system.problem)
    return [float(system.run(policy, key, agents=agents).value) for key in keys]
"""


@pytest.fixture
def own_learners(monkeypatch):
    monkeypatch.setattr(contenders_module, "CONTENDERS", dict(contenders_module.CONTENDERS))
    monkeypatch.setattr(contenders_module, "OWN_LEARNERS", compute.OWN_LEARNERS)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_learner_of_ones_own_is_a_contender_wherever_it_is_computed(
    own_learners, tmp_path, workers
):
    (tmp_path / "mine.py").write_text(MINE)
    config = replace(
        SMALL, contenders=("mine", "random"), imports=str(tmp_path / "mine.py"), episodes=3
    )
    comparison = compare(config, progress=False, pool=make_pool(workers=workers))
    assert comparison.problems == ()
    mine, drawn = comparison.results
    assert np.shape(mine.curves) == (len(SEEDS), 3)
    assert mine.finals == pytest.approx(drawn.finals * len(SEEDS))
    assert mine.transitions == (HORIZON, 2 * HORIZON, 3 * HORIZON)
    comparison_figure(comparison)


def test_a_learner_that_is_evaluated_rarely_says_how_many_moves_it_had_seen(own_learners):
    @contender("patient")
    def patient(system, *, episodes, agents, seed):
        return {1_000: 1.0 + seed, 5_000: 2.0 + seed}

    (found,) = compare(replace(SMALL, contenders=("patient",)), progress=False).results
    assert found.transitions == (1_000, 5_000)
    assert found.curves == tuple((1.0 + seed, 2.0 + seed) for seed in SEEDS)


def test_a_learner_must_return_a_value_for_each_episode(own_learners):
    @contender("lazy")
    def lazy(system, *, episodes, agents, seed):
        return [1.0]

    (problem, _) = compare(replace(SMALL, contenders=("lazy",)), progress=False).problems
    assert "expected of lazy a finite J for each of 7 episodes, got the shape (1,)" in problem
    with pytest.raises(UserError, match="'greedy' is mufield's own"):
        contender("greedy")


# Mistakes.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"contenders": ("m3ucrl", "alphago")}, "no contender is named 'alphago'; there are m3u"),
        ({"contenders": ()}, "at least one contender, got none; name one"),
        ({"contenders": ("known", "known")}, "'known' is named twice"),
        ({"seeds": ()}, "at least one seed, got none"),
        ({"seeds": (1, 1)}, "the seed 1 is named twice"),
        ({"seeds": (-1,)}, "no negative seed"),
        ({"episodes": 0}, "1 or more episodes.*got 0"),
        ({"environment": "nowhere"}, "no system is named 'nowhere'"),
        ({"options": {"size": 3}}, "has no option size"),
        ({"model_options": {"size": 3}}, "the model 'gp' has no option size"),
    ],
)
def test_mistakes_are_named_before_anything_is_written(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        compare(replace(QUICK, **changes), tmp_path / "out", progress=False)
    assert not list(tmp_path.iterdir())


def test_a_system_without_a_flow_has_no_reference(monkeypatch):
    class Fleet(AbstractSystem):
        problem: Problem

        def run(self, policy, key, *, agents=1):
            raise NotImplementedError

    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    problem = make("four-rooms", **CONTINUOUS.options).problem
    register("fleet", "a fleet")(lambda: Fleet(problem))
    with pytest.raises(ValueError, match=r"fleet is a Fleet; leave known out"):
        compare(ComparisonConfig("fleet", ("known",), **TINY), progress=False)


# The figure.


def made_up():
    """A comparison that nobody had to play."""
    x = (10, 20, 40)
    curves = ((1, 2, 3), (3, 4, 5))
    learner = Result("m3ucrl", 1.0, (3, 5), transitions=x, curves=curves, episodes=3)
    known = Result("known", 1.0, (6.0,), upper=6.5)
    other = replace(learner, name="bonus")
    results = (learner, replace(known, name="random", finals=(0.5,), upper=None), known, other)
    names = tuple(result.name for result in results)
    config = ComparisonConfig("four-rooms", names, seeds=(0, 1))
    return Comparison(config, results, {})


def test_the_figure_has_labels_a_log_axis_and_all_contenders():
    figure = comparison_figure(made_up())
    (axes,) = figure.axes
    assert axes.get_xlabel() == "transitions seen by a learner"
    assert axes.get_ylabel() == "total reward J"
    assert axes.get_xscale() == "log"
    (legend,) = figure.legends
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels == ["m3ucrl", "bonus", "random", "known", "known, upper bound"]
    lines = dict(zip(labels, axes.lines, strict=True))
    np.testing.assert_array_equal(lines["m3ucrl"].get_xdata(), [10, 20, 40])
    np.testing.assert_array_equal(lines["m3ucrl"].get_ydata(), [2, 3, 4])
    np.testing.assert_array_equal(lines["known"].get_ydata(), [6, 6])
    np.testing.assert_array_equal(lines["known, upper bound"].get_ydata(), [6.5, 6.5])
    dashes = {name: line.get_linestyle() for name, line in lines.items()}
    assert dashes["m3ucrl"] == "-"
    assert dashes["known, upper bound"] == ":"
    band = axes.collections[0].get_paths()[0].vertices
    low, high = interval_of((1, 3)).low, interval_of((3, 5)).high
    assert (band[:, 1].min(), band[:, 1].max()) == pytest.approx((low, high))


def test_every_contender_has_a_look_of_its_own(found):
    (axes,) = comparison_figure(found).axes
    looks = {(line.get_color(), line.get_marker(), line.get_linestyle()) for line in axes.lines}
    assert len(looks) == len(ALL) + 1  # and the bound


def test_references_alone_make_a_figure_too():
    whole = made_up()
    figure = comparison_figure(replace(whole, results=whole.results[1:3]))
    assert figure.axes[0].get_xscale() == "log"


def test_without_a_directory_nothing_is_kept(tmp_path, monkeypatch, players):
    monkeypatch.chdir(tmp_path)
    compare(replace(QUICK, contenders=("random",)), progress=False)
    assert players == ["random"]
    assert not list(tmp_path.iterdir())
