"""Pictures of flows and of what they earn; needs the extra ``viz``, imported when one is drawn."""

from ..fleet.counts import time_of_day

try:
    from .cells import Labels
    from .curves import Curve, curve_figure, save_figure
    from .fields import NamedFlow, draw_field, field_figure
    from .film import animate_flow
    from .runs import comparison_figure, map_labels
except ModuleNotFoundError as error:
    what = "pictures need Matplotlib: pip install 'mufield[viz]'"
    raise ModuleNotFoundError(what, name=error.name) from error

__all__ = [
    "Curve",
    "Labels",
    "NamedFlow",
    "animate_flow",
    "comparison_figure",
    "curve_figure",
    "draw_field",
    "field_figure",
    "map_labels",
    "save_figure",
    "time_of_day",
]
