"""The transitions that a learner has seen, D_1:t, and what models are fitted to."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..episode import Episode
from ..errors import UserError
from ..problem import Problem
from ..space.move import GaussianNoise
from .rows import check_episode, checked_distributions, checked_rows


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
        )

    @classmethod
    def of(cls, problem: Problem, episodes: Iterable[Episode]) -> "Transitions":
        """The transitions of several episodes."""
        data = cls.empty(problem)
        for episode in episodes:
            data = data.append(episode)
        return data

    @classmethod
    def from_rows(
        cls,
        problem: Problem,
        states: Any,
        actions: Any,
        next_states: Any,
        *,
        mass: Any | Literal["unknown"] | None = None,
        moment: Any | None = None,
        step: Any | None = None,
        stopped: Any | None = None,
        earned: Any | None = None,
    ) -> "Transitions":
        """Loose rows of a log, in any order, of any agents and times; raises if one is wrong.

        Args:
            problem: What is known of the system.
            states: Where agents were (rows, dim).
            actions: What they did (rows, action_dim).
            next_states: Where they were one step later.
            mass: The population's distributions (moments, cells), with ``moment`` to say which
                belongs to a row; or one for each row; or a single one (cells). None takes the
                rows of the same ``moment`` for the population. ``"unknown"`` assumes an even
                spread, which does no harm where the motion does not depend on mu.
            moment: The row of ``mass`` for each row; without ``mass`` any numbers that tell times
                apart.
            step: The number of each row's step, for models that look at ``mu.step``; by default 0.
            stopped: Axes on which a wall or border stopped the agent (rows, dim). By default
                those on which it ended in contact with one.
            earned: What agents were paid (rows), if the problem's reward is hidden.
        """
        rows = checked_rows(
            problem, states, actions, next_states, step=step, stopped=stopped, earned=earned
        )
        masses, moments = checked_distributions(problem, rows["states"], mass, moment)
        masses = masses.astype(problem.initial.dtype).astype(float)
        return cls(problem=problem, mass=masses, moment=moments, **rows)

    def __len__(self) -> int:
        return int(self.states.shape[0])

    def append(self, episode: Episode) -> "Transitions":
        """Adds the transitions of an episode; raises if it does not fit the problem."""
        check_episode(self.problem, episode)
        agents, steps = episode.states.shape[:2]
        seen = np.ones((agents, steps), dtype=bool)
        if episode.present is not None:
            seen = np.asarray(episode.present)
        if episode.carried is not None:  # trips teach nothing about the motion
            seen = seen & ~np.asarray(episode.carried)
        step = np.broadcast_to(np.arange(steps), (agents, steps))[seen]
        new = Transitions(
            problem=self.problem,
            states=np.asarray(episode.states, dtype=float)[seen],
            actions=np.asarray(episode.actions, dtype=float)[seen],
            next_states=np.asarray(episode.next_states, dtype=float)[seen],
            observed=~np.asarray(episode.stopped)[seen],
            mass=np.asarray(episode.mass[:-1], dtype=float),
            moment=step,
            step=step,
            earned=None if self.earned is None else np.asarray(episode.earned, dtype=float)[seen],
        )
        return self.join(new)

    def join(self, other: "Transitions") -> "Transitions":
        """Adds other transitions; raises if they are of another problem."""
        mine, theirs = self.problem, other.problem
        same = (mine.grid, mine.actions.dim, mine.hides_reward)
        if same != (theirs.grid, theirs.actions.dim, theirs.hides_reward):
            raise UserError(
                "the transitions are of a problem with another grid, other actions or another "
                "kind of reward; make them with this learner's problem"
            )
        later = replace(other, moment=other.moment + len(self.mass))
        joined: dict[str, Any] = {
            name: np.concatenate([getattr(self, name), getattr(later, name)])
            for name in ("mass", *self._by_row)
        }
        return replace(self, **joined)

    def rows(self, chosen: Bool[np.ndarray, "rows"] | Int[np.ndarray, "some"]) -> "Transitions":
        """The transitions that a mask, or indices, choose."""
        return replace(self, **{name: getattr(self, name)[chosen] for name in self._by_row})

    def first(self, count: int) -> "Transitions":
        """The first ``count`` transitions."""
        return self.rows(np.arange(count))

    def of_rewards(self) -> "Transitions":
        """The same transitions, for a model of the reward; raises if the reward is known."""
        if self.earned is None:
            raise UserError(
                "the problem's reward is known, so there is no model of it to fit; hide it with "
                "Problem(reward=None) if it has to be learned"
            )
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

    def padded(self) -> "PaddedTransitions":
        """The transitions on the device, in buffers whose sizes double as the data grow."""
        rows, moments = buffer_size(len(self)), buffer_size(len(self.mass))
        problem = self.problem
        dtype = problem.initial.dtype
        # Padding holds legal states, so that features are finite.
        corner = problem.grid.centres[0]
        even = np.full(problem.grid.n_cells, 1.0 / problem.grid.n_cells)

        def fill(values: np.ndarray, filler: Any, size: int, kind: Any = dtype) -> Array:
            missing = np.broadcast_to(filler, (size - len(values), *values.shape[1:]))
            return jnp.asarray(np.concatenate([values, missing]), dtype=kind)

        return PaddedTransitions(
            states=fill(self.states, corner, rows),
            actions=fill(self.actions, np.asarray(problem.actions.rest), rows),
            next_states=fill(self.next_states, corner, rows),
            observed=fill(self.observed, False, rows, bool),
            mass=fill(self.mass, even, moments),
            moment=fill(self.moment, 0, rows, jnp.int32),
            step=fill(self.step, 0, rows, jnp.int32),
            earned=None if self.earned is None else fill(self.earned, 0.0, rows),
        )

    @property
    def _by_row(self) -> tuple[str, ...]:
        """Names of the arrays with one entry for each transition."""
        names = ("states", "actions", "next_states", "observed", "moment", "step")
        return names if self.earned is None else (*names, "earned")


class PaddedTransitions(eqx.Module):
    """Transitions in arrays of a size that rarely changes; in further rows nothing is observed."""

    states: Float[Array, "rows dim"]
    actions: Float[Array, "rows action_dim"]
    next_states: Float[Array, "rows dim"]
    observed: Bool[Array, "rows dim"]
    mass: Float[Array, "moments cells"]
    moment: Int[Array, "rows"]
    step: Int[Array, "rows"]
    earned: Float[Array, "rows"] | None


@dataclass(frozen=True)
class KnownNoise:
    """The noise is what the problem says; if the problem does not say it, it is learned."""

    def std(self, data: Transitions) -> Float[np.ndarray, "outputs"] | None:
        """The noise's standard deviation for each output; None if it must be learned."""
        problem = data.problem
        if data.of_reward:
            return np.array([problem.reward_noise])
        if isinstance(problem.noise, GaussianNoise):
            return np.asarray(problem.noise.std, dtype=float)
        return None


@dataclass(frozen=True)
class LearnedNoise:
    """The noise is learned from the data, whatever the problem says."""

    def std(self, data: Transitions) -> None:
        """None: it must be learned."""


def buffer_size(count: int, smallest: int = 256, factor: int = 2) -> int:
    """The smallest buffer, enlarged by the factor until ``count`` rows fit.

    Few sizes occur, and so few programs are compiled.
    """
    size = smallest
    while size < count:
        size *= factor
    return size
