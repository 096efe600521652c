"""The transitions that a learner has seen, D_1:t."""

from collections.abc import Iterable
from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..episode import Episode
from ..errors import UserError
from ..problem import Problem
from ..space.measure import MASS_TOLERANCE

SMALLEST_BUFFER = 256
"""Rows of the smallest buffer; larger ones double, so that programs are rarely compiled anew."""

AT_FACE = 0.25
"""Farthest that a stopped agent may be from the face of a cell that stopped it, in cells."""

AT_REST = 1e-4
"""Moves up to this size have no direction, in cells."""


class Transitions(eqx.Module):
    """Observed moves of tracked agents, in double precision on the host.

    Attributes:
        problem: The problem that they were observed in.
        states: Where agents were.
        actions: What they did.
        next_states: Where they came to rest.
        observed: Axes on which no wall stopped them; on the others the displacement is censored:
            it must not be learned as motion, but tells that the agent wanted to go farther.
        mass: Distributions of the population at the moments of the moves.
        moment: Row of ``mass`` for each move.
        earned: What agents were paid for each move, if the problem's reward is hidden.
        target: What a model is to be fitted to: ``"motion"``, where agents went, or ``"reward"``,
            what they earned.
    """

    problem: Problem
    states: Float[np.ndarray, "rows dim"]
    actions: Float[np.ndarray, "rows action_dim"]
    next_states: Float[np.ndarray, "rows dim"]
    observed: Bool[np.ndarray, "rows dim"]
    mass: Float[np.ndarray, "moments cells"]
    moment: Int[np.ndarray, "rows"]
    earned: Float[np.ndarray, "rows"] | None = None
    target: str = eqx.field(static=True, default="motion")

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
            earned=np.zeros(0) if problem.hides_reward else None,
        )

    @classmethod
    def of(cls, problem: Problem, episodes: Iterable[Episode]) -> "Transitions":
        """The transitions of several episodes."""
        data = cls.empty(problem)
        for episode in episodes:
            data = data.append(episode)
        return data

    def __len__(self) -> int:
        return int(self.states.shape[0])

    def append(self, episode: Episode) -> "Transitions":
        """These transitions and those of one more episode; raises if it cannot be right."""
        problem = self.problem
        check_episode(problem, episode)
        agents, steps = episode.states.shape[:2]
        moments = np.tile(np.arange(steps), agents) + len(self.mass)
        earned = self.earned
        if earned is not None:
            earned = np.concatenate([earned, np.asarray(episode.earned, dtype=float).reshape(-1)])
        return replace(
            self,
            states=np.concatenate([self.states, _rows(episode.states)]),
            actions=np.concatenate([self.actions, _rows(episode.actions)]),
            next_states=np.concatenate([self.next_states, _rows(episode.next_states)]),
            observed=np.concatenate(
                [self.observed, ~np.asarray(episode.stopped).reshape(-1, problem.grid.dim)]
            ),
            mass=np.concatenate([self.mass, np.asarray(episode.mass[:-1], dtype=float)]),
            moment=np.concatenate([self.moment, moments]),
            earned=earned,
        )

    def rows(self, chosen: Bool[np.ndarray, "rows"] | Int[np.ndarray, "some"]) -> "Transitions":
        """Some of the transitions."""
        return replace(
            self,
            states=self.states[chosen],
            actions=self.actions[chosen],
            next_states=self.next_states[chosen],
            observed=self.observed[chosen],
            moment=self.moment[chosen],
            earned=None if self.earned is None else self.earned[chosen],
        )

    def first(self, count: int) -> "Transitions":
        """The first transitions."""
        return self.rows(np.arange(count))

    def of_rewards(self) -> "Transitions":
        """The same transitions, to fit a model of what they earned to; raises if that is known."""
        if self.earned is None:
            raise UserError(
                "the problem's reward is known, so there is no model of it to fit; hide it with "
                "Problem(reward=None) if it has to be learned"
            )
        return replace(self, target="reward")

    @property
    def told(self) -> Bool[np.ndarray, "rows outputs"]:
        """Which of the target's numbers were observed: a wall censors moves, but not rewards."""
        if self.target == "motion":
            return np.asarray(self.observed)
        return np.ones((len(self), 1), dtype=bool)

    @property
    def side(self) -> Int[np.ndarray, "rows dim"]:
        """Where a wall stopped an agent, the direction it was stopped in, 1 or -1; else 0.

        It is the direction of the move, or for an agent that stood at the wall already, the side
        of its cell that it stands at. Zero also where it stands at none, as in the discrete
        rooms: nothing is known then.
        """
        grid = self.problem.grid
        size, extent = np.asarray(grid.cell_size), np.asarray(grid.extent)
        moved = self.next_states - self.states
        moved = moved - np.asarray(grid.periodic) * extent * np.round(moved / extent)
        place = (self.next_states - np.asarray(grid.lower)) / size
        # The upper border belongs to the last cell.
        inside = place - np.minimum(np.floor(place), np.asarray(grid.shape) - 1)
        at_face = (inside > 1.0 - AT_FACE).astype(int) - (inside < AT_FACE).astype(int)
        towards = np.where(np.abs(moved) > AT_REST * size, np.sign(moved).astype(int), at_face)
        return np.where(self.observed | (at_face == 0), 0, towards)

    @property
    def padded_shape(self) -> tuple[int, int]:
        """Sizes of the buffers: of transitions, and of distributions."""
        return buffer_size(len(self)), buffer_size(len(self.mass))

    def padded(self) -> "PaddedTransitions":
        """The transitions in buffers whose sizes double as the data grow."""
        rows, moments = self.padded_shape
        problem = self.problem
        dtype = problem.initial.dtype
        # Rows that hold nothing get a legal state, so that features stay finite.
        corner = problem.grid.centres[0]
        rest = np.asarray(problem.actions.rest)
        even = np.full(problem.grid.n_cells, 1.0 / problem.grid.n_cells)

        def fill(values: np.ndarray, filler: np.ndarray, size: int) -> Array:
            missing = np.broadcast_to(filler, (size - len(values), *values.shape[1:]))
            return jnp.asarray(np.concatenate([values, missing]), dtype=dtype)

        observed = np.zeros((rows, problem.grid.dim), dtype=bool)
        observed[: len(self)] = self.observed
        side = np.zeros((rows, problem.grid.dim), dtype=np.int32)
        side[: len(self)] = self.side
        moment = np.zeros(rows, dtype=np.int32)
        moment[: len(self)] = self.moment
        return PaddedTransitions(
            states=fill(self.states, corner, rows),
            actions=fill(self.actions, rest, rows),
            next_states=fill(self.next_states, corner, rows),
            observed=jnp.asarray(observed),
            side=jnp.asarray(side),
            mass=fill(self.mass, even, moments),
            moment=jnp.asarray(moment),
            earned=None if self.earned is None else fill(self.earned, np.zeros(()), rows),
            count=jnp.asarray(len(self), dtype=jnp.int32),
        )


