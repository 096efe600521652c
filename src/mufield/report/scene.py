"""What of an episode is drawn: distributions and mean actions on a line or a plane."""

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
from .arrays import BYTES_OF_ACTION, BYTES_OF_MASS, encode_actions, encode_masses

SHORTEST_UNIT = 0.1
"""Share of the farthest action below which the longest arrow is not drawn at full length: those of
a random policy are only rounding."""

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

    @property
    def bytes_of_step(self) -> int:
        """What a step of an episode takes."""
        actions = self.grid.dim * BYTES_OF_ACTION if self.has_arrows else 0
        return self.grid.n_cells * (BYTES_OF_MASS + actions)

    @cached_property
    def _flow(self) -> Flow:
        return Flow(self.problem)

    @cached_property
    def _farthest(self) -> float:
        actions = self.problem.actions
        return max(abs(a) for a in (*actions.lower, *actions.upper))

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
            acting = [step for step in steps if step < self.problem.horizon]
            actions = self._actions(masses, policy)[acting]
            longest = float(np.linalg.norm(actions, axis=-1).max(initial=0.0))
            found["actions"] = encode_actions(actions)
            found["unit"] = max(longest, SHORTEST_UNIT * self._farthest)
        return found

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
