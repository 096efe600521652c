"""Figures and films of the four rooms, continuous and discrete."""

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from mufield import viz
from mufield.jobs.compute import simulated
from mufield.policies.tables import random_policy
from mufield.space.measure import entropy

from . import workload
from .outcomes import Outcome, episode_policy, planned_policy, play
from .panels import Panel, band_of, panel_figure
from .paper import Cases, Paper
from .results import Drawn, Results


def draw_start(results: Results) -> Drawn:
    """The initial distribution, and the end under the uniform random policy."""
    job = workload.random_rooms(results.budget)
    outcome = play(job.settings, random_policy(simulated(job.settings).problem))
    horizon = len(outcome.mass) - 1
    end = float(entropy(outcome.mass[-1]))
    titles = [
        "h = 0, every episode",
        f"h = {horizon}, random policy: entropy {end:.2f} of {_most(outcome):.2f}",
    ]
    figure = viz.field_figure(outcome.grid, outcome.mass, (0, horizon), titles=titles)
    figure.suptitle(results.heading("Four rooms: initial distribution and random policy"))
    return Drawn(results.save(figure, "start"))


def draw_known(results: Results) -> Drawn:
    """The plan with known motion at four steps, each with its own colour range."""
    outcome = _known_plan(results)
    horizon = len(outcome.mass) - 1
    steps = [step for step in Paper.panels if step <= horizon]
    titles = [f"h = {step}" + (", the end" if step == horizon else "") for step in steps]
    figure = viz.field_figure(
        outcome.grid, outcome.mass, steps, arrows=outcome.mean_actions, titles=titles
    )
    figure.suptitle(
        results.heading(
            f"Four rooms, networks planned with known motion (BPTT), J = {outcome.value:.2f}"
        )
    )
    return Drawn(results.save(figure, "known-distributions"))


def draw_curve(results: Results) -> Drawn:
    """Over the episodes, median and range of the seeds: percent of the known plan, and J."""
    budget = results.budget
    known = {
        "mirror": results.figures(workload.rooms_bracket(budget))["value"],
        "network": results.figures(workload.known_rooms(budget, "network"))["value"],
    }
    curves = {}
    for place, (planner, name) in enumerate(Cases.planners.items()):
        runs = workload.rooms_runs(budget, planner)
        values = np.array([results.figures(job)["values"] for job in runs])
        label = f"M3-UCRL, {name}: median and range of {len(values)} seeds"
        curves[label] = (band_of(values, place=place), known[planner])
    title = results.heading("Four rooms: what is earned over the episodes of learning")
    figure = panel_figure([curve_panels(curves)], title=title)
    return Drawn(results.save(figure, "learning-curve"))


def curve_panels(curves: dict[str, tuple[viz.Curve, float]]) -> list[Panel]:
    """Learning curves, each with J of the plan with known motion in its class.

    The percentages come first: the paper prints no noise, so only they can be compared with it.
    """
    share = 100 * Paper.learned / Paper.known
    percent = Panel(
        {name: _percent(curve, known) for name, (curve, known) in curves.items()},
        "episode",
        "percent of the plan with known motion",
        title="of the plan with known motion in the same class",
        references={f"paper, networks after 30 episodes: {share:.2f}%": share},
        y_range=(95.0, 100.5),
    )
    rewards = Panel(
        {name: curve for name, (curve, _) in curves.items()},
        "episode",
        "total reward J (nats)",
        title="total reward",
        references={
            f"known motion, {name}: {known:.2f}": known
            for name, (_, known) in zip(Cases.planners.values(), curves.values(), strict=True)
        },
    )
    return [percent, rewards]


def _percent(curve: viz.Curve, known: float) -> viz.Curve:
    low, high = (100 * np.asarray(edge) / known for edge in curve.band or (curve.y, curve.y))
    return replace(curve, y=100 * np.asarray(curve.y) / known, band=(low, high))


def draw_final(results: Results) -> Drawn:
    """The distribution at the end of the best episode of seed 0, for both classes."""
    outcomes = _learned_outcomes(results)
    first = next(iter(outcomes.values()))
    horizon = len(first.mass) - 1
    ends = jnp.stack([one.mass[-1] for one in outcomes.values()])
    titles = [
        f"{name}\nentropy {float(entropy(one.mass[-1])):.3f} of {_most(one):.3f}"
        for name, one in outcomes.items()
    ]
    figure = viz.field_figure(first.grid, ends, range(len(ends)), titles=titles)
    figure.suptitle(results.heading(f"Four rooms, learned: distribution at h = {horizon}"))
    return Drawn(results.save(figure, "final-distribution"))


