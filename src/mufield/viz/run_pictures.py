"""Figures as files."""

import io
from collections.abc import Iterable
from pathlib import Path

from matplotlib.figure import Figure

from .._files import write_bytes

DOTS_PER_INCH = 150


def save_figures(figure: Figure, path: Path, kinds: Iterable[str]) -> list[Path]:
    """Writes a figure in several formats; returns the files.

    Args:
        figure: The figure.
        path: Where to write, without the end of the name.
        kinds: The formats, such as ``"png"`` and ``"pdf"``.
    """
    paths = []
    for kind in kinds:
        picture = io.BytesIO()
        # Without the date, so that the same figure gives the same file.
        metadata = {"CreationDate": None} if kind == "pdf" else None
        figure.savefig(picture, format=kind, dpi=DOTS_PER_INCH, metadata=metadata)
        # Not with_suffix: names of runs may hold points.
        paths.append(path.parent / f"{path.name}.{kind}")
        write_bytes(paths[-1], picture.getvalue())
    return paths
