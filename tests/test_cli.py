"""The command line: one convention, swept over all commands that there are."""

import json
import os
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import NoneType
from typing import get_args, get_type_hints

import pytest

from mufield import cli
from mufield.cli.program import COMMANDS, EXIT_CODES, help_text
from mufield.cli.train import Configured
from mufield.errors import UserError
from mufield.runs import surroundings

DOCS = Path(__file__).parent.parent / "docs"

NAMES = {"imports": "import"}
"""Fields whose flag has another name, which is a word of Python."""


def run(*arguments: str, script: str = "") -> subprocess.CompletedProcess[str]:
    """A command in a process of its own; the last line of its errors says whether JAX is there."""
    script = script or (
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


def test_help_of_every_command_comes_without_jax() -> None:
    done = run(
        script=(
            "import sys\n"
            "from mufield.cli.program import COMMANDS, main\n"
            "assert main(['--help']) == 0\n"
            "assert all(main([name, '--help']) == 0 for name in COMMANDS)\n"
            "assert 'jax' not in sys.modules\n"
        )
    )
    assert done.returncode == 0, done.stderr
    for name in COMMANDS:
        assert f"usage: mufield {name} " in done.stdout


def test_the_help_lists_all_exit_codes() -> None:
    text = " ".join(help_text().split())
    assert EXIT_CODES.keys() == {0, 1, 2, 130, 141}
    for code, meaning in EXIT_CODES.items():
        assert f"{code} {meaning}" in text


def test_all_commands_fit_on_a_screen() -> None:
    assert len(COMMANDS) <= 14
    assert len(help_text().splitlines()) <= 50


help_of = cache(help_text)


def flags_of(command: str) -> dict[str, object]:
    """The flags of a command with the types of their values."""
    kind = COMMANDS[command]
    hints = get_type_hints(kind)
    types = {each.name: hints[each.name] for each in fields(kind)}
    text = help_of(command)
    flags = {f"--{NAMES.get(name, name).replace('_', '-')}": kind for name, kind in types.items()}
    return {flag: kind for flag, kind in flags.items() if re.search(rf"^  {flag}\b", text, re.M)}


def test_the_page_of_all_commands_is_what_the_code_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "96")
    page = runpy.run_path(str(DOCS / "commands_page.py"))["page"]()
    stale = (DOCS / "commands.md").read_text(encoding="utf-8") != page
    assert not stale, "docs/commands.md is not what the code says; run python docs/commands_page.py"


def test_every_command_has_json_and_debug() -> None:
    for name in COMMANDS:
        assert {"--json", "--debug"} <= flags_of(name).keys(), name


def test_no_flag_has_two_meanings() -> None:
    found: dict[str, set[object]] = {}
    for name in COMMANDS:
        for flag, kind in flags_of(name).items():
            plain = [part for part in get_args(kind) if part is not NoneType]
            optional = NoneType in get_args(kind)
            found.setdefault(flag, set()).add(plain[0] if optional else kind)
    # A run is planned for one size of the population, and evaluated with several.
    assert found.pop("--population") == {int, tuple[int, ...]}
    assert not {flag for flag, kinds in found.items() if len(kinds) > 1}
    assert found["--agents"] == {int}
    assert found["--out"] == {Path}
    assert not found.keys() & {"--output", "--output-dir", "--confidence", "--num-agents"}


def test_help_fills_its_lines_and_shows_no_empty_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "96")
    for name in COMMANDS:
        lines = help_text(name).partition("settings may also stand")[0].splitlines()
        for line, after in pairwise(lines):
            assert not re.search(r"\(default: (''|\"\")?\)", line), (name, line)
            margins = {len(each) - len(each.lstrip()) for each in (line, after)}
            if len(margins) == 1 and margins.pop() > 6:  # one sentence, on two lines
                assert len(line) + 1 + len(after.split()[0]) > 92, (name, line, after)


def test_lists_and_options_are_one_word_with_commas() -> None:
    for name in COMMANDS:
        for flag, kind in flags_of(name).items():
            if getattr(kind, "__origin__", None) in (tuple, dict):
                assert re.search(rf"^  {flag} \S+,\.\.\.", help_of(name), re.M), (name, flag)


def test_the_example_below_the_help_of_train_can_be_read() -> None:
    assert help_of("train").endswith(Configured.example)
    settings = tomllib.loads(Configured.example.partition("# run.toml")[2].partition("\n")[2])
    assert settings["model"] == {"name": "gp", "beta": 2.0}


