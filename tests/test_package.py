"""Wheel and sdist build, install into a clean environment, and pass tests of their own there."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import mufield

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.nightly


def run(*command, cwd=None):
    # A path that leads to this tree would hide what the clean environment lacks.
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [str(word) for word in command]
    ran = subprocess.run(words, cwd=cwd, env=clean, capture_output=True, text=True, timeout=1800)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    return ran.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel, made from the sdist, and the sdist."""
    # `make package` has built what is to be uploaded, so that just this is tested.
    dist = Path(os.environ.get("MUFIELD_DIST") or tmp_path_factory.mktemp("dist")).resolve()
    if not any(dist.iterdir()):
        run(sys.executable, "-m", "build", "--outdir", dist, ROOT)
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    return wheel, sdist


def test_the_wheel_holds_the_package_its_types_and_nothing_else(built):
    wheel, _ = built
    assert wheel.name == f"mufield-{mufield.__version__}-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {
        "mufield",
        f"mufield-{mufield.__version__}.dist-info",
    }
    assert {"mufield/py.typed", "mufield/__init__.pyi"} <= set(names)
    about = zipfile.ZipFile(wheel).read(f"mufield-{mufield.__version__}.dist-info/METADATA")
    assert b"](docs/" not in about, "a package index has no neighbouring files"


def test_the_sdist_passes_tests_with_the_wheel_in_a_clean_environment(built, tmp_path):
    wheel, sdist = built
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    tree = tmp_path / sdist.name.removesuffix(".tar.gz")
    assert (tree / "docs" / "index.md").is_file()
    run(sys.executable, "-m", "venv", tmp_path / "env")
    python = tmp_path / "env" / "bin" / "python"
    constraints = ROOT / "constraints.txt"
    extras = f"{wheel}[viz]"
    needed = ["pytest", "hypothesis", "beartype", "POT"]
    run(python, "-m", "pip", "install", "--quiet", extras, *needed, "-c", constraints)
    told = run(python, "-m", "pytest", "-q", "tests/space", "tests/golden", cwd=tree)
    assert " passed" in told
    where = "import mufield; print(mufield.__file__, mufield.__version__)"
    answer = run(python, "-c", where, cwd=tmp_path).split()
    assert str(tmp_path / "env") in answer[0]
    assert answer[1] == mufield.__version__
    assert "four-rooms" in run(tmp_path / "env" / "bin" / "mufield", "list", cwd=tmp_path)
