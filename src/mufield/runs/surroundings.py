"""What a run depends on besides its configuration: number format, versions, the user's own code.

A run of a user's own system names the Python file that defines it. Such a run may come from
somebody else, so its code is executed only if the user asked for that: by naming it on the command
line, or in a call from Python. The file is then remembered outside of the run, by place and
contents. It is compiled from the very bytes that were compared; bytecode is ignored. What it
imports is imported as ever.

The environment variable ``MUFIELD_TRUSTED`` names the directory of what is remembered, or is
``off`` to remember nothing; by default it is in the user's directory of settings.
"""

import hashlib
import platform
import shlex
import sys
import traceback
from contextlib import suppress
from importlib.metadata import version
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from platformdirs import user_config_path

from .._runtime import chosen_directory
from ..errors import UserError
from ..io.atomic import check_file, write_bytes
from ..io.sealed import MOST_TEXT, file_digest


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
        what = f"the run computes in {precision}, but JAX is set to {current_precision()}"
        call = f"call jax.config.update('jax_enable_x64', {precision == 'float64'}) at the start"
        raise UserError(f"{what}; {call}")


def versions(imported: Path | None = None) -> dict[str, Any]:
    """Versions of Python and packages, and a digest of the user's own file."""
    packages = ("mufield", "jax", "jaxlib", "equinox", "numpy", "optax", "scipy")
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{name: version(name) for name in packages},
    }
    if imported is not None:
        # A stranger may name anything.
        is_code = imported.is_file() and imported.stat().st_size <= MOST_TEXT
        sha256 = file_digest(imported) if is_code else None
        found["imported"] = {"file": str(imported), "sha256": sha256}
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
    """Imports a file that the user asked for; returns its place.

    It is remembered, so that runs which name the same code need not ask. What was imported before
    is not imported again.
    """
    return None if source is None else _import(source, asked=True)


def import_named(source: str | None, instead: str | None = None) -> Path | None:
    """Imports the file that a run's configuration names, if the user trusts it.

    If the user names one ``instead``, that was asked for.

    Raises:
        UserError: If nobody asked to execute it: the run may have come from anybody.
    """
    if instead is not None or source is None:
        return import_users(instead)
    return _import(source, asked=False)


def _import(source: str, *, asked: bool) -> Path:
    path = Path(source).expanduser().resolve()
    if path.suffix != ".py" or not path.is_file():
        what = "there is no such file" if path.suffix == ".py" else "expected a file .py"
        raise UserError(f"cannot import {path}: {what}; say with --import where it is")
    name = f"_mufield_user_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return path
    check_file(path, MOST_TEXT)
    data = path.read_bytes()
    note = _note(path, data)
    known = note is not None and note.is_file()
    if asked and note is not None and not known:
        with suppress(OSError):  # then the user has to ask again the next time
            note.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(note, f"{path}\n".encode())
    if not asked and not known:
        what = f"and you have not asked to execute {path} as it is now"
        add = f"look at it, and if you trust it, add --import {shlex.quote(source)}"
        raise UserError(f"the run's configuration names the Python code {source}, {what}; {add}")
    spec = spec_from_file_location(name, path)
    assert spec is not None
    module = sys.modules[name] = module_from_spec(spec)
    place = str(path.parent)
    sys.path.insert(0, place)  # so that it can import the files beside it, as a script could
    try:
        exec(compile(data, str(path), "exec"), module.__dict__)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, UserError) or not isinstance(error, Exception):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(path)]
        where = f" (line {lines[-1]})" if lines else ""
        what = f"{type(error).__name__}: {error}{where}"
        raise UserError(f"cannot import {path}: {what}; correct the file") from error
    finally:
        with suppress(ValueError):  # the user's file itself may have changed the list
            sys.path.remove(place)
    return path


def _note(path: Path, data: bytes) -> Path | None:
    """The file that stands for the user's consent; None if nothing is remembered."""
    place = chosen_directory("MUFIELD_TRUSTED", user_config_path("mufield", False) / "trusted")
    if place is None:
        return None
    inner = hashlib.sha256(data).hexdigest()
    return place / hashlib.sha256(f"{path}\n{inner}".encode()).hexdigest()
