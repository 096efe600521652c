"""What must hold of the population after every move: functions c(mu) >= 0, concave in mu.

A `Constraint` is any such function; the usual ones limit the mass of regions, or the entropy.
"""

import math
import reprlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._arrays import Margins, Mass, Masses, Scalar
from ..errors import UserError, explained, is_a, number, whole_number
from ..space.grid import Grid
from ..space.measure import entropy, uniform
from ..space.nodes import Nodes
from .lagrangian import AugmentedLagrangian, ConstraintRule

Steps = Sequence[int] | int | None


class Constraint(eqx.Module):
    """What must hold of the population: every number of ``function(mass)`` is zero or more.

    `mass_at_most`, `mass_at_least`, `cells_at_most` and `entropy_at_least` make the usual ones.

    Attributes:
        function: From the mass of every free cell to one number, or several, the margins; concave.
        name: What reports call it.
        scale: What a margin is measured by: the limit itself, so that -0.01 is a violation by 1%.
        steps: The steps at which it must hold, from 1 to the horizon; None for all of them.
        shocks: Under which shocks it must hold after a move, by their numbers; None for all.
    """

    function: Any
    name: str = eqx.field(static=True, default="")
    scale: float = eqx.field(static=True, default=1.0)
    steps: tuple[int, ...] | None = eqx.field(static=True, default=None)
    shocks: tuple[int, ...] | None = eqx.field(static=True, default=None)

    @property
    def called(self) -> str:
        """What errors call it."""
        return f"constraint {self.name!r}"

    def __check_init__(self) -> None:
        if not callable(self.function):
            got = type(self.function).__name__
            raise UserError(f"a constraint must be a function of the free cells' mass, got {got}")
        number(self.scale, "the scale of a constraint", 1e-30)

    def __call__(self, mass: Mass) -> Float[Array, "parts"]:
        """The margins as shares of the scale."""
        return jnp.atleast_1d(jnp.asarray(self.function(mass))).astype(mass.dtype) / self.scale


class Constraints(eqx.Module):
    """All constraints of a problem; margins are shares of each limit, one after the other.

    A constraint is *active* after a move if it must hold then: the move belongs to the problem and
    to the constraint's steps, and the constraint is enforced.

    Attributes:
        sizes: Number of margins of each.
        rule: How mirror ascent satisfies them.
        enforced: False where no policy can satisfy one, or where it is for another shock.
    """

    parts: tuple[Constraint, ...]
    sizes: tuple[int, ...] = eqx.field(static=True)
    rule: ConstraintRule = eqx.field(static=True, default=ConstraintRule())
    enforced: Bool[Array, "steps parts"] | None = None

    @classmethod
    def of(
        cls, given: Any, grid: Grid, initial: Mass, horizon: int, shocks: int = 0
    ) -> "Constraints | None":
        """The constraints of a problem, from one or several of them; None if there are none.

        A `ConstraintRule` among them takes the place of the usual one. Raises if a function has the
        wrong shape, is not finite or was seen not to be concave, if a step is not from 1 to
        ``horizon``, or the number of a shock not below ``shocks``.
        """
        remedy = "give mass_at_most(...), or Constraint(function), of mufield.constraints"
        named: list[Constraint] = []
        parts = given if isinstance(given, tuple | list) else [given]
        rules = [part for part in parts if isinstance(part, ConstraintRule)] or [ConstraintRule()]
        parts = [part for part in parts if not isinstance(part, ConstraintRule)]
        for place, part in enumerate(parts, start=1):
            is_a(part, Constraint, "each of the constraints", remedy)
            if not part.name:
                part = replace(part, name=f"constraint {place}")
            if part.name in (other.name for other in named):
                raise UserError(f"two constraints are called {part.name!r}; give one another name=")
            _check_steps(part, horizon)
            if part.shocks is not None and not set(part.shocks) <= set(range(shocks)):
                raise UserError(
                    f"{part.called} is to hold under the shocks {part.shocks}, but the problem "
                    f"has {shocks}; give their numbers, from 0, or leave out shocks="
                )
            named.append(part)
        sizes = tuple(_checked_size(part, grid, initial) for part in named)
        return cls(tuple(named), sizes, rules[-1]) if named else None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the constraints."""
        return tuple(part.name for part in self.parts)

    def name_of(self, margin: int) -> str:
        """The name of the constraint that a margin belongs to."""
        return str(np.repeat(self.names, self.sizes)[margin])

    def active_parts(self, begun: Bool[Array, "steps"]) -> Bool[Array, "steps parts"]:
        """Which constraints are active; ``begun`` are the moves that belong to the problem."""
        moves = np.arange(1, len(begun) + 1)
        steps = [moves if part.steps is None else part.steps for part in self.parts]
        found = begun[:, None] & np.stack([np.isin(moves, each) for each in steps], axis=1)
        return found if self.enforced is None else found & self.enforced

    def active(self, begun: Bool[Array, "steps"]) -> Bool[Array, "steps margins"]:
        """The same of each margin."""
        return self.active_parts(begun)[:, np.repeat(np.arange(len(self.parts)), self.sizes)]

    def __call__(self, mass: Mass) -> Float[Array, "margins"]:
        """All margins of one distribution, as shares of their limits."""
        return jnp.concatenate([part(mass) for part in self.parts])

    def margins(self, mass: Masses, begun: Bool[Array, "steps"]) -> Margins:
        """The margins of an episode after each move; infinite where one is not active."""
        return jnp.where(self.active(begun), jax.lax.map(self, mass[1:]), jnp.inf)

    def under_shock(self, number: Int[Array, "*steps"], horizon: int) -> "Constraints":
        """The constraints as they must hold on a path of the shocks, or under one that stays."""
        if all(part.shocks is None for part in self.parts):
            return self
        now = number[:horizon] if number.ndim else jnp.broadcast_to(number, horizon)
        shocks = [now if part.shocks is None else jnp.asarray(part.shocks) for part in self.parts]
        return self.only(jnp.stack([jnp.isin(now, each) for each in shocks], axis=1))

    def only(self, enforced: Bool[Array, "steps parts"]) -> "Constraints":
        """The constraints enforced only there, and where they are enforced now."""
        both = enforced if self.enforced is None else enforced & self.enforced
        return replace(self, enforced=both)

    def worst(self, margins: Margins) -> Float[Array, "*paths steps parts"]:
        """The least of each constraint's margins after each move."""
        parts = jnp.split(margins, np.cumsum(self.sizes)[:-1], axis=-1)
        return jnp.stack([jnp.min(part, axis=-1) for part in parts], axis=-1)

    def lagrangian(
        self, active: Bool[Array, "*paths steps margins"], weight: Scalar
    ) -> AugmentedLagrangian:
        """The Lagrangian with weight rho and multipliers zero; constraints count if ``active``."""
        one = jnp.ones_like(weight)
        zero = jnp.zeros(active.shape, dtype=weight.dtype)
        return AugmentedLagrangian(self, active, zero, zero, weight, one, 0 * one, self.rule)


