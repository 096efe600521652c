"""Systems by name, so that the command line can list and run them. Listing needs no JAX."""

import inspect
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from ..checks import is_a
from ..errors import UserError

if TYPE_CHECKING:
    from ..episode import AbstractSystem


@dataclass(frozen=True)
class Entry:
    """One registered system.

    Attributes:
        name: Its name on the command line.
        summary: One line about it.
        function: Makes the system, or the problem of a real one, from keyword options. One of
            mufield's own is given as ``"folder.module.function"``, imported when it is needed.
        defaults: Options whose defaults are others than the function's.
    """

    name: str
    summary: str
    function: Callable[..., Any] | str
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def build(self) -> Callable[..., Any]:
        """The function that makes the system."""
        function = self.function
        if isinstance(function, str):
            module, _, name = function.rpartition(".")
            function = getattr(import_module(f"mufield.{module}"), name)
        return partial(function, **self.defaults)

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments that can be chosen, with their defaults."""
        parameters = inspect.signature(self.build).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is not p.VAR_KEYWORD}

    def check(self, options: Mapping[str, Any]) -> None:
        """Raises if the system has not all of these options."""
        parameters = inspect.signature(self.build).parameters.values()
        unknown = sorted(options.keys() - self.options.keys())
        if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters):
            raise UserError(
                f"the system {self.name!r} has no option {', '.join(unknown)}; it has "
                f"{', '.join(sorted(self.options)) or 'none'}"
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
_NODES = {
    "left-right": ("left or right, away from the others (MFGLib)", "games.left_right"),
    "rock-paper-scissors": ("Shapley's game (MFGLib)", "games.rock_paper_scissors"),
    "beach-bar": ("near the bar, away from crowds (MFGLib)", "games.beach_bar"),
    "sis": ("an epidemic; its motion depends on mu (MFGLib)", "games.epidemic_sis"),
    "seir": ("an epidemic with an exposed stage; depends on mu", "games.epidemic_seir"),
    "cyber-security": (
        "botnet defence of Kolokoltsov and Bensoussan; depends on mu",
        "games.cyber_security",
    ),
    "crowd-line": ("crowd modelling on a ring (OpenSpiel)", "crowds.crowd_line"),
    "crowd-square": ("crowd modelling in two dimensions (OpenSpiel)", "crowds.crowd_square"),
    "braess": ("routing in Braess' network; depends on mu (OpenSpiel)", "crowds.braess"),
    "garnet": ("a random problem; depends on mu (Bench-MFG)", "garnet.garnet"),
}
FIELD = tuple(_NODES)
"""Names of the problems of the field, on nodes."""

SUITE = ("four-rooms", *_MOTIONS, "city")
"""Names of the systems on which learners are judged that are told nothing of the motion."""

_ENTRIES = {
    entry.name: entry
    for entry in (
        Entry(
            "four-rooms",
            "continuous four rooms, maximise entropy (Sec. 6)",
            "environments.four_rooms.four_rooms",
        ),
        Entry(
            "four-rooms-doors",
            "continuous four rooms, at most 3% of the agents in a door at any time",
            "environments.four_rooms.four_rooms",
            {"door_cap": 0.03},
        ),
        Entry(
            "swarm", "swarm motion on the torus, s + a dh (App. E.2)", "environments.swarm.swarm"
        ),
        Entry(
            "swarm-spread",
            "swarm motion that must keep 95% of the greatest entropy, as in Safe-M3-UCRL",
            "environments.swarm.swarm",
            {"spread": 0.95, "initial": "uniform", "horizon": 100},
        ),
        Entry(
            "swarm-congested",
            "swarm motion that slows in crowds, s + a (4 - 4 mu(s)) dh (App. E.2)",
            "environments.swarm.swarm",
            {"motion": "congested"},
        ),
        Entry(
            "discrete-rooms",
            "discrete four rooms, five moves (App. E.1, Standard)",
            "environments.discrete_rooms.discrete_rooms",
        ),
        Entry(
            "discrete-rooms-extended",
            "discrete four rooms, nine options (App. E.1, Extended)",
            "environments.discrete_rooms.discrete_rooms",
            {"actions": "extended"},
        ),
        Entry(
            "walkway",
            "a corridor whose far side moves fast: greedy learners never find out",
            "environments.walkway.walkway",
        ),
        Entry(
            "manhattan",
            "a fleet of taxis, with demand and trips from public records and an invented motion",
            "fleet.manhattan.manhattan",
        ),
        Entry(
            "city",
            "suite of motions: vehicles, a river, slow places, crowds",
            "environments.motions.city",
        ),
        *(
            Entry(name, f"nodes: {about}", f"environments.{function}")
            for name, (about, function) in _NODES.items()
        ),
        *(
            Entry(
                name,
                f"suite of motions: {about}",
                "environments.motions.spreading",
                dict(zip(("place", "motion"), name.split("-"), strict=True)),
            )
            for name, about in _MOTIONS.items()
        ),
    )
}

Build = TypeVar("Build", bound=Callable[..., Any])


def register(name: str, summary: str) -> Callable[[Build], Build]:
    """Decorates a function that builds a system, so that `make` can build it by name.

    For a real fleet, whose motion cannot be computed, the function returns its `Problem`. A
    function of the same module and name, such as that of a notebook's cell which is run again,
    replaces the earlier one.
    """
    is_a(name, str, "the name of a system", "give it first: @register(name, summary)")

    def keep(build: Build) -> Build:
        if not callable(build):
            raise UserError(
                f"register decorates a function, got {type(build).__name__}; define one"
            )
        known = _ENTRIES.get(name)
        if known is not None and _origin(known.function) != _origin(build):
            raise UserError(f"a system named {name!r} is registered already; choose another name")
        _ENTRIES[name] = Entry(name, summary, build)
        return build

    return keep


def _origin(function: Any) -> Any:
    """Where a function was defined; mufield's own, given as text, are never a user's."""
    return tuple(getattr(function, each, function) for each in ("__module__", "__qualname__"))


def catalogue() -> list[Entry]:
    """All registered systems, sorted by name."""
    return sorted(_ENTRIES.values(), key=lambda entry: entry.name)


def find(name: str) -> Entry:
    """The entry of a registered system; raises an error that lists all names if there is none."""
    if not isinstance(name, str) or name not in _ENTRIES:
        raise UserError(f"no system is named {name!r}; there are {', '.join(sorted(_ENTRIES))}")
    return _ENTRIES[name]


def make(name: str, **options: Any) -> Any:
    """Builds a registered system, or the problem of a real one, of which no more is known.

    Options are the keyword arguments of the registered function.
    """
    from ..episode import AbstractSystem
    from ..problem import Problem

    entry = find(name)
    entry.check(options)
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


def make_system(name: str, **options: Any) -> "AbstractSystem":
    """Builds a registered system that can be run; raises for the problem of a real one."""
    from ..episode import AbstractSystem

    known = make(name, **options)
    if not isinstance(known, AbstractSystem):
        raise UserError(
            f"{name!r} is a real system, of which only the problem is known: it cannot be run "
            "here; use `mufield new`, `mufield ask` and `mufield tell`"
        )
    return known
