"""Runs whose reward is hidden: they resume, and their episodes say what agents were paid."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest
from fleet import rows_of, write
from night import NIGHT
from test_crash import outcome

from mufield import Greedy, Problem, UserError, random_policy
from mufield.io.checks import Asked
from mufield.io.episode import read_episode
from mufield.policies.base import as_profile
from mufield.runs.build import build, resolve
from mufield.runs.config import RunConfig, parse_config
from mufield.runs.files import RunFiles
from mufield.runs.learn import learn_run, new_run
from mufield.runs.session import open_run
from mufield.runs.store import RunStore

pytestmark = pytest.mark.slow

CONFIG = RunConfig(
    environment="swarm",
    options={"horizon": 3, "cells": 8, "reward": "hidden"},
    episodes=2,
    model="ensemble",
    model_options={"members": 2, "width": 4, "steps": 3},
    reward_options={"members": 3},
    planner_options={"points": 3, "sweeps": 2},
    judge=NIGHT,  # by day in test_policy_command.py
    precision="float64",
)


@pytest.fixture(scope="module")
def setup():
    return build(resolve(CONFIG))


@pytest.fixture(scope="module")
def whole(setup, tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole") / "run"
    RunStore.create(directory, setup.config)
    learn_run(directory, setup=setup, progress=False)
    return directory


def test_the_settings_of_the_rewards_model_are_written_out(setup):
    options = setup.config.reward_options
    assert (options["members"], options["width"], options["mu"]) == (3, 4, "log here")
    assert setup.learner.reward_family.members == 3
    back = parse_config(json.loads(json.dumps(setup.config.document())), "memory")
    assert back == setup.config
    assert build(back).config == back


@pytest.mark.nightly  # by day: with a known reward, in test_policy_command.py
def test_the_policy_to_use_is_judged_by_the_models_of_motion_and_reward(setup, whole, tmp_path):
    run = shutil.copytree(whole, tmp_path / "run")  # it writes there
    rows = RunFiles(run).rows
    assert np.isfinite([rows[1]["greedy"], rows[1]["greedy_expected"]]).all()
    with open_run(run, setup) as session:
        best = session.best()
        flow = setup.learner.flow
        believed = Greedy().imagine(
            setup.problem, flow, session.state.model, session.state.reward_model, jax.random.key(0)
        )
        assert best.expected == pytest.approx(float(believed[0].value(best.profile, believed[1])))
    assert best.lower < best.expected < best.upper


def test_options_of_a_model_that_is_not_there_are_refused():
    known = dataclasses.replace(CONFIG, options={"horizon": 3, "cells": 8})
    with pytest.raises(ValueError, match="is known, so there is no model of it to set members"):
        build(resolve(known))
    wrong = dataclasses.replace(CONFIG, reward_options={"size": 3})
    with pytest.raises(ValueError, match="the reward's model 'ensemble' has no option size"):
        build(resolve(wrong))


def test_the_reward_model_s_settings_are_part_of_a_run_s_identity():
    config = RunConfig(environment="swarm", seed=3, options={"horizon": 10}, model="ensemble")
    assert dataclasses.replace(config, reward_options={"beta": 1}).identity != config.identity


def test_a_run_that_is_interrupted_after_every_step_ends_the_same(setup, whole, tmp_path):
    new_run(tmp_path / "run", CONFIG, simulated=True)
    while RunFiles(tmp_path / "run").episodes < 2:
        with open_run(tmp_path / "run", setup) as session:
            session.ask()
        with open_run(tmp_path / "run") as session:
            session.step()
    assert outcome(tmp_path / "run") == outcome(whole)


def test_what_agents_earned_comes_back(setup, whole):
    with open_run(whole, setup) as session:
        earned = RunFiles(whole).records[0].arrays["earned"]
        assert earned.shape == (1, 3)
        assert session.data.earned[:3].tolist() == earned[0].tolist()
        assert session.state.reward_model is not None


@pytest.fixture
def rows(setup):
    """What a fleet would log under a random policy, with what agents were paid."""
    episode = setup.system.run(random_policy(setup.problem), jax.random.key(3), agents=4)
    rows = rows_of(episode)
    for row in rows:
        row["reward"] = float(episode.earned[row["agent"], row["step"]])
    return rows


def test_a_file_without_rewards_is_refused_and_changes_nothing(setup, rows, tmp_path):
    RunStore.create(tmp_path / "run", setup.config)
    bare = [{k: v for k, v in row.items() if k != "reward"} for row in rows]
    with open_run(tmp_path / "run", setup) as session:
        session.ask()
        with pytest.raises(ValueError, match=r"e.csv: the column reward is missing; the problem"):
            session.tell_file(write(tmp_path / "e.csv", bare))
        assert session.store.episodes == 0
        session.tell_file(write(tmp_path / "e.csv", rows), agents=["1", "3"])
        earned = session.store.records[0].arrays["earned"]
        assert session.data.earned.tolist() == earned.reshape(-1).tolist()
        by_agent = [[row["reward"] for row in rows if row["agent"] == i] for i in (1, 3)]
        assert earned.tolist() == by_agent


def test_rewards_beyond_all_numbers_are_refused_in_a_sentence(setup, tmp_path):
    RunStore.create(tmp_path / "run", setup.config)
    with open_run(tmp_path / "run", setup) as session:
        episode = setup.system.run(session.ask().profile, jax.random.key(3), agents=4)
        # As 3e38 in float32: each is a number, their sum is none.
        vast = dataclasses.replace(episode, rewards=0 * episode.rewards + 1.7e308)
        with pytest.raises(UserError, match="whose sum is a number, got J = inf"):
            session.tell(vast)
        assert session.store.episodes == 0


def test_a_paid_end_must_be_told_too(setup, rows, tmp_path):
    known = setup.problem
    problem = Problem(
        space=known.grid,
        actions=known.actions,
        reward=None,
        horizon=known.horizon,
        initial=known.initial,
        noise=known.noise,
        max_move=known.max_move,
        pay_end=True,
    )
    profile = as_profile(random_policy(problem), problem.horizon)
    asked = Asked(problem, profile, run="abc", episode=1, policy="def")
    with pytest.raises(ValueError, match="the column end_reward is missing"):
        read_episode(write(tmp_path / "e.csv", rows), asked)
    for row in rows:
        row["end_reward"] = float(row["agent"])
    found = read_episode(write(tmp_path / "e.csv", rows), asked)
    assert float(found.rewards[-1]) == pytest.approx((0 + 1 + 2 + 3) / 4)
    paid = [row["reward"] for row in rows if row["step"] == 1]
    assert float(found.rewards[1]) == pytest.approx(sum(paid) / 4)
