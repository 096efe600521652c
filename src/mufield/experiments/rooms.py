"""Figures of the four rooms: start, known motion, learning curve and what was learned."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .. import viz
from ..policies.tables import random_policy
from ..space.measure import entropy
from . import paper, tasks
from .jobs import Job
from .learned import episode_policy
from .planned import planned_policy
from .results import Drawn, Results
from .shown import Shown, show, system_of

CLASSES = {"mirror": "randomised policies", "network": "networks, the paper's class"}
NEAR = 3.0
"""How far below the paper's value the second panel of the learning curve begins."""


def draw_start(results: Results) -> Drawn:
    """The initial distribution, and the end under the uniform random policy."""
    job = tasks.random_rooms(results.budget)
    shown = show(job.settings, random_policy(system_of(job.settings).problem))
    horizon = len(shown.mass) - 1
    end = float(entropy(shown.mass[-1]))
    titles = [
        "h = 0, every episode",
        f"h = {horizon}, random policy: entropy {end:.2f} of {_most(shown):.2f}",
    ]
    figure = viz.field_figure(shown.grid, shown.mass, (0, horizon), titles=titles)
    figure.suptitle(results.heading("Four rooms: initial distribution and random policy"))
    return Drawn(results.save(figure, "start"), {"end_entropy": end})


def draw_known(results: Results) -> Drawn:
    """The plan with known motion at four steps, each with its own colour range."""
    job = tasks.known_rooms(results.budget, "network")
    shown = show(job.settings, planned_policy(results.jobs.path(job)))
    horizon = len(shown.mass) - 1
    steps = [step for step in paper.PANELS if step <= horizon]
    titles = [f"h = {step}" + (", the end" if step == horizon else "") for step in steps]
    figure = viz.field_figure(shown.grid, shown.mass, steps, arrows=shown.arrows, titles=titles)
    figure.suptitle(
        results.heading(
            f"Four rooms, networks planned with known motion (BPTT), J = {shown.value:.2f}"
        )
    )
    return Drawn(results.save(figure, "known-distributions"))


def draw_nothing(results: Results) -> Drawn:
    """For numbers that only the table shows."""
    return Drawn()


def draw_curve(results: Results) -> Drawn:
    """J over the episodes: the median of the seeds, from the least to the greatest of them."""
    budget = results.budget
    bands, numbers = {}, {}
    for place, (planner, name) in enumerate(CLASSES.items()):
        values = curves(results, tasks.rooms_runs(budget, planner))
        label = f"M3-UCRL, {name}: median and range of {len(values)} seeds"
        bands[label] = viz.band_of(values, place=place)
        numbers[planner] = np.median(values, axis=0).tolist()
    known = results.figures_of(tasks.known_rooms(budget, "network"))["value"]
    references = {
        f"known motion, networks (BPTT): {known:.2f}": known,
        f"paper, known motion: {paper.KNOWN}": paper.KNOWN,
        f"paper, after 30 episodes: {paper.LEARNED}": paper.LEARNED,
        "certified upper bound of all policies": results.figures_of(tasks.rooms_bracket(budget))[
            "upper"
        ],
    }
    shared: dict[str, Any] = {
        "curves": bands,
        "x_label": "episode",
        "y_label": "total reward J (nats)",
        "references": {name: value for name, value in references.items() if value is not None},
    }
    # Without an end of its own the axis would leave room for the first episodes.
    near = (paper.LEARNED - NEAR, 0.5 + max(shared["references"].values()))
    panels = (
        viz.Panel(**shared, title="all of it"),
        viz.Panel(**shared, title="near the optimum", y_range=near),
    )
    title = results.heading("Four rooms: reward over the episodes of learning")
    return Drawn(
        results.save(viz.panel_figure([panels], title=title), "learning-curve"),
        {"medians": numbers},
    )


def draw_final(results: Results) -> Drawn:
    """The distribution at the end of the best episode of seed 0, for both classes."""
    shown = best_episodes(results)
    first = next(iter(shown.values()))
    horizon = len(first.mass) - 1
    ends = jnp.stack([one.mass[-1] for one in shown.values()])
    titles = [
        f"{name}\nentropy {float(entropy(one.mass[-1])):.3f} of {_most(one):.3f}"
        for name, one in shown.items()
    ]
    figure = viz.field_figure(first.grid, ends, range(len(ends)), titles=titles)
    figure.suptitle(results.heading(f"Four rooms, learned: distribution at h = {horizon}"))
    return Drawn(results.save(figure, "final-distribution"))


def draw_convergence(results: Results) -> Drawn:
    """Reward and mean action size at each step, with known motion and learned."""
    budget = results.budget
    rows = {"known motion, networks (BPTT)": tasks.known_rooms(budget, "network")}
    for planner, name in CLASSES.items():
        job = tasks.rooms_runs(budget, planner)[0]
        best = results.figures_of(job)["best_episode"]
        rows[f"learned, {name}, episode {best}"] = job
    figures = {name: results.figures_of(job) for name, job in rows.items()}
    cells = system_of(tasks.random_rooms(budget).settings).problem.grid.n_cells
    whole = (-0.5, len(next(iter(figures.values()))["rewards"]) - 0.5)
    panels = [
        viz.Panel(
            _steps(figures, "rewards"),
            "step h",
            "reward: entropy (nats)",
            x_range=whole,
            references={f"maximum, log {cells} = {math.log(cells):.3f}": math.log(cells)},
        ),
        viz.Panel(
            _steps(figures, "action_sizes"),
            "step h",
            "mean action size |a| (cells)",
            x_range=whole,
            y_range=(0.0, None),
        ),
    ]
    title = results.heading("Four rooms: reward and action size in one episode")
    figure = viz.panel_figure([[panel] for panel in panels], title=title, width=7.4, height=3.0)
    return Drawn(results.save(figure, "convergence"))


def best_episodes(results: Results) -> dict[str, Shown]:
    """The best episode of seed 0 of both classes, by a name for titles."""
    shown = {}
    for planner, name in CLASSES.items():
        job = tasks.rooms_runs(results.budget, planner)[0]
        best = results.figures_of(job)["best_episode"]
        shown[f"{name}, episode {best}"] = learned_episode(results, job, best)
    return shown


def learned_episode(results: Results, job: Job, episode: int) -> Shown:
    """An episode of a run."""
    return show(job.settings, episode_policy(results.jobs.path(job), episode))


def curves(results: Results, jobs: tuple[Job, ...]) -> Float[np.ndarray, "seeds episodes"]:
    """J of each seed and episode."""
    return np.array([results.figures_of(job)["values"] for job in jobs])


def _steps(figures: dict[str, dict[str, Any]], column: str) -> dict[str, viz.Curve]:
    return {
        name: viz.Curve(np.array(each[column]), place=place)
        for place, (name, each) in enumerate(figures.items())
    }


def _most(shown: Shown) -> float:
    """The greatest entropy."""
    return math.log(shown.grid.n_cells)
