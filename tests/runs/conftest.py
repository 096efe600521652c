"""A run so small that it can be begun and crashed many times."""

import shutil
from dataclasses import replace

import pytest

from mufield.runs.build import build, resolve
from mufield.runs.config import RunConfig
from mufield.runs.learn import learn_run
from mufield.runs.store import RunStore

SMALL = RunConfig(
    environment="four-rooms",
    options={"horizon": 3, "drawing": "...\n.#.\n..."},
    episodes=2,
    model="ensemble",
    model_options={"members": 2, "width": 4, "steps": 3},
    planner_options={"points": 3, "sweeps": 2},
    judge=False,
    precision="float64",
)


@pytest.fixture(scope="session")
def small():
    """The problem, system and learner of the small run, built once."""
    return build(resolve(SMALL))


@pytest.fixture(scope="session")
def finished(small, tmp_path_factory):
    """The small run at its end; not to be changed."""
    directory = tmp_path_factory.mktemp("finished") / "run"
    RunStore.create(directory, small.config)
    learn_run(directory, setup=small, progress=False)
    return directory


@pytest.fixture
def run(finished, tmp_path):
    """The finished run, to be changed."""
    return shutil.copytree(finished, tmp_path / "run")


@pytest.fixture
def begin(small):
    """Begins the small run in a directory; other settings than the learner's may differ."""

    def begin(directory, **changes):
        return RunStore.create(directory, replace(small.config, **changes))

    return begin
