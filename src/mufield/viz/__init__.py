"""Pictures of flows and of what they earn. Needs the extra ``viz``; nothing else imports it."""

from .animate import animate_flow
from .calibration import calibration_figure, slice_figure
from .comparison import comparison_figure, save_comparison
from .curves import curve_figure
from .fields import draw_field, field_figure
from .flows import NamedFlow

__all__ = [
    "NamedFlow",
    "animate_flow",
    "calibration_figure",
    "comparison_figure",
    "curve_figure",
    "draw_field",
    "field_figure",
    "save_comparison",
    "slice_figure",
]
