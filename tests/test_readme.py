"""The README's code runs as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_code_block_runs(number, tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", BLOCKS[number]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_there_is_code_and_an_own_system_takes_about_twenty_lines():
    assert len(BLOCKS) == 4
    lines = [line for line in BLOCKS[0].splitlines() if line.strip()]
    assert len(lines) <= 25


def test_every_script_that_is_named_exists():
    for script in re.findall(r"`(benchmarks/\w+\.py)`", README):
        assert (Path(__file__).parent.parent / script).is_file()
