"""From configurations to learners, and systems of the user's own."""

import json
from dataclasses import replace

import pytest

from mufield import Problem
from mufield.environments import registry
from mufield.environments.registry import find, make, make_system
from mufield.errors import UserError
from mufield.runs.build import build, resolve
from mufield.runs.config import RunConfig, parse_config

FLEET = """
from mufield import Box, Grid, Problem, log_mass, register, uniform

@register("{name}", "lorries on a road")
def fleet(*, horizon: int = 3):
    grid = Grid.box(0.0, 4.0, 4)
    return Problem(
        space=grid, actions=Box(-1.0, 1.0), horizon=horizon, initial=uniform(grid), noise=0.2,
        reward=lambda state, action, mu: -log_mass(mu.here), max_move=1.0,
    )
"""


@pytest.mark.parametrize("model", ["ensemble", "gp"])
@pytest.mark.parametrize("planner", ["mirror", "network", "table"])
def test_all_defaults_are_written_out_and_can_be_read(model, planner):
    config = resolve(RunConfig(environment="swarm", model=model, planner=planner))
    assert config.options["horizon"] == 200
    assert "beta" in config.model_options
    assert "sweeps" in config.planner_options
    back = parse_config(json.loads(json.dumps(config.document())), "memory")
    assert back == config
    assert resolve(back) == config


@pytest.mark.parametrize(
    ("setting", "written", "full"),
    [
        ("mu", "none", "none"),
        ("mu", "pooled", {"name": "pooled", "cells": 4}),
        ("mu", {"name": "pooled", "cells": 6}, {"name": "pooled", "cells": 6}),
        ("learn_noise", True, True),
        ("beta", "theory", {"name": "theory", "norm_bound": 1.0, "delta": 0.1}),
        ("beta", 2.0, 2.0),
        ("fit_kernel", False, False),
        (
            "prior",
            {"name": "control affine", "gain": 2.0},
            {
                "name": "control affine",
                "gain": 2.0,
                "variation": 0.01,
                "drift": 1e-4,
                "length_scale": 1.0,
            },
        ),
    ],
)
def test_words_stand_for_objects_and_come_back_with_all_settings(setting, written, full):
    config = resolve(RunConfig(environment="swarm", model="gp", model_options={setting: written}))
    assert config.model_options[setting] == full
    assert resolve(config) == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"options": {"size": 3}}, "'swarm' has no option size; it has .*cells"),
        ({"model_options": {"size": 3}}, "'ensemble' has no option size; it has members"),
        ({"model_options": {"members": "many"}}, "members must be of the type"),
        ({"model_options": {"mu": "far"}}, "mu must be one of none, local, .*, got 'far'"),
        ({"model_options": {"mu": {"name": "pooled", "size": 3}}}, "'pooled' has no option size"),
        ({"model_options": {"beta": "theory"}}, "beta must be of the type .*float.*, got 'theory'"),
        ({"planner_options": {"size": 1}, "planner": "network"}, "has no option size; it .*width"),
        ({"planner_options": {"policy": "table"}, "planner": "network"}, "no option policy"),
        ({"environment": "nowhere"}, "no system is named 'nowhere'"),
        ({"imports": "no_such_module"}, r"expected a file \.py"),
        ({"precision": "float32"}, "computes in float32, but JAX is set to float64"),
    ],
)
def test_a_wrong_setting_is_named(changes, message):
    config = RunConfig(environment="swarm", model="ensemble", precision="float64")
    with pytest.raises(ValueError, match=message):
        build(resolve(replace(config, **changes)))


def test_a_users_file_registers_the_problem_of_a_real_fleet(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    path = tmp_path / "my_fleet.py"
    path.write_text(FLEET.format(name="fleet-of-test-build"))
    config = RunConfig(
        environment="fleet-of-test-build",
        imports=str(path),
        options={"horizon": 5},
    )
    problem = make("fleet-of-test-build", **resolve(config).options)
    assert isinstance(problem, Problem)
    assert problem.horizon == 5
    assert find("fleet-of-test-build").options == {"horizon": 3}
    with pytest.raises(ValueError, match="is a real system"):
        make_system("fleet-of-test-build")
    with pytest.raises(UserError, match="no such file"):
        resolve(replace(config, imports=str(tmp_path / "other.py")))