class PaddedTransitions(eqx.Module):
    """Transitions in arrays of a size that rarely changes; the first ``count`` rows are real."""

    states: Float[Array, "rows dim"]
    actions: Float[Array, "rows action_dim"]
    next_states: Float[Array, "rows dim"]
    observed: Bool[Array, "rows dim"]
    side: Int[Array, "rows dim"]
    mass: Float[Array, "moments cells"]
    moment: Int[Array, "rows"]
    earned: Float[Array, "rows"] | None
    count: Int[Array, ""]


def buffer_size(count: int, smallest: int = SMALLEST_BUFFER) -> int:
    """The smallest buffer, doubled until ``count`` rows fit."""
    size = smallest
    while size < count:
        size *= 2
    return size


def check_episode(problem: Problem, episode: Episode) -> None:
    """Raises if an episode cannot come from the problem, or names the row that is not finite."""
    grid = problem.grid
    agents, steps = episode.states.shape[:2]
    wanted = {
        "states": (agents, steps, grid.dim),
        "actions": (agents, steps, problem.actions.dim),
        "next_states": (agents, steps, grid.dim),
        "stopped": (agents, steps, grid.dim),
        "mass": (problem.horizon + 1, grid.n_cells),
        "rewards": (problem.paid_steps,),
    }
    if problem.hides_reward:
        wanted["earned"] = (agents, steps)
        if episode.earned is None:
            raise UserError(
                "the problem's reward is hidden, but the episode does not say what agents were "
                "paid; give it earned, one number for each agent and step"
            )
    if steps != problem.horizon:
        raise UserError(
            f"the episode has {steps} steps, but the problem's horizon is {problem.horizon}; tell "
            "episodes of this problem only"
        )
    for name, shape in wanted.items():
        values = np.asarray(getattr(episode, name))
        if values.shape != shape:
            raise UserError(f"the episode's {name} must have the shape {shape}, got {values.shape}")
        if not np.isfinite(values).all():
            row = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
            where = (
                f"agent {row[0]}, step {row[1]}"
                if name in ("states", "actions", "next_states", "earned")
                else f"row {row[0]}"
            )
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
