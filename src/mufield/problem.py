"""What the learner may know: space, actions, initial distribution, noise and, mostly, reward."""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ._types import Action, Key, Mass, Scalar, State, States
from .actions import Box, MoveSet
from .checks import whole_number
from .constraints.constraint import Constraints, as_constraints
from .errors import UserError, in_words
from .fleet.maps import CityMap
from .fleet.trips import Trips, check_trips
from .space.grid import Grid, PerAxis, per_axis
from .space.measure import MeanField, at_all_cells, check_mass, sample
from .space.move import GaussianNoise, NeighbourNoise, Noise
from .space.wall_bits import wall_margin

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


class Problem(eqx.Module):
    """An episodic mean-field control problem without its law of motion.

    The population starts each episode from ``initial`` and makes ``horizon`` moves. It is paid
    the integrated reward r-hat (eq. integratedReward) at h = 0, ..., horizon - 1, and also at
    h = horizon if ``pay_end``; there the reward is taken with the action nearest to zero.

    The reward may be hidden (the paper's footnote on unknown rewards): then `reward` is a
    `HiddenReward`, to be learned from what agents are paid.

    Attributes:
        city: The map that the grid belongs to, if there is one.
        first: Number of the first step, if the problem is the rest of an episode; else None.
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
    first: Int[Array, ""] | None

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
        horizon = whole_number(horizon, "the horizon")
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
        self.first = None
        self.grid = grid
        self.actions = actions
        self.reward = HiddenReward() if reward is None else reward
        self.horizon = horizon
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
        """The numbers of all steps, those before `first` included."""
        return jnp.arange(self.horizon, dtype=jnp.int32)

    @property
    def first_step(self) -> int:
        """`first` as a plain number; not for compiled functions."""
        return 0 if self.first is None else int(self.first)

    @property
    def begun(self) -> Bool[Array, "steps"]:
        """Which steps belong to the problem: all, or those from `first` on."""
        return self.steps >= (0 if self.first is None else self.first)

    @property
    def noise_std(self) -> tuple[float, ...]:
        """Standard deviation of the Gaussian noise on each axis; zero for other noise."""
        return self.noise.std if isinstance(self.noise, GaussianNoise) else (0.0,) * self.grid.dim

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

        Steps keep their numbers, and arrays over the steps their places: nothing happens before
        the first step, which is data, so that one compiled program serves all of them.
        """
        whole = isinstance(step, int | np.integer) and not isinstance(step, bool)
        if not whole or not 0 <= step < self.horizon:
            raise UserError(
                f"the rest of an episode begins at a step from 0 to {self.horizon - 1}, got "
                f"{step!r}"
            )
        first = jnp.asarray(step, dtype=jnp.int32) if step else None
        begun = self.starting_from(mass)
        limits = None if self.constraints is None else replace(self.constraints, first=first)
        rest: Problem = eqx.tree_at(
            lambda p: (p.first, p.constraints),
            begun,
            (first, limits),
            is_leaf=lambda x: x is None or x is begun.constraints,
        )
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
