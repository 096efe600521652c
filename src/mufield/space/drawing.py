"""Maps as drawings of walls and free cells."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool

from ..errors import UserError


def parse_drawing(drawing: str | Sequence[str]) -> Bool[np.ndarray, "..."]:
    """The wall mask of a drawing or a stack of them, with axes (x,), (x, y) or (x, y, z)."""
    if isinstance(drawing, str):
        return _floor(drawing)
    if not isinstance(drawing, Sequence) or not drawing:
        raise UserError(
            "a map must be a drawing of '#' and '.', or a list of drawings, one for each floor; "
            f"got {drawing!r}; use Grid.box(..., walls=mask) for arrays"
        )
    floors = [np.atleast_2d(_floor(each).T).T for each in drawing]
    if len({floor.shape for floor in floors}) > 1:
        raise UserError(
            "all floors must have the same width and depth, got "
            f"{[floor.shape for floor in floors]}"
        )
    return np.stack(floors, axis=-1)


def _floor(drawing: str) -> Bool[np.ndarray, "..."]:
    lines = [line.strip() for line in drawing.strip().splitlines()]
    if not lines:
        raise UserError("the map is empty: draw at least one line of '#' and '.'")
    for number, line in enumerate(lines, start=1):
        if len(line) != len(lines[0]):
            raise UserError(
                f"all lines of a map must have the same length: line 1 has {len(lines[0])} "
                f"characters, line {number} has {len(line)}; pad it with '.' or '#'"
            )
        for column, character in enumerate(line, start=1):
            if character not in "#.":
                raise UserError(
                    f"unknown character {character!r} at line {number}, column {column}: "
                    "use '#' for a wall and '.' for a free cell"
                )
    # Drawn top to bottom; stored with y growing upwards.
    walls = np.array([[character == "#" for character in line] for line in lines[::-1]]).T
    return walls[:, 0] if walls.shape[1] == 1 else walls
