"""What the learner may know: space, actions, initial distribution, noise and, mostly, reward."""

import math
import reprlib
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NoReturn

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ._types import Action, Key, Mass, Scalar, State, States
from .constraints import Constraints, as_constraints
from .errors import UserError, in_words
from .space.grid import Grid, PerAxis, per_axis
from .space.maps import CityMap
from .space.measure import MeanField, at_all_cells, check_mass, sample
from .space.move import GaussianNoise, NeighbourNoise, Noise, wall_margin
from .trips import Trips, check_trips

MOST_MOVE = 100.0
"""How many times the width of the space a move may aim; more is a mistake in the units."""

MOST_MARGIN = 0.1
"""Largest share of a cell that the margin in front of walls may be, which rounding asks for."""

Motion = Callable[[State, Action, MeanField], State]
"""The law of motion f(s, a, mu) of one agent (eq. transitionDynamics), without noise.

It may depend on the time of day: ``mu.step`` is the number of the step.
"""

Motions = Callable[[State, Action, MeanField], Float[Array, "motions outputs"]]
"""Several motions, or rewards, of one agent."""

Reward = Callable[[State, Action, MeanField], Scalar]
"""The reward r(s, a, mu) of one agent; it may depend on ``mu.step``, too."""


class AbstractJointMotion(eqx.Module):
    """A motion of joint actions ``(a, eta)`` whose costly part does not depend on eta.

    Planners compute that part once for all controls eta of an action.
    """

    action_dim: eqx.AbstractVar[int]
    """Number of axes of a; what follows them in a joint action is eta."""

    @abstractmethod
    def believe(self, state: State, action: Action, mu: MeanField) -> Any:
        """What is known about the motion of an action."""

    @abstractmethod
    def steer(self, state: State, belief: Any, eta: Array) -> State:
        """Where an agent aims, given what `believe` returned and the control eta."""

    def __call__(self, state: State, joint: Action, mu: MeanField) -> State:
        """Where an agent aims."""
        belief = self.believe(state, joint[: self.action_dim], mu)
        return self.steer(state, belief, joint[self.action_dim :])


class HiddenRewardError(UserError):
    """Raised where the hidden reward of a problem would be needed."""


class HiddenReward(eqx.Module):
    """Stands in for a reward that only the true system knows; calling it raises an error."""

    def __call__(self, state: State, action: Action, mu: MeanField) -> NoReturn:
        """Raises."""
        raise HiddenRewardError(
            "the reward is hidden: it is known to the true system alone; learn it with M3UCRL, "
            "or, where the system is simulated, take the flow of system.reveal(), which has it"
        )


