"""What in an observed episode cannot be, or hardly: notes in words, as only its owner can judge."""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from ..learning.best_episode import share_beyond_chance
from ..models.rows import stopped_axes
from ..problem import Problem


def notes_on_start(
    planned: Float[np.ndarray, "cells"] | None,
    observed: Float[np.ndarray, "cells"],
    agents: int | None,
) -> list[str]:
    """Notes on a population that starts elsewhere than planned; ``agents`` is None if all count."""
    if planned is None or not np.isfinite(planned).all():  # nothing was planned
        return []
    remedy = "plan from where agents are with `mufield ask --start`"
    nowhere = float(observed[planned <= 0].sum())
    if nowhere > 0:
        return [f"{nowhere:.1%} of the population started where the plan expected nobody; {remedy}"]
    apart = share_beyond_chance(planned, observed, agents)
    if apart is None:
        return []
    return [f"{apart:.0%} of the population started elsewhere than the plan expected; {remedy}"]


def notes_on_mass(
    histograms: Float[np.ndarray, "moments cells"], mass: Float[np.ndarray, "moments cells"]
) -> list[str]:
    """Notes on agents where the file of masses says that nobody is."""
    lost = np.where(mass <= 0, histograms, 0.0).sum(axis=1)
    if not lost.any():
        return []
    step = int(np.argmax(lost))
    return [
        f"at step {step} {lost[step]:.1%} of the agents are in cells that are empty by the file of "
        "masses; check that the two are of the same episode, and the order of the axes"
    ]


def notes_on_stops(
    problem: Problem, start: Any, end: Any, stopped: Bool[np.ndarray, "rows dim"]
) -> list[str]:
    """Notes on moves that are said to have been stopped in the open, or not to have been at walls.

    Only axes count on which a move ended in contact, or did not.
    """
    touching = stopped_axes(problem, start, end)
    open_, missed = int((stopped & ~touching).sum()), int((touching & ~stopped).sum())
    notes = []
    if open_:
        notes.append(
            f"{open_:,} of {int(stopped.sum()):,} stops by the columns stopped_0, ... are not in "
            "contact with a wall or border, so nothing is learned from these moves; check them, or "
            "leave the columns out"
        )
    if missed:
        notes.append(
            f"{missed:,} of {int(touching.sum()):,} moves that ended in contact with a wall or "
            "border were not stopped by the columns stopped_0, ...; if they were, the model "
            "believes that agents move less than they do"
        )
    return notes


def notes_on_rewards(
    known: Float[np.ndarray, "steps"], paid: Float[np.ndarray, "steps"]
) -> list[str]:
    """Notes on rewards of the file that are not those of the problem's known reward."""
    off = np.abs(paid - known)
    # Differences of a tenth of the largest known reward are noted.
    if not (off > 0.1 * np.abs(known).max() + 1e-6).any():
        return []
    step = int(np.argmax(off))
    return [
        f"the file's rewards are not what the problem's reward pays: at step {step} the mean is "
        f"{paid[step]:.6g}, expected {known[step]:.6g}; plans still use the problem's, so correct "
        "it, or hide it with reward=None, if the file is right, or leave the column out"
    ]
