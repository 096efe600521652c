"""A run so small that it can be begun and crashed many times."""

from dataclasses import replace

import pytest

from mufield.runs.build import build, resolve
from mufield.runs.config import RunConfig
from mufield.runs.store import RunStore

SMALL = RunConfig(
    environment="four-rooms",
    options={"horizon": 3, "drawing": "...\n.#.\n..."},
    episodes=2,
    model_options={"members": 2, "width": 4, "steps": 3},
    planner_options={"points": 3, "sweeps": 2},
    precision="float64",
)


@pytest.fixture(scope="session")
def small():
    """The problem, system and learner of the small run, built once."""
    return build(resolve(SMALL))


@pytest.fixture
def begin(small):
    """Begins the small run in a directory; other settings than the learner's may differ."""

    def begin(directory, **changes):
        return RunStore.create(directory, replace(small.config, **changes))

    return begin