def draw_convergence(results: Results) -> Drawn:
    """Reward and mean action size at each step, with known motion and learned."""
    budget = results.budget
    rows = {"known motion, networks (BPTT)": workload.known_rooms(budget, "network")}
    for planner, name in Cases.planners.items():
        job = workload.rooms_runs(budget, planner)[0]
        best = results.figures(job)["best_episode"]
        rows[f"learned, {name}, episode {best}"] = job
    figures = {name: results.figures(job) for name, job in rows.items()}
    cells = simulated(workload.random_rooms(budget).settings).problem.grid.n_cells
    whole = (-0.5, len(next(iter(figures.values()))["rewards"]) - 0.5)
    panels = [
        Panel(
            _steps(figures, "rewards"),
            "step h",
            "reward: entropy (nats)",
            x_range=whole,
            references={f"maximum, log {cells} = {math.log(cells):.3f}": math.log(cells)},
        ),
        Panel(
            _steps(figures, "action_sizes"),
            "step h",
            "mean action size |a| (cells)",
            x_range=whole,
            y_range=(0.0, None),
        ),
    ]
    title = results.heading("Four rooms: reward and action size in one episode")
    figure = panel_figure([[panel] for panel in panels], title=title, width=7.4, height=3.0)
    return Drawn(results.save(figure, "convergence"))


def _learned_outcomes(results: Results, episode: int | None = None) -> dict[str, Outcome]:
    """An episode of seed 0 of both classes, the best by default, by a name for titles."""
    outcomes = {}
    for planner, name in Cases.planners.items():
        job = workload.rooms_runs(results.budget, planner)[0]
        number = episode or results.figures(job)["best_episode"]
        if number <= job.settings["episodes"]:
            policy = episode_policy(results.path(job), number)
            outcomes[f"{name}, episode {number}"] = play(job.settings, policy)
    return outcomes


def _steps(figures: dict[str, dict[str, Any]], column: str) -> dict[str, viz.Curve]:
    return {
        name: viz.Curve(each[column], place=place)
        for place, (name, each) in enumerate(figures.items())
    }


def _known_plan(results: Results) -> Outcome:
    job = workload.known_rooms(results.budget, "network")
    return play(job.settings, planned_policy(results.path(job)))


def _most(outcome: Outcome) -> float:
    """The greatest possible entropy."""
    return math.log(outcome.grid.n_cells)


def film_known(results: Results) -> Drawn:
    """The plan with known motion."""
    outcome = _known_plan(results)
    flows = {f"known motion, J = {outcome.value:.2f}": outcome}
    return Drawn((_film(results, "known_dynamics_animation", flows),))


def film_learned(results: Results) -> Drawn:
    """The first ten episodes of seed 0 and its best, both classes side by side."""
    films = {f"episode_{number}": number for number in range(1, results.budget.films + 1)}
    files = []
    for name, number in (films | {"best": None}).items():
        outcomes = _learned_outcomes(results, number)
        flows = {f"{each}\nJ = {one.value:.2f}": one for each, one in outcomes.items()}
        if flows:  # runs of small budgets have fewer episodes
            files.append(_film(results, f"m3_ucrl_animation_{name}", flows))
    return Drawn(tuple(files))


def _film(results: Results, name: str, outcomes: dict[str, Outcome]) -> Path:
    flows = [viz.NamedFlow(title, one.mass, one.mean_actions) for title, one in outcomes.items()]
    first = next(iter(outcomes.values()))
    horizon = first.profile.horizon
    directory = results.out / "films"
    # Under another name until it is complete.
    written = viz.animate_flow(
        directory / f".part-{name}.mp4",
        first.grid,
        flows,
        titles=[results.heading(f"h = {step} of {horizon}") for step in range(horizon + 1)],
    )
    film = directory / f"{name}{written.suffix}"
    os.replace(written, film)
    return film


def draw_training(results: Results) -> Drawn:
    """Training and evaluation rewards of both formulations, without noise and with it."""
    episodes = results.budget.q_episodes
    panels = [_training_panel(results, noise) for noise in Cases.noises]
    title = results.heading(
        f"Discrete four rooms: U2-MF-QL-FH over {episodes / 1e6:g} million episodes"
    )
    figure = panel_figure([panels], title=title, height=4.0)
    return Drawn(results.save(figure, "qlearning"))


def _training_panel(results: Results, noise: float) -> Panel:
    budget = results.budget
    curves: dict[str, viz.Curve] = {}
    for place, formulation in enumerate(Cases.formulations):
        figures = results.figures(workload.train_q(budget, formulation, noise))
        name, x = formulation.capitalize(), figures["episodes"] / 1e6
        curves[f"{name}, evaluation"] = viz.Curve(figures["evaluation"], x, place=place)
        curves[f"{name}, training"] = viz.Curve(
            figures["training"], x, place=place, dashes="--", marked=False
        )
    best = results.figures(workload.discrete_bracket(budget, noise))
    named = "no noise" if noise == 0 else f"noise intensity {noise:g}"
    return Panel(
        curves,
        "training episodes (millions)",
        "total reward J (nats)",
        title=f"{named}, certified optimum {best['value']:.2f}",
        references={"certified optimum over randomised policies": best["value"]},
        y_range=(-2.0, None),
        whole=False,
    )
