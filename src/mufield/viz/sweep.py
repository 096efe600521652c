"""A sweep: every run as a line through its settings to its J, and which setting matters."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from .._style import STYLE
from ..errors import UserError
from ..runs.sweep import Sweep
from ..runs.trials import short, value_text


def sweep_figure(sweep: Sweep) -> Figure:
    """Draws parallel coordinates of all complete runs, with bars of what each setting explains."""
    runs = list(reversed(sweep.complete))  # the best are drawn last, on top
    if not runs:
        raise UserError(f"the sweep {sweep.directory} has no complete run yet to draw")
    earned = np.array([run.summary.final for run in runs], dtype=float)
    columns = {short(name): [run.values.get(name) for run in runs] for name in sweep.names} | {
        "J": list(earned)
    }
    width = 1.5 * len(columns)  # in inches
    figure = Figure(figsize=(width + 4.4, 4.6), layout="constrained")
    lines, bars = figure.subplots(1, 2, width_ratios=(width, 3.0), squeeze=True)
    heights = np.stack([_draw_axis(lines, x, *each) for x, each in enumerate(columns.items())])
    scale = Normalize(earned.min(), earned.max() if np.ptp(earned) else earned.min() + 1.0)
    order = np.linspace(-1.0, 1.0, len(runs)) if len(runs) > 1 else np.zeros(1)
    # Lines through the same value are moved apart by up to this share of an axis.
    wobble = 0.035
    heights[:-1] += wobble * order
    colours = colormaps[STYLE.field_map]
    for height, value in zip(heights.T, earned, strict=True):
        look: dict[str, Any] = {"color": colours(scale(value)), "linewidth": 1.4, "alpha": 0.85}
        lines.plot(range(len(columns)), height, **look)
    lines.set(xlim=(-0.3, len(columns) - 0.6), ylim=(-0.08, 1.08), yticks=[])
    lines.set_xticks(range(len(columns)), [*columns])
    lines.set_title(f"{len(runs)} runs: settings and mean J of the last episodes")
    lines.tick_params(length=0)
    lines.spines[:].set_visible(False)
    _draw_effects(bars, sweep)
    return figure


def _draw_axis(axes: Axes, x: int, name: str, values: Sequence[Any]) -> Float[np.ndarray, "runs"]:
    """Draws the axis of a setting; returns how high each run's value is, from 0 to 1."""
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    distinct = sorted({*numbers}) if len(numbers) == len(values) else []
    most_ticks = 7
    if distinct and (name == "J" or len(distinct) > most_ticks):
        low, width = distinct[0], (distinct[-1] - distinct[0]) or 1.0
        heights = (np.asarray(values, dtype=float) - low) / width
        ticks = {f"{low + share * width:.4g}": float(share) for share in np.linspace(0, 1, 4)}
    else:
        texts = [value_text(v) for v in (distinct or sorted(values, key=value_text))]
        kinds = list(dict.fromkeys(texts))
        spread = np.linspace(0.0, 1.0, len(kinds)) if len(kinds) > 1 else np.array([0.5])
        ticks = dict(zip(kinds, map(float, spread), strict=True))
        heights = np.array([ticks[value_text(value)] for value in values])
    axes.axvline(x, color="0.6", linewidth=0.8, zorder=0)
    for text, height in ticks.items():
        axes.annotate(
            text,
            (x, height),
            (5, 0),
            textcoords="offset points",
            va="center",
            fontsize="small",
            bbox={"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 0.8},
            zorder=5,
        )
    return heights


def _draw_effects(axes: Axes, sweep: Sweep) -> None:
    effects = sweep.effects()
    shares = [each.share or 0.0 for each in effects]
    axes.barh(range(len(effects)), shares, height=0.5, color=STYLE.bar, edgecolor=STYLE.bar_edge)
    # Share from which a setting's best value is named.
    worth_naming = 0.05
    for place, effect in enumerate(effects):
        share = "too few runs" if effect.share is None else f"{effect.share:.0%}"
        if shares[place] >= worth_naming:
            share += f", best {value_text(effect.groups[0].value)}"
        axes.annotate(
            share,
            (shares[place], place),
            (4, 0),
            textcoords="offset points",
            va="center",
            fontsize="small",
        )
    axes.set_yticks(range(len(effects)), [short(each.name) for each in effects])
    axes.invert_yaxis()
    axes.set_xlim(0.0, 1.6)
    axes.set_xticks([0.0, 0.5, 1.0])
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_title("which setting matters")
    axes.set_xlabel("share of the differences in J")
    axes.spines[["top", "right"]].set_visible(False)
