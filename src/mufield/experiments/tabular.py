"""The figure of Q-learning in the discrete four rooms."""

from typing import Any

import numpy as np

from .. import viz
from . import tasks
from .results import Drawn, Results

MILLION = 1e6


def draw_training(results: Results) -> Drawn:
    """Training and evaluation rewards of both formulations, without noise and with it."""
    episodes = results.budget.q_episodes
    panels = [_panel(results, noise) for noise in tasks.NOISES]
    title = results.heading(
        f"Discrete four rooms: U2-MF-QL-FH over {episodes / MILLION:g} million episodes"
    )
    figure = viz.panel_figure([panels], title=title, height=4.0)
    return Drawn(results.save(figure, "qlearning"))


def _panel(results: Results, noise: float) -> viz.Panel:
    budget = results.budget
    curves: dict[str, viz.Curve] = {}
    for place, formulation in enumerate(tasks.FORMULATIONS):
        figures = results.figures_of(tasks.q_training(budget, formulation, noise))
        curves |= _curves(formulation.capitalize(), place, figures)
    best = results.figures_of(tasks.discrete_bracket(budget, noise))
    named = "no noise" if noise == 0 else f"noise intensity {noise:g}"
    return viz.Panel(
        curves,
        "training episodes (millions)",
        "total reward J (nats)",
        title=f"{named}, certified optimum {best['value']:.2f}",
        references={"certified optimum over randomised policies": best["value"]},
        y_range=(-2.0, None),
        whole=False,
    )


def _curves(name: str, place: int, figures: dict[str, Any]) -> dict[str, viz.Curve]:
    x = np.array(figures["episodes"]) / MILLION
    return {
        f"{name}, evaluation": viz.Curve(np.array(figures["evaluation"]), x, place=place),
        f"{name}, training": viz.Curve(
            np.array(figures["training"]), x, place=place, dashes="--", marked=False
        ),
    }
