"""What of an episode is drawn: distributions and mean actions on a line or a plane, as short texts
that a browser decodes quickly, and which of them a file can hold.
"""

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import _types
from ..flow.flow import Flow
from ..policies.files import load_policy
from ..problem import Problem
from ..space.grid import Grid

SHORTEST_UNIT = 0.1
"""Share of the farthest action below which the longest arrow is not drawn at full length: those of
a random policy are only rounding."""

MOST_BYTES = 3_000_000
"""Of one run's flows in a file; as text they take a third more."""

FEWEST_STEPS = 11
"""Steps of an episode below which rather fewer episodes are kept."""

Masses = Float[np.ndarray, "steps_and_end cells"]


@dataclass(frozen=True, eq=False)
class Scene:
    """The stage on which the flows of a run are drawn.

    Attributes:
        problem: What the run is about.
    """

    problem: Problem

    @cached_property
    def grid(self) -> Grid:
        """The line or plane that is drawn; a space is seen from above."""
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
        }

    def episode(self, masses: Masses, policy: Path, stride: int = 1) -> dict[str, Any]:
        """The flow of one episode, for the page.

        Args:
            masses: The distributions mu_0, ..., mu_H.
            policy: File of the policy that was run.
            stride: Only every so many steps are kept, and the last.
        """
        last = len(masses) - 1
        steps = sorted({*range(0, last + 1, stride), last})
        found: dict[str, Any] = {"steps": steps, "mass": encode_masses(self._seen(masses[steps]))}
        if self.has_arrows:
            actions = self._actions(masses, policy)[steps[:-1]]
            space = self.problem.actions
            farthest = max(abs(a) for a in (*space.lower, *space.upper))
            longest = float(np.linalg.norm(actions, axis=-1).max(initial=0.0))
            found["actions"] = encode_actions(actions)
            found["unit"] = max(longest, SHORTEST_UNIT * farthest)
        return found

    def selection(self, values: Sequence[float]) -> "Selection":
        """Which flows fit into a file, given J of each episode."""
        # Two bytes for each mass, and one for each axis of an action.
        cell = 2 + (self.grid.dim if self.has_arrows else 0)
        return select(values, self.problem.horizon, self.grid.n_cells * cell)

    def _seen(self, values: Float[np.ndarray, "steps cells"]) -> Float[np.ndarray, "steps shown"]:
        """Sums over the third axis, if there is one."""
        whole = self.problem.grid
        if whole.dim < 3:
            return values
        return self.grid.from_array(whole.to_array(values, fill=0.0).sum(axis=-1))

    def _actions(self, masses: Masses, policy: Path) -> Float[np.ndarray, "steps shown axes"]:
        """Mean actions of those in the cells that are drawn."""
        dtype = self.problem.initial.dtype
        profile = load_policy(policy, dtype=dtype.name)
        mass = jnp.asarray(masses, dtype=dtype)
        actions = np.asarray(_mean_actions(self._flow, profile, mass), dtype=float)
        if self.problem.grid.dim < 3:
            return actions
        weight = masses[:-1] + 1e-12  # where nobody is, all floors count alike
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

    At first everybody may be in one cell, later each cell has a thousandth. Roots keep the latter
    to better than one percent.
    """
    largest = float(masses.max(initial=0.0)) or 1.0
    roots = np.sqrt(np.clip(masses, 0.0, None) / largest)
    return {"scale": largest, "codes": _text(np.round(65535 * roots).astype("<u2"))}


def encode_actions(actions: Float[np.ndarray, "steps cells axes"]) -> dict[str, Any]:
    """Mean actions as signed 8-bit codes: a percent is all that an arrow can show."""
    largest = float(np.abs(actions).max(initial=0.0)) or 1.0
    return {"scale": largest, "codes": _text(np.round(127 * actions / largest).astype("i1"))}


def _text(codes: np.ndarray) -> str:
    return base64.b64encode(codes.tobytes()).decode("ascii")


@dataclass(frozen=True)
class Selection:
    """The flows of a run that a file holds: all, unless the space is so large that it would be too.

    Attributes:
        episodes: Numbers of the episodes.
        stride: Every so many of their steps.
        note: What people should know of it; empty if all is kept.
    """

    episodes: tuple[int, ...] = ()
    stride: int = 1
    note: str = ""


def select(values: Sequence[float], horizon: int, bytes_of_step: int) -> Selection:
    """Chooses episodes and steps that fit.

    Args:
        values: J of each episode; the best one is kept in any case.
        horizon: Number of moves.
        bytes_of_step: What a step of an episode takes.
    """
    count = len(values)
    if count == 0:
        return Selection()
    room = max(MOST_BYTES // bytes_of_step, 2)
    steps = min(horizon + 1, max(room // count, FEWEST_STEPS), room)
    stride = math.ceil(horizon / max(steps - 1, 1))
    kept = min(count, max(1, room // (math.ceil(horizon / stride) + 1)))
    parts = [f"{kept} of {count} episodes"] if kept < count else []
    parts += [f"one of {stride} steps"] if stride > 1 else []
    note = f"To keep the file small, it shows {' and '.join(parts)}; mufield watch shows all."
    return Selection(_spread(values, kept), stride, note if parts else "")


def _spread(values: Sequence[float], kept: int) -> tuple[int, ...]:
    """Numbers of episodes from the first to the last, the best one among them."""
    count = len(values)
    if kept >= count:
        return tuple(range(1, count + 1))
    best = values.index(max(values)) + 1
    others = max(kept - 1, 1)
    spread = {count - round(i * (count - 1) / max(others - 1, 1)) for i in range(others)}
    return tuple(sorted({best, *spread} if kept > 1 else {best}))
