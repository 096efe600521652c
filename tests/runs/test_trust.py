"""Code that a run names is executed only if the user asked for it."""

import json
import py_compile
import sys
from pathlib import Path

import pytest

from mufield import UserError, cli
from mufield.environments import registry
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
    ("words", "exit_code"),
    [
        (("ask", "RUN"), 2),
        (("train", "--out", "RUN"), 2),
        (("export", "RUN", "--out", "use.policy"), 2),
        (("show", "RUN", "--out", "page.html"), 0),
    ],
)
def test_commands_execute_nothing_that_nobody_asked_for(
    words, exit_code, run, code, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert cli.main([str(run) if word == "RUN" else word for word in words]) == exit_code
    assert not executed(code)
    if words[0] in ("ask", "train"):
        message = capsys.readouterr().err.splitlines()[-1]
        assert f"names the Python code {code}" in message
        assert f"add --import {code}" in message


def test_what_was_asked_for_once_is_trusted_until_it_changes(code, monkeypatch):
    with pytest.raises(UserError, match="have not asked"):
        import_named(str(code))
    assert not executed(code)
    import_users(str(code))
    assert executed(code)
    import_named(str(code))
    assert executed(code)
    code.write_text(CODE + "# and more\n")
    with pytest.raises(UserError, match="have not asked"):
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


def test_bytecode_beside_the_file_is_ignored(code):
    evil = code.with_name("evil.py")
    evil.write_text(CODE.replace("executed", "replaced"))
    cached = py_compile.compile(str(evil), invalidation_mode=py_compile.PycInvalidationMode(2))
    place = code.parent / "__pycache__" / f"sent.{sys.implementation.cache_tag}.pyc"
    place.write_bytes(Path(cached).read_bytes())
    import_users(str(code))
    assert executed(code)
    assert not code.with_name("replaced").exists()


def test_only_files_are_imported():
    with pytest.raises(UserError, match=r"expected a file \.py"):
        import_users("json")


def test_the_file_may_import_those_beside_it(code):
    code.with_name("beside_it.py").write_text("")
    code.write_text("import beside_it\n" + CODE)
    import_users(str(code))
    assert executed(code)
    assert str(code.parent) not in sys.path
    del sys.modules["beside_it"]