def test_version_is_printed_without_a_command() -> None:
    done = run("--version")

    assert done.returncode == 0
    assert re.fullmatch(r"mufield \d+\.\d+\.\d+\n", done.stdout)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "mufield"),
        (("nonsense",), "nonsense"),
        (("evaluate", "random", "swarm", "--seed", "many"), "--seed"),
        (("train", "swarm", "--options", "horizon"), "expected NAME=VALUE such as horizon=10"),
        (("evaluate", "run", "--population", "ten"), "--population"),
    ],
)
def test_a_wrong_command_line_exits_with_two(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


@pytest.mark.parametrize("flag", ["--judge", "--no-judge"])
def test_flags_override_a_file_in_both_directions(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = flag == "--judge"
    path = tmp_path / "run.toml"
    path.write_text(
        f"judge = {str(not wanted).lower()}\nseed = 3\n"
        "[environment]\nname = 'swarm'\nhorizon = 9\ncells = 20\n"
    )
    words = ["train", "--config", str(path), "--print-config", "--json"]
    assert cli.main(words) == 0
    assert json.loads(capsys.readouterr().out)["judge"] is not wanted
    assert cli.main([*words, flag, "--options", "horizon=4"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["judge"], found["seed"]) == (wanted, 3)
    assert (found["options"]["horizon"], found["options"]["cells"]) == (4, 20)


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], None]:
    """Lets `mufield list` call a function that fails."""
    return lambda function: monkeypatch.setattr(surroundings, "import_users", function)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (UserError("expected 1,\nreceived 2"), "error: expected 1, received 2\n"),
        (OSError(28, "No space left"), "error: [Errno 28] No space left\n"),
        (
            ModuleNotFoundError("No module named 'ray'", name="ray"),
            "error: No module named 'ray'; install it with: pip install 'mufield[ray]'\n",
        ),
        (
            ImportError("pictures need Matplotlib: pip install 'mufield[viz]'", name="matplotlib"),
            "error: pictures need Matplotlib: pip install 'mufield[viz]'\n",
        ),
    ],
    ids=["mistake", "system", "extra", "extra with its remedy"],
)
def test_a_mistake_is_one_line_unless_debugging(
    fails: Callable[[object], None], capsys: pytest.CaptureFixture[str], error: Exception, line: str
) -> None:
    def run(*_: object, **options: object) -> None:
        raise error

    fails(run)

    assert cli.main(["list"]) == 2
    assert capsys.readouterr().err == line
    assert cli.main(["list", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [
        ValueError("shapes (3,) and (4,)"),
        ImportError("cannot import name", name="mufield.flow"),
        OSError("a sentence of our own"),
    ],
)
def test_everything_else_is_a_fault_of_ours_and_says_how_to_report_it(
    fails: Callable[[object], None], capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    names: dict[str, object] = {"error": error}
    # As if it stood in a file of ours: code of others is their fault.
    exec(compile("def run(*_, **options):\n    raise error", cli.__file__, "exec"), names)
    fails(names["run"])

    assert cli.main(["list", "--import", "my file.py"]) == 1
    *trace, last = capsys.readouterr().err.strip().splitlines()
    assert trace[0].startswith("Traceback")
    assert "fault of mufield" in last
    assert "command: mufield list --import 'my file.py'" in last
    assert re.search(r"mufield \d+\.\d+", last)


def test_a_fault_of_the_users_own_code_is_theirs(
    fails: Callable[[object], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.py"
    path.write_text("import math\n\ndef run(*_, **options):\n    return math.sqrt('two')\n")
    fails(runpy.run_path(str(path))["run"])

    assert cli.main(["list"]) == 2
    error = capsys.readouterr().err
    assert re.fullmatch(r"error: TypeError: .* \(.*mine\.py, line 4\); correct the file\n", error)


def test_ctrl_c_has_a_code_of_its_own(fails: Callable[[object], None]) -> None:
    def run(*_: object, **options: object) -> None:
        raise KeyboardInterrupt

    fails(run)
    assert cli.main(["list"]) == 130


def test_a_closed_pipe_has_a_code_of_its_own() -> None:
    script = "import sys; from mufield.cli import main; sys.exit(main())"
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        done = subprocess.run(
            [sys.executable, "-c", script, "list"],
            stdout=pipe,
            stderr=subprocess.PIPE,
            check=False,
            timeout=120,
        )
    assert (done.returncode, done.stderr) == (141, b"")
