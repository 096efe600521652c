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
from mufield.runs.trust import import_named, import_users

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


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of the user's, of which `env` was asked for; each module notes that it ran."""
    top = tmp_path / "goodpkg"
    top.mkdir()
    (top / "__init__.py").write_text("ran = []\n")
    for name in ("helper", "other"):
        (top / f"{name}.py").write_text(f"from . import ran\nran.append({name!r})\n")
    (top / "env.py").write_text("from . import ran, helper\nran.append('env')\n")
    monkeypatch.syspath_prepend(tmp_path)
    import_users("goodpkg.env")
    yield top
    leave()


def leave():
    """As another process would: nothing of the package is imported yet; returns what ran."""
    found = sys.modules.get("goodpkg")
    for name in [name for name in sys.modules if name.partition(".")[0] == "goodpkg"]:
        del sys.modules[name]
    return getattr(found, "ran", [])


def test_a_module_that_was_asked_for_is_trusted(package):
    assert leave() == ["helper", "env"]
    import_named("goodpkg.env")
    assert leave() == ["helper", "env"]


@pytest.mark.parametrize("edited", ["env", "__init__"])
def test_an_edited_module_of_a_package_is_not_executed(package, edited):
    leave()
    path = package / f"{edited}.py"
    path.write_text(path.read_text() + "ran.append('evil')\n")
    with pytest.raises(UserError, match=rf"have not asked to execute .*{edited}\.py as it is now"):
        import_named("goodpkg.env")
    assert "evil" not in leave()


def test_another_module_of_a_package_is_refused_before_anything_runs(package):
    leave()
    with pytest.raises(UserError, match=r"goodpkg.other, and you have not asked"):
        import_named("goodpkg.other")
    assert "goodpkg" not in sys.modules


def test_bytecode_of_a_package_is_ignored(package):
    leave()
    evil = package / "evil.py"
    evil.write_text("from . import ran\nran.append('evil')\n")
    cached = py_compile.compile(str(evil), invalidation_mode=py_compile.PycInvalidationMode(2))
    for name in ("env", "__init__"):
        place = package / "__pycache__" / f"{name}.{sys.implementation.cache_tag}.pyc"
        place.write_bytes(Path(cached).read_bytes())
    import_named("goodpkg.env")
    assert leave() == ["helper", "env"]


def test_the_file_may_import_those_beside_it(code):
    code.with_name("beside_it.py").write_text("")
    code.write_text("import beside_it\n" + CODE)
    import_users(str(code))
    assert executed(code)
    assert str(code.parent) not in sys.path
    del sys.modules["beside_it"]
