"""Figures of runs: what they learned, episode by episode, and the flow of one episode."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from .._style import DIAGNOSTICS, STYLE, Diagnostic
from ..errors import UserError
from ..fleet.counts import clock
from ..fleet.maps import CityMap
from ..flow.flow import Flow
from ..io.policies import load_policy
from ..learning.metrics import COVERAGE_LEVEL
from ..problem import Problem
from ..runs.files import RunFiles
from .cells import Labels
from .curves import Curve, Panel, band_of, panel_figure
from .fields import NamedFlow, field_figure
from .film import animate_flow
from .groups import RunGroup


def learning_figure(groups: Sequence[RunGroup]) -> Figure:
    """Draws J against episodes: a line for each run, or a median with its range over seeds.

    Runs that were judged have a second, dashed line: what plans without optimism earned on the same
    data. A single run is drawn beside what its optimistic plans expected.
    """
    _check(groups)
    curves: dict[str, Curve] = {}
    greedy_name = "realised without optimism"
    for place, group in enumerate(groups):
        name, greedy = _label(group), group.column("greedy")
        curves[name] = band_of(group.column("value"), place=place)
        if np.isfinite(greedy).any():
            curves[f"{name}, {greedy_name}"] = band_of(greedy, place=place, dashes="--")
    if len(groups) == 1 and len(groups[0].runs) == 1:
        columns = {
            "realised while exploring": "value",
            "expected by the optimistic plan": "optimistic",
            greedy_name: "greedy",
        }
        found = {name: groups[0].column(column) for name, column in columns.items()}
        curves = {
            name: band_of(values, place=place)
            for place, (name, values) in enumerate(found.items())
            if np.isfinite(values).any()
        }
    configs = [run.config for group in groups for run in group.runs]
    references = {config.reference for config in configs if config.reference is not None}
    panel = Panel(
        curves,
        "episode",
        "total reward J",
        title=", ".join(dict.fromkeys(config.environment for config in configs)),
        references={"reference plan": references.pop()} if len(references) == 1 else {},
    )
    return panel_figure([[panel]], width=7.2, height=3.8)


def diagnostics_figure(groups: Sequence[RunGroup]) -> Figure:
    """Draws how far models and plans could be trusted, episode by episode."""
    _check(groups)
    shown = [each for each in DIAGNOSTICS if not each.rare or _is_known(each, groups)]
    columns = math.ceil(len(shown) / 2)  # in two rows
    panels = [_diagnostic(each, groups) for each in shown]
    places = [*panels, *[None] * (columns * 2 - len(panels))]
    figure = panel_figure([places[:columns], places[columns:]], width=4.2, height=3.2)
    for diagnostic, axes in zip(shown, figure.axes, strict=True):
        if "coverage" in diagnostic.columns:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    return figure


def run_flow(run: RunFiles, problem: Problem, episode: int) -> NamedFlow:
    """Reads an episode, by its number from 1; if space is a plane, with the mean actions."""
    record = run.records[episode - 1]
    masses, arrows = jnp.asarray(record.arrays["mass"]), None
    if problem.grid.dim == problem.actions.dim == 2:  # else actions are no directions in a plane
        policy = load_policy(run.policy_path(episode))
        arrows = np.asarray(Flow(problem).mean_actions(policy, masses))
    title = f"{run.config.environment}, episode {episode}, J = {record.row['value']:.4g}"
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


def _is_known(diagnostic: Diagnostic, groups: Sequence[RunGroup]) -> bool:
    """Whether a run has such figures."""
    return any(
        np.isfinite(group.column(column)).any() for group in groups for column in diagnostic.columns
    )


def _diagnostic(diagnostic: Diagnostic, groups: Sequence[RunGroup]) -> Panel:
    curves: dict[str, Curve] = {}
    for place, group in enumerate(groups):
        for (column, name), dashes in zip(diagnostic.columns.items(), ("-", "--"), strict=False):
            label = f"{_label(group)}, {name}" if name else _label(group)
            curves[label] = band_of(group.column(column), place=place, dashes=dashes)
    references = {diagnostic.zero: 0.0} if diagnostic.zero else {}
    if "coverage" in diagnostic.columns:
        references = {f"{COVERAGE_LEVEL:.0%} interval": COVERAGE_LEVEL}
    return Panel(curves, "episode", diagnostic.unit, diagnostic.title, references)


def _label(group: RunGroup) -> str:
    count = len(group.runs)
    return group.name if count == 1 else f"{group.name}: median and range of {count} seeds"


def _check(groups: Sequence[RunGroup]) -> None:
    if not groups:
        raise UserError("expected at least one run to draw, got none")


def map_labels(city: CityMap, mass: str = "share of the fleet in a cell") -> Labels:
    """What the axes of a city's map are called; what is no street is blue."""
    up = f"{city.turn:g}° from north" if city.turn else "north"
    return Labels(
        x="km",
        y=f"km (up is {up})",
        mass=f"{mass} (pale blue: water, or no trips)",
        walls=STYLE.water,
    )


def labels_of(problem: Problem) -> Labels:
    """What the axes of a problem's pictures are called: on a city's map, kilometres."""
    return map_labels(problem.city) if isinstance(problem.city, CityMap) else Labels()


def step_names(problem: Problem) -> list[str]:
    """What pictures call the steps 0 to H: the time of day if the demand's clock is known."""
    clock_of = getattr(getattr(problem.trips, "chance", None), "clock", None)
    steps = range(problem.horizon + 1)
    if clock_of is None:
        return [f"h = {step} of {problem.horizon}" for step in steps]
    return [clock(clock_of[0] + step * clock_of[1] / 60) for step in steps]
