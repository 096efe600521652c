"""The transitions that a learner has seen, D_1:t, and what models are fitted to."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import reduce
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._arrays import Action, State, device_array
from ..actions import MoveSet
from ..episode import Episode
from ..errors import UserError
from ..policies.base import checked_profile
from ..policies.tables import profile_weights
from ..problem import Problem
from ..space.grid import Grid
from ..space.measure import MeanField, mean_field_at
from ..space.move import GaussianNoise


def with_population(
    episode: Episode, problem: Problem, policy: Any, agents: float = math.inf
) -> Episode:
    """An episode on nodes whose mass is that of agents who all followed a policy.

    Learners then take the mass as observations: ``mu' = sum P(. | s, a, mu) pi(a | s) mu(s)``. It
    must have been counted, not computed from the policy, and not among tracked agents alone, whose
    moves say more. Episodes on grids and with trips, which move agents too, stay as they are.

    Args:
        episode: What was observed.
        problem: The problem; with shocks, under those of the episode.
        policy: What the population followed, not its scouts.
        agents: How many agents were counted; infinity for the mass of the limit.
    """
    moves = problem.actions
    if not isinstance(moves, MoveSet) or not problem.on_nodes or problem.trips is not None:
        return episode
    profile, mass = checked_profile(policy, problem), episode.mass[:-1]
    weights, _ = _weights(profile, jnp.asarray(moves.moves), problem.grid, mass)
    joint = mass[..., None] * weights
    return replace(episode, joint=joint, population=jnp.asarray(agents, joint.dtype))


_weights = eqx.filter_jit(profile_weights)


class PopulationMoves(eqx.Module):
    """Observed moves of the whole population of a problem on nodes, without who moved where.

    Attributes:
        joint: Mass of each node and action before each move.
        after: Mass of each node after it.
        agents: Number of agents whose mass it is; infinity for that of the limit.
        moment: The row of `Transitions.mass` before each move.
        step: The number of its step in an episode.
    """

    joint: Float[np.ndarray, "seen cells moves"]
    after: Float[np.ndarray, "seen cells"]
    agents: Float[np.ndarray, "seen"]
    moment: Int[np.ndarray, "seen"]
    step: Int[np.ndarray, "seen"]

    @classmethod
    def of(cls, episode: Episode, problem: Problem) -> "PopulationMoves | None":
        """What an episode says of them; None if it does not say whose mass it has."""
        if episode.joint is None:
            return None
        steps = np.flatnonzero(np.asarray(problem.begun))  # before, nobody moves
        number = float(np.asarray(episode.population))
        joint, mass = (np.asarray(each, dtype=float) for each in (episode.joint, episode.mass))
        return cls(joint[steps], mass[steps + 1], np.full(len(steps), number), steps, steps)

    def later(self, moments: int) -> "PopulationMoves":
        """The same moves where the rows of their masses follow others."""
        return replace(self, moment=self.moment + moments)


class Transitions(eqx.Module):
    """Observed moves of tracked agents, in double precision on the host.

    Attributes:
        problem: The problem that they were observed in.
        states: Where agents were.
        actions: What they did.
        next_states: Where they came to rest.
        observed: Axes on which no wall stopped them. On the others the displacement is censored:
            all that is known is that the agent aimed farther.
        mass: Distributions of the population.
        moment: For each move, the row of ``mass`` at its time.
        step: For each move, the number of its step in an episode; 0 if it is not known.
        earned: What agents were paid for each move, if the problem's reward is hidden.
        shocks: The number of the shock at each moment, if the problem has shocks.
        population: Moves of the whole population, if episodes say them.
        of_reward: Whether models are fitted to the rewards instead of the motion.
    """

    problem: Problem
    states: Float[np.ndarray, "rows dim"]
    actions: Float[np.ndarray, "rows action_dim"]
    next_states: Float[np.ndarray, "rows dim"]
    observed: Bool[np.ndarray, "rows dim"]
    mass: Float[np.ndarray, "moments cells"]
    moment: Int[np.ndarray, "rows"]
    step: Int[np.ndarray, "rows"]
    earned: Float[np.ndarray, "rows"] | None = None
    shocks: Int[np.ndarray, "moments"] | None = None
    population: PopulationMoves | None = None
    of_reward: bool = eqx.field(static=True, default=False)

    @classmethod
    def empty(cls, problem: Problem) -> "Transitions":
        """No transitions yet."""
        dim, action_dim = problem.grid.dim, problem.actions.dim
        return cls(
            problem=problem,
            states=np.zeros((0, dim)),
            actions=np.zeros((0, action_dim)),
            next_states=np.zeros((0, dim)),
            observed=np.zeros((0, dim), dtype=bool),
            mass=np.zeros((0, problem.grid.n_cells)),
            moment=np.zeros(0, dtype=np.int64),
            step=np.zeros(0, dtype=np.int64),
            earned=np.zeros(0) if problem.hides_reward else None,
            shocks=None if problem.shocks is None else np.zeros(0, dtype=np.int64),
        )

    @classmethod
    def of(cls, problem: Problem, episodes: Iterable[Episode]) -> "Transitions":
        """The transitions of several episodes."""
        return reduce(cls.append, episodes, cls.empty(problem))

    def __len__(self) -> int:
        return int(self.states.shape[0])

    def append(self, episode: Episode) -> "Transitions":
        """Adds the transitions of an episode; raises if it does not fit the problem."""
        episode.check(self.problem)
        agents, steps = episode.states.shape[:2]
        seen = np.ones((agents, steps), bool) if episode.present is None else episode.present
        seen = np.asarray(seen)
        if episode.carried is not None:  # trips teach nothing about the motion
            seen = seen & ~np.asarray(episode.carried)
        step = np.broadcast_to(np.arange(steps), (agents, steps))[seen]
        new = Transitions(
            problem=self.problem,
            states=np.asarray(episode.states, dtype=float)[seen],
            actions=np.asarray(episode.actions, dtype=float)[seen],
            next_states=np.asarray(episode.next_states, dtype=float)[seen],
            observed=~np.asarray(episode.stopped)[seen],
            mass=np.asarray(episode.mass, dtype=float)[:-1],
            moment=step,
            step=step,
            earned=None if self.earned is None else np.asarray(episode.earned, dtype=float)[seen],
            shocks=None if self.shocks is None else np.asarray(episode.shocks, dtype=np.int64),
            population=PopulationMoves.of(episode, self.problem),
        )
        return self.join(new)

    def join(self, other: "Transitions") -> "Transitions":
        """Adds other transitions; raises if they are of another problem."""
        mine, theirs = self.problem, other.problem
        same = (mine.grid, mine.actions.dim, mine.hides_reward, self.shocks is None)
        if same != (theirs.grid, theirs.actions.dim, theirs.hides_reward, other.shocks is None):
            raise UserError(
                "the transitions are of a problem with another grid, other actions, another kind "
                "of reward or without these shocks; make them with this learner's problem"
            )
        later = replace(other, moment=other.moment + len(self.mass))
        joined: dict[str, Any] = {
            name: np.concatenate([getattr(self, name), getattr(later, name)])
            for name in ("mass", *(() if self.shocks is None else ("shocks",)), *self._by_row)
        }
        crowds = [self.population, other.population and other.population.later(len(self.mass))]
        known = [each for each in crowds if each is not None]
        joined["population"] = (
            jax.tree.map(lambda *parts: np.concatenate(parts), *known) if known else None
        )
        return replace(self, **joined)

    def rows(self, chosen: Bool[np.ndarray, "rows"] | Int[np.ndarray, "some"]) -> "Transitions":
        """The transitions that a mask, or indices, choose, and the population's at their times."""
        known: dict[str, Any] = {name: getattr(self, name)[chosen] for name in self._by_row}
        if self.population is not None:
            kept = np.isin(self.population.moment, known["moment"])
            known["population"] = jax.tree.map(lambda leaf: leaf[kept], self.population)
        return replace(self, **known)

    def first(self, count: int) -> "Transitions":
        """The first ``count`` transitions."""
        return self.rows(np.arange(count))

    def of_rewards(self) -> "Transitions":
        """The same transitions, for a model of the reward; raises if the reward is known."""
        if self.earned is None:
            raise UserError("the reward is known; to learn it, hide it with Problem(reward=None)")
        return replace(self, of_reward=True)

    @property
    def observed_outputs(self) -> Bool[np.ndarray, "rows outputs"]:
        """Which of a model's outputs were observed: a wall censors moves, but not rewards."""
        if self.of_reward:
            return np.ones((len(self), 1), dtype=bool)
        return np.asarray(self.observed)

    @property
    def side(self) -> Int[np.ndarray, "rows dim"]:
        """Direction, 1 or -1, in which a wall stopped an agent on an axis; 0 if none did.

        It is the direction of the move, or for an agent that did not move, the side of its cell
        that it stands at. Also 0 if it stands at neither side, as in the discrete rooms.
        """
        near, at_rest = 0.25, 1e-4  # of the face, and of the start, in cells
        grid = self.problem.grid
        size = np.asarray(grid.cell_size)
        moved = np.asarray(grid.displacement(self.states, self.next_states))
        place = (self.next_states - np.asarray(grid.lower)) / size
        # The upper border belongs to the last cell.
        inside = place - np.minimum(np.floor(place), np.asarray(grid.shape) - 1)
        at_face = (inside > 1.0 - near).astype(int) - (inside < near).astype(int)
        towards = np.where(np.abs(moved) > at_rest * size, np.sign(moved).astype(int), at_face)
        return np.where(self.observed | (at_face == 0), 0, towards)

    @property
    def noise_std(self) -> Float[np.ndarray, "outputs"] | None:
        """The noise's standard deviation for each output; None if the problem does not say it."""
        if self.of_reward:
            return np.array([self.problem.reward_noise])
        noise = self.problem.noise
        return np.asarray(noise.std, dtype=float) if isinstance(noise, GaussianNoise) else None

    def map(self, function: Callable[[State, Action, MeanField], Any]) -> Any:
        """What a function of one agent returns for each transition.

        All leaves get the axis "rows" first; they are on the host, in double precision. The
        function is compiled anew only when the data outgrow a buffer, whose size then doubles.
        """
        problem, dtype = self.problem, self.problem.initial.dtype
        rows, moments = buffer_size(len(self)), buffer_size(len(self.mass))
        even = 1.0 / problem.grid.n_cells

        def padded(values: np.ndarray, filler: Any, size: int, kind: Any = dtype) -> Array:
            missing = np.broadcast_to(filler, (size - len(values), *values.shape[1:]))
            return device_array(np.concatenate([values, missing]), kind)

        shocks = None
        if problem.shocks is not None and self.shocks is not None:
            shocks = (problem.shocks, padded(self.shocks, 0, moments, jnp.int32))
        found = _map_rows(
            function,
            problem.grid,
            shocks,
            padded(self.mass, even, moments),
            # Padding is legal, so that what functions return for it is finite.
            padded(self.states, problem.grid.centres[0], rows),
            padded(self.actions, np.asarray(problem.actions.rest), rows),
            padded(self.moment, 0, rows, jnp.int32),
            padded(self.step, 0, rows, jnp.int32),
        )
        return jax.tree.map(lambda leaf: np.asarray(leaf, dtype=float)[: len(self)], found)

    @property
    def _by_row(self) -> tuple[str, ...]:
        """Names of the arrays with one entry for each transition."""
        names = ("states", "actions", "next_states", "observed", "moment", "step")
        return names if self.earned is None else (*names, "earned")


@eqx.filter_jit
def _map_rows(
    function: Any, grid: Grid, shocks: tuple[Any, Array] | None, mass: Array, *rows: Array
) -> Any:
    def one(state: State, action: Action, moment: Array, step: Array) -> Any:
        mu = mean_field_at(grid, mass[moment], state, step)
        if shocks is not None:
            mu = shocks[0].seen(mu, shocks[1][moment])
        return function(state, action, mu)

    return jax.vmap(one)(*rows)


def buffer_size(count: int, smallest: int = 256, factor: int = 2) -> int:
    """The smallest buffer, enlarged by the factor until ``count`` rows fit; few sizes occur."""
    size = smallest
    while size < count:
        size *= factor
    return size
