"""The transitions that a learner has seen, D_1:t, and what models are fitted to."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._types import State
from ..episode import Episode
from ..errors import UserError
from ..problem import Problem
from ..space.measure import MASS_TOLERANCE
from ..space.move import GaussianNoise

SMALLEST_BUFFER = 256
"""Rows of the smallest buffer. Larger ones double, so that few programs are compiled."""

EQUAL = 1e-6
"""Rewards count as equal if their deviation is smaller than this share of their mean."""

AT_FACE = 0.25
"""Farthest that a stopped agent may be from the cell face that stopped it, in cells."""

AT_REST = 1e-4
"""Moves up to this size, in cells, have no direction."""


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
        from .rows import transitions_from_rows  # which needs this class

        return transitions_from_rows(
            problem,
            states,
            actions,
            next_states,
            mass=mass,
            moment=moment,
            step=step,
            stopped=stopped,
            earned=earned,
        )

    def __len__(self) -> int:
        return int(self.states.shape[0])

    def append(self, episode: Episode) -> "Transitions":
        """Adds the transitions of an episode; raises if it does not fit the problem."""
        problem = self.problem
        check_episode(problem, episode)
        agents, steps = episode.states.shape[:2]
        seen = np.ones(agents * steps, dtype=bool)
        if episode.present is not None:
            seen = np.asarray(episode.present).reshape(-1)
        if episode.carried is not None:  # trips teach nothing about the motion
            seen = seen & ~np.asarray(episode.carried).reshape(-1)
        earned = None
        if self.earned is not None:
            earned = np.asarray(episode.earned, dtype=float).reshape(-1)[seen]
        return self.join(
            Transitions(
                problem=problem,
                states=_rows(episode.states)[seen],
                actions=_rows(episode.actions)[seen],
                next_states=_rows(episode.next_states)[seen],
                observed=~np.asarray(episode.stopped).reshape(-1, problem.grid.dim)[seen],
                mass=np.asarray(episode.mass[:-1], dtype=float),
                moment=np.tile(np.arange(steps), agents)[seen],
                step=np.tile(np.arange(steps), agents)[seen],
                earned=earned,
            )
        )

    def join(self, other: "Transitions") -> "Transitions":
        """Adds other transitions; raises if they are of another problem."""
        mine, theirs = self.problem, other.problem
        same = (mine.grid, mine.actions.dim, mine.hides_reward)
        if same != (theirs.grid, theirs.actions.dim, theirs.hides_reward):
            raise UserError(
                "the transitions are of a problem with another grid, other actions or another "
                "kind of reward; make them with this learner's problem"
            )
        names = ["states", "actions", "next_states", "observed", "mass", "step"]
        names += [] if self.earned is None else ["earned"]
        joined: dict[str, Any] = {
            name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in names
        }
        moment = np.concatenate([self.moment, other.moment + len(self.mass)])
        return replace(self, moment=moment, **joined)

    def rows(self, chosen: Bool[np.ndarray, "rows"] | Int[np.ndarray, "some"]) -> "Transitions":
        """The transitions that a mask, or indices, choose."""
        names = ["states", "actions", "next_states", "observed", "moment", "step"]
        names += [] if self.earned is None else ["earned"]
        return replace(self, **{name: getattr(self, name)[chosen] for name in names})

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
        grid = self.problem.grid
        size = np.asarray(grid.cell_size)
        moved = np.asarray(grid.displacement(self.states, self.next_states))
        place = (self.next_states - np.asarray(grid.lower)) / size
        # The upper border belongs to the last cell.
        inside = place - np.minimum(np.floor(place), np.asarray(grid.shape) - 1)
        at_face = (inside > 1.0 - AT_FACE).astype(int) - (inside < AT_FACE).astype(int)
        towards = np.where(np.abs(moved) > AT_REST * size, np.sign(moved).astype(int), at_face)
        return np.where(self.observed | (at_face == 0), 0, towards)

    def padded(self) -> "PaddedTransitions":
        """The transitions on the device, in buffers whose sizes double as the data grow."""
        rows, moments = buffer_size(len(self)), buffer_size(len(self.mass))
        problem = self.problem
        dtype = problem.initial.dtype
        # Padding holds legal states, so that features are finite.
        corner = problem.grid.centres[0]
        rest = np.asarray(problem.actions.rest)
        even = np.full(problem.grid.n_cells, 1.0 / problem.grid.n_cells)

        def fill(values: np.ndarray, filler: Any, size: int, kind: Any = dtype) -> Array:
            missing = np.broadcast_to(filler, (size - len(values), *values.shape[1:]))
            return jnp.asarray(np.concatenate([values, missing]), dtype=kind)

        return PaddedTransitions(
            states=fill(self.states, corner, rows),
            actions=fill(self.actions, rest, rows),
            next_states=fill(self.next_states, corner, rows),
            observed=fill(self.observed, False, rows, bool),
            mass=fill(self.mass, even, moments),
            moment=fill(self.moment, 0, rows, jnp.int32),
            step=fill(self.step, 0, rows, jnp.int32),
            earned=None if self.earned is None else fill(self.earned, 0.0, rows),
            count=jnp.asarray(len(self), dtype=jnp.int32),
        )


class PaddedTransitions(eqx.Module):
    """Transitions in arrays of a size that rarely changes; the first ``count`` rows are real."""

    states: Float[Array, "rows dim"]
    actions: Float[Array, "rows action_dim"]
    next_states: Float[Array, "rows dim"]
    observed: Bool[Array, "rows dim"]
    mass: Float[Array, "moments cells"]
    moment: Int[Array, "rows"]
    step: Int[Array, "rows"]
    earned: Float[Array, "rows"] | None
    count: Int[Array, ""]


Outputs = Float[Array, "*points outputs"]
"""One number for each axis of a motion, a single one for a reward."""


class Units(eqx.Module):
    """Converts between a model's outputs, of the order of one, and motions or rewards.

    Attributes:
        scale: Unit of the outputs: the farthest move, or the rewards' standard deviation.
        centre: Mean of the rewards; None for motions, whose outputs are displacements.
    """

    scale: Float[Array | np.ndarray, "*runs outputs"]
    centre: Float[Array | np.ndarray, "*runs outputs"] | None

    @classmethod
    def of(cls, data: Transitions) -> "Units":
        """The units for a model of the data, in double precision on the host."""
        if not data.of_reward:
            return cls(np.asarray(data.problem.max_move, dtype=float), None)
        assert data.earned is not None
        if len(data) == 0:
            return cls(np.ones(1), np.zeros(1))
        centre, scale = float(data.earned.mean()), float(data.earned.std())
        equal = scale <= EQUAL * max(1.0, abs(centre))
        return cls(np.array([1.0 if equal else scale]), np.array([centre]))

    def cast(self, dtype: Any) -> "Units":
        """The units in another precision, for planning."""
        centre = None if self.centre is None else jnp.asarray(self.centre, dtype)
        return Units(jnp.asarray(self.scale, dtype), centre)

    def decode(self, state: State, outputs: Outputs) -> Outputs:
        """Where an agent aims, or what it earns."""
        start = state if self.centre is None else jnp.asarray(self.centre)
        return start + self.rescale(outputs)

    def rescale(self, deviation: Outputs) -> Outputs:
        """A standard deviation of outputs, as one of motions or rewards."""
        return jnp.asarray(self.scale) * deviation

    def encode(self, data: Transitions) -> Float[np.ndarray, "rows outputs"]:
        """The outputs that a perfect model would have for the transitions."""
        if self.centre is None:
            moved = data.problem.grid.displacement(data.states, data.next_states)
            return np.asarray(moved / self.scale)
        assert data.earned is not None
        return np.asarray((data.earned[:, None] - self.centre) / self.scale)


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


def buffer_size(count: int, smallest: int = SMALLEST_BUFFER) -> int:
    """The smallest buffer, doubled until ``count`` rows fit."""
    size = smallest
    while size < count:
        size *= 2
    return size


def check_episode(problem: Problem, episode: Episode) -> None:
    """Raises if an episode does not fit the problem, or holds NaN or infinity."""
    grid = problem.grid
    agents, steps = episode.states.shape[:2]
    if steps != problem.horizon:
        raise UserError(
            f"the episode has {steps} steps, but the problem's horizon is {problem.horizon}; tell "
            "episodes of this problem only"
        )
    by_agent: dict[str, tuple[int, ...]] = {
        "states": (agents, steps, grid.dim),
        "actions": (agents, steps, problem.actions.dim),
        "next_states": (agents, steps, grid.dim),
        "stopped": (agents, steps, grid.dim),
    }
    if problem.hides_reward:
        by_agent["earned"] = (agents, steps)
        if episode.earned is None:
            raise UserError(
                "the problem's reward is hidden, but the episode does not say what agents were "
                "paid; give it earned, one number for each agent and step"
            )
    by_step = {"mass": (problem.horizon + 1, grid.n_cells), "rewards": (problem.paid_steps,)}
    if episode.present is not None:
        by_agent["present"] = (agents, steps)
        if not np.any(episode.present):
            raise UserError("no agent is present at any step of the episode; leave it out")
    if episode.carried is not None:
        by_agent["carried"] = (agents, steps)
    for name, shape in (by_agent | by_step).items():
        values = np.asarray(getattr(episode, name))
        if values.shape != shape:
            raise UserError(f"the episode's {name} must have the shape {shape}, got {values.shape}")
        wrong = ~np.isfinite(values)
        if name in by_agent and episode.present is not None:
            wrong[~np.asarray(episode.present)] = False
        if wrong.any():
            row = np.argwhere(wrong)[0].tolist()
            where = f"agent {row[0]}, step {row[1]}" if name in by_agent else f"row {row[0]}"
            raise UserError(
                f"the episode's {name} hold NaN or infinity at {where}; leave the episode out or "
                "repair it before it is told"
            )
    total = np.asarray(episode.mass, dtype=float).sum(axis=1)
    if np.abs(total - 1).max() > MASS_TOLERANCE or np.asarray(episode.mass).min() < 0:
        raise UserError(
            "every distribution of the episode must be non-negative and sum to 1; the sums run "
            f"from {total.min():.6g} to {total.max():.6g}"
        )


def _rows(values: Array) -> Float[np.ndarray, "rows size"]:
    array = np.asarray(values, dtype=float)
    return array.reshape(-1, array.shape[-1])
