"""Flows for the page: distributions and mean actions on a line or a plane, encoded as short texts,
and a choice of those that a file has room for.
"""

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import _types
from ..flow.flow import Flow
from ..io.policies import load_policy
from ..problem import Problem
from ..space.grid import Grid
from ..space.measure import at_all_cells

Masses = Float[np.ndarray, "steps_and_end cells"]


@dataclass(frozen=True, eq=False)
class Scene:
    """How the flows of a run's problem are drawn."""

    problem: Problem

    @cached_property
    def grid(self) -> Grid:
        """The line or plane that is drawn; three dimensions are seen from above."""
        whole = self.problem.grid
        if whole.dim < 3:
            return whole
        return Grid.box(
            whole.lower[:2],
            whole.upper[:2],
            whole.shape[:2],
            periodic=whole.periodic[:2],
            walls=np.all(whole.walls, axis=2),
        )

    @property
    def has_arrows(self) -> bool:
        """Whether actions are directions in the space."""
        return self.problem.actions.dim == self.problem.grid.dim

    @cached_property
    def _flow(self) -> Flow:
        return Flow(self.problem)

    def document(self) -> dict[str, Any]:
        """The space, for the page."""
        grid = self.grid
        return {
            "dim": grid.dim,
            "shape": list(grid.shape),
            "lower": list(grid.lower),
            "upper": list(grid.upper),
            # One digit for each cell, in row-major order.
            "walls": "".join("1" if wall else "0" for wall in grid.walls.reshape(-1)),
            "seen_from_above": self.problem.grid.dim == 3,
            "horizon": self.problem.horizon,
            "arrows": self.has_arrows,
            "pay": self._pay,
        }

    @cached_property
    def _pay(self) -> dict[str, Any] | None:
        """What is wanted where: pay in each cell, encoded, at every step or once for all.

        It is the reward of an agent at rest while all are spread evenly, above that of the poorest
        cell. None if the reward is hidden, or no place pays more than others then, as where agents
        only avoid each other.
        """
        problem = self.problem
        if problem.hides_reward:
            return None
        even = jnp.full_like(problem.initial, 1.0 / problem.grid.n_cells)
        rest = jnp.asarray(problem.actions.rest, dtype=even.dtype)
        acting = jnp.broadcast_to(rest, (*even.shape, 1, *rest.shape))
        steps = jnp.append(problem.steps, problem.horizon - (not problem.pay_end))
        reward = partial(at_all_cells, problem.grid, even, problem.reward, acting)
        found = np.asarray(eqx.filter_jit(jax.vmap(reward))(steps)[..., 0], dtype=float)
        pay = self._seen(found) / self._seen(np.ones((1, problem.grid.n_cells)))
        pay = pay - pay.min(axis=1, keepdims=True)
        if np.array_equal(pay, np.broadcast_to(pay[:1], pay.shape)):
            pay = pay[:1]
        # Differences of the reward that are smaller than 1e-4 of it are rounding errors.
        if not (np.isfinite(pay).all() and pay.max() > 1e-4 * np.abs(found).max()):
            return None
        return encode_masses(pay) if 2 * pay.size < Selection.most_bytes // 10 else None

    def episode(self, masses: Masses, policy: Path, stride: int = 1) -> dict[str, Any]:
        """The flow of one episode, for the page: every ``stride``-th step, and the last."""
        last = len(masses) - 1
        steps = sorted({*range(0, last + 1, stride), last})
        found: dict[str, Any] = {"steps": steps, "mass": encode_masses(self._seen(masses[steps]))}
        # Arrows have full length from this share of the farthest action on, or else the mean
        # actions of a random policy, mere rounding errors, would be drawn as long arrows.
        shortest_unit = 0.1
        if self.has_arrows:
            actions = self._actions(masses, policy)[steps[:-1]]
            space = self.problem.actions
            farthest = max(abs(a) for a in (*space.lower, *space.upper))
            longest = float(np.linalg.norm(actions, axis=-1).max(initial=0.0))
            found["actions"] = encode_actions(actions)
            found["unit"] = max(longest, shortest_unit * farthest)
        return found

    def selection(self, values: Sequence[float]) -> "Selection":
        """Which flows fit into a file, given J of each episode."""
        # Two bytes for each mass, and one for each axis of an action.
        cell = 2 + (self.grid.dim if self.has_arrows else 0)
        return select(values, self.problem.horizon, self.grid.n_cells * cell)

    def _seen(self, values: Float[np.ndarray, "steps cells"]) -> Float[np.ndarray, "steps shown"]:
        """Sums values over the third axis, if there is one."""
        whole = self.problem.grid
        if whole.dim < 3:
            return values
        return self.grid.from_array(whole.to_array(values, fill=0.0).sum(axis=-1))

    def _actions(self, masses: Masses, policy: Path) -> Float[np.ndarray, "steps shown axes"]:
        """Mean actions in the cells that are drawn."""
        dtype = self.problem.initial.dtype
        profile = load_policy(policy, dtype=dtype.name)
        mass = jnp.asarray(masses, dtype=dtype)
        actions = np.asarray(_mean_actions(self._flow, profile, mass), dtype=float)
        if self.problem.grid.dim < 3:
            return actions
        weight = masses[:-1] + 1e-12  # in empty columns all cells count alike
        weighted = [self._seen(weight * actions[..., axis]) for axis in range(2)]
        return np.asarray(np.stack(weighted, axis=-1) / self._seen(weight)[..., None])


