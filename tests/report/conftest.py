"""Problems are built once, because that compiles."""

import pytest
from report_runs import LINE, ROOMS, SMALL, add_episode, begin

from mufield.runs.build import build_problem


@pytest.fixture(scope="session")
def rooms():
    return build_problem(ROOMS)


@pytest.fixture(scope="session")
def small_rooms():
    return build_problem(SMALL)


@pytest.fixture(scope="session")
def corridor():
    return build_problem(LINE)


@pytest.fixture
def run(tmp_path, small_rooms):
    """A small run with two episodes."""
    directory = begin(tmp_path / "run", SMALL)
    add_episode(directory, small_rooms, 1)
    add_episode(directory, small_rooms, 2, notes=("the band is <b>narrow</b>",), coverage=0.4)
    return directory
