"""Figures of runs and comparisons: what was learned, and the flow of one episode."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from .._style import STYLE
from ..compare.comparison import Comparison
from ..fleet.counts import time_of_day
from ..fleet.maps import CityMap
from ..flow.flow import Flow
from ..flow.paths import Bands
from ..io.policies import load_policy
from ..learning.metrics import interval_of
from ..problem import Problem
from ..runs.files import RunFiles, short_names
from ..runs.history import to_episode
from .cells import Labels
from .curves import Curve, curve_figure, draw_curves, legend_below, metrics_figure
from .fields import NamedFlow, field_figure
from .film import animate_flow


def learning_figure(runs: Sequence[RunFiles]) -> Figure:
    """Draws J against episodes, with a dashed line for plans without optimism on the same data.

    A single run is drawn beside what its optimistic plans expected.
    """
    names = short_names([run.directory for run in runs])
    references = {run.config.reference for run in runs if run.config.reference is not None}
    reference = references.pop() if len(references) == 1 else None
    title = ", ".join(dict.fromkeys(run.config.environment for run in runs))
    rows = {name: run.rows for name, run in zip(names, runs, strict=True)}
    return metrics_figure(rows, reference, title)


def comparison_figure(comparison: Comparison) -> Figure:
    """Draws the mean over seeds of every learner, with its 95% confidence interval as a band.

    Contenders that learn nothing, and certified upper bounds, are horizontal lines.
    """
    seeds = len(comparison.config.seeds)
    spread = f"mean of {seeds} seeds and its 95% interval" if seeds > 1 else "one seed"
    curves: dict[str, Curve] = {}
    lines: dict[str, float] = {}
    for result in comparison.results:
        if result.transitions:
            entries = [interval_of(entry) for entry in zip(*result.curves, strict=True)]
            mean, low, high = np.array(entries, dtype=float).T
            band = (low, high) if len(result.curves) > 1 else None
            x = np.asarray(result.transitions)
            curves[result.name] = Curve(mean, x, band, place=len(curves))
            continue
        lines[result.name] = result.finals[0]
        if result.upper is not None:
            lines[f"{result.name}, upper bound"] = result.upper
    figure = curve_figure(
        curves,
        x_label="transitions seen by a learner",
        y_label="total reward J",
        reference=lines,
        title=f"{comparison.config.environment}, {spread}",
        whole=False,
    )
    figure.axes[0].set(xscale="log", **({} if curves else {"xlim": (1.0, 10.0)}))
    return figure


def paths_figure(
    bands: Bands, realised: Mapping[str, Any] | None = None, title: str = ""
) -> Figure:
    """Draws the rewards and the entropy of each step: the mean over paths, and a band of 90%.

    Args:
        bands: The spread over the paths of the shocks.
        realised: The ``rewards`` and ``entropy`` of the path that came, if one did.
        title: Title of the figure; by default J.
    """
    low, mean, high = (float(each) for each in bands.value)
    error = float(bands.standard_error)
    known = f"J = {mean:.4g}, standard error {error:.2g}; 90% of paths {low:.4g} to {high:.4g}"
    figure = Figure(figsize=(6.8, 6.4), layout="constrained")
    names = {"rewards": "reward of the step", "entropy": "entropy of the population, nats"}
    for axes, (name, label) in zip(figure.subplots(2, 1, sharex=True), names.items(), strict=True):
        below, middle, above = np.asarray(getattr(bands, name), dtype=float)
        curves = {"mean of the paths, and 90% of them": Curve(middle, band=(below, above), place=1)}
        if realised is not None:
            curves["the path that came"] = Curve(np.asarray(realised[name]), place=0)
        draw_curves(axes, curves, {})
        axes.set(ylabel=label)
    figure.axes[-1].set(xlabel="step")
    figure.suptitle(f"{title}\n{known}" if title else known)
    legend_below(figure)
    return figure


def run_paths(run: RunFiles, episode: int) -> Figure | None:
    """What an episode's plan expected over the paths of shocks; None if there are no shocks."""
    row = run.rows[episode - 1]
    if not (known := row.get("paths")):
        return None
    bands = {name: jnp.asarray(known[name]) for name in Bands.__dataclass_fields__}
    title = f"{run.config.environment}, episode {episode}, earned {row['value']:.4g}; expected"
    return paths_figure(Bands(**bands), known["realised"], title)


def run_flow(run: RunFiles, problem: Problem, episode: int) -> NamedFlow:
    """Reads an episode, by its number from 1; if space is a plane, with the mean actions."""
    record = run.records[episode - 1]
    masses, arrows = jnp.asarray(record.arrays["mass"]), None
    if problem.grid.dim == problem.actions.dim == 2:  # else actions are no directions in a plane
        policy = load_policy(run.policy_path(episode))
        shocks = to_episode(record).shocks
        arrows = np.asarray(Flow(problem).mean_actions(policy, masses, shocks))
    title = f"{run.config.environment}, episode {episode}, J = {record['metrics']['value']:.4g}"
    return NamedFlow(title, masses, arrows)


def flow_figure(problem: Problem, flow: NamedFlow) -> Figure:
    """Draws the distributions at the beginning, on the way and at the end."""
    horizon, names = problem.horizon, step_names(problem)
    steps = list(dict.fromkeys((0, horizon // 4, horizon // 2, horizon)))
    titles, labels = [names[step] for step in steps], labels_of(problem)
    figure = field_figure(
        problem.grid, flow.masses, steps, arrows=flow.arrows, titles=titles, labels=labels
    )
    figure.suptitle(flow.title)
    return figure


def animate_run(
    path: Path, problem: Problem, flow: NamedFlow, progress: Callable[[int, int], None]
) -> Path:
    """Writes an episode as a film; see `animate_flow`."""
    return animate_flow(
        path,
        problem.grid,
        flow.masses,
        arrows=flow.arrows,
        titles=[f"{flow.title}\n{name}" for name in step_names(problem)],
        progress=progress,
        labels=labels_of(problem),
    )


def map_labels(city: CityMap) -> Labels:
    """What the axes of a city's map are called; what is no street is blue."""
    up = f"{city.turn:g}° from north" if city.turn else "north"
    mass = "share of the fleet in a cell\n(pale blue: water, or no trips)"
    return Labels(x="km", y=f"km (up is {up})", mass=mass, walls=STYLE.water)


def labels_of(problem: Problem) -> Labels:
    """What the axes of a problem's pictures are called: on a city's map, kilometres."""
    return map_labels(problem.city) if isinstance(problem.city, CityMap) else Labels()


def step_names(problem: Problem) -> list[str]:
    """What pictures call the steps 0 to H: the time of day if the demand's clock is known."""
    clock_of = getattr(getattr(problem.trips, "chance", None), "clock", None)
    steps = range(problem.horizon + 1)
    if clock_of is None:
        return [f"h = {step} of {problem.horizon}" for step in steps]
    return [time_of_day(clock_of[0] + step * clock_of[1] / 60) for step in steps]
