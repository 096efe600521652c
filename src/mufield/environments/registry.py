"""Systems by name, so that the command line can list and run them. Listing needs no JAX."""

import inspect
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from .._runtime import enable_compilation_cache
from ..errors import UserError, is_a

if TYPE_CHECKING:
    from ..episode import AbstractSystem


@dataclass(frozen=True)
class Entry:
    """One registered system.

    Attributes:
        function: Makes the system, or the problem of a real one, from keyword options. One of
            mufield's own is given as text, ``".module.function"``, and imported when it is needed.
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
            function = getattr(import_module(module, __package__), name)
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


_SPREAD = {"spread": 0.95, "initial": "uniform", "horizon": 100}
_ROOMS, _FIVE, _SWARM = ".four_rooms.four_rooms", ".four_rooms.discrete_rooms", ".swarm.swarm"
_PAPER = (
    Entry("four-rooms", "the paper's four rooms (its Sec. 6), maximise entropy", _ROOMS),
    Entry("four-rooms-doors", "the same, at most 3% in a door", _ROOMS, {"door_cap": 0.03}),
    Entry("swarm", "swarm motion on the torus, s + a dh (the paper's App. E.2)", _SWARM),
    Entry("swarm-congested", "the same, s + a (4 - 4 mu(s)) dh", _SWARM, {"motion": "congested"}),
    Entry("swarm-spread", "the same, 95% of the greatest entropy (Safe-M3-UCRL)", _SWARM, _SPREAD),
    Entry("discrete-rooms", "five moves (the paper's App. E.1, Standard)", _FIVE),
    Entry("discrete-rooms-extended", "nine moves (Extended)", _FIVE, {"actions": "extended"}),
    Entry("manhattan", "taxis; trips from public records", "..fleet.manhattan.manhattan"),
)
_PUBLISHED = (
    Entry("left-right", "nodes: left or right, away from the others (MFGLib)", ".games.left_right"),
    Entry("rock-paper-scissors", "nodes: Shapley's game (MFGLib)", ".games.rock_paper_scissors"),
    Entry("beach-bar", "nodes: near the bar, away from crowds (MFGLib)", ".games.beach_bar"),
    Entry("sis", "nodes: an epidemic; its motion depends on mu (MFGLib)", ".games.epidemic_sis"),
    Entry("seir", "nodes: an epidemic with exposure; depends on mu", ".games.epidemic_seir"),
    Entry("cyber-security", "nodes: botnet defence; depends on mu", ".games.cyber_security"),
    Entry("crowd-line", "nodes: crowd modelling on a ring (OpenSpiel)", ".crowds.crowd_line"),
    Entry("crowd-square", "nodes: crowd modelling in 2-D (OpenSpiel)", ".crowds.crowd_square"),
    Entry("braess", "nodes: Braess' network; depends on mu (OpenSpiel)", ".crowds.braess"),
    Entry("garnet", "nodes: a random problem; depends on mu (Bench-MFG)", ".games.garnet"),
)
_ENTRIES = {entry.name: entry for entry in (*_PAPER, *_PUBLISHED)}

FIELD = tuple(entry.name for entry in _PUBLISHED)
"""Names of published problems on nodes (MFGLib, OpenSpiel, Bench-MFG), for benchmarks."""

Build = TypeVar("Build", bound=Callable[..., Any])


def register(name: str, summary: str) -> Callable[[Build], Build]:
    """Decorates a function that builds a system, so that `make` can build it by name.

    For a real fleet, whose motion cannot be computed, the function returns its `Problem`. A
    function of the same module and name, such as that of a notebook's cell which is run again,
    replaces the earlier one.
    """
    is_a(name, str, "the name of a system", "give it first: @register(name, summary)")
    is_a(summary, str, "the summary of a system", "write @register(name, summary) above a function")

    def keep(build: Build) -> Build:
        if not callable(build):
            raise UserError(f"register decorates functions, got {type(build).__name__}; define one")
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
        near = get_close_matches(str(name), _ENTRIES, 1)
        raise UserError(
            f"no system is named {name!r}; there are {', '.join(sorted(_ENTRIES))}, and your own, "
            "registered in a Python file that is imported first, in commands by --import FILE"
            + (f"; did you mean {near[0]}?" if near else "")
        )
    return _ENTRIES[name]


def make(name: str, **options: Any) -> Any:
    """Builds a registered system, or the problem of a real one, of which no more is known.

    Options are the keyword arguments of the registered function.
    """
    from ..episode import AbstractSystem
    from ..problem import Problem

    enable_compilation_cache()
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
    what = f"what the function registered as {name!r} returns"
    return is_a(known, (AbstractSystem, Problem), what, "return a system or a Problem")


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
