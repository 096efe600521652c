"""Importing is cheap, and brings nothing that was not asked for."""

import os
import subprocess
import sys

import pytest

import mufield


def python(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    ).stdout.strip()


def test_import_brings_no_drawing_command_line_or_extra():
    every_name = (
        "import sys, mufield\n"
        "for name in mufield.__all__: getattr(mufield, name)\n"
        "print([m for m in ('matplotlib', 'tyro', 'rich', 'imageio_ffmpeg', 'PIL', 'open_spiel',"
        " 'beartype') if m in sys.modules])"
    )
    assert python(every_name) == "[]"


def test_import_changes_nothing(tmp_path):
    look = (
        "import os, sys; before = dict(os.environ); import mufield; "
        "print(os.environ == before, 'jax' in sys.modules, os.listdir(os.environ['HOME']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", look],
        env={**os.environ, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.split() == ["True", "False", "[]"]


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="attribute nothing"):
        _ = mufield.nothing
    assert "Grid" in dir(mufield)
