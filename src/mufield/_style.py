"""Colours that figures (`viz`) and the page about runs (`report`) share."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Style:
    """How all pictures look.

    Attributes:
        colours: Okabe and Ito's colours of curves, which colour-blind readers can tell apart.
        markers: Markers of curves, which tell them apart where colours are lost, as in print.
        wall, wall_hatch: Colours of walls and of their hatching.
        bar, bar_edge: Colours of the bars of a density along a line.
        water: Colour of what is no street on a city's map.
        visible_share: A cell counts as empty if it holds less than this share of what the uniform
            distribution gives it.
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
    dots_per_inch: int = 150


STYLE = Style()
