"""What the population did in one episode of a run, as pictures and as a film."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from matplotlib.figure import Figure

from ..flow.flow import Flow
from ..policies.files import load_policy
from ..problem import Problem
from ..runs.layout import RunFiles
from .animate import animate_flow
from .fields import field_figure
from .flows import Arrows, Masses


@dataclass(frozen=True, eq=False)
class RunFlow:
    """One episode of a run.

    Attributes:
        problem: What the run is about.
        title: Names the episode.
        masses: The population's distributions mu_0, ..., mu_H.
        arrows: Mean actions in the cells at each step, where they can be drawn.
    """

    problem: Problem
    title: str
    masses: Masses
    arrows: Arrows | None


def run_flow(run: RunFiles, problem: Problem, episode: int) -> RunFlow:
    """Reads an episode and the policy that was run.

    Args:
        run: The run.
        problem: What it is about.
        episode: Number of the episode, from 1.
    """
    record = run.records[episode - 1]
    value = record.row["value"]
    mass = jnp.asarray(record.arrays["mass"])
    return RunFlow(
        problem=problem,
        title=f"{run.config.environment}, episode {episode}, J = {value:.4g}",
        masses=mass,
        arrows=_arrows(problem, run.path("policies", episode), mass),
    )


def flow_figure(flow: RunFlow) -> Figure:
    """Draws the distributions at the beginning, on the way and at the end."""
    horizon = len(flow.masses) - 1
    steps = list(dict.fromkeys((0, horizon // 4, horizon // 2, horizon)))
    titles = [f"h = {step} of {horizon}" for step in steps]
    grid = flow.problem.grid
    figure = field_figure(grid, flow.masses, steps, arrows=flow.arrows, titles=titles)
    figure.suptitle(flow.title)
    return figure


def animate_run(path: Path, flow: RunFlow, progress: Callable[[int, int], None]) -> Path:
    """Writes the episode as a film; returns the file that was written.

    Args:
        path: Where to write, ``.mp4`` or ``.gif``.
        flow: The episode.
        progress: Called after each frame with the number of frames done and of all frames.
    """
    horizon = len(flow.masses) - 1
    titles = [f"{flow.title}\nh = {step} of {horizon}" for step in range(horizon + 1)]
    grid = flow.problem.grid
    return animate_flow(
        path, grid, flow.masses, arrows=flow.arrows, titles=titles, progress=progress
    )


def _arrows(
    problem: Problem, policy: Path, mass: Float[Array, "steps_and_end cells"]
) -> Float[np.ndarray, "steps cells 2"] | None:
    """Mean actions; none on lines, and where actions are no directions in the plane."""
    if problem.grid.dim != 2 or problem.actions.dim != 2:
        return None
    return np.asarray(Flow(problem).mean_actions(load_policy(policy), mass))
