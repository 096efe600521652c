"""Limits that the population must keep at every step: functions c(mu) >= 0, concave in mu.

`mass_at_most`, `mass_at_least`, `cells_at_most` and `entropy_at_least` make the usual ones; any
other function of one distribution can be a `Constraint`, too.
"""

import math
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._types import Mass
from ..errors import UserError, in_words
from ..space.grid import Grid
from ..space.measure import log_mass, uniform

SHARPNESS = (0.5, 2.0, 6.0)
"""How peaked the distributions are at which a function is tested; 0 would be even."""

PAIRS = 8
"""Pairs of distributions for each of them."""

CONCAVITY_TOLERANCE = 1e-4
"""How far below the chord a function may lie, as a share of its range, and count as rounding."""


class Constraint(eqx.Module):
    """What must hold of the population: every number of ``function(mass)`` is zero or more.

    Attributes:
        function: From the mass of every free cell to one number, or several, the margins; concave.
        name: What reports call it.
        scale: What a margin is measured by: the limit itself, so that -0.01 is a violation by 1%.
        steps: The steps at which it must hold, from 1 to the horizon; None for all of them.
    """

    function: Any
    name: str = eqx.field(static=True, default="")
    scale: float = eqx.field(static=True, default=1.0)
    steps: tuple[int, ...] | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        if not callable(self.function):
            raise UserError(
                "a constraint must be a function of the mass of every free cell, got "
                f"{type(self.function).__name__}"
            )
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise UserError(f"the scale of a constraint must be positive, got {self.scale}")

    def __call__(self, mass: Mass) -> Float[Array, "parts"]:
        """The margins as shares of the scale."""
        return jnp.atleast_1d(jnp.asarray(self.function(mass))).astype(mass.dtype) / self.scale


class Constraints(eqx.Module):
    """All limits of a problem; margins are shares of each limit, one after the other.

    Attributes:
        parts: The constraints.
        sizes: Number of margins of each.
        horizon: Number of moves.
        first: Number of the first step, if they are those of the rest of an episode; else None.
    """

    parts: tuple[Constraint, ...]
    sizes: tuple[int, ...] = eqx.field(static=True)
    horizon: int = eqx.field(static=True)
    first: Int[Array, ""] | None = None

    @property
    def size(self) -> int:
        """Number of margins at each step."""
        return sum(self.sizes)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the constraints."""
        return tuple(part.name for part in self.parts)

    def name_of(self, margin: int) -> str:
        """The name of the constraint that a margin belongs to."""
        return [
            name for name, size in zip(self.names, self.sizes, strict=True) for _ in range(size)
        ][margin]

    @property
    def active(self) -> Bool[Array, "steps margins"]:
        """Which margins count after each move."""
        columns = []
        for part, size in zip(self.parts, self.sizes, strict=True):
            steps = np.arange(1, self.horizon + 1)
            held = np.ones(self.horizon, bool) if part.steps is None else np.isin(steps, part.steps)
            columns.append(np.repeat(held[:, None], size, axis=1))
        active = jnp.asarray(np.concatenate(columns, axis=1))
        if self.first is None:
            return active
        return active & (jnp.arange(self.horizon) >= self.first)[:, None]

    def __call__(self, mass: Mass) -> Float[Array, "margins"]:
        """All margins of one distribution, as shares of their limits."""
        return jnp.concatenate([part(mass) for part in self.parts])

    def along(self, mass: Float[Array, "steps_and_end cells"]) -> Float[Array, "steps margins"]:
        """The margins of an episode after each move; infinite where a limit need not hold."""
        margins = jax.lax.map(self, mass[1:])
        return jnp.where(self.active, margins, jnp.inf)

    def worst(self, mass: Float[Array, "steps_and_end cells"]) -> Float[Array, "steps parts"]:
        """The least margin of each constraint at each step."""
        return self.gathered(self.along(mass))

    def gathered(self, margins: Float[Array, "steps margins"]) -> Float[Array, "steps parts"]:
        """The least of each constraint's margins at each step."""
        ends = np.cumsum(self.sizes)
        return jnp.stack(
            [
                jnp.min(margins[:, end - size : end], axis=1)
                for size, end in zip(self.sizes, ends, strict=True)
            ],
            axis=1,
        )


