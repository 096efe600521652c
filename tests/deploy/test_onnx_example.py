"""The ONNX graphs of examples/onnx_export.py decide as the policies do, and refuse what they do."""

import importlib
import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from cases import CASES, HORIZON, deployed

from mufield.deploy.export import random_inputs

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    return importlib.import_module("onnx_export")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_graph_decides_as_the_reader_does_and_says_what_it_is(case, dtype, example):
    policy = deployed(case, dtype)
    model = example.build_model(policy)
    assert example.largest_difference(policy, model.SerializeToString()) <= 1e-5
    (entry,) = model.metadata_props
    assert json.loads(entry.value)["horizon"] == HORIZON
    names = {each.name for each in model.graph.input}
    wanted = {"mass": policy.sees_mass, "chance": policy.randomised}
    wanted |= {"step": not policy.stationary, "state": True}
    assert names == {name for name, needed in wanted.items() if needed}


def test_the_comparison_sees_another_policy(example):
    model = example.build_model(deployed("table by step")).SerializeToString()
    other = deployed("table by step", "float32")
    other.arrays["actions"] = other.arrays["actions"] * np.float32(1 - 1e-3)
    assert example.largest_difference(other, model) > 1e-5


@pytest.mark.parametrize("case", ["network of blocks", "table by step", "randomised by step"])
def test_onnxruntime_refuses_what_the_reader_refuses(case, example):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # refusals are meant here
    model = example.build_model(deployed(case)).SerializeToString()
    session = onnxruntime.InferenceSession(model, options)
    good = random_inputs(CASES[case]("float64")[1], 1, 3, np.random.default_rng(0))
    names = [each.name for each in session.get_inputs()]
    given = {"state": good.states, "mass": good.mass, "step": np.asarray(1)}
    given["chance"] = np.asarray([0.1, 0.5, 0.9], np.float32)
    given = {name: given[name] for name in names}
    assert session.run(None, given)[0].shape[0] == 3
    nan, far = good.states.copy(), good.states.copy()
    nan[1], far[2] = np.nan, 99.0
    wrong = [
        ("state", good.states[:, :1], "invalid dimensions for input: state"),
        ("state", good.states[0], "Invalid rank for input: state"),
        ("state", good.states.astype(np.float64), "Unexpected input data type"),
        ("state", nan, "expected positions in free cells"),
        ("state", far, "expected positions in free cells"),
        ("step", np.asarray(HORIZON), f"of a step from 0 to {HORIZON - 1}"),
        ("step", np.asarray(-1), f"of a step from 0 to {HORIZON - 1}"),
        ("mass", good.mass[:-1], "invalid dimensions for input: mass"),
        ("mass", good.mass * 2, "expected a mass of 0 or more that sums to 1"),
        ("mass", good.mass * np.nan, "expected a mass of 0 or more that sums to 1"),
        ("chance", np.ones(3, np.float32), "expected chances from 0 to below 1"),
        ("chance", np.full(3, np.nan, np.float32), "expected chances from 0 to below 1"),
        ("chance", np.full(3, -0.1, np.float32), "expected chances from 0 to below 1"),
    ]
    for name, value, message in wrong:
        if name in given:
            with pytest.raises(Exception, match=message):
                session.run(None, given | {name: value})
