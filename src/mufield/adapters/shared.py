"""What the adapters share: the system that they wrap, and how its steps are compiled."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import equinox as eqx
import jax

from ..environments.registry import make_system
from ..episode import AbstractSystem
from ..errors import UserError
from ..systems import SimulatedSystem


def as_simulated(system: str | AbstractSystem, options: Mapping[str, Any]) -> SimulatedSystem:
    """The given system, or the registered system of that name built with the options."""
    if isinstance(system, str):
        system = make_system(system, **options)
    elif options:
        raise UserError(
            f"the options {', '.join(sorted(options))} are for systems given by name; build the "
            "system with them, or pass its name"
        )
    if not isinstance(system, SimulatedSystem):
        raise UserError(
            "expected a SimulatedSystem, whose motion can be computed step by step, or the name "
            f"of one; got {type(system).__name__}"
        )
    if system.problem.shocks is not None:
        raise UserError(
            "adapters know no shocks; give the system on one path of them, system.on_path(path)"
        )
    if system.problem.trips is not None and system.problem.trips.stages:
        raise UserError(
            "adapters know no agents under way, and trips of this system last several steps; build "
            "it with trips of one step each"
        )
    return system


def compile_with(function: Callable[..., Any], *fixed: Any) -> Callable[..., Any]:
    """Compiles ``function(*fixed, *arguments)`` as a function of the arguments, all arrays.

    The fixed arguments are flattened only once; `equinox.filter_jit` would do so at every call,
    which takes longer than a step of a small system.
    """
    arrays, rest = eqx.partition(fixed, eqx.is_array)
    leaves, structure = jax.tree.flatten(arrays)

    @jax.jit
    def run(leaves: list[Any], *arguments: Any) -> Any:
        whole = eqx.combine(jax.tree.unflatten(structure, leaves), rest)
        return function(*whole, *arguments)

    return partial(run, leaves)
