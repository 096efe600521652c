"""What the figures of a run depend on besides its configuration: number format, versions, and the
user's own Python file.
"""

import hashlib
import importlib
import importlib.util
import platform
import shlex
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..io.sealed import MOST_TEXT, check_file, file_digest
from .trust import is_trusted, remember


def current_precision() -> str:
    """The number format that JAX computes in."""
    import jax.numpy as jnp

    return str(jnp.result_type(float))


def set_precision(precision: str) -> None:
    """Makes JAX compute in a number format; only programs may do so, not a library."""
    import jax

    if precision != current_precision():
        jax.config.update("jax_enable_x64", precision == "float64")


def check_precision(precision: str) -> None:
    """Raises unless JAX computes in this number format."""
    if precision != current_precision():
        raise UserError(
            f"the run computes in {precision}, but JAX is set to {current_precision()}; "
            f"call jax.config.update('jax_enable_x64', {precision == 'float64'}) at the start"
        )


def versions(imported: Path | None = None) -> dict[str, Any]:
    """Versions of Python and packages, and a digest of the user's own file."""
    packages = ("mufield", "jax", "jaxlib", "equinox", "numpy", "optax", "scipy")
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{name: version(name) for name in packages},
    }
    if imported is not None:
        found["imported"] = {
            "file": str(imported),
            "sha256": file_digest(imported) if imported.is_file() else None,
        }
    return found


def changes_since(then: dict[str, Any]) -> list[str]:
    """One sentence for each version that has changed since a run began with ``then``."""
    if not then:  # the file of versions was lost
        return []
    imported = then.get("imported")
    file = imported.get("file") if isinstance(imported, dict) else None
    now = versions(Path(file) if isinstance(file, str) and file else None)
    changed = [name for name in now if then.get(name) != now.get(name)]
    return [
        f"{file} has changed since the run began, or is gone; figures may differ"
        if name == "imported"
        else f"{name} was {then.get(name)} when the run began and is {now[name]} now; figures may "
        "differ"
        for name in changed
    ]


def import_users(source: str | None) -> Path | None:
    """Imports a file or module that the user asked for; returns its file.

    That is remembered, so that runs which name the same file need not ask (`trust`). What was
    imported before is not imported again.
    """
    if source is None:
        return None
    agree(source)
    return _import(_find(source))


def import_named(source: str | None) -> Path | None:
    """Imports the file or module that a run's configuration names, if the user trusts it.

    Raises:
        UserError: If nobody asked to execute it: the run may have come from anybody.
    """
    if source is None:
        return None
    code = _find(source)
    if not _is_allowed(code):
        raise UserError(
            f"the run's configuration names the Python code {source}, which you have not asked to "
            f"execute as it is now; look at it, and if you trust it, add --import "
            f"{shlex.quote(source)}"
        )
    return _import(code)


def agree(source: str) -> None:
    """Remembers that the user wants this code executed, as it is now."""
    code = _find(source)
    if code.file is not None:
        remember(code.file, code.data)


def needs_consent(source: str | None) -> bool:
    """Whether `import_named` would raise because the user has not agreed."""
    try:
        return source is not None and not _is_allowed(_find(source))
    except UserError:  # there is no such code
        return False


@dataclass(frozen=True)
class _Code:
    """Python code that can be imported: its module's name, and its file with what that holds.

    ``source`` is None for a file, else the name that Python is to find.
    """

    name: str
    source: str | None
    file: Path | None
    data: bytes = b""


def _is_allowed(code: _Code) -> bool:
    """Whether the user agreed; code that was imported already is not executed again."""
    known = code.file is not None and is_trusted(code.file, code.data)
    return known or code.name in sys.modules


def _find(source: str) -> _Code:
    """Looks for the code without executing any of it."""
    if source.endswith(".py"):
        path = Path(source).expanduser().resolve()
        if not path.is_file():
            raise UserError(
                f"cannot import {path}: there is no such file; say with --import where it is"
            )
        check_file(path, MOST_TEXT)
        name = f"_mufield_user_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
        return _Code(name, None, path, path.read_bytes())
    # Only the first name: to look for an inner one, Python would execute the outer.
    try:
        found = importlib.util.find_spec(source.partition(".")[0])
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise UserError(
            f"cannot import {source!r}: there is no such module; name a .py file, or a module "
            "that Python finds"
        )
    origin = Path(found.origin) if found.origin and Path(found.origin).is_file() else None
    return _Code(source, source, origin, origin.read_bytes() if origin else b"")


def _import(code: _Code) -> Path | None:
    if code.source is None:
        return _import_file(code)
    try:
        found = importlib.import_module(code.source).__file__
    except ModuleNotFoundError as error:
        if error.name is None or not f"{code.source}.".startswith(f"{error.name}."):
            raise
        raise UserError(
            f"cannot import {code.source!r}: there is no such module; name a .py file, or a module "
            "that Python finds"
        ) from error
    return None if found is None else Path(found)


def _import_file(code: _Code) -> Path:
    path, name = code.file, code.name
    assert path is not None
    if name in sys.modules:
        return path
    loader = SourceFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _neighbours_of(path):
            # What was looked at, not what a file of bytecode beside it may hold.
            exec(loader.source_to_code(code.data, str(path)), module.__dict__)
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, Exception):
            raise
        lines = [
            f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)
        ]
        place = f" (line {lines[-1]})" if lines else ""
        raise UserError(
            f"cannot import {path}: {type(error).__name__}: {error}{place}; correct the file"
        ) from error
    return path


@contextmanager
def _neighbours_of(path: Path) -> Iterator[None]:
    """Lets a file import the files beside it, as a script could."""
    directory = str(path.parent)
    sys.path.insert(0, directory)
    try:
        yield
    finally:
        # The user's file itself may have changed the list.
        if directory in sys.path:
            sys.path.remove(directory)
