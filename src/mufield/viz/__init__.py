"""Pictures of flows and of what they earn. Needs the extra ``viz``; nothing else imports it."""

from .animate import animate_flow
from .calibration import calibration_figure, slice_figure
from .comparison import comparison_figure
from .curves import curve_figure
from .fields import draw_field, field_figure
from .flows import NamedFlow
from .panels import Curve, Panel, band_of, panel_figure
from .saving import save_figure

__all__ = [
    "Curve",
    "NamedFlow",
    "Panel",
    "animate_flow",
    "band_of",
    "calibration_figure",
    "comparison_figure",
    "curve_figure",
    "draw_field",
    "field_figure",
    "panel_figure",
    "save_figure",
    "slice_figure",
]
