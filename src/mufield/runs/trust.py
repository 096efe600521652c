"""The user's own Python code: executed only if the user asked for it, and as it was then.

A run of a user's own system names the Python file or module that defines it. Such a run may come
from somebody else, so its code is executed only if the user asked for that: by naming it on the
command line, or in a call from Python. Every file that is executed then is remembered outside of
the run, by its place and contents: the named one, the modules of its package, and the files beside
it that it imports. They are compiled from the very bytes that were compared; bytecode is ignored.

The environment variable ``MUFIELD_TRUSTED`` names the directory of what is remembered, or is
``off`` to remember nothing; by default it is in the user's directory of settings.
"""

import hashlib
import importlib
import shlex
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

from platformdirs import user_config_path

from .._runtime import chosen_directory
from ..errors import UserError
from ..io.atomic import write_bytes
from ..io.sealed import MOST_TEXT, check_file


def import_users(source: str | None) -> Path | None:
    """Imports a file or module that the user asked for; returns its file.

    What is executed is remembered, so that runs which name the same code need not ask. What was
    imported before is not imported again.
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


def needs_consent(source: str | None) -> bool:
    """Whether `import_named` would raise because the user has not asked for the code."""
    if source is None:
        return False
    try:
        if source.endswith(".py"):
            path = _file(source)
            return _module_name(path) not in sys.modules and not _is_trusted(path)
        return source not in sys.modules and not all(map(_is_trusted, _on_the_way(source)))
    except UserError:  # there is no such code
        return False


def _import(source: str, *, asked: bool) -> Path | None:
    if source.endswith(".py"):
        return _import_file(_file(source), _Guard(source, asked))
    files = [] if source in sys.modules else _on_the_way(source)
    guard = _Guard(source, asked)
    for file in files:  # all of them before the first is executed
        guard.check(file, file.read_bytes())
    with guard:
        found = importlib.import_module(source).__file__
    return None if found is None else Path(found)


def _import_file(path: Path, guard: "_Guard") -> Path:
    name = _module_name(path)
    if name in sys.modules:
        return path
    spec = spec_from_file_location(name, path, loader=_ApprovedSource(name, str(path), guard))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _neighbours_of(path), guard:
            spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, UserError) or not isinstance(error, Exception):
            raise
        lines = [
            f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)
        ]
        place = f" (line {lines[-1]})" if lines else ""
        raise UserError(
            f"cannot import {path}: {type(error).__name__}: {error}{place}; correct the file"
        ) from error
    return path


def _file(source: str) -> Path:
    path = Path(source).expanduser().resolve()
    if not path.is_file():
        raise UserError(
            f"cannot import {path}: there is no such file; say with --import where it is"
        )
    check_file(path, MOST_TEXT)
    return path


def _module_name(path: Path) -> str:
    return f"_mufield_user_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"


def _on_the_way(source: str) -> list[Path]:
    """The files that Python would execute to import a module; nothing is executed to find them.

    Raises if there is no such module, or nothing that could be looked at.
    """
    files: list[Path] = []
    places: Sequence[str] | None = None
    for count in range(1, source.count(".") + 2):
        name = ".".join(source.split(".")[:count])
        known = sys.modules.get(name)
        if known is not None:
            places = list(getattr(known, "__path__", []))
            continue
        spec = None if count > 1 and not places else _found(name, places)
        if spec is None:
            raise UserError(
                f"cannot import {source!r}: there is no such module; name a .py file, or a module "
                "that Python finds"
            )
        places = spec.submodule_search_locations
        files += [Path(spec.origin)] if spec.origin and Path(spec.origin).is_file() else []
    if not files:
        raise UserError(f"cannot import {source!r}: it has no file; name a module that has one")
    return files


def _found(
    name: str, places: Sequence[str] | None, target: ModuleType | None = None
) -> ModuleSpec | None:
    """Where Python finds a module."""
    for finder in sys.meta_path:
        if not isinstance(finder, _Guard):
            spec = finder.find_spec(name, places, target)
            if spec is not None:
                return spec
    return None


class _Guard(MetaPathFinder):
    """While it is entered, files of the user's code are executed only if they may be.

    These are the modules of the named one's package, or the files beside the named one. If the
    user asked for the code, they may be, and are remembered.
    """

    def __init__(self, source: str, asked: bool):
        self.source, self.asked = source, asked
        file = source.endswith(".py")
        self.directory = _file(source).parent if file else None
        self.tops = set() if file else {source.partition(".")[0]}

    def __enter__(self) -> None:
        sys.meta_path.insert(0, self)

    def __exit__(self, *_: object) -> None:
        sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Python's own answer, with a loader that compares before it executes."""
        spec = _found(name, path, target)
        if spec is None or spec.origin is None or not Path(spec.origin).is_file():
            return spec
        file, top = Path(spec.origin), name.partition(".")[0]
        package = file.parent.parent if spec.submodule_search_locations else file.parent
        if top == name and package == self.directory:
            self.tops.add(top)
        if top in self.tops:
            if type(spec.loader) is SourceFileLoader:
                spec.loader = _ApprovedSource(name, str(file), self)
            else:  # a library of machine code
                self.check(file, file.read_bytes())
        return spec

    def check(self, file: Path, data: bytes) -> None:
        """Raises unless a file with these contents may be executed."""
        if self.asked:
            _remember(file, data)
        elif not _is_trusted(file, data):
            raise UserError(
                f"the run's configuration names the Python code {self.source}, and you have not "
                f"asked to execute {file} as it is now; look at it, and if you trust it, add "
                f"--import {shlex.quote(self.source)}"
            )


class _ApprovedSource(SourceFileLoader):
    """Executes the bytes that the guard compared, whatever bytecode is beside them."""

    def __init__(self, name: str, path: str, guard: _Guard):
        super().__init__(name, path)
        self.guard = guard

    def get_code(self, fullname: str) -> CodeType:
        """The file's code."""
        data = self.get_data(self.path)
        self.guard.check(Path(self.path), data)
        code: CodeType = self.source_to_code(data, self.path)
        return code


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


def _remember(path: Path, data: bytes) -> None:
    note = _note(path, data)
    if note is None or note.is_file():
        return
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(note, f"{path}\n".encode())
    except OSError:
        pass  # then the user has to ask again the next time


def _is_trusted(path: Path, data: bytes | None = None) -> bool:
    note = _note(path, path.read_bytes() if data is None else data)
    return note is not None and note.is_file()


def _note(path: Path, data: bytes) -> Path | None:
    """The file that stands for the user's consent; None if nothing is remembered."""
    place = chosen_directory("MUFIELD_TRUSTED", user_config_path("mufield", False) / "trusted")
    if place is None:
        return None
    inner = hashlib.sha256(data).hexdigest()
    return place / hashlib.sha256(f"{path}\n{inner}".encode()).hexdigest()