class Box(eqx.Module):
    """A box of continuous actions."""

    lower: tuple[float, ...] = eqx.field(static=True)
    upper: tuple[float, ...] = eqx.field(static=True)

    def __init__(self, lower: PerAxis, upper: PerAxis, dim: int | None = None):
        """Builds a box; a single number is the bound on each of ``dim`` axes (default 1)."""
        sizes = [int(np.size(bound)) for bound in (lower, upper) if np.ndim(bound) > 0]
        dim = dim if dim is not None else (sizes[0] if sizes else 1)
        self.lower = per_axis(lower, dim, float)
        self.upper = per_axis(upper, dim, float)
        for axis, (low, high) in enumerate(zip(self.lower, self.upper, strict=True)):
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise UserError(
                    f"axis {axis} of the action box must run from a lower to a higher finite "
                    f"bound, got {low} to {high}"
                )

    @property
    def dim(self) -> int:
        """Number of action axes (the paper's q)."""
        return len(self.lower)

    @property
    def rest(self) -> tuple[float, ...]:
        """The action nearest to zero."""
        return tuple(min(max(0.0, lo), hi) for lo, hi in zip(self.lower, self.upper, strict=True))

    def points(self, n: int, *, border: bool = True) -> Float[Array, "points action_dim"]:
        """A regular grid of actions with ``n`` values on each axis.

        Args:
            n: Values on each axis; a single one is the middle.
            border: Whether the outermost values are the bounds. Otherwise values are the
                midpoints of equal intervals, which approximate the uniform distribution.
        """
        if n < 1:
            raise UserError(f"expected at least one point on each axis, got {n}")
        ticks = np.linspace(0.0, 1.0, n) if border and n > 1 else (np.arange(n) + 0.5) / n
        axes = [lo + (hi - lo) * ticks for lo, hi in zip(self.lower, self.upper, strict=True)]
        table = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, self.dim)
        return jnp.asarray(table, dtype=jnp.result_type(float))

    def sample(self, key: Key, shape: tuple[int, ...] = ()) -> Float[Array, "*shape action_dim"]:
        """Actions drawn uniformly."""
        lower, upper = jnp.asarray(self.lower), jnp.asarray(self.upper)
        return lower + (upper - lower) * jax.random.uniform(key, (*shape, self.dim))

    def product(self, other: "Box", n: int = 3) -> "Box":
        """The box of all pairs of an action and a point of another box; ``n`` is not used."""
        return Box((*self.lower, *other.lower), (*self.upper, *other.upper))

    def contains(self, actions: Float[Array, "... action_dim"]) -> Bool[Array, "..."]:
        """Which actions lie in the box, up to rounding."""
        slack = 1e-5 * (jnp.asarray(self.upper) - jnp.asarray(self.lower))
        above = actions >= jnp.asarray(self.lower) - slack
        below = actions <= jnp.asarray(self.upper) + slack
        return jnp.all(above & below, axis=-1)

    def describe(self) -> str:
        """The box in words, for error messages."""
        return f"the box from {self.lower} to {self.upper}"


class MoveSet(eqx.Module):
    """A finite set of moves, and the mixtures of them that a policy may choose from.

    Attributes:
        moves: One move in each row.
        options: One distribution over the moves in each row; the identity if a policy chooses
            single moves.
        rest: The move nearest to zero.
        lower: Least value of the moves on each axis.
        upper: Greatest value of the moves on each axis.
    """

    moves: Float[Array, "moves action_dim"]
    options: Float[Array, "options moves"]
    rest: tuple[float, ...] = eqx.field(static=True)
    lower: tuple[float, ...] = eqx.field(static=True)
    upper: tuple[float, ...] = eqx.field(static=True)

    def __init__(self, moves: Any, options: Any = None):
        """Builds a set of moves; by default the options are the moves themselves."""
        try:
            points = np.asarray(moves, dtype=float)
        except ValueError:
            points = np.zeros(0)
        if points.ndim != 2 or len(points) == 0 or not np.isfinite(points).all():
            raise UserError(
                "moves must be rows of finite numbers, one row for each move, such as "
                f"[[0, 0], [1, 0], [0, 1]]; got {reprlib.repr(moves)}"
            )
        self.moves = jnp.asarray(points)
        self.rest = tuple(points[np.argmin(np.linalg.norm(points, axis=1))].tolist())
        self.lower = tuple(points.min(axis=0).tolist())
        self.upper = tuple(points.max(axis=0).tolist())
        count = len(points)
        table = np.eye(count) if options is None else np.asarray(options, dtype=float)
        if table.ndim != 2 or table.shape[1] != count or np.any(table < 0):
            raise UserError(
                f"options must be rows of {count} non-negative weights, got the shape {table.shape}"
            )
        if not np.allclose(table.sum(axis=1), 1.0):
            raise UserError(f"each option must sum to 1, got sums {table.sum(axis=1)}")
        self.options = jnp.asarray(table)

    @property
    def dim(self) -> int:
        """Number of action axes (the paper's q)."""
        return int(self.moves.shape[1])

    def points(
        self, n: int | None = None, *, border: bool = True
    ) -> Float[Array, "points action_dim"]:
        """The moves; the arguments, which are those of `Box.points`, are not used."""
        return self.moves

    def sample(self, key: Key, shape: tuple[int, ...] = ()) -> Float[Array, "*shape action_dim"]:
        """Moves drawn uniformly."""
        return self.moves[jax.random.randint(key, shape, 0, self.moves.shape[0])]

    def product(self, other: Box, n: int = 3) -> "MoveSet":
        """All pairs of a move and one of the points of a box, ``n`` on each axis."""
        many, few = np.asarray(self.moves), np.asarray(other.points(n))
        left, right = np.repeat(many, len(few), axis=0), np.tile(few, (len(many), 1))
        return MoveSet(np.concatenate([left, right], axis=1))

    def contains(self, actions: Float[Array, "... action_dim"]) -> Bool[Array, "..."]:
        """Which actions are moves of the set, up to rounding."""
        distance = jnp.max(jnp.abs(actions[..., None, :] - self.moves), axis=-1)
        return jnp.min(distance, axis=-1) < 1e-5

    def describe(self) -> str:
        """The moves in words, for error messages."""
        return f"the {self.moves.shape[0]} moves {np.asarray(self.moves).tolist()}"


