"""Flows for the page: distributions on a line, a plane or nodes, mean actions, as short texts."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..flow.flow import Flow
from ..io.policies import load_policy
from ..problem import Problem
from ..space.nodes import Nodes

Masses = Float[np.ndarray, "steps_and_end cells"]

MOST_BYTES = 3_000_000
"""What the flows of a run may take in a page."""


@dataclass(frozen=True, eq=False)
class Scene:
    """How the flows of a run's problem are drawn."""

    problem: Problem

    @property
    def has_arrows(self) -> bool:
        """Whether actions are directions in the space, which nodes do not have."""
        return not self.problem.on_nodes and self.problem.actions.dim == self.problem.grid.dim

    @cached_property
    def _flow(self) -> Flow:
        return Flow(self.problem)

    def document(self) -> dict[str, Any]:
        """The space, for the page."""
        grid = self.problem.grid
        return {
            "dim": grid.dim,
            "shape": list(grid.shape),
            "lower": list(grid.lower),
            "upper": list(grid.upper),
            # One digit for each cell, in row-major order.
            "walls": "".join("1" if wall else "0" for wall in grid.walls.reshape(-1)),
            "names": list(grid.names) if isinstance(grid, Nodes) else None,
            "horizon": self.problem.horizon,
            "arrows": self.has_arrows,
        }

    def episode(
        self, masses: Masses, policy: Path, shocks: np.ndarray | None = None
    ) -> dict[str, Any]:
        """The flow of one episode, for the page; ``shocks`` are the numbers of its shocks."""
        found: dict[str, Any] = {"mass": encode_masses(masses)}
        # Arrows have full length from this share of the farthest action on, or else the mean
        # actions of a random policy, mere rounding errors, would be drawn as long arrows.
        shortest_unit = 0.1
        if self.has_arrows:
            space, dtype = self.problem.actions, self.problem.initial.dtype
            profile, mass = load_policy(policy, dtype=dtype.name), jnp.asarray(masses, dtype=dtype)
            actions = np.asarray(_mean_actions(self._flow, profile, mass, shocks), dtype=float)
            farthest = max(abs(a) for a in (*space.lower, *space.upper))
            longest = float(np.linalg.norm(actions, axis=-1).max(initial=0.0))
            found["actions"] = encode_actions(actions)
            found["unit"] = max(longest, shortest_unit * farthest)
        return found

    @property
    def bytes_of_flow(self) -> int:
        """Two for each mass, and one for each axis of an action."""
        cell = 2 + (self.problem.grid.dim if self.has_arrows else 0)
        return cell * self.problem.grid.n_cells * (self.problem.horizon + 1)


# Compiled once for all episodes of a run.
_mean_actions: Any = eqx.filter_jit(Flow.mean_actions)


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


def that_fit(values: Sequence[float], bytes_of_flow: int) -> tuple[int, ...]:
    """Numbers of the episodes whose flows fit into `MOST_BYTES`, given the J of each.

    If not all do, some from the first to the last, the best one among them.
    """
    count, room = len(values), MOST_BYTES // bytes_of_flow
    if room >= count:
        return tuple(range(1, count + 1))
    best = values.index(max(values)) + 1
    spread = np.linspace(1, count, max(room - 1, 0)).round().astype(int)
    return tuple(sorted({best, *spread.tolist()})) if room else ()
