"""Arrays as short texts that a browser decodes quickly."""

import base64
from typing import Any

import numpy as np
from jaxtyping import Float

LARGEST_MASS_CODE = 65535
LARGEST_ACTION_CODE = 127

BYTES_OF_MASS = 2
BYTES_OF_ACTION = 1


def encode_masses(masses: Float[np.ndarray, "steps cells"]) -> dict[str, Any]:
    """Masses as unsigned 16-bit codes of their square roots.

    At first everybody may be in one cell, later each cell has a thousandth. Roots keep the latter
    to better than one percent.
    """
    largest = float(masses.max(initial=0.0)) or 1.0
    roots = np.sqrt(np.clip(masses, 0.0, None) / largest)
    codes = np.round(LARGEST_MASS_CODE * roots).astype("<u2")
    return {"scale": largest, "codes": _text(codes)}


def encode_actions(actions: Float[np.ndarray, "steps cells axes"]) -> dict[str, Any]:
    """Mean actions as signed 8-bit codes: a percent is all that an arrow can show."""
    largest = float(np.abs(actions).max(initial=0.0)) or 1.0
    codes = np.round(LARGEST_ACTION_CODE * actions / largest).astype("i1")
    return {"scale": largest, "codes": _text(codes)}


def _text(codes: np.ndarray) -> str:
    return base64.b64encode(codes.tobytes()).decode("ascii")