def mass_at_most(
    grid: Grid, region: Any, limit: float, *, name: str = "", **when: Steps
) -> Constraint:
    """At most ``limit`` of the population is in a region; steps and shocks as of `Constraint`.

    The region is cells as coordinates, such as ``[(5, 2), (5, 8)]``, one truth value for each free
    cell, or a function of a position that says whether it belongs to the region.
    """
    function = Linear(-_region(grid, region), _share(limit))
    return _constraint(function, name or f"mass at most {limit:g}", limit, **when)


def mass_at_least(
    grid: Grid, region: Any, limit: float, *, name: str = "", **when: Steps
) -> Constraint:
    """At least ``limit`` of the population is in a region; arguments as of `mass_at_most`."""
    function = Linear(_region(grid, region), -_share(limit))
    return _constraint(function, name or f"mass at least {limit:g}", limit, **when)


def cells_at_most(
    grid: Grid, limit: float, region: Any = None, *, name: str = "", **when: Steps
) -> Constraint:
    """No cell, of a region or of all, holds more than ``limit``; as `mass_at_most`."""
    inside = np.ones(grid.n_cells) if region is None else _region(grid, region)
    function = _CellCap(tuple(np.flatnonzero(inside).tolist()), _share(limit))
    return _constraint(function, name or f"cells at most {limit:g}", limit, **when)


def entropy_at_least(grid: Grid, limit: float, *, name: str = "", **when: Steps) -> Constraint:
    """The entropy -sum mu log mu, in nats, is at least ``limit``; up to `log(grid.n_cells)`."""
    most = math.log(grid.n_cells)
    if not 0 < limit <= most:
        raise UserError(f"the least entropy must be positive, up to {most:.4g}, got {limit}")
    return _constraint(_Entropy(limit), name or f"entropy at least {limit:g}", limit, **when)


class Linear(eqx.Module):
    """Factors . mass + offset."""

    factors: Float[np.ndarray, "cells"]
    offset: float = eqx.field(static=True)

    def __call__(self, mass: Mass) -> Array:
        """The margin of one distribution, not yet as a share of the limit."""
        return jnp.vdot(jnp.asarray(self.factors, dtype=mass.dtype), mass) + self.offset


class _CellCap(eqx.Module):
    cells: tuple[int, ...] = eqx.field(static=True)
    limit: float = eqx.field(static=True)

    def __call__(self, mass: Mass) -> Array:
        return self.limit - mass[np.asarray(self.cells)]


