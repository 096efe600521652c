"""Users' own Python files, which register their systems and problems."""

import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import UserError


def import_users(source: str | None) -> Path | None:
    """Imports a user's file or module, once; returns the file that was imported."""
    if source is None:
        return None
    if source.endswith(".py"):
        return _import_file(Path(source).expanduser().resolve())
    try:
        found = importlib.import_module(source).__file__
    except ModuleNotFoundError as error:
        if error.name is None or not f"{source}.".startswith(f"{error.name}."):
            raise
        raise UserError(
            f"cannot import {source!r}: there is no such module; name a .py file, or a module "
            "that Python finds"
        ) from error
    return None if found is None else Path(found)


def _import_file(path: Path) -> Path:
    if not path.is_file():
        raise UserError(
            f"cannot import {path}: there is no such file; say with --import where it is"
        )
    name = f"_mufield_user_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return path
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _neighbours_of(path):
            spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, Exception):
            raise
        raise UserError(
            f"cannot import {path}: {type(error).__name__}: {error}{_place(error, path)}; correct "
            "the file"
        ) from error
    return path


@contextmanager
def _neighbours_of(path: Path) -> Iterator[None]:
    """Lets a file import those beside it, as a script could."""
    directory = str(path.parent)
    sys.path.insert(0, directory)
    try:
        yield
    finally:
        # The file itself may have changed the list.
        if directory in sys.path:
            sys.path.remove(directory)


def _place(error: Exception, path: Path) -> str:
    """The last line of the file that an error went through."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    return f" (line {lines[-1]})" if lines else ""