class Problem(eqx.Module):
    """An episodic mean-field control problem without its law of motion.

    The population starts each episode from ``initial`` and makes ``horizon`` moves. It is paid
    the integrated reward r-hat (eq. integratedReward) at h = 0, ..., horizon - 1, and also at
    h = horizon if ``pay_end``; there the reward is taken with the action nearest to zero.

    The reward may be hidden (the paper's footnote on unknown rewards): then `reward` is a
    `HiddenReward`, to be learned from what agents are paid.

    Attributes:
        city: The map that the grid belongs to, if there is one.
        first: Number of the first step: 0, unless the problem is the rest of an episode.
    """

    grid: Grid = eqx.field(static=True)
    actions: Box | MoveSet
    reward: Reward
    horizon: int = eqx.field(static=True)
    initial: Mass
    noise: Noise
    max_move: tuple[float, ...] = eqx.field(static=True)
    pay_end: bool = eqx.field(static=True)
    reward_noise: float = eqx.field(static=True)
    constraints: Constraints | None
    trips: Trips | None
    city: CityMap | None = eqx.field(static=True)
    first: int = eqx.field(static=True)

    def __init__(
        self,
        *,
        grid: Grid | CityMap,
        actions: Box | MoveSet,
        reward: Reward | None,
        horizon: int,
        initial: Any,
        noise: Noise | PerAxis,
        max_move: PerAxis | None = None,
        pay_end: bool = False,
        reward_noise: float = 0.0,
        constraints: Any = (),
        trips: Trips | None = None,
    ):
        """Checks and builds a problem.

        Args:
            grid: The space; of a city, its map, and then files may hold longitude and latitude.
            actions: What agents can do.
            reward: The reward of one agent, ``(state, action, mu) -> number``; None to hide it.
            horizon: Number of moves in an episode.
            initial: Distribution at the start, over the free cells or the whole box.
            noise: The noise of the motion. A number, or one for each axis, is the standard
                deviation of Gaussian noise.
            max_move: The farthest that one step can carry an agent on each axis, without noise;
                by default the whole space. The smaller it is, the faster is the flow.
            pay_end: Whether the last distribution is paid too.
            reward_noise: Standard deviation of the noise with which a hidden reward is observed.
            constraints: Limits that the population must keep after every move: functions of the
                mass of all free cells, concave, whose values must not be negative. `mass_at_most`,
                `mass_at_least`, `cells_at_most` and `entropy_at_least` make the usual ones.
            trips: Known transitions that are no moves: who is taken at a step, and where to.
        """
        self.city = grid if isinstance(grid, CityMap) else None
        grid = grid.grid if isinstance(grid, CityMap) else grid
        if isinstance(horizon, bool) or not isinstance(horizon, int | np.integer) or horizon < 1:
            raise UserError(f"the horizon must be a whole number of at least 1, got {horizon!r}")
        if not isinstance(actions, (Box, MoveSet)):
            raise UserError(f"actions must be a Box or a MoveSet, got {type(actions).__name__}")
        if not isinstance(noise, (GaussianNoise, NeighbourNoise)):
            noise = GaussianNoise(noise)
        if isinstance(noise, GaussianNoise):
            noise = GaussianNoise(per_axis(_single(noise.std), grid.dim, float))
        farthest = grid.extent if max_move is None else per_axis(max_move, grid.dim, float)
        if any(not (math.isfinite(m) and m > 0) for m in farthest):
            raise UserError(f"max_move must be positive and finite on every axis, got {max_move}")
        for axis, wide in enumerate(grid.extent):
            std = noise.std[axis] if isinstance(noise, GaussianNoise) else 0.0
            if std > wide:
                raise UserError(
                    f"expected noise that is smaller than the space, which is {wide:g} wide on "
                    f"axis {axis}, got a standard deviation of {std:g}; check the units"
                )
            if max_move is not None and farthest[axis] > MOST_MOVE * wide:
                raise UserError(
                    f"expected moves within the space, which is {wide:g} wide on axis {axis}, got "
                    f"a max_move of {farthest[axis]:g}; check the units"
                )
        if not (math.isfinite(reward_noise) and reward_noise >= 0):
            raise UserError(f"reward_noise must be 0 or more, got {reward_noise}")
        if reward_noise and reward is not None:
            raise UserError(
                f"a known reward is not observed, so there is no noise on it; leave out "
                f"reward_noise = {reward_noise}, or hide the reward with reward=None"
            )
        self.first = 0
        self.grid = grid
        self.actions = actions
        self.reward = HiddenReward() if reward is None else reward
        self.horizon = int(horizon)
        self.initial = check_mass(grid, initial, "the initial distribution")
        _check_rounding(grid, self.initial.dtype)
        self.noise = noise
        self.max_move = farthest
        self.pay_end = pay_end
        self.reward_noise = float(reward_noise)
        self.constraints = as_constraints(constraints, grid, self.initial, self.horizon)
        if trips is not None:
            check_trips(trips, grid, self.initial, self.horizon)
        self.trips = trips
        if reward is not None:
            check_function(self, reward, "the reward", ())

    @property
    def steps(self) -> Int[Array, "steps"]:
        """The numbers of the steps; they count from 0, but a day's rest begins later."""
        return jnp.arange(self.first, self.end, dtype=jnp.int32)

    @property
    def end(self) -> int:
        """The number of the step after the last."""
        return self.first + self.horizon

    @property
    def paid_steps(self) -> int:
        """Number of distributions that are paid."""
        return self.horizon + int(self.pay_end)

    @property
    def hides_reward(self) -> bool:
        """Whether the reward has to be learned."""
        return isinstance(self.reward, HiddenReward)

    def check_action(self, shape: tuple[int, ...]) -> None:
        """Raises, also while tracing, if one agent's action has the wrong shape."""
        if shape != (self.actions.dim,):
            raise UserError(
                f"the policy must return an action of shape {(self.actions.dim,)} for one agent, "
                f"got {shape}"
            )

    def draw_starts(self, key: Key, agents: int) -> States:
        """Agents drawn from the initial distribution."""
        return sample(self.grid, self.initial, key, agents, centred=self.noise.centred)

    def starting_from(self, initial: Any) -> "Problem":
        """The same problem with episodes that start from another distribution."""
        mass = check_mass(self.grid, initial, "the distribution at the start")
        changed: Problem = eqx.tree_at(lambda p: p.initial, self, mass.astype(self.initial.dtype))
        return changed

    def from_step(self, step: int, mass: Any) -> "Problem":
        """The rest of an episode: from a step on, with the population as it is then.

        Steps keep their numbers, so that rewards, trips, motions and limits that depend on the
        time of day mean the same; `horizon` counts the moves that are left.
        """
        whole = isinstance(step, int | np.integer) and not isinstance(step, bool)
        if not whole or not self.first <= step < self.end:
            raise UserError(
                f"the rest of an episode begins at a step from {self.first} to {self.end - 1}, "
                f"got {step!r}"
            )
        begun = self.starting_from(mass)
        limits = None if self.constraints is None else self.constraints.from_step(int(step))
        left = {"first": int(step), "horizon": self.end - int(step), "constraints": limits}
        rest: Problem = object.__new__(Problem)  # everything was checked when the problem was made
        for name in self.__dataclass_fields__:
            object.__setattr__(rest, name, left.get(name, getattr(begun, name)))
        return rest

    def with_reward(self, reward: Reward) -> "Problem":
        """The same problem with another reward; may be called inside compiled functions."""
        changed: Problem = eqx.tree_at(
            lambda p: p.reward, self, reward, is_leaf=lambda x: x is self.reward
        )
        return changed


