"""Code that a run names is executed only if the user asked for it."""

import io
import json
import py_compile
import sys
from pathlib import Path

import pytest

from mufield import UserError, cli
from mufield.environments import registry
from mufield.runs import surroundings
from mufield.runs.config import RunConfig
from mufield.runs.layout import LAYOUT
from mufield.runs.surroundings import import_named, import_users

CODE = """
from pathlib import Path
Path(__file__).with_name("executed").touch()
"""


@pytest.fixture(autouse=True)
def forgetful(monkeypatch, tmp_path):
    """Nothing is trusted or registered from one test to the next."""
    monkeypatch.setenv("MUFIELD_TRUSTED", str(tmp_path / "trusted"))
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))


@pytest.fixture
def code(tmp_path):
    path = tmp_path / "sent.py"
    path.write_text(CODE)
    return path


@pytest.fixture
def run(code, tmp_path):
    """A run that somebody sent."""
    config = RunConfig("four-rooms", imports=str(code), options={"horizon": 3}, precision="float64")
    directory = tmp_path / "run"
    for part in ("policies", "plans", "episodes"):
        (directory / part).mkdir(parents=True)
    (directory / LAYOUT.config).write_text(json.dumps(config.document()))
    return directory


def forget():
    """As another process would: nothing is imported yet."""
    for name in [name for name in sys.modules if name.startswith("_mufield_user_")]:
        del sys.modules[name]


def executed(code):
    found = code.with_name("executed")
    there = found.exists()
    found.unlink(missing_ok=True)
    forget()
    return there


@pytest.mark.parametrize(
    "command", [("ask",), ("resume",), ("policy",), ("report",), ("theory",), ("export", "--out")]
)
def test_commands_execute_nothing_that_nobody_asked_for(command, run, code, tmp_path, capsys):
    place = ["--out", str(tmp_path / "page.html")] if command == ("report",) else []
    place = [str(tmp_path / "out")] if command[-1] == "--out" else place
    assert cli.main([command[0], str(run), *command[1:], *place]) == (command != ("report",)) * 2
    assert not executed(code)
    if command in (("ask",), ("resume",)):
        message = capsys.readouterr().err.splitlines()[-1]
        assert f"names the Python code {code}" in message
        assert f"add --import {code}" in message


def test_what_was_asked_for_once_is_trusted_until_it_changes(code, monkeypatch):
    with pytest.raises(UserError, match="have not asked to execute"):
        import_named(str(code))
    assert not executed(code)
    import_users(str(code))
    assert executed(code)
    import_named(str(code))
    assert executed(code)
    code.write_text(CODE + "# and more\n")
    with pytest.raises(UserError, match="have not asked to execute"):
        import_named(str(code))
    assert not executed(code)
    code.write_text(CODE)
    code.rename(code.with_name("elsewhere.py"))
    with pytest.raises(UserError, match="have not asked"):
        import_named(str(code.with_name("elsewhere.py")))
    monkeypatch.setenv("MUFIELD_TRUSTED", "off")
    code.write_text(CODE)
    with pytest.raises(UserError, match="have not asked"):
        import_named(str(code))


def test_modules_are_not_imported_to_see_whether_they_may_be(tmp_path, monkeypatch):
    (tmp_path / "sent_package").mkdir()
    (tmp_path / "sent_package" / "__init__.py").write_text(CODE)
    (tmp_path / "sent_package" / "inner.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="have not asked"):
        import_named("sent_package.inner")
    assert not (tmp_path / "sent_package" / "executed").exists()
    import_users("sent_package.inner")
    assert (tmp_path / "sent_package" / "executed").exists()
    with pytest.raises(UserError, match="no such module"):
        import_named("nothing_of_the_kind")


def test_bytecode_beside_the_file_is_ignored(code):
    evil = code.with_name("evil.py")
    evil.write_text(CODE.replace("executed", "replaced"))
    cached = py_compile.compile(str(evil), invalidation_mode=py_compile.PycInvalidationMode(2))
    place = code.parent / "__pycache__" / f"sent.{sys.implementation.cache_tag}.pyc"
    place.write_bytes(Path(cached).read_bytes())
    import_users(str(code))
    assert executed(code)
    assert not code.with_name("replaced").exists()


@pytest.mark.parametrize("answer", ["y\n", "\n"])
def test_at_a_terminal_the_user_is_asked(answer, run, code, monkeypatch, capsys, tmp_path):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    cli.main(["report", str(run), "--out", str(tmp_path / "page.html")])
    assert f"{run} needs the Python code {code}" in capsys.readouterr().err
    assert surroundings.needs_consent(str(code)) == (answer == "\n")
