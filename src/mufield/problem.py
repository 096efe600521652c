"""What the learner may know: space, actions, initial distribution, noise and, mostly, reward."""

from collections.abc import Callable
from typing import Any, NoReturn

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ._arrays import device_array
from ._types import Action, Key, Margins, Mass, Masses, Scalar, State, States
from .actions import Box, MoveSet
from .checks import PerAxis, finite, is_a, number, per_axis, whole_number
from .constraints.constraint import Constraints
from .errors import UserError, in_words
from .interfaces import AbstractMap, AbstractTrips
from .space.grid import Grid
from .space.measure import MeanField, at_all_cells, check_grid, check_mass, sample
from .space.move import GaussianNoise, NeighbourNoise, Noise, check_rounding

Motion = Callable[[State, Action, MeanField], State]
"""The law of motion f(s, a, mu) of one agent (eq. transitionDynamics), without noise.

It may depend on the time of day: ``mu.step`` is the number of the step.
"""

Motions = Callable[[State, Action, MeanField], Float[Array, "motions outputs"]]
"""Several motions, or rewards, of one agent."""

Reward = Callable[[State, Action, MeanField], Scalar]
"""The reward r(s, a, mu) of one agent; it may depend on ``mu.step``, too."""


class HiddenReward(eqx.Module):
    """Stands in for a reward that only the true system knows; calling it raises an error."""

    def __call__(self, state: State, action: Action, mu: MeanField) -> NoReturn:
        """Raises."""
        raise UserError(
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
    # Printed only if they are there, as they have a default.
    constraints: Constraints | None = None
    trips: AbstractTrips | None = None
    city: AbstractMap | None = eqx.field(static=True, default=None)
    first: Int[Array, ""] | None = None

    def __init__(
        self,
        *,
        grid: Grid | AbstractMap,
        actions: Box | MoveSet,
        reward: Reward | None,
        horizon: int,
        initial: Any,
        noise: Noise | PerAxis,
        max_move: PerAxis | None = None,
        pay_end: bool = False,
        reward_noise: float = 0.0,
        constraints: Any = (),
        trips: AbstractTrips | None = None,
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
            constraints: What must hold of the population after every move: one or several of
                `mufield.constraints`, such as ``mass_at_most(grid, region, 0.1)``.
            trips: Known transitions that are no moves: who is taken at a step, and where to.
        """
        is_a(actions, (Box, MoveSet), "actions", "make one of these")
        space = check_grid(getattr(grid, "grid", grid))
        self.city = None if isinstance(grid, Grid) else grid
        self.grid = space
        self.actions = actions
        self.horizon = whole_number(horizon, "the horizon")
        self.initial = check_mass(space, initial, "the initial distribution")
        check_rounding(space, self.initial.dtype)
        if not isinstance(noise, GaussianNoise | NeighbourNoise):
            noise = GaussianNoise(noise)
        self.noise = noise.on(space)
        self.max_move = _farthest(max_move, space)
        self.pay_end = pay_end
        self.reward_noise = number(reward_noise, "reward_noise", 0.0)
        if reward_noise and reward is not None:
            raise UserError(
                f"a known reward is not observed, so there is no noise on it; leave out "
                f"reward_noise = {reward_noise}, or hide the reward with reward=None"
            )
        self.reward = HiddenReward() if reward is None else reward
        self.constraints = Constraints.of(constraints, space, self.initial, self.horizon)
        self.trips = trips
        if trips is not None:
            trips.check(space, self.initial, self.horizon)
        self.first = None
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

    def margins(self, mass: Masses) -> Margins:
        """How far inside its constraints an episode is after each move, as shares of the limits.

        Infinite where a constraint need not hold, as before the problem's first step.
        """
        assert self.constraints is not None
        return self.constraints.margins(mass, self.begun)

    def draw_starts(self, key: Key, agents: int) -> States:
        """Agents drawn from the initial distribution."""
        return sample(self.grid, self.initial, key, agents, centred=self.noise.centred)

    def from_step(self, step: int, mass: Any) -> "Problem":
        """The rest of an episode: from a step on, with the population as it is then.

        Steps keep their numbers, and arrays over the steps their places: nothing happens before
        the first step, which is data, so that one compiled program serves all of them. From step 0
        on, it is the same problem with another initial distribution.
        """
        if whole_number(step, "the start of the rest of an episode", 0) >= self.horizon:
            raise UserError(
                f"the rest of an episode begins at a step from 0 to {self.horizon - 1}, got {step}"
            )
        start = check_mass(self.grid, mass, "the distribution at the start")
        first = jnp.asarray(step, dtype=jnp.int32) if step else None
        return self.replace(initial=start.astype(self.initial.dtype), first=first)

    def replace(self, **fields: Any) -> "Problem":
        """The problem with other values of some fields, which are not checked again.

        May be called inside compiled functions.
        """

        def chosen(problem: Problem) -> list[Any]:
            return [getattr(problem, name) for name in fields]

        old = chosen(self)
        changed: Problem = eqx.tree_at(
            chosen,
            self,
            list(fields.values()),
            is_leaf=lambda node: node is None or any(node is each for each in old),
        )
        return changed


def _farthest(max_move: PerAxis | None, grid: Grid) -> tuple[float, ...]:
    """The farthest move on each axis; by default the whole space."""
    if max_move is None:
        return grid.extent
    farthest = per_axis(max_move, grid.dim, float, "max_move")
    for axis, (each, wide) in enumerate(zip(farthest, grid.extent, strict=True)):
        if not 0 < each <= 100 * wide:  # more is a mistake in the units
            raise UserError(
                f"max_move must be positive and within the space, which is {wide:g} wide on axis "
                f"{axis}, got {each:g}; check the units"
            )
    return farthest


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
    tried = np.asarray([problem.actions.rest] if actions is None else actions)
    everywhere = device_array(np.broadcast_to(tried, (grid.n_cells, *tried.shape)), mass.dtype)
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

    def place(index: tuple[int, ...]) -> str:
        state, action = grid.centres[index[0]], np.asarray(tried[index[1]])
        return f"for the state {state}, the action {action} and the initial distribution"

    finite(values, name, "in logarithms of mu, mufield.log_mass is finite in empty cells", place)
    return values
