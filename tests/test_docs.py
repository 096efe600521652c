"""Every code block of the documentation runs as it stands, and every link leads somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
PAGES = sorted(DOCS.glob("*.md"))
BLOCK = re.compile(r"```python[^\n]*\n(.*?)```", flags=re.DOTALL)
BLOCKS = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, block in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")), start=1)
]


@pytest.mark.parametrize("block", BLOCKS)
def test_code_block_runs(block, tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", block],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_there_are_pages_and_blocks():
    assert len(PAGES) >= 9
    assert len(BLOCKS) >= 8


def test_links_between_pages_and_to_pictures_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (DOCS / target).is_file(), f"{page.name} links to {target}"


def test_every_page_is_in_the_navigation():
    navigation = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    for page in PAGES:
        assert f": {page.name}" in navigation
