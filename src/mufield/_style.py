"""Colours and words that figures (`viz`) and the page about runs (`report`) share."""

from collections.abc import Mapping
from dataclasses import dataclass

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
"""Okabe and Ito's colours, which colour-blind readers can tell apart."""

REFERENCE_COLOUR = "#595959"
WALL_COLOUR, WALL_HATCH = "#3b3b3b", "#7d7d7d"
BAR_COLOUR, BAR_EDGE = "#a6cbe3", "#1f5a85"
"""For the bars of a density along a line."""

VISIBLE_SHARE = 0.1
"""A cell counts as empty if it holds less than this share of what an even spread gives it."""


@dataclass(frozen=True)
class Diagnostic:
    """One panel about how far models and plans could be trusted, episode by episode.

    Attributes:
        unit: Label of the vertical axis.
        columns: Columns of the metrics; if there are several, with a name for each.
        zero: Name of the line at zero; empty for none.
        rare: Whether the panel is left out where no run has such figures.
    """

    title: str
    unit: str
    columns: Mapping[str, str]
    zero: str = ""
    rare: bool = False


DIAGNOSTICS = (
    Diagnostic("Optimism gap", "expected − realised J", {"optimism": ""}, "expected = realised"),
    Diagnostic("Spread", "std along the plan, in farthest moves", {"spread": ""}),
    Diagnostic("Coverage", "share of moves inside the interval", {"coverage": ""}),
    Diagnostic("Hallucinated control", "mean |η| along the plan", {"control": ""}),
    Diagnostic(
        "Imagined to realised flow",
        "W1, in units of the space",
        {"w1_end": "at the end", "w1_middle": "half-way"},
    ),
    Diagnostic("Confidence band", "β, in standard deviations", {"beta": ""}),
    Diagnostic(
        "Limits",
        "least margin, share of the limit",
        {"margin": "realised", "assured": "assured"},
        "the limit",
        rare=True,
    ),
)
