"""Colours and words that figures (`viz`) and the page about runs (`report`) share."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Style:
    """How all pictures look.

    Attributes:
        colours: Okabe and Ito's colours of curves, which colour-blind readers can tell apart.
        markers: Markers of curves, which tell them apart where colours are lost, as in print.
        reference: Colour of reference lines.
        wall, wall_hatch: Colours of walls and of their hatching.
        bar, bar_edge: Colours of the bars of a density along a line.
        water: Colour of what is no street on a city's map.
        field_map: Colour map of distributions.
        visible_share: A cell counts as empty if it holds less than this share of what the uniform
            distribution gives it.
        panel: Width and height of a panel in inches.
        dots_per_inch: Resolution of pictures and films.
    """

    colours: tuple[str, ...] = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
    markers: tuple[str, ...] = ("o", "s", "^", "D", "v", "P")
    reference: str = "#595959"
    wall: str = "#3b3b3b"
    wall_hatch: str = "#7d7d7d"
    bar: str = "#a6cbe3"
    bar_edge: str = "#1f5a85"
    water: str = "#c9dcea"
    field_map: str = "viridis"
    visible_share: float = 0.1
    panel: tuple[float, float] = (5.4, 3.8)
    dots_per_inch: int = 150


STYLE = Style()


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
    Diagnostic("Coverage", "share of moves inside the interval", {"coverage": ""}, rare=True),
    Diagnostic("Hallucinated control", "mean |η| along the plan", {"control": ""}),
    Diagnostic(
        "Imagined to realised flow",
        "W1, in units of the space",
        {"w1_end": ""},
    ),
    Diagnostic("Confidence band", "β, in standard deviations", {"beta": ""}),
    Diagnostic(
        "Constraints",
        "least margin, share of the limit",
        {"margin": "realised", "assured": "assured"},
        "the limit",
        rare=True,
    ),
)
