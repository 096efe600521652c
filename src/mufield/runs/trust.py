"""The user's own Python code: executed only if the user asked for it, and as it was then.

A run of a user's own system names the Python file or module that defines it. Such a run may come
from somebody else, so its code is executed only if the user asked for that: by naming it on the
command line, or in a call from Python. The file is then remembered outside of the run, by place and
contents, and so are the ``__init__.py`` of the packages around a module. These are compiled from
the very bytes that were compared; bytecode is ignored. What they import is imported as ever.

The environment variable ``MUFIELD_TRUSTED`` names the directory of what is remembered, or is
``off`` to remember nothing; by default it is in the user's directory of settings.
"""

import hashlib
import shlex
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from platformdirs import user_config_path

from .._runtime import chosen_directory
from ..errors import UserError
from ..io.atomic import check_file, write_bytes
from ..io.sealed import MOST_TEXT


def import_users(source: str | None) -> Path | None:
    """Imports a file or module that the user asked for; returns its file.

    It is remembered, so that runs which name the same code need not ask. What was imported before
    is not imported again.
    """
    return None if source is None else _import(source, asked=True)


def import_named(source: str | None, instead: str | None = None) -> Path | None:
    """Imports the file or module that a run's configuration names, if the user trusts it.

    If the user names one ``instead``, that was asked for.

    Raises:
        UserError: If nobody asked to execute it: the run may have come from anybody.
    """
    if instead is not None or source is None:
        return import_users(instead)
    return _import(source, asked=False)


def _import(source: str, *, asked: bool) -> Path:
    files = _files(source)
    new = {name: path.read_bytes() for name, path in files.items() if name not in sys.modules}
    for name, data in new.items():  # all of them before the first is executed
        if asked:
            _remember(files[name], data)
        elif not _is_trusted(files[name], data):
            raise UserError(
                f"the run's configuration names the Python code {source}, and you have not asked "
                f"to execute {files[name]} as it is now; look at it, and if you trust it, add "
                f"--import {shlex.quote(source)}"
            )
    for name, data in new.items():
        _execute(name, files[name], data)
    return list(files.values())[-1]


def _files(source: str) -> dict[str, Path]:
    """The files to execute by the names of their modules; nothing is executed to find them."""
    if source.endswith(".py"):
        path = Path(source).expanduser().resolve()
        if not path.is_file():
            raise UserError(
                f"cannot import {path}: there is no such file; say with --import where it is"
            )
        check_file(path, MOST_TEXT)
        return {f"_mufield_user_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}": path}
    files: dict[str, Path] = {}
    places: Sequence[str] | None = None
    name = ""
    for part in source.split("."):
        name = f"{name}.{part}".lstrip(".")
        found = (finder.find_spec(name, places) for finder in sys.meta_path)
        spec = next((each for each in found if each is not None), None)
        file = Path(spec.origin) if spec is not None and spec.origin else None
        if spec is None or (file is not None and file.suffix != ".py"):
            raise UserError(
                f"cannot import {source!r}: there is no such module of Python code; name a .py "
                "file, or a module that Python finds"
            )
        places = spec.submodule_search_locations or []
        files |= {} if file is None else {name: file}  # some packages have no file
    if name not in files:
        raise UserError(f"cannot import {source!r}: it has no file; name a module that has one")
    return files


def _execute(name: str, path: Path, data: bytes) -> None:
    spec = spec_from_file_location(name, path)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _neighbours_of(path if "." not in name and path.stem != "__init__" else None):
            exec(compile(data, str(path), "exec"), module.__dict__)
    except BaseException as error:
        sys.modules.pop(name, None)
        if isinstance(error, UserError) or not isinstance(error, Exception):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(path)]
        place = f" (line {lines[-1]})" if lines else ""
        raise UserError(
            f"cannot import {path}: {type(error).__name__}: {error}{place}; correct the file"
        ) from error
    parent, _, last = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], last, module)


@contextmanager
def _neighbours_of(path: Path | None) -> Iterator[None]:
    """Lets a file that is in no package import the files beside it, as a script could."""
    directory = [] if path is None else [str(path.parent)]
    sys.path[:0] = directory
    try:
        yield
    finally:
        with suppress(ValueError):  # the user's file itself may have changed the list
            for each in directory:
                sys.path.remove(each)


def _remember(path: Path, data: bytes) -> None:
    note = _note(path, data)
    if note is None or note.is_file():
        return
    with suppress(OSError):  # then the user has to ask again the next time
        note.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(note, f"{path}\n".encode())


def _is_trusted(path: Path, data: bytes) -> bool:
    note = _note(path, data)
    return note is not None and note.is_file()


def _note(path: Path, data: bytes) -> Path | None:
    """The file that stands for the user's consent; None if nothing is remembered."""
    place = chosen_directory("MUFIELD_TRUSTED", user_config_path("mufield", False) / "trusted")
    if place is None:
        return None
    inner = hashlib.sha256(data).hexdigest()
    return place / hashlib.sha256(f"{path}\n{inner}".encode()).hexdigest()
