"""Figures in files."""

import io
from pathlib import Path

from matplotlib.figure import Figure

from .._files import write_bytes

DOTS_PER_INCH = 150


def save_figure(figure: Figure, path: Path) -> tuple[Path, ...]:
    """Writes a figure as PNG and PDF, each whole or not at all; returns the files.

    Args:
        figure: The figure.
        path: Where, without an ending.
    """
    # Without the date, so that the same figure gives the same file.
    written = []
    for kind, metadata in (("png", {}), ("pdf", {"CreationDate": None})):
        picture = io.BytesIO()
        figure.savefig(picture, format=kind, dpi=DOTS_PER_INCH, metadata=metadata)
        target = path.with_name(f"{path.name}.{kind}")
        write_bytes(target, picture.getvalue())
        written.append(target)
    return tuple(written)
