"""What the figures of a run depend on besides its configuration: number format, versions, and the
user's own Python file.
"""

import hashlib
import importlib
import importlib.util
import platform
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .._files import file_digest
from ..errors import UserError

PACKAGES = ("mufield", "jax", "jaxlib", "equinox", "numpy", "optax", "scipy")


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
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{name: version(name) for name in PACKAGES},
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
    return [
        f"{name} was {then.get(name)} when the run began and is {now.get(name)} now; figures may "
        "differ"
        for name in now
        if then.get(name) != now.get(name)
    ]


def import_users(source: str | None) -> Path | None:
    """Imports a user's file or module, unless that was done before; returns its file."""
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