def mass_at_most(grid: Grid, region: Any, limit: float, **options: Any) -> Constraint:
    """At most ``limit`` of the population is in a region.

    Args:
        grid: The space.
        region: Cells as coordinates, such as ``[(5, 2), (5, 8)]``, one truth value for each free
            cell, or a function of a position that says whether it belongs to the region.
        limit: The greatest share.
        options: ``name`` and ``steps`` as of `Constraint`.
    """
    inside = _region(grid, region)
    _check_share(limit, "limit")
    return _named(_Linear(-inside, limit), f"mass at most {limit:g}", limit, options)


def mass_at_least(grid: Grid, region: Any, limit: float, **options: Any) -> Constraint:
    """At least ``limit`` of the population is in a region; arguments as of `mass_at_most`."""
    inside = _region(grid, region)
    _check_share(limit, "limit")
    return _named(_Linear(inside, -limit), f"mass at least {limit:g}", limit, options)


def cells_at_most(grid: Grid, limit: float, region: Any = None, **options: Any) -> Constraint:
    """No cell, of a region or of all, holds more than ``limit``; as `mass_at_most`."""
    inside = np.ones(grid.n_cells) if region is None else _region(grid, region)
    _check_share(limit, "limit")
    cells = tuple(int(cell) for cell in np.flatnonzero(inside))
    return _named(_CellCap(cells, limit), f"cells at most {limit:g}", limit, options)


def entropy_at_least(grid: Grid, limit: float, weights: Any = None, **options: Any) -> Constraint:
    """The entropy -sum w mu log mu, in nats, is at least ``limit``.

    Args:
        grid: The space.
        limit: The least entropy; `log(grid.n_cells)` is the greatest without weights.
        weights: One weight of at least zero for each free cell; all one by default.
        options: ``name`` and ``steps`` as of `Constraint`.
    """
    if not limit > 0:
        raise UserError(f"the least entropy must be positive, got {limit}")
    weigh = np.ones(grid.n_cells) if weights is None else np.asarray(weights, dtype=float)
    if weigh.shape != (grid.n_cells,) or not (np.isfinite(weigh).all() and (weigh >= 0).all()):
        raise UserError(
            f"weights of an entropy must be {grid.n_cells} finite numbers of at least zero, one "
            f"for each free cell, got the shape {weigh.shape}"
        )
    return _named(_Entropy(weigh, limit), f"entropy at least {limit:g}", limit, options)


def as_constraints(given: Any, grid: Grid, initial: Mass, horizon: int) -> Constraints | None:
    """The constraints of a problem, checked; None if there are none.

    Raises if a function has the wrong shape, is not finite or was seen not to be concave, or if a
    step is none of 1 to ``horizon``.
    """
    if isinstance(given, Constraint) or callable(given):
        given = (given,)
    parts: list[Constraint] = []
    sizes: list[int] = []
    for number, each in enumerate(given, start=1):
        part = each if isinstance(each, Constraint) else Constraint(each)
        if not part.name:
            part = Constraint(part.function, f"constraint {number}", part.scale, part.steps)
        if part.name in (other.name for other in parts):
            raise UserError(f"two constraints are called {part.name!r}; give one another name=")
        _check_steps(part, horizon)
        parts.append(part)
        sizes.append(_checked_size(part, grid, initial))
    return Constraints(tuple(parts), tuple(sizes), horizon) if parts else None


class _Linear(eqx.Module):
    """Factors . mass + offset."""

    factors: Float[np.ndarray, "cells"]
    offset: float = eqx.field(static=True)

    def __call__(self, mass: Mass) -> Array:
        return jnp.vdot(jnp.asarray(self.factors, dtype=mass.dtype), mass) + self.offset


class _CellCap(eqx.Module):
    """What is left below the limit in each of some cells."""

    cells: tuple[int, ...] = eqx.field(static=True)
    limit: float = eqx.field(static=True)

    def __call__(self, mass: Mass) -> Array:
        return self.limit - mass[np.asarray(self.cells)]


class _Entropy(eqx.Module):
    """The weighted entropy above the limit."""

    weights: Float[np.ndarray, "cells"]
    limit: float = eqx.field(static=True)

    def __call__(self, mass: Mass) -> Array:
        weights = jnp.asarray(self.weights, dtype=mass.dtype)
        return -jnp.sum(weights * mass * log_mass(mass)) - self.limit


def _named(function: Any, name: str, scale: float, options: dict[str, Any]) -> Constraint:
    unknown = sorted(options.keys() - {"name", "steps"})
    if unknown:
        raise UserError(f"a constraint has no option {', '.join(unknown)}; it has name and steps")
    steps = options.get("steps")
    held = None if steps is None else tuple(steps)
    return Constraint(function, options.get("name") or name, float(scale), held)


