"""Pictures of flows and of what they earn. Needs the extra ``viz``; nothing else imports it."""

from ..fleet.counts import clock
from .city import MapPanel, map_figure, map_labels, served_figure
from .comparison import comparison_figure
from .curves import Curve, Panel, band_of, curve_figure, panel_figure, save_figure
from .fields import Labels, draw_field, field_figure
from .film import animate_flow
from .flows import NamedFlow

__all__ = [
    "Curve",
    "Labels",
    "MapPanel",
    "NamedFlow",
    "Panel",
    "animate_flow",
    "band_of",
    "clock",
    "comparison_figure",
    "curve_figure",
    "draw_field",
    "field_figure",
    "map_figure",
    "map_labels",
    "panel_figure",
    "save_figure",
    "served_figure",
]
