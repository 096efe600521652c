"""Systems by name, so that the command line can list and run them."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

from ..episode import AbstractSystem


@dataclass(frozen=True)
class Entry:
    """One registered system.

    Attributes:
        name: How the command line calls it.
        summary: One line about it.
        build: Makes the system; keyword arguments are its variants.
    """

    name: str
    summary: str
    build: Callable[..., AbstractSystem]


_ENTRIES: dict[str, Entry] = {}
_BUILT_IN = ("four_rooms", "swarm", "discrete_rooms")


Build = TypeVar("Build", bound=Callable[..., AbstractSystem])


def register(name: str, summary: str) -> Callable[[Build], Build]:
    """Decorates a function that builds a system, so that it can be made by name."""

    def keep(build: Build) -> Build:
        if name in _ENTRIES and _ENTRIES[name].build is not build:
            raise ValueError(f"a system named {name!r} is registered already; choose another name")
        _ENTRIES[name] = Entry(name, summary, build)
        return build

    return keep


def catalogue() -> list[Entry]:
    """All registered systems, by name."""
    _load_built_in()
    return sorted(_ENTRIES.values(), key=lambda entry: entry.name)


def make(name: str, **options: Any) -> AbstractSystem:
    """Builds a registered system; options are the keyword arguments of its function."""
    _load_built_in()
    if name not in _ENTRIES:
        raise ValueError(f"no system is named {name!r}; there are {', '.join(sorted(_ENTRIES))}")
    return _ENTRIES[name].build(**options)


def _load_built_in() -> None:
    for module in _BUILT_IN:
        import_module(f".{module}", __package__)
