"""Code blocks of the README and the documentation run as they stand; links lead somewhere."""

import json
import os
import pydoc
import re
import subprocess
import sys
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest

import mufield as mf
from mufield.learning.metrics import EpisodeMetrics

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
BLOCK = re.compile(r"```python[^\n]*\n(.*?)```", flags=re.DOTALL)
PRINTED = re.compile(r"```python\n[^`]*```\n\n```text\n(.*?)```", flags=re.DOTALL)
SHOWN = {
    f"README-{number}": text
    for number, text in enumerate(PRINTED.findall(README.read_text(encoding="utf-8")), start=1)
}
NUMBER = re.compile(r"\d+\.\d+|\d+")
BLOCKS = {
    f"{page.stem}-{number}": block
    for page in [README, *PAGES]
    for number, block in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")), start=1)
}

# One process for all blocks, because starting JAX and compiling take longer than running them.
# Names, directory and output are each block's own, as if it ran alone.
RUN_BLOCKS = """
import contextlib, io, json, os, sys, tempfile, traceback
from mufield import enable_compilation_cache
enable_compilation_cache()
sys.path.insert(0, os.getcwd())
results = {}
for name, code in json.load(sys.stdin).items():
    printed, error = io.StringIO(), ""
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        try:
            with contextlib.redirect_stdout(printed):
                exec(compile(code, name, "exec"), {"__name__": "__main__"})
        except BaseException:
            error = traceback.format_exc()
    results[name] = {"printed": printed.getvalue(), "error": error}
print(json.dumps(results))
"""


QUICK = ("README",)
"""Pages whose blocks run with every change; those of the others run at night."""


@pytest.fixture(scope="module")
def results(request):
    # As users run them. The other tests compile with little optimisation, which is right for
    # short computations; whole runs of a learner take longer that way.
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    chosen = {item.callspec.id for item in request.session.items if hasattr(item, "callspec")}
    wanted = {name: block for name, block in BLOCKS.items() if name in chosen}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", RUN_BLOCKS],
        env=environment,
        input=json.dumps(wanted),
        capture_output=True,
        text=True,
        timeout=900,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name.startswith(QUICK) else pytest.mark.nightly, id=name)
        for name in BLOCKS
    ],
)
def test_code_block_runs(name, results):
    assert not results[name]["error"]
    assert results[name]["printed"].strip()


@pytest.mark.parametrize(
    ("name", "expected"),
    [pytest.param(name, text, id=name) for name, text in SHOWN.items()],
)
def test_the_readme_shows_what_its_blocks_print(name, expected, results):
    printed = results[name]["printed"]
    assert NUMBER.sub("#", printed) == NUMBER.sub("#", expected)
    # Another processor or version of JAX rounds otherwise, and learning goes its own way then.
    shown = [[float(each) for each in NUMBER.findall(text)] for text in (printed, expected)]
    assert shown[0] == pytest.approx(shown[1], rel=0.1)


def test_there_are_pages_and_blocks():
    assert len(PAGES) >= 9
    assert len(BLOCKS) >= 12
    assert len(SHOWN) == 2


def test_an_own_system_takes_about_twenty_lines():
    learning = BLOCKS["own-system-1"].index("mf.learn(")
    lines = [line for line in BLOCKS["own-system-1"][:learning].splitlines() if line.strip()]
    assert len(lines) <= 25


def test_the_readme_is_read_in_two_minutes_and_shows_one_picture():
    text = README.read_text(encoding="utf-8")
    assert len(text.split()) <= 600
    (picture,) = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert (ROOT / picture).stat().st_size < 1_000_000


def test_every_script_that_is_named_exists():
    for page in [README, *PAGES]:
        for script in re.findall(r"`(benchmarks/\w+\.py)", page.read_text(encoding="utf-8")):
            assert (ROOT / script).is_file(), f"{page.name} names {script}"


def test_links_between_pages_and_to_pictures_lead_somewhere():
    for page in [README, *PAGES]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_public_name_is_in_the_reference():
    text = (DOCS / "reference.md").read_text(encoding="utf-8")
    told = {line.rpartition(".")[2] for line in text.splitlines() if line.startswith("::: ")}
    names = {name for name in dir(mf) if not name.startswith("_")}
    assert names - told == {"FOUR_ROOMS"}  # the drawing of a map, which has no docstring
    parts = "policies flow models planning constraints games fleet learning compare viz"
    for part in parts.split():
        assert not set(import_module(f"mufield.{part}").__all__) - told, part
    assert "`mf.FOUR_ROOMS`" in text
    for line in text.splitlines():
        if line.startswith("::: "):
            assert pydoc.locate(line[4:]) is not None, line


def test_every_metric_is_explained():
    told = re.findall(r"`(\w+)`", (DOCS / "diagnostics.md").read_text(encoding="utf-8"))
    names = {each.name for each in fields(EpisodeMetrics)} | {"optimism", "regret"}
    assert not names - set(told)


def test_every_page_is_in_the_navigation():
    navigation = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    for page in PAGES:
        assert f": {page.name}" in navigation