@eqx.filter_jit
def _mean_actions(
    flow: Flow, policy: Any, mass: _types.Masses
) -> Float[Array, "steps cells action_dim"]:
    """Compiled once for all episodes of a run."""
    return flow.mean_actions(policy, mass)


def encode_masses(masses: Float[np.ndarray, "steps cells"]) -> dict[str, Any]:
    """Masses as unsigned 16-bit codes of their square roots.

    At first everybody may be in one cell, later each cell may hold a thousandth. Thanks to the
    roots, the latter keep an accuracy of better than one percent.
    """
    largest = float(masses.max(initial=0.0)) or 1.0
    roots = np.sqrt(np.clip(masses, 0.0, None) / largest)
    return {"scale": largest, "codes": _text(np.round(65535 * roots).astype("<u2"))}


def encode_actions(actions: Float[np.ndarray, "steps cells axes"]) -> dict[str, Any]:
    """Mean actions as signed 8-bit codes: arrows show no more than a percent."""
    largest = float(np.abs(actions).max(initial=0.0)) or 1.0
    return {"scale": largest, "codes": _text(np.round(127 * actions / largest).astype("i1"))}


def _text(codes: np.ndarray) -> str:
    return base64.b64encode(codes.tobytes()).decode("ascii")


@dataclass(frozen=True)
class Selection:
    """The flows of a run that a file holds: all, unless the file would be too large.

    Attributes:
        episodes: Numbers of the episodes.
        stride: Distance of the steps that are kept.
        note: Says what is left out; empty if nothing is.
    """

    episodes: tuple[int, ...] = ()
    stride: int = 1
    note: str = ""

    most_bytes: ClassVar[int] = 3_000_000
    """What the flows of a run may take in a page."""


def select(values: Sequence[float], horizon: int, bytes_of_step: int) -> Selection:
    """Chooses episodes and steps that fit into `Selection.most_bytes`, with that of the best J."""
    count = len(values)
    if count == 0:
        return Selection()
    room = max(Selection.most_bytes // bytes_of_step, 2)
    # Episodes are left out rather than keeping fewer than 11 steps of each.
    steps = min(horizon + 1, max(room // count, 11), room)
    stride = math.ceil(horizon / max(steps - 1, 1))
    kept = min(count, max(1, room // (math.ceil(horizon / stride) + 1)))
    parts = [f"{kept} of {count} episodes"] if kept < count else []
    parts += [f"one of {stride} steps"] if stride > 1 else []
    note = f"To keep the file small, it shows {' and '.join(parts)}; mufield watch shows all."
    return Selection(_spread(values, kept), stride, note if parts else "")


def _spread(values: Sequence[float], kept: int) -> tuple[int, ...]:
    """Chooses ``kept`` episodes from the first to the last, the best one among them."""
    count = len(values)
    if kept >= count:
        return tuple(range(1, count + 1))
    best = values.index(max(values)) + 1
    others = max(kept - 1, 1)
    spread = {count - round(i * (count - 1) / max(others - 1, 1)) for i in range(others)}
    return tuple(sorted({best, *spread} if kept > 1 else {best}))
