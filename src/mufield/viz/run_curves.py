"""What runs learned, episode by episode; seeds of one configuration share a curve."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ..errors import UserError
from ..learning.metrics import LEVEL
from ..runs.overview import RunGroup
from .calibration import BAND_OPACITY
from .curves import COLOURS, MARKERS, MOST_MARKERS


@dataclass(frozen=True)
class Panel:
    """One panel of the diagnostics.

    Attributes:
        column: A column of the metrics.
        title: What it is.
        y_label: Its unit.
    """

    column: str
    title: str
    y_label: str


PANELS = (
    Panel("optimism", "optimism: expected minus realised J", "difference in J"),
    Panel("spread", "the model's doubt along the plan", "share of the farthest move"),
    Panel("coverage", f"moves inside the {LEVEL:.0%} interval", "share of the moves"),
    Panel("w1_end", "imagined to realised distribution at the end", "W1, in units of the space"),
)


def learning_figure(groups: Sequence[RunGroup]) -> Figure:
    """Draws J against episodes: a line for each run, or a median with its range over seeds.

    A single run is drawn beside what its optimistic plans expected.

    Args:
        groups: The runs.
    """
    _check(groups)
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.subplots()
    single = len(groups) == 1 and len(groups[0].runs) == 1
    for index, group in enumerate(groups):
        label = "realised by the population" if single else _label(group)
        _draw(axes, group.column("value"), index, label)
    if single:
        _draw(axes, groups[0].column("optimistic"), 1, "expected by the optimistic plan")
    references = {run.config.reference for group in groups for run in group.runs} - {None}
    if len(references) == 1:
        axes.axhline(references.pop() or 0.0, color="0.35", linestyle="--", label="reference plan")
    environments = dict.fromkeys(run.config.environment for group in groups for run in group.runs)
    axes.set(ylabel="total reward J", title=", ".join(environments))
    _finish(axes)
    # Below the axes, as curves may be anywhere in them and names may be long.
    figure.legend(loc="outside lower center", frameon=False, ncols=_columns(groups))
    return figure


def diagnostics_figure(groups: Sequence[RunGroup]) -> Figure:
    """Draws how far models and plans could be trusted, episode by episode.

    Args:
        groups: The runs.
    """
    _check(groups)
    figure = Figure(figsize=(9.6, 6.4), layout="constrained")
    for panel, axes in zip(PANELS, figure.subplots(2, 2).flat, strict=True):
        for index, group in enumerate(groups):
            _draw(axes, group.column(panel.column), index, _label(group))
        if panel.column == "coverage":
            axes.axhline(LEVEL, color="0.35", linestyle="--", linewidth=1.2)
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        if panel.column == "optimism":
            axes.axhline(0.0, color="0.35", linewidth=0.8)
        axes.set(title=panel.title, ylabel=panel.y_label)
        axes.title.set_fontsize("medium")
        _finish(axes)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", frameon=False, ncols=_columns(groups)
    )
    return figure


def _draw(axes: Axes, values: Float[np.ndarray, "runs episodes"], index: int, label: str) -> None:
    episodes = 1 + np.arange(values.shape[1])
    colour = COLOURS[index % len(COLOURS)]
    # Not nanmedian, which warns where there are only NaN; a gap says that a seed has no value.
    axes.plot(
        episodes,
        np.median(values, axis=0),
        color=colour,
        marker=MARKERS[index % len(MARKERS)] if len(episodes) <= MOST_MARKERS else "",
        markersize=4,
        label=label,
    )
    if len(values) > 1:
        axes.fill_between(
            episodes,
            values.min(axis=0),
            values.max(axis=0),
            color=colour,
            alpha=BAND_OPACITY,
            linewidth=0,
        )


def _finish(axes: Axes) -> None:
    axes.set_xlabel("episode")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _label(group: RunGroup) -> str:
    count = len(group.runs)
    return group.name if count == 1 else f"{group.name}: median and range of {count} seeds"


def _columns(groups: Sequence[RunGroup]) -> int:
    longest = max(len(_label(group)) for group in groups)
    return 2 if longest < 50 else 1


def _check(groups: Sequence[RunGroup]) -> None:
    if not groups:
        raise UserError("expected at least one run to draw, got none")
