"""What the adapters share: checks of arguments, compilation and pictures."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, UInt8

from ..environments.registry import make
from ..episode import AbstractSystem
from ..errors import UserError
from ..space.grid import Grid
from ..systems import SimulatedSystem


def as_simulated(
    system: str | AbstractSystem, options: Mapping[str, Any], render_mode: str | None
) -> SimulatedSystem:
    """The given system, or the registered system of that name built with the options."""
    if render_mode not in (None, "rgb_array"):
        raise UserError(f"render_mode must be None or 'rgb_array', got {render_mode!r}")
    if isinstance(system, str):
        system = make(system, **options)
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
    return system


def at_least_one(name: str, value: Any) -> int:
    """Returns the value if it is a whole number of at least 1; raises otherwise."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < 1:
        raise UserError(f"{name} must be a whole number of at least 1, got {value!r}")
    return int(value)


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


def picture(
    grid: Grid, mass: Float[Array | np.ndarray, "cells"]
) -> UInt8[np.ndarray, "height width 3"]:
    """Colours cells by the square root of their mass, walls grey; the first axis points right.

    The square root keeps cells with little mass visible. A one-dimensional space is drawn as a
    strip; one of three dimensions is seen from above.
    """
    plane, walls = grid.to_array(np.asarray(mass, dtype=float), fill=0.0), grid.walls
    if grid.dim == 1:
        plane, walls = plane[:, None], walls[:, None]
    elif grid.dim == 3:
        plane, walls = plane.sum(axis=2), np.asarray(walls.all(axis=2))
    share = np.sqrt(np.maximum(plane, 0.0) / max(float(plane.max()), np.finfo(float).tiny))
    # Five colours of viridis, from empty to full.
    viridis = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]]
    ticks, parts = np.linspace(0.0, 1.0, len(viridis)), np.array(viridis, dtype=float).T
    colours = np.stack([np.interp(share, ticks, part) for part in parts], axis=-1)
    colours[walls] = 128.0
    # The longer side has about 240 pixels; each cell gets a whole number of them.
    wide = max(1, 240 // max(plane.shape))
    high = 24 if grid.dim == 1 else wide
    upright = np.swapaxes(colours, 0, 1)[::-1]
    return np.repeat(np.repeat(upright, high, axis=0), wide, axis=1).round().astype(np.uint8)
