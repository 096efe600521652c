"""The house stays plain: who follows one call of `learn` through the code opens few files."""

import importlib
import sys
import threading
from pathlib import Path

import pytest

import mufield as mf

SOURCE = str(Path(mf.__file__).parent)
MOST_FILES = 50


@pytest.mark.nightly
@pytest.mark.slow
def test_learning_walks_through_few_files():
    rooms = mf.make("four-rooms", horizon=3, drawing="...\n.#.\n...")
    learner = mf.M3UCRL(rooms.problem, planner=mf.MirrorPlanner(points=3, sweeps=4))
    visited = set()

    def visit(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(SOURCE):
            visited.add(Path(frame.f_code.co_filename).relative_to(SOURCE))

    # Plans may run in threads of their own.
    threading.setprofile(visit)
    sys.setprofile(visit)
    try:
        mf.learn(rooms, learner, episodes=2, progress=False)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert Path("learning/m3ucrl.py") in visited
    assert len(visited) <= MOST_FILES, sorted(map(str, visited))


def test_the_citation_names_the_version():
    citation = Path(__file__).parent.parent / "CITATION.cff"
    assert f"\nversion: {mf.__version__}\n" in citation.read_text(encoding="utf-8")


# The counting functions of tools/house.py, on a tree that is made up.


def house(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "tools"))
    return importlib.import_module("house")


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "flow").mkdir()
    (tmp_path / "problem.py").write_text(
        "from typing import TypeVar\n"
        'T = TypeVar("T")\n'
        "A, (B, c) = 1, (2, 3)\n"
        "A = 2\n"
        "_D: int = 4\n"
        "if c:\n"
        "    E = 5\n"
        "def f():\n"
        "    LOCAL = 1\n"
        "class K:\n"
        "    FIELD = 1\n"
        "OBJECT.ATTRIBUTE = 1\n"
    )
    (tmp_path / "flow" / "flow.py").write_text(
        "import jax\n"
        "class Flow:\n"
        "    def rollout(self):\n"
        "        def body(carry, step): ...\n"
        "        return jax.lax.scan(body, 0, None)\n" + "\n" * 300
    )
    (tmp_path / "__init__.pyi").write_text(
        "from .flow import Flow as Flow, flow as run\nfrom . import _a\n"
        "__version__: str\nx: int\ndef g(): ...\n"
    )
    return tmp_path


def test_the_house_counts_constants_one_by_one_and_not_those_of_functions(monkeypatch, tree):
    counted = house(monkeypatch)
    assert counted.constants(tree / "problem.py") == ["A", "B", "_D", "E"]
    assert counted.constants_by_room(tree) == {"problem.py": 4}


def test_the_house_counts_lines_by_room_and_names_long_files(monkeypatch, tree):
    counted = house(monkeypatch)
    assert counted.lines_by_room(tree) == {"flow": 305, "problem.py": 12}
    assert counted.long_files(tree) == {"flow/flow.py": 305}


def test_the_house_finds_public_names_and_scans(monkeypatch, tree):
    counted = house(monkeypatch)
    assert counted.public_names(tree / "__init__.pyi") == ["Flow", "run", "x", "g"]
    assert counted.scans(tree) == ["flow/flow.py:5 Flow.rollout"]


def test_a_goal_of_a_later_round_is_not_missed_now(monkeypatch):
    counted = house(monkeypatch)
    figures = {name: most for name, (most, _) in counted.GOALS.items()}
    assert counted.missed(figures) == []
    figures |= {"constants": 151, "commands": 15}
    assert counted.missed(figures) == ["constants"]
    assert counted.missed(figures, this_round=False) == ["constants", "commands"]
