"""Maps as drawings in ASCII."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool

from ..errors import UserError


def parse_map(drawing: str | Sequence[str]) -> Bool[np.ndarray, "..."]:
    """Reads a drawing into a wall mask with axes (x,), (x, y) or (x, y, z).

    ``#`` is a wall and ``.`` is free. Drawings show x to the right and y upwards, so the *last*
    line of a drawing is y = 0. A single line is a one-dimensional map; a sequence of drawings is
    a stack of floors, the first at z = 0. Blank lines around a drawing and spaces around a line
    are ignored.
    """
    if not isinstance(drawing, str):
        if not isinstance(drawing, Sequence):
            raise UserError(
                "a map must be a drawing of '#' and '.', or a list of drawings, one for each "
                f"floor; got {type(drawing).__name__}; use Grid.box(..., walls=mask) for arrays"
            )
        floors = [parse_map(floor) for floor in drawing]
        if not floors:
            raise UserError("expected at least one floor, got an empty sequence of drawings")
        planes = [floor[:, None] if floor.ndim == 1 else floor for floor in floors]
        if len({plane.shape for plane in planes}) > 1:
            raise UserError(
                "all floors must have the same width and depth, got "
                f"{[plane.shape for plane in planes]}"
            )
        return np.stack(planes, axis=-1)
    lines = [line.strip() for line in drawing.strip().splitlines()]
    if not lines:
        raise UserError("the map is empty: draw at least one line of '#' and '.'")
    widths = [len(line) for line in lines]
    if len(set(widths)) > 1:
        odd = next(i for i, width in enumerate(widths) if width != widths[0])
        raise UserError(
            f"all lines of a map must have the same length: line 1 has {widths[0]} characters, "
            f"line {odd + 1} has {widths[odd]}; pad it with '.' or '#'"
        )
    for number, line in enumerate(lines, start=1):
        for column, character in enumerate(line, start=1):
            if character not in "#.":
                raise UserError(
                    f"unknown character {character!r} at line {number}, column {column}: "
                    "use '#' for a wall and '.' for a free cell"
                )
    # Drawn top to bottom; stored with y growing upwards.
    walls = np.array([[character == "#" for character in line] for line in lines[::-1]]).T
    return walls[:, 0] if walls.shape[1] == 1 else walls
