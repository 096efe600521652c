"""What every command prints with ``--json``: one document, snake_case names, numbers as numbers."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import jax
import pytest
from fleet import rows_of, write
from processes import flags

from mufield import cli
from mufield.cli.program import COMMANDS
from mufield.report.server import PageServer
from mufield.runs import session
from mufield.runs.session import open_run
from mufield.runs.store import RunStore

pytestmark = pytest.mark.slow

SYSTEM = ("four-rooms", "--options", 'horizon=3,drawing="...\\n.#.\\n..."')

WORDS = {
    "list": (),
    "train": ("FLAGS", "--out", "new/trained", "--episodes", "1"),
    "runs": ("run",),
    "show": ("run",),
    "watch": ("run", "--port", "0"),
    "evaluate": ("run", "--population", "20", "--episodes", "2"),
    "export": ("run",),
    "compare": (*SYSTEM, "--contenders", "random", "--out", "compared", "--workers", "0"),
    "new": ("FLAGS", "--out", "new/begun"),
    "ask": ("asked",),
    "tell": ("told", "episode.csv"),
}
"""The rest of a command line for each command."""

NAMES = ("label", "run", "policy", "sha256", "name")
"""Names under which a text may look like a number."""


def test_every_command_is_swept():
    assert WORDS.keys() == COMMANDS.keys()


@pytest.fixture(scope="module")
def place(tmp_path_factory, small, finished):
    """A directory with a finished run, one to be asked, one to be changed, one to be told."""
    place = tmp_path_factory.mktemp("json")
    shutil.copytree(finished, place / "run")
    for name in ("asked", "changed", "told"):
        RunStore.create(place / name, replace(small.config, label=name))
    for name in ("changed", "told"):
        begun = replace(small, config=replace(small.config, label=name))
        with open_run(place / name, begun) as opened:
            opened.ask()
    resting = small.system.run(lambda s, mu, h: 0 * s, jax.random.key(0))
    for name in ("episode", "positions"):
        write(place / f"{name}.csv", rows_of(resting))
    return place


@pytest.mark.parametrize("command", COMMANDS)
def test_json_is_one_document_for_programs(command, place, small, monkeypatch, capsys):
    monkeypatch.chdir(place)
    monkeypatch.setattr(
        session, "build", lambda config, imports=None: replace(small, config=config)
    )
    monkeypatch.setattr(PageServer, "serve_forever", lambda server: None)
    words = list(WORDS[command])
    if "FLAGS" in words:
        words[:1] = flags(small.config)

    assert cli.main([command, *words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    check(document)


def test_what_only_looks_imports_no_jax(place):
    script = (
        "import sys; from mufield.cli import main\n"
        "assert [main(words) for words in (['list'], ['runs'], ['show', 'run'])] == [0, 0, 0]\n"
        "assert 'jax' not in sys.modules"
    )
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(
        command, cwd=place, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    for words in ("swarm-congested", "best J", "waiting for tell", "export run --out use.policy"):
        assert words in done.stdout


def check(value, name=""):
    if isinstance(value, dict):
        for key, each in value.items():
            assert re.fullmatch(r"[a-z][a-z0-9_]*", key), key
            check(each, key)
    elif isinstance(value, list):
        for each in value:
            check(each, name)
    elif isinstance(value, str) and name not in NAMES:
        assert not re.fullmatch(r"[-+]?[\d.,]+(e[-+]?\d+)?%?", value), (
            f"{name} is the text {value!r}"
        )