def _region(grid: Grid, region: Any) -> Float[np.ndarray, "cells"]:
    """One for every free cell of a region, and zero for the others."""
    if callable(region):
        inside = np.asarray([bool(region(centre)) for centre in grid.centres])
    else:
        inside = np.asarray(region)
        if inside.dtype != bool:
            cells = inside.reshape(-1, grid.dim) if inside.size else inside
            if inside.size == 0 or cells.dtype.kind not in "iu":
                raise UserError(
                    "a region must be cells as coordinates, truth values for all free cells, or a "
                    f"function of a position; got {region!r}"
                )
            inside = np.zeros(grid.n_cells, dtype=bool)
            inside[[grid.index_at(*map(int, cell)) for cell in cells]] = True
    if inside.shape == grid.shape and inside.shape != (grid.n_cells,):
        inside = grid.from_array(inside)
    if inside.shape != (grid.n_cells,):
        raise UserError(
            f"a region needs one truth value for each of the {grid.n_cells} free cells, got the "
            f"shape {inside.shape}"
        )
    if not inside.any():
        raise UserError("the region is empty: no free cell belongs to it")
    return np.asarray(inside, dtype=float)


def _check_share(limit: float, name: str) -> None:
    if not 0 < limit <= 1:
        raise UserError(f"the {name} is a share of the population, from above 0 to 1; got {limit}")


def _check_steps(part: Constraint, horizon: int) -> None:
    for step in () if part.steps is None else part.steps:
        if isinstance(step, bool) or not isinstance(step, int | np.integer):
            raise UserError(f"steps of the {part.name!r} must be whole numbers, got {step!r}")
        if not 1 <= step <= horizon:
            raise UserError(
                f"the {part.name!r} is to hold at step {step}; steps run from 1, after the first "
                f"move, to the horizon, {horizon}"
            )
    if part.steps == ():
        raise UserError(f"the {part.name!r} holds at no step; leave it out, or name some steps")


def _checked_size(part: Constraint, grid: Grid, initial: Mass) -> int:
    """Number of margins of a constraint, which is evaluated at some distributions."""
    try:
        # Not computed but traced, as it will be in every plan.
        shape = eqx.filter_eval_shape(lambda mass: jnp.asarray(part.function(mass)), initial).shape
    except Exception as error:
        raise UserError(
            f"the {part.name!r} could not be evaluated for a mass of shape {initial.shape}, one "
            f"number for each free cell: {in_words(error, '(mass)')}"
        ) from error
    if len(shape) > 1 or 0 in shape:
        raise UserError(
            f"the {part.name!r} must return one number, or a vector of them, for one distribution; "
            f"got the shape {shape}"
        )
    left, right = _trials(grid, initial)
    middle = 0.5 * (left + right)
    values = eqx.filter_jit(partial(jax.lax.map, part))
    at_left, at_right, between = (np.asarray(values(each)) for each in (left, right, middle))
    slopes = np.asarray(jax.jacrev(part)(uniform(grid)))
    found = np.stack([at_left, at_right, between])
    if not (np.isfinite(found).all() and np.isfinite(slopes).all()):
        raise UserError(
            f"the {part.name!r} or its derivative is NaN or infinite for some distribution; for "
            "logarithms of mu use mufield.log_mass, which stays finite in empty cells"
        )
    span = np.maximum(np.ptp(found, axis=(0, 1)), 1e-6)
    below = (0.5 * (at_left + at_right) - between) / span
    if np.max(below) > CONCAVITY_TOLERANCE:
        raise UserError(
            f"the {part.name!r} is not concave in mu: half-way between two distributions it lies "
            f"{float(np.max(below)):.3g} of its range below their mean. Only concave limits can be "
            "certified; an upper limit needs a convex quantity, a lower limit a concave one"
        )
    return int(shape[0]) if shape else 1


def _trials(grid: Grid, initial: Mass) -> tuple[Array, Array]:
    """Pairs of distributions: the initial one with others, even and peaked ones."""
    draws = np.random.default_rng(0).normal(size=(2, len(SHARPNESS), PAIRS, grid.n_cells))
    peaked = jax.nn.softmax(np.asarray(SHARPNESS)[:, None, None] * draws, axis=-1)
    left, right = jnp.asarray(peaked, dtype=initial.dtype).reshape(2, -1, grid.n_cells)
    left = jnp.concatenate([left, initial[None], uniform(grid).astype(initial.dtype)[None]])
    return left, jnp.concatenate([right, right[:1], right[:1]])
