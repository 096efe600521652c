"""The flows that one picture shows, with their names and arrows."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Array, Float

from ..errors import UserError
from ..space.grid import Grid

Masses = Float[Array | np.ndarray, "steps_and_end cells"]
Arrows = Float[Array | np.ndarray, "steps cells action_dim"]


@dataclass(frozen=True, eq=False)
class NamedFlow:
    """One flow of a picture.

    Attributes:
        title: Title of its panels.
        masses: The distributions mu_0, ..., mu_H.
        arrows: Mean actions in the cells at each step. There may be fewer steps than
            distributions: at the end of an episode nobody acts.
    """

    title: str
    masses: Masses
    arrows: Arrows | None = None

    def arrows_at(self, step: int) -> Float[np.ndarray, "cells action_dim"] | None:
        """The arrows of one step, if it has any."""
        if self.arrows is None or step >= len(self.arrows):
            return None
        return np.asarray(self.arrows[step])


def as_flows(
    grid: Grid, flows: Masses | Sequence[NamedFlow], arrows: Arrows | None
) -> tuple[NamedFlow, ...]:
    """Checks the flows of a picture; masses alone become a flow without a title."""
    if isinstance(flows, Sequence):
        if arrows is not None:
            raise UserError("several flows bring their own arrows: put them into each NamedFlow")
        named = tuple(flows)
    else:
        named = (NamedFlow("", flows, arrows),)
    if not named:
        raise UserError("expected at least one flow to draw, got an empty sequence")
    for flow in named:
        shape = np.shape(flow.masses)
        if len(shape) != 2 or shape[0] == 0 or shape[1] != grid.n_cells:
            raise UserError(
                "masses must have the shape (steps, cells) with at least one step and "
                f"{grid.n_cells} free cells, got {shape}"
            )
    if any(len(first.masses) != len(second.masses) for first, second in pairwise(named)):
        lengths = {flow.title: len(flow.masses) for flow in named}
        raise UserError(f"flows in one picture share their steps, but their lengths are {lengths}")
    return named


def longest_arrow(flows: Sequence[NamedFlow]) -> float | None:
    """Length of the longest arrow, so that all panels and steps have one scale."""
    arrows = [np.asarray(flow.arrows) for flow in flows if flow.arrows is not None]
    lengths = [float(np.linalg.norm(a, axis=-1).max()) for a in arrows if a.size]
    return max(lengths, default=None)
