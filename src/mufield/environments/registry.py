"""Systems by name, so that the command line can list and run them. Listing needs no JAX."""

import inspect
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import UserError

if TYPE_CHECKING:
    from ..episode import AbstractSystem, Known


@dataclass(frozen=True)
class Entry:
    """One registered system.

    Attributes:
        name: Its name on the command line.
        summary: One line about it.
        function: Makes the system, or the problem of a real one, from keyword options. A function
            of this folder is given as ``"module.function"``, and imported when it is needed.
        fixed: Keyword arguments that are always passed.
    """

    name: str
    summary: str
    function: Callable[..., Any] | str
    fixed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def build(self) -> Callable[..., Any]:
        """The function that makes the system."""
        function = self.function
        if isinstance(function, str):
            module, _, name = function.partition(".")
            function = getattr(import_module(f".{module}", __package__), name)
        return partial(function, **self.fixed) if self.fixed else function

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments that can be chosen, with their defaults."""
        parameters = inspect.signature(self.build).parameters.values()
        named = [p for p in parameters if p.kind is not p.VAR_KEYWORD and p.name not in self.fixed]
        return {p.name: p.default for p in named}

    @property
    def takes_any(self) -> bool:
        """Whether the function has ``**options`` for keyword arguments that it does not name."""
        parameters = inspect.signature(self.build).parameters.values()
        return any(p.kind is p.VAR_KEYWORD for p in parameters)


_BUILT_IN = (
    Entry(
        "four-rooms", "continuous four rooms, maximise entropy (Sec. 6)", "four_rooms.four_rooms"
    ),
    Entry(
        "four-rooms-doors",
        "continuous four rooms, at most 3% of the agents in a door at any time",
        "four_rooms.capped_rooms",
    ),
    Entry(
        "swarm-spread",
        "swarm motion that must keep 95% of the greatest entropy, as in Safe-M3-UCRL",
        "swarm.spread_swarm",
    ),
    Entry("swarm", "swarm motion on the torus, s + a dh (App. E.2)", "swarm.swarm"),
    Entry(
        "swarm-congested",
        "swarm motion that slows in crowds, s + a (4 - 4 mu(s)) dh (App. E.2)",
        "swarm.swarm",
        {"motion": "congested"},
    ),
    Entry(
        "discrete-rooms",
        "discrete four rooms, five moves (App. E.1, Standard)",
        "discrete_rooms.discrete_rooms",
    ),
    Entry(
        "discrete-rooms-extended",
        "discrete four rooms, nine options (App. E.1, Extended)",
        "discrete_rooms.discrete_rooms",
        {"actions": "extended"},
    ),
    Entry(
        "walkway",
        "a corridor whose far side moves fast: greedy learners never find out",
        "walkway.walkway",
    ),
    Entry(
        "manhattan",
        "a fleet of taxis, with demand and trips from public records and an invented motion",
        "manhattan.manhattan",
    ),
)
_MOTIONS = {
    "rooms-wind": "the same wind everywhere",
    "rooms-slow": "two bogs slow agents down",
    "rooms-turned": "actions are turned by place",
    "rooms-saturating": "small actions do most of it, and the east is slower",
    "rooms-coupled": "each axis of the action moves both axes",
    "rooms-crowded": "crowds slow down, so the motion depends on mu",
    "hall-lane": "a fast lane with a sharp edge",
    "hall-vortex": "a whirl around the middle",
    "hall-mixed": "actions are turned and slowed by place, and there is a breeze",
    "torus-vortex": "a periodic current of four whirls",
}
"""Motions of the suite by map and motion; `motions` has a function for each map."""

SUITE = ("four-rooms", *_MOTIONS, "city")
"""Names of the systems on which learners are judged that are told nothing of the motion."""


def _of_suite(name: str, about: str) -> Entry:
    place, _, motion = name.partition("-")
    return Entry(name, f"suite of motions: {about}", f"motions.{place}", {"motion": motion})


_ENTRIES = {
    entry.name: entry
    for entry in (
        *_BUILT_IN,
        *(_of_suite(*each) for each in _MOTIONS.items()),
        Entry("city", "suite of motions: vehicles, a river, slow places, crowds", "motions.city"),
    )
}

Build = TypeVar("Build", bound=Callable[..., Any])


def register(name: str, summary: str) -> Callable[[Build], Build]:
    """Decorates a function that builds a system, so that `make` can build it by name.

    For a real fleet, whose motion cannot be computed, the function returns its `Problem`.
    """

    def keep(build: Build) -> Build:
        if name in _ENTRIES and _ENTRIES[name].function is not build:
            raise UserError(f"a system named {name!r} is registered already; choose another name")
        _ENTRIES[name] = Entry(name, summary, build)
        return build

    return keep


def catalogue() -> list[Entry]:
    """All registered systems, sorted by name."""
    return sorted(_ENTRIES.values(), key=lambda entry: entry.name)


def find(name: str) -> Entry:
    """The entry of a registered system; raises an error that lists all names if there is none."""
    if name not in _ENTRIES:
        raise UserError(f"no system is named {name!r}; there are {', '.join(sorted(_ENTRIES))}")
    return _ENTRIES[name]


def check_options(name: str, options: Mapping[str, Any]) -> Entry:
    """The entry of a registered system; raises if it has not all of these options."""
    entry = find(name)
    unknown = sorted(options.keys() - entry.options.keys())
    if unknown and not entry.takes_any:
        raise UserError(
            f"the system {name!r} has no option {', '.join(unknown)}; it has "
            f"{', '.join(sorted(entry.options)) or 'none'}"
        )
    return entry


def make_known(name: str, **options: Any) -> "Known":
    """Builds a registered system, or the problem of a real one."""
    from ..episode import AbstractSystem
    from ..problem import Problem

    entry = check_options(name, options)
    try:
        known = entry.build(**options)
    except UserError:
        raise
    except (TypeError, ValueError, ArithmeticError) as error:
        raise UserError(
            f"the system {name!r} cannot be built with the options {reprlib.repr(options)}: "
            f"{type(error).__name__}: {error}; correct them, or its function"
        ) from error
    if not isinstance(known, AbstractSystem | Problem):
        raise UserError(
            f"the function registered as {name!r} must return a system or a Problem, got "
            f"{type(known).__name__}"
        )
    return known


def make(name: str, **options: Any) -> "AbstractSystem":
    """Builds a registered system; options are the keyword arguments of its function."""
    from ..episode import AbstractSystem

    known = make_known(name, **options)
    if not isinstance(known, AbstractSystem):
        raise UserError(
            f"{name!r} is a real system, of which only the problem is known: it cannot be run "
            "here; use `mufield new`, `mufield ask` and `mufield tell`"
        )
    return known
