"""Systems by name, so that the command line can list and run them."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

from ..episode import AbstractSystem
from ..errors import UserError
from ..problem import Problem

Known = AbstractSystem | Problem
"""A system that can be run here, or only the problem of one that cannot: a real fleet."""


@dataclass(frozen=True)
class Entry:
    """One registered system.

    Attributes:
        name: How the command line calls it.
        summary: One line about it.
        build: Makes the system, or the problem of a real one; keyword arguments are its variants.
    """

    name: str
    summary: str
    build: Callable[..., Known]

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments with their defaults."""
        parameters = inspect.signature(self.build).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is not p.VAR_KEYWORD}


_ENTRIES: dict[str, Entry] = {}
_BUILT_IN = ("four_rooms", "swarm", "discrete_rooms", "walkway")


Build = TypeVar("Build", bound=Callable[..., Known])


def register(name: str, summary: str) -> Callable[[Build], Build]:
    """Decorates a function that builds a system, so that it can be made by name.

    For a real fleet, whose motion nobody can compute, the function returns its `Problem`.
    """

    def keep(build: Build) -> Build:
        if name in _ENTRIES and _ENTRIES[name].build is not build:
            raise UserError(f"a system named {name!r} is registered already; choose another name")
        _ENTRIES[name] = Entry(name, summary, build)
        return build

    return keep


def catalogue() -> list[Entry]:
    """All registered systems, by name."""
    _load_built_in()
    return sorted(_ENTRIES.values(), key=lambda entry: entry.name)


def find(name: str) -> Entry:
    """The entry of a registered system; raises and names the others if there is none."""
    _load_built_in()
    if name not in _ENTRIES:
        raise UserError(f"no system is named {name!r}; there are {', '.join(sorted(_ENTRIES))}")
    return _ENTRIES[name]


def make_known(name: str, **options: Any) -> Known:
    """Builds a registered system, or the problem of a real one."""
    entry = find(name)
    takes_any = any(
        p.kind is p.VAR_KEYWORD for p in inspect.signature(entry.build).parameters.values()
    )
    unknown = sorted(options.keys() - entry.options.keys())
    if unknown and not takes_any:
        raise UserError(
            f"the system {name!r} has no option {', '.join(unknown)}; it has "
            f"{', '.join(sorted(entry.options)) or 'none'}"
        )
    known = entry.build(**options)
    if not isinstance(known, AbstractSystem | Problem):
        raise UserError(
            f"the function registered as {name!r} must return a system or a Problem, got "
            f"{type(known).__name__}"
        )
    return known


def make(name: str, **options: Any) -> AbstractSystem:
    """Builds a registered system; options are the keyword arguments of its function."""
    known = make_known(name, **options)
    if isinstance(known, Problem):
        raise UserError(
            f"{name!r} is a real system, of which only the problem is known: it cannot be run "
            "here; use `mufield new`, `mufield ask` and `mufield tell`"
        )
    return known


def _load_built_in() -> None:
    for module in _BUILT_IN:
        import_module(f".{module}", __package__)