class _Entropy(eqx.Module):
    limit: float = eqx.field(static=True)

    def __call__(self, mass: Mass) -> Array:
        return entropy(mass) - self.limit


def _constraint(
    function: Any, name: str, limit: float, *, steps: Steps = None, shocks: Steps = None
) -> Constraint:
    given = (None if x is None else tuple(np.atleast_1d(x).tolist()) for x in (steps, shocks))
    return Constraint(function, name, float(limit), *given)


def _share(limit: float) -> float:
    if not 0 < limit <= 1:
        raise UserError(f"the limit is a share of the population, from above 0 to 1; got {limit}")
    return limit


def _region(grid: Grid, region: Any) -> Float[np.ndarray, "cells"]:
    """One for every free cell of a region, and zero for the others."""
    if callable(region):
        region = [bool(region(at)) for at in grid.centres]
    elif isinstance(grid, Nodes) and np.asarray(region).dtype != bool:
        region = [grid.index_at(node) for node in region]
    inside = np.asarray(region)
    if inside.size and inside.dtype.kind in "iu":
        cells, inside = inside.reshape(-1, grid.dim), np.zeros(grid.n_cells, dtype=bool)
        inside[[grid.index_at(*map(int, cell)) for cell in cells]] = True
    elif inside.shape == grid.shape and inside.shape != (grid.n_cells,):
        inside = grid.from_array(inside)
    if inside.dtype != bool or inside.shape != (grid.n_cells,):
        raise UserError(
            "a region must be cells as coordinates, names of nodes, a function of a position, or a "
            f"truth value for each of {grid.n_cells} free cells; got {reprlib.repr(region)}"
        )
    if not inside.any():
        raise UserError("the region is empty: no free cell belongs to it")
    return np.asarray(inside, dtype=float)


def _check_steps(part: Constraint, horizon: int) -> None:
    for step in () if part.steps is None else part.steps:
        if whole_number(step, f"a step of {part.called}, which holds after a move,") > horizon:
            raise UserError(
                f"{part.called} is to hold at step {step}; steps run from 1, after the first "
                f"move, to the horizon, {horizon}"
            )
    if () in (part.steps, part.shocks):
        raise UserError(f"{part.called} holds at no step or shock; leave it out, or name some")


def _checked_size(part: Constraint, grid: Grid, initial: Mass) -> int:
    """Number of margins of a constraint, which is evaluated at some distributions."""
    given = f"a mass of shape {initial.shape}, one number for each free cell"
    with explained(f"{part.called} could not be evaluated for {given}", "(mass)"):
        # Not computed but traced, as it will be in every plan.
        shape = eqx.filter_eval_shape(lambda mass: jnp.asarray(part.function(mass)), initial).shape
    if len(shape) > 1 or 0 in shape:
        raise UserError(f"{part.called} must return a number or a vector, got shape {shape}")
    left, right = _trials(grid, initial)
    middle = 0.5 * (left + right)
    values = eqx.filter_jit(partial(jax.lax.map, part))
    at_left, at_right, between = (np.asarray(values(each)) for each in (left, right, middle))
    slopes = np.asarray(jax.jacrev(part)(uniform(grid)))
    found = np.stack([at_left, at_right, between])
    if not (np.isfinite(found).all() and np.isfinite(slopes).all()):
        raise UserError(
            f"{part.called} or its derivative is NaN or infinite for some distribution; for "
            "logarithms of mu use mufield.log_mass, which stays finite in empty cells"
        )
    span = np.maximum(np.ptp(found, axis=(0, 1)), 1e-6)
    below = (0.5 * (at_left + at_right) - between) / span
    if np.max(below) > 1e-4:  # what rounding explains
        raise UserError(
            f"{part.called} is not concave in mu: half-way between two distributions it lies "
            f"{float(np.max(below)):.3g} of its range below their mean. Only concave constraints "
            "can be certified; an upper limit needs a convex quantity, a lower limit a concave one"
        )
    return int(shape[0]) if shape else 1


def _trials(grid: Grid, initial: Mass) -> tuple[Array, Array]:
    """Pairs of distributions: the initial one with others, even and peaked ones."""
    pairs, sharpness = 8, np.array([0.5, 2.0, 6.0])
    draws = np.random.default_rng(0).normal(size=(2, len(sharpness), pairs, grid.n_cells))
    peaked = jax.nn.softmax(sharpness[:, None, None] * draws, axis=-1)
    left, right = jnp.asarray(peaked, dtype=initial.dtype).reshape(2, -1, grid.n_cells)
    left = jnp.concatenate([left, initial[None], uniform(grid).astype(initial.dtype)[None]])
    return left, jnp.concatenate([right, right[:1], right[:1]])
