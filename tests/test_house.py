"""The house stays plain: who follows one call of `learn` through the code opens few files."""

import sys
import threading
from pathlib import Path

import pytest

import mufield as mf

pytestmark = pytest.mark.slow

SOURCE = str(Path(mf.__file__).parent)
MOST_FILES = 30


def test_learning_walks_through_few_files():
    rooms = mf.make("four-rooms", horizon=3)
    learner = mf.M3UCRL(rooms.problem)
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
