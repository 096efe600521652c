"""The examples run as they stand."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
SHORTER = {
    "demo": ["--episodes", "1", "--horizon", "3"],
    "manhattan": ["--days", "1", "--horizon", "3"],
    "optuna_study": ["--trials", "2", "--episodes", "1", "--horizon", "3"],
}
pytestmark = pytest.mark.nightly


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(script, tmp_path):
    if script.stem == "optuna_study":
        pytest.importorskip("optuna")
    # As users run them: tests compile with little optimisation.
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    ran = subprocess.run(
        [sys.executable, str(script), *SHORTER.get(script.stem, [])],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "J" in ran.stdout or "expected" in ran.stdout


def test_there_are_five_examples_that_people_copy():
    assert len(EXAMPLES) >= 5