# Compiled once for the module, so that equal problems share the program.
_at_all_cells = eqx.filter_jit(at_all_cells)


def check_function(
    problem: Problem,
    function: Callable[..., Any],
    name: str,
    shape: tuple[int, ...],
    actions: Float[Array, "actions action_dim"] | None = None,
) -> Float[np.ndarray, "cells actions *shape"]:
    """Evaluates a user's function ``(state, action, mu)`` of one agent in every cell.

    Raises an error that calls it ``name`` if a result has not the right ``shape`` or is not
    finite. By default only the action nearest to zero is tried.
    """
    grid, mass = problem.grid, problem.initial
    rest = jnp.asarray(problem.actions.rest)[None]
    tried = (rest if actions is None else actions).astype(mass.dtype)
    everywhere = jnp.broadcast_to(tried, (grid.n_cells, *tried.shape))
    try:
        values = np.asarray(_at_all_cells(grid, mass, function, everywhere), dtype=float)
    except Exception as error:
        raise UserError(
            f"{name} could not be evaluated for a state of shape {(grid.dim,)}, an action of "
            f"shape {tried.shape[1:]} and mu: {in_words(error, '(state, action, mu)')}"
        ) from error
    if values.shape[2:] != shape:
        raise UserError(
            f"{name} must return the shape {shape} for one agent, got {values.shape[2:]}; write it "
            "for a single agent, mufield batches it"
        )
    bad = ~np.isfinite(values.reshape(*values.shape[:2], -1)).all(axis=-1)
    if bad.any():
        cell, choice = np.argwhere(bad)[0]
        raise UserError(
            f"{name} returned NaN or infinity for the state {grid.centres[cell]}, the action "
            f"{np.asarray(tried[choice])} and the initial distribution; for logarithms of mu use "
            "mufield.log_mass, which stays finite in empty cells"
        )
    return values


def _check_rounding(grid: Grid, dtype: Any) -> None:
    """Raises if positions are so far from the origin that their rounding is felt in a cell."""
    if wall_margin(grid, dtype) <= MOST_MARGIN * min(grid.cell_size):
        return
    far = max(map(abs, (*grid.lower, *grid.upper)))
    raise UserError(
        f"expected cells that are large beside the rounding of positions, got cells of "
        f"{min(grid.cell_size):g} and positions up to {far:g}, which {dtype} rounds to "
        f"{far * float(jnp.finfo(dtype).eps):.2g}; measure positions from a corner of the map "
        "(subtract its lower corner), or compute with 64 bits "
        "(jax.config.update('jax_enable_x64', True) at the start)"
    )


def _single(values: tuple[float, ...]) -> float | tuple[float, ...]:
    return values[0] if len(values) == 1 else values
