"""What the learner may know: space, actions, initial distribution, noise and, mostly, reward."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from . import interfaces
from ._arrays import Key, Margins, Mass, Masses, States
from .actions import Box, MoveSet
from .errors import PerAxis, UserError, is_a, number, whole_number
from .interfaces import Motion as Motion
from .interfaces import Motions as Motions
from .interfaces import Reward as Reward
from .space.grid import Grid
from .space.measure import check_grid, check_mass, sample
from .space.move import AbstractNoise, GaussianNoise, Noise, check_rounding, farthest_moves

if TYPE_CHECKING:
    from .constraints.constraint import Constraints
    from .fleet.maps import CityMap
    from .fleet.trips import Trips
    from .shocks import Shocks


class Problem(eqx.Module):
    """An episodic mean-field control problem without its law of motion.

    The population starts each episode from ``initial`` and makes ``horizon`` moves. It is paid
    the integrated reward r-hat (eq. integratedReward) at h = 0, ..., horizon - 1, and also at
    h = horizon if ``pay_end``; there the reward is taken with the action nearest to zero.

    The reward may be hidden (the paper's footnote on unknown rewards): then `reward` is a
    `HiddenReward`, to be learned from what agents are paid.

    Attributes:
        initial: Distribution of the agents that are free at the first step.
        city: The map that the grid belongs to, if there is one.
        first: Number of the first step, if the problem is the rest of an episode; else None.
        stationary: Whether policies are the same at every step; no horizon was given.
    """

    grid: Grid = eqx.field(static=True)
    actions: Box | MoveSet
    reward: Reward
    horizon: int = eqx.field(static=True)
    initial: Mass
    noise: AbstractNoise
    max_move: tuple[float, ...] = eqx.field(static=True)
    pay_end: bool = eqx.field(static=True)
    reward_noise: float = eqx.field(static=True)
    # Printed only if they are there, as they have a default.
    constraints: "Constraints | None" = None
    trips: "Trips | None" = None
    city: "CityMap | None" = eqx.field(static=True, default=None)
    first: Int[Array, ""] | None = None
    shocks: "Shocks | None" = None
    discount: float = eqx.field(static=True, default=1.0)
    stationary: bool = eqx.field(static=True, default=False)

    def __init__(
        self,
        *,
        space: "Grid | CityMap",
        actions: Box | MoveSet | Any,
        reward: Reward | None,
        horizon: int | None,
        initial: Any,
        noise: Noise | PerAxis | None = None,
        discount: float = 1.0,
        max_move: PerAxis | None = None,
        pay_end: bool = False,
        reward_noise: float = 0.0,
        constraints: Any = (),
        trips: "Trips | None" = None,
        shocks: "Shocks | None" = None,
    ):
        """Checks and builds a problem.

        Args:
            space: A grid, nodes, or the map of a city; files may then hold longitude and latitude.
            actions: What agents can do; on nodes a `MoveSet`, or the number or the names of moves.
            reward: The reward of one agent, ``(state, action, mu) -> number``; None to hide it.
            horizon: Number of moves in an episode. None, with a discount below 1: as many as leave
                less than a thousandth of the discounted reward; policies are then stationary, the
                same at every step.
            initial: Distribution at the start, over the free cells or the whole box.
            noise: The noise of the motion. A number, or one for each axis, is the standard
                deviation of Gaussian noise. On nodes there is none: it is part of the motion.
            discount: The reward of step h counts this to the power h.
            max_move: The farthest that one step can carry an agent on each axis, without noise;
                by default the whole space. The smaller it is, the faster is the flow.
            pay_end: Whether the last distribution is paid too.
            reward_noise: Standard deviation of the noise with which a hidden reward is observed.
            constraints: What must hold of the population after every move: one or several of
                `mufield.constraints`, such as ``mass_at_most(grid, region, 0.1)``, and perhaps a
                `ConstraintRule`.
            trips: Known transitions that are no moves: who is taken at a step, and where to.
            shocks: Public random events, which motion, reward and trips read as ``mu.shock``.
        """
        self.city = None if isinstance(space, Grid) else space
        self.grid = grid = check_grid(getattr(space, "grid", space))
        self.discount = number(discount, "the discount", 0.0, 1.0)
        self.stationary = horizon is None
        if horizon is None:
            horizon = interfaces.discounted_horizon(self.discount)
        self.horizon = whole_number(horizon, "the horizon")
        if self.horizon * grid.n_cells > 2**31:  # numbers in the distributions of one episode
            raise UserError(
                f"an episode of {horizon:,} steps in {grid.n_cells:,} cells does not fit into the "
                "memory; take a shorter horizon"
            )
        self.initial = check_mass(grid, initial, "the initial distribution")
        if grid.nodes is not None:
            self.actions = MoveSet.on_nodes(actions, grid.n_cells)
            self.noise, self.max_move = grid.nodes.jumps, (1.0,)  # of a probability
            if noise is not None or max_move is not None:
                raise UserError(
                    "on nodes the motion returns probabilities, which hold all noise and every "
                    "jump; leave out noise and max_move"
                )
        else:
            is_a(actions, (Box, MoveSet), "actions", "make one of these")
            self.actions = actions
            check_rounding(grid, self.initial.dtype)
            if noise is None:
                raise UserError("on a grid the noise is needed; give noise=0.1, or 0.0 for none")
            if not isinstance(noise, Noise):
                noise = GaussianNoise(noise)
            self.noise = noise.on(grid)
            self.max_move = farthest_moves(max_move, grid)
        self.pay_end = pay_end
        self.reward_noise = number(reward_noise, "reward_noise", 0.0)
        if reward_noise and reward is not None:
            raise UserError("a known reward has no noise; leave out reward_noise, or the reward")
        if reward is None and discount != 1:
            raise UserError("a hidden reward cannot be discounted; give it, or leave out discount")
        self.reward = interfaces.HiddenReward() if reward is None else self.discounted(reward)
        self.trips, self.shocks, self.first, self.constraints = trips, shocks, None, None
        if shocks is not None:
            from .shocks import Shocks  # not needed without shocks

            is_a(shocks, Shocks, "shocks", "make them with mufield.Shocks")
            if self.stationary or reward is None:
                raise UserError(
                    "shocks do not go with stationary policies or a hidden reward: leave "
                    "out the shocks, or give horizon= and reward="
                )
        if constraints:
            from .constraints.constraint import Constraints  # not needed without constraints

            count = 0 if shocks is None else shocks.count
            given = (grid, self.initial, self.horizon, count)
            self.constraints = Constraints.of(constraints, *given)
        for case in self.under_each_shock():
            if case.trips is not None:
                case.trips.check(grid, self.initial, self.horizon)
            if reward is not None:
                case.check_function(case.reward, "the reward")

    def under_shock(self, number: Int[Array, "*steps"]) -> "Problem":
        """The problem without shocks that it is on a path, or if one shock stays for ever."""
        if self.shocks is None:
            return self
        reward, trips = self.shocks.under(self.reward, number), self.trips
        if trips is not None:
            chance: Any = trips.chance
            trips = eqx.tree_at(lambda t: t.chance, trips, self.shocks.under(chance, number))
        held = self.constraints
        if held is not None:
            held = held.under_shock(number, self.horizon)
        return self.replace(reward=reward, trips=trips, constraints=held, shocks=None)

    def under_each_shock(self) -> "list[Problem]":
        """`under_shock` for each value of the shocks; without shocks, the problem itself."""
        count = 1 if self.shocks is None else self.shocks.count
        return [self.under_shock(jnp.asarray(number, jnp.int32)) for number in range(count)]

    def check_function(
        self, function: Callable[..., Any], name: str, shape: Any = (), actions: Any = None
    ) -> Float[np.ndarray, "cells actions *shape"]:
        """See `mufield.interfaces.check_function`; by default with rest, on nodes all actions."""
        if actions is None:
            rest, nodes = jnp.asarray([self.actions.rest]), self.grid.n_cells
            actions = self.actions.by_cell(nodes) if self.on_nodes else rest
        return interfaces.check_function(self.grid, self.initial, actions, function, name, shape)

    def lifted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A user's motion as a function of states and actions; on grids it is one already."""
        own = isinstance(function, interfaces.AbstractLifted)
        return function if own else self.grid.lift(function)

    def discounted(self, reward: Reward) -> Reward:
        """A user's reward as a function of states and actions, discounted."""
        lifted = self.lifted(reward)
        return lifted if self.discount == 1 else interfaces.Discounted(lifted, self.discount)

    @property
    def on_nodes(self) -> bool:
        """Whether the space is a finite set of nodes."""
        return self.grid.nodes is not None

    @property
    def steps(self) -> Int[Array, "steps"]:
        """The numbers of all steps, those before `first` included."""
        return jnp.arange(self.horizon, dtype=jnp.int32)

    @property
    def steps_done(self) -> int:
        """How many steps are over before the problem's first one; not for compiled functions."""
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
    def initial_arrivals(self) -> Float[Array, "stages_and_one cells"]:
        """`initial`, of free agents; then agents under way at first, by when they arrive."""
        begin = self.initial[None]
        if self.trips is None:
            return begin
        return jnp.concatenate([begin, self.trips.away.astype(begin.dtype)])

    @property
    def paid_steps(self) -> int:
        """Number of distributions that are paid."""
        return self.horizon + int(self.pay_end)

    @property
    def hides_reward(self) -> bool:
        """Whether the reward has to be learned."""
        return isinstance(self.reward, interfaces.HiddenReward)

    def check_action(self, shape: tuple[int, ...]) -> None:
        """Raises, also while tracing, if one agent's action has the wrong shape."""
        if shape != (self.actions.dim,):
            raise UserError(f"an agent has an action of shape {(self.actions.dim,)}, got {shape}")

    def margins(self, mass: Masses) -> Margins:
        """How far inside its constraints an episode is after each move, as shares of the limits.

        Infinite where a constraint need not hold, as before the problem's first step.
        """
        assert self.constraints is not None
        return self.constraints.margins(mass, self.begun)

    def draw_starts(self, key: Key, agents: int) -> States:
        """Agents drawn from the initial distribution."""
        return sample(self.grid, self.initial, key, agents, centred=self.noise.centred)

    def from_step(self, step: int, mass: Any, shock: int | None = None) -> "Problem":
        """The rest of an episode: from a step on, with the population as it is then.

        Steps keep their numbers, and arrays over the steps their places: nothing happens before
        the first step, which is data, so that one compiled program serves all of them.

        Where trips take several steps, ``mass`` may have a row for the agents that are free, and
        one for each step from the next one on with those who arrive then, by cell. With shocks,
        ``shock`` is the number of the present one; None if it is not known, at step 0.
        """
        if whole_number(step, "the start of the rest of an episode", 0) >= self.horizon:
            raise UserError(f"the rest begins at a step from 0 to {self.horizon - 1}, got {step}")
        trips, stages = self.trips, 0 if self.trips is None else self.trips.stages
        rows = np.asarray(mass)
        if not (stages and rows.shape == (1 + stages, self.grid.n_cells)):
            start = check_mass(self.grid, mass, "the distribution at the start")
            rows = np.concatenate([np.asarray(start)[None], np.zeros((stages, len(start)))])
        check_mass(self.grid, rows.sum(axis=0), "the distribution at the start, with all rows,")
        now = jnp.asarray(rows, dtype=self.initial.dtype)
        first = jnp.asarray(step, dtype=jnp.int32) if step else None
        if trips is not None and stages:
            trips = eqx.tree_at(lambda t: t.away, trips, now[1:].astype(trips.away.dtype))
        shocks = self.shocks
        if shocks is None and shock is not None:
            raise UserError("the problem has no shocks; leave out the number of the present one")
        if shocks is not None and (step or shock is not None):
            shocks = shocks.known_now(step, shock)
        return self.replace(initial=now[0], first=first, trips=trips, shocks=shocks)

    def replace(self, **fields: Any) -> "Problem":
        """The problem with other values of some fields, which are not checked; may be compiled."""
        return interfaces.with_fields(self, **fields)
