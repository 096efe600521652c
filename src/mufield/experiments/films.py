"""Films of the four rooms, under the names of the paper's supplementary material."""

import os
from collections.abc import Sequence
from pathlib import Path

from .. import viz
from . import tasks
from .planned import planned_policy
from .results import Drawn, Results
from .rooms import CLASSES, best_episodes, learned_episode
from .shown import Shown, show

FIRST_EPISODES = 10
"""Episodes that are filmed one by one."""


def film_known(results: Results) -> Drawn:
    """The plan with known motion."""
    job = tasks.known_rooms(results.budget, "network")
    shown = show(job.settings, planned_policy(results.jobs.path(job)))
    flows = {f"known motion, J = {shown.value:.2f}": shown}
    return Drawn((_film(results, "known_dynamics_animation", flows),))


def film_learned(results: Results) -> Drawn:
    """The first ten episodes and the best of seed 0, both classes side by side."""
    files = []
    for episode in range(1, FIRST_EPISODES + 1):
        flows = _episode(results, episode)
        if flows:
            files.append(_film(results, f"m3_ucrl_animation_episode_{episode}", flows))
    best = {f"{name}\nJ = {one.value:.2f}": one for name, one in best_episodes(results).items()}
    files.append(_film(results, "m3_ucrl_animation_best", best))
    return Drawn(tuple(files))


def _episode(results: Results, episode: int) -> dict[str, Shown]:
    """An episode of the runs that have so many."""
    flows = {}
    for planner, name in CLASSES.items():
        job = tasks.rooms_runs(results.budget, planner)[0]
        if episode <= job.settings["episodes"]:
            shown = learned_episode(results, job, episode)
            flows[f"{name}\nepisode {episode}, J = {shown.value:.2f}"] = shown
    return flows


def _film(results: Results, name: str, shown: dict[str, Shown]) -> Path:
    flows: Sequence[viz.NamedFlow] = [
        viz.NamedFlow(title, one.mass, one.arrows) for title, one in shown.items()
    ]
    first = next(iter(shown.values()))
    horizon = first.profile.horizon
    directory = results.out / "films"
    # Under another name until it is whole.
    written = viz.animate_flow(
        directory / f".part-{name}.mp4",
        first.grid,
        flows,
        titles=[results.heading(f"h = {step} of {horizon}") for step in range(horizon + 1)],
    )
    film = directory / f"{name}{written.suffix}"
    os.replace(written, film)
    return film
