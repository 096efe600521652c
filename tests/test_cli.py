"""The command line as a user meets it: in a process of its own."""

import json
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from mufield import cli
from mufield.errors import UserError


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    script = (
        "import sys\n"
        "from mufield.cli import main\n"
        "code = main()\n"
        "print('jax' if 'jax' in sys.modules else 'no jax', file=sys.stderr)\n"
        "sys.exit(code)\n"
    )
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", script, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_help_names_the_commands_and_imports_no_jax() -> None:
    done = run("--help")

    assert done.returncode == 0
    assert "list" in done.stdout
    assert "demo" in done.stdout
    assert done.stderr.strip() == "no jax"


def test_the_help_of_train_ends_with_settings_that_can_be_read() -> None:
    done = run("train", "--help")

    assert done.returncode == 0
    assert done.stderr.strip() == "no jax"
    example = done.stdout.partition("# run.toml")[2].partition("\n")[2]
    settings = tomllib.loads(textwrap.dedent(example))
    assert settings["model"] == {"name": "gp", "beta": 2.0}


def test_version_is_printed_without_a_command() -> None:
    done = run("--version")

    assert done.returncode == 0
    assert re.fullmatch(r"mufield \d+\.\d+\.\d+\n", done.stdout)


@pytest.mark.parametrize("arguments", [(), ("nonsense",), ("run", "swarm", "--seed", "many")])
def test_a_wrong_command_line_exits_with_two(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)

    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_list_as_json_gives_names_and_summaries() -> None:
    done = run("list", "--json")

    assert done.returncode == 0, done.stderr
    entries = json.loads(done.stdout)
    assert entries
    for entry in entries:
        assert entry.keys() == {"name", "summary"}
        assert all(entry.values())


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Stand-in for the demonstration, which takes long."""
    module = ModuleType("mufield.demo")
    monkeypatch.setitem(sys.modules, "mufield.demo", module)
    return module


def test_demo_hands_its_options_on(demo: ModuleType) -> None:
    seen: dict[str, object] = {}
    demo.run = lambda **options: seen.update(options) or 0

    assert cli.main(["demo", "--output-dir", "pictures"]) == 0
    assert seen == {"output_dir": Path("pictures")}


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (UserError("expected 1,\nreceived 2"), "error: expected 1, received 2\n"),
        (FileNotFoundError("no such map"), "error: no such map\n"),
        (
            ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib"),
            "error: No module named 'matplotlib'; install it with: pip install 'mufield[viz]'\n",
        ),
    ],
    ids=["value", "file", "extra"],
)
def test_an_expected_error_is_one_line_unless_debugging(
    demo: ModuleType, capsys: pytest.CaptureFixture[str], error: Exception, line: str
) -> None:
    def run(**options: object) -> int:
        raise error

    demo.run = run

    assert cli.main(["demo"]) == 2
    assert capsys.readouterr().err == line
    with pytest.raises(type(error)):
        cli.main(["demo", "--debug"])


def test_an_import_error_of_our_own_is_not_hidden(demo: ModuleType) -> None:
    def run(**options: object) -> int:
        raise ImportError("cannot import name", name="mufield.flow")

    demo.run = run

    with pytest.raises(ImportError):
        cli.main(["demo"])
