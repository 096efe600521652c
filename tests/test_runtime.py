"""The compilation cache, each time in a fresh process because JAX keeps its settings."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mufield._runtime import shrink_cache

pytestmark = pytest.mark.slow

ENABLE = """
import json, sys
from mufield._runtime import enable_compilation_cache
before = "jax" in sys.modules
directory = enable_compilation_cache()
imported = "jax" in sys.modules and not before
import jax
jax.jit(lambda x: 2 * x + 1)(1.0)
print(json.dumps({
    "returned": None if directory is None else str(directory),
    "again": str(enable_compilation_cache()),
    "configured": jax.config.jax_compilation_cache_dir,
    "imported_jax": imported,
}))
"""


def run(script: str, home: Path, **variables: str) -> dict[str, str | None]:
    """Run a script with a home directory of its own; its last line is JSON."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JAX_", "MUFIELD_", "XDG_"))
    }
    environment |= {"HOME": str(home), "LOCALAPPDATA": str(home), **variables}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def files_below(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


@pytest.mark.parametrize("first", ["", "import jax\n"], ids=["jax_absent", "jax_imported"])
def test_compiled_programs_are_kept_by_default(tmp_path: Path, first: str) -> None:
    import jaxlib.version

    report = run(first + ENABLE, tmp_path)

    assert report["returned"] is not None
    directory = Path(report["returned"])
    assert directory.is_relative_to(tmp_path)
    assert jaxlib.version.__version__ in directory.name
    assert report["configured"] == report["again"] == str(directory)
    assert not report["imported_jax"]
    assert files_below(directory)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="XDG is a Linux convention")
def test_the_xdg_cache_directory_is_used(tmp_path: Path) -> None:
    report = run(ENABLE, tmp_path / "home", XDG_CACHE_HOME=str(tmp_path / "xdg"))

    assert report["returned"] is not None
    assert Path(report["returned"]).is_relative_to(tmp_path / "xdg" / "mufield")


@pytest.mark.parametrize("word", ["off", "OFF"])
def test_the_switch_turns_it_off(tmp_path: Path, word: str) -> None:
    report = run(ENABLE, tmp_path, MUFIELD_COMPILATION_CACHE=word)

    assert report["returned"] is None
    assert report["configured"] is None
    assert not files_below(tmp_path)


def test_the_switch_names_another_directory(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    report = run(ENABLE, tmp_path / "home", MUFIELD_COMPILATION_CACHE=str(elsewhere))

    assert report["returned"] is not None
    assert Path(report["returned"]).is_relative_to(elsewhere)
    assert files_below(elsewhere)
    assert not (tmp_path / "home").exists()


def test_a_home_where_nothing_can_be_made_is_no_error(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("a file, so that no directory can be made in it")

    report = run(ENABLE, home)

    assert report["returned"] is None
    assert report["configured"] is None


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere"
)
def test_a_read_only_home_is_no_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        report = run(ENABLE, tmp_path)
    finally:
        tmp_path.chmod(0o700)

    assert report["returned"] is None


def test_a_cache_set_in_the_environment_is_left_alone(tmp_path: Path) -> None:
    theirs = str(tmp_path / "theirs")
    report = run(ENABLE, tmp_path / "home", JAX_COMPILATION_CACHE_DIR=theirs)

    assert report["returned"] is None
    assert report["configured"] == theirs
    assert not (tmp_path / "home").exists()


def test_a_cache_set_in_the_program_is_left_alone(tmp_path: Path) -> None:
    theirs = str(tmp_path / "theirs")
    configure = f"import jax; jax.config.update('jax_compilation_cache_dir', {theirs!r})\n"
    report = run(configure + ENABLE, tmp_path / "home")

    assert report["returned"] is None
    assert report["configured"] == theirs


def test_a_threshold_set_in_the_environment_is_left_alone(tmp_path: Path) -> None:
    report = run(ENABLE, tmp_path, JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="1000")

    assert report["returned"] is not None
    assert not files_below(Path(report["returned"]))


def test_programs_that_were_not_used_for_longest_are_removed(tmp_path):
    for number in range(10):
        path = tmp_path / f"jaxlib-{number % 2}" / f"{number}-cache"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(100))
        os.utime(path, (1000 + number, 1000 + number))
    shrink_cache(tmp_path, most=1000)
    assert len(list(tmp_path.glob("*/*"))) == 10
    shrink_cache(tmp_path, most=800)
    left = {int(path.name.partition("-")[0]) for path in tmp_path.glob("*/*")}
    assert left == {4, 5, 6, 7, 8, 9}


def test_learning_and_planning_keep_programs_also_after_others_were_compiled(tmp_path):
    script = """
import json
import mufield as mf
rooms = mf.make("four-rooms", horizon=2, drawing="...\\n.#.\\n...")
import jax
jax.jit(lambda x: 3 * x)(1.0)
mf.learn(rooms, episodes=1, progress=False)
print(json.dumps({"configured": jax.config.jax_compilation_cache_dir}))
"""
    report = run(script, tmp_path)
    assert Path(report["configured"]).is_relative_to(tmp_path)
    assert len(files_below(tmp_path)) > 10
    assert run(script, tmp_path / "off", MUFIELD_COMPILATION_CACHE="off") == {"configured": None}
